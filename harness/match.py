"""One match: a hider makes a Release from the members, a seeker makes a Guess from both sets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from harness.cohort import Cohort
from harness.failures import VERDICTS, Cause
from harness.sandbox import Job, Limits, Outcome, Sandbox
from harness.sandbox.protocol import Progress
from harness.seeds import derive_seed
from harness.submission import Kind, Submission


@dataclass(frozen=True, eq=False)
class Release:
    """What a hider returned, its patients shuffled before any seeker sees them.

    Attributes
    ----------
    data : float64 array (N, steps, 1 + features)
    padding_mask : bool array, same shape, or None
        None where the hider gave none: then every cell counts as data.
    n_features : int or None
        2020's third return value.
    order : int array (N,)
        The recorded permutation: row i is the hider's row ``order[i]``.
    """

    data: NDArray[np.float64]
    padding_mask: NDArray[np.bool_] | None
    n_features: int | None
    order: NDArray[np.intp]

    @property
    def digest(self) -> str:
        """SHA-256 over mask and values."""
        sha = hashlib.sha256(repr(self.data.shape).encode())
        if self.padding_mask is not None:
            sha.update(np.ascontiguousarray(self.padding_mask).data)
        sha.update(np.ascontiguousarray(self.data).data)
        return "sha256:" + sha.hexdigest()

    def save(self, path: Path) -> None:
        """Write the release as a compressed ``.npz`` without pickled objects."""
        extra = {} if self.padding_mask is None else {"padding_mask": self.padding_mask}
        with path.open("wb") as out:
            np.savez_compressed(
                out,
                data=self.data,
                order=self.order,
                n_features=np.int64(-1 if self.n_features is None else self.n_features),
                **extra,  # type: ignore[arg-type]
            )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as saved:
            n_features = int(saved["n_features"])
            return cls(
                saved["data"],
                saved.get("padding_mask"),
                None if n_features < 0 else n_features,
                saved["order"],
            )


class HiderRun(NamedTuple):
    """How a hider's run went; `release` is None when the outcome has a cause."""

    release: Release | None
    outcome: Outcome


class SeekerRun(NamedTuple):
    """How a seeker's run went; `guess` (2N,) is None when the outcome has a cause."""

    guess: NDArray[np.float64] | None
    outcome: Outcome


class Setting(NamedTuple):
    """What both sides of a match have in common.

    Attributes
    ----------
    split : int
        Number of the split.
    secret : str
        The organiser's; shuffles the release's rows and reaches nothing that a submission sees.
    limits : Limits
        The rules' caps.
    """

    split: int
    secret: str
    limits: Limits


class Entry(NamedTuple):
    """A submission with the parameters that it plays with."""

    submission: Submission
    parameters: Mapping[str, Any]


def submission_seed(submission: Submission, setting: Setting) -> int:
    """Return the seed that a submission is handed.

    A seeker's hashes public names alone, so no search over secrets can be checked against it. A
    hider's hashes the secret too: were it public, a seeker could draw the hider's noise again.
    """
    names: list[str | int] = [submission.kind, submission.name, setting.split]
    secret = [setting.secret] if submission.kind is Kind.HIDER else []
    return derive_seed("submission", *names, *secret, bits=31)


def play_hider(
    sandbox: Sandbox,
    hider: Entry,
    members: Cohort,
    setting: Setting,
    on_progress: Progress = lambda line: None,
    earlier: Release | None = None,
) -> HiderRun:
    """Run a hider on the members.

    Parameters
    ----------
    sandbox : Sandbox
    hider : Entry
    members : Cohort
        N patients in a random order.
    setting : Setting
    on_progress : callable
        Called with the last line that the hider printed.
    earlier : Release, optional
        What ``"rescore"`` brings back.

    Returns
    -------
    HiderRun
    """
    arrays = {"data": members.data, "padding_mask": members.padding_mask}
    outcome = _run(sandbox, _job(hider, arrays, setting, members.data.shape), on_progress)
    answer = outcome.answer
    if answer is None:
        return HiderRun(None, outcome)
    if answer.values is None:
        if earlier is None or earlier.data.shape != members.data.shape:
            reason = 'It returned "rescore", but there is no earlier release of it to use.'
            return HiderRun(
                None, replace(outcome, cause=Cause.BAD_OUTPUT, answer=None, reason=reason)
            )
        return HiderRun(earlier, outcome)
    seed = derive_seed("release", setting.secret, setting.split, hider.submission.name)
    order = np.random.default_rng(seed).permutation(len(members))
    mask = None if answer.padding_mask is None else answer.padding_mask[order]
    return HiderRun(Release(answer.values[order], mask, answer.n_features, order), outcome)


def play_seeker(
    sandbox: Sandbox,
    seeker: Entry,
    release: Release,
    enlarged: Cohort,
    setting: Setting,
    on_progress: Progress = lambda line: None,
) -> SeekerRun:
    """Run a seeker on a release and the enlarged data.

    Parameters
    ----------
    sandbox : Sandbox
    seeker : Entry
    release : Release
    enlarged : Cohort
        2N patients in the seeker's order; the truth is not among the arguments.
    setting : Setting
    on_progress : callable
        Called with the last line that the seeker printed.

    Returns
    -------
    SeekerRun
    """
    arrays = {
        "generated_data": release.data,
        "enlarged_data": enlarged.data,
        "generated_data_padding_mask": release.padding_mask,
        "enlarged_data_padding_mask": enlarged.padding_mask,
    }
    outcome = _run(sandbox, _job(seeker, arrays, setting, (len(enlarged),)), on_progress)
    return SeekerRun(None if outcome.answer is None else outcome.answer.values, outcome)


def _job(
    entry: Entry,
    arrays: Mapping[str, NDArray[Any] | None],
    setting: Setting,
    shape: tuple[int, ...],
) -> Job:
    return Job(
        submission=entry.submission,
        arrays=arrays,
        seed=submission_seed(entry.submission, setting),
        parameters=entry.parameters,
        limits=setting.limits.capping(entry.submission.resources),
        shape=shape,
    )


def _run(sandbox: Sandbox, job: Job, on_progress: Progress) -> Outcome:
    """Run a job, again where the infrastructure failed, as the table of causes allows."""
    tries = 0
    while True:
        try:
            outcome = sandbox.run(job, on_progress)
        except Exception as error:  # a bug of ours must not end the other matches of the run
            reason = f"The harness failed: {type(error).__name__}: {error}"
            outcome = Outcome(Cause.HARNESS_BUG, None, reason=reason)
        if outcome.cause is None or tries >= VERDICTS[outcome.cause].retries:
            return outcome
        tries += 1
