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
    """Run ``work(*arguments)`` in a fresh process.

    Parameters
    ----------
    work : callable
        Importable by name.
    *arguments
        What it is called with.
    repeats : int
        Times are the best of so many calls in one process. A virtual machine may have to fetch
        memory from its host on first touch, at ten times the cost of any later one; repeats
        show the work rather than that.

    Returns
    -------
    Cost
        The peak is the whole process', interpreter and libraries included, over all repeats.
    """
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(send, work, arguments, repeats))
    process.start()
    send.close()
    cost: Cost = receive.recv()
    process.join()
    return cost


def best_cpu(work: Callable[[], Any], repeats: int) -> float:
    """Return the least CPU seconds, over all threads, of so many calls in this process."""
    return min(_timed(work)[1] for _ in range(repeats))


def _timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    value = work()
    return time.perf_counter() - wall, time.process_time() - cpu, value


def _child(send: Any, work: Callable[..., Any], arguments: tuple[Any, ...], repeats: int) -> None:
    runs = [_timed(lambda: work(*arguments)) for _ in range(repeats)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    send.send(Cost(min(r[0] for r in runs), min(r[1] for r in runs), peak, runs[-1][2]))
