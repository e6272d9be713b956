"""Runs a piece of work in a process of its own and tells its wall and CPU time and peak memory."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Cost(NamedTuple):
    """What a piece of work took: seconds, CPU seconds over all threads, peak resident bytes."""

    wall: float
    cpu: float
    peak: int
    value: Any


def measure(work: Callable[..., Any], *arguments: Any, repeats: int = 1) -> Cost:
    """Return the fastest of `repeats` runs of ``work(*arguments)``, each in a fresh process.

    The peak is the whole process' (interpreter and libraries included), the times are the call's.
    """
    best: Cost | None = None
    context = multiprocessing.get_context("spawn")
    for _ in range(repeats):
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(send, work, arguments))
        process.start()
        send.close()
        cost: Cost = receive.recv()
        process.join()
        if best is None or cost.wall < best.wall:
            best = cost
    assert best is not None
    return best


def _child(send: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    value = work(*arguments)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    send.send(Cost(wall, cpu, peak, value))
