"""What every sandbox takes and gives: a Job in, an Outcome out, a typed cause when it failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.failures import Cause
from harness.submission import Resources, Submission

Progress = Callable[[str], None]
"""Called with the last line that a run printed."""


@dataclass(frozen=True)
class Limits:
    """What one run may use.

    Attributes
    ----------
    memory : int
        Bytes, over all processes of the run.
    seconds : float
        Wall-clock time.
    """

    memory: int = 8 * 2**30
    seconds: float = 3600.0

    def capping(self, asked: Resources) -> Limits:
        """Return what a submission asks for, capped by these limits."""
        return Limits(
            memory=min(self.memory, asked.memory or self.memory),
            seconds=min(self.seconds, asked.time_limit or self.seconds),
        )


@dataclass(frozen=True, eq=False)
class Job:
    """One run of one submission: everything that it is given, and nothing else.

    Attributes
    ----------
    submission : Submission
        What runs.
    arrays : mapping of str to array or None
        The entries of ``input_dict`` that are arrays.
    seed : int
        ``input_dict["seed"]``.
    parameters : mapping
        ``input_dict["parameters"]``; must be plain JSON.
    limits : Limits
        Time and memory.
    shape : tuple of int
        Shape of a release, or (2N,) for a seeker's scores.
    """

    submission: Submission
    arrays: Mapping[str, NDArray[Any] | None]
    seed: int
    parameters: Mapping[str, Any]
    limits: Limits
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Answer:
    """What a submission returned, checked and sanitised.

    Attributes
    ----------
    values : float64 array of the job's shape, or None
        A hider's data or a seeker's scores; None when a hider asked for its earlier release.
    padding_mask : bool array, same shape, or None
        A hider's mask, where it gave one.
    n_features : int or None
        2020's third return value: how many features the utility tasks predict.
    """

    values: NDArray[np.float64] | None
    padding_mask: NDArray[np.bool_] | None = None
    n_features: int | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """How a run went.

    Attributes
    ----------
    cause : Cause or None
        Why it failed; None when `answer` is there.
    answer : Answer or None
    seconds : float
        Wall-clock time of the run.
    peak_memory_bytes : int
        Largest resident memory seen.
    exit_code : int or None
        Of the submission's process; negative: the signal that ended it.
    reason : str
        One sentence for the participant.
    log_tail : str
        The last lines that it printed.
    """

    cause: Cause | None
    answer: Answer | None
    seconds: float = 0.0
    peak_memory_bytes: int = 0
    exit_code: int | None = None
    reason: str = ""
    log_tail: str = ""


class Sandbox(Protocol):
    """Runs jobs. Never raises for what a submission does: that is an Outcome."""

    name: str

    def run(self, job: Job, on_progress: Progress) -> Outcome:
        """Run one job to its end and leave nothing behind."""
        ...
