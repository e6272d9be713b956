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


def measure(work: Callable[..., Any], *arguments: Any) -> Cost:
    """Run ``work(*arguments)`` in a fresh process, as a user does.

    Parameters
    ----------
    work : callable
        Importable by name.
    *arguments
        What it is called with.

    Returns
    -------
    Cost
        Times are the call's; the peak is the whole process', interpreter and libraries included.
    """
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(send, work, arguments))
    process.start()
    send.close()
    cost: Cost = receive.recv()
    process.join()
    return cost


def best_cpu(work: Callable[[], Any], repeats: int) -> float:
    """Return the least CPU seconds, over all threads, of so many calls in this process.

    A virtual machine may have to fetch memory from its host on first touch, at ten times the
    cost of any later one; repeats show the work rather than that.
    """
    spent = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return min(spent)


def _child(send: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    value = work(*arguments)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    send.send(Cost(wall, cpu, peak, value))
