"""Why a run failed, who pays for it, and what it scores: one frozen table.

Source: the project's scoring rules ("Failures: who pays").
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple


class Cause(StrEnum):
    """Why a run failed."""

    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    CRASH = "crash"
    BAD_OUTPUT = "bad_output"
    REFUSED = "refused"
    IMAGE_MISSING = "image_missing"
    START_FAILED = "start_failed"
    WORKER_LOST = "worker_lost"
    DISK_FULL = "disk_full"
    HARNESS_BUG = "harness_bug"
    CANCELLED = "cancelled"


class Side(StrEnum):
    """Whose fault a failure is."""

    SUBMISSION = "submission"
    INFRASTRUCTURE = "infrastructure"
    ORGANISER = "organiser"


class Verdict(NamedTuple):
    """What a cause means.

    Attributes
    ----------
    side : Side
        Who pays. Only the submission's own failures are scored.
    retries : int
        How often the run is tried again before it is shown as pending.
    sentence : str
        What a participant reads.
    """

    side: Side
    retries: int
    sentence: str


_RETRIES = 2

VERDICTS = MappingProxyType(
    {
        Cause.TIMEOUT: Verdict(Side.SUBMISSION, 0, "It ran longer than its time limit."),
        Cause.OUT_OF_MEMORY: Verdict(Side.SUBMISSION, 0, "It used more memory than its limit."),
        Cause.CRASH: Verdict(Side.SUBMISSION, 0, "It stopped with an error."),
        Cause.BAD_OUTPUT: Verdict(Side.SUBMISSION, 0, "What it returned cannot be used."),
        Cause.REFUSED: Verdict(Side.SUBMISSION, 0, "The submission breaks the contract."),
        Cause.IMAGE_MISSING: Verdict(
            Side.INFRASTRUCTURE, _RETRIES, "Its image could not be found."
        ),
        Cause.START_FAILED: Verdict(
            Side.INFRASTRUCTURE, _RETRIES, "The sandbox could not start it."
        ),
        Cause.WORKER_LOST: Verdict(
            Side.INFRASTRUCTURE, _RETRIES, "The worker that ran it was lost."
        ),
        Cause.DISK_FULL: Verdict(Side.INFRASTRUCTURE, _RETRIES, "The harness' disk was full."),
        Cause.HARNESS_BUG: Verdict(Side.INFRASTRUCTURE, _RETRIES, "The harness itself failed."),
        Cause.CANCELLED: Verdict(Side.ORGANISER, 0, "The organiser cancelled it."),
    }
)
"""Cause to verdict. A failed seeker scores chance, a failed hider the worst privacy score."""


def is_scored(cause: Cause) -> bool:
    """Tell whether a failure counts as a score: only the submission's own do."""
    return VERDICTS[cause].side is Side.SUBMISSION
