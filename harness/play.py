"""Several hiders against several seekers on K splits: runs, scores, files and the Result."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from data_preprocess import Rules
from harness.cohort import Cohort, Enlarged, Split
from harness.failures import Cause, is_scored
from harness.match import Entry, HiderRun, Release, Setting, play_hider, play_seeker
from harness.result import (
    Digests,
    EntryDigest,
    Evidence,
    HiderResult,
    MatchResult,
    Membership,
    Result,
    Status,
)
from harness.sandbox import Limits, Outcome, Sandbox
from harness.scoring.membership import MembershipScores, failed_scores, holm, score_membership
from harness.seeds import derive_seed
from harness.submission import Kind, Submission

_FOLDERS = ("releases", "guesses", "splits")


@dataclass(frozen=True)
class Plan:
    """What is played, and how.

    Attributes
    ----------
    hiders, seekers : tuple of Submission
        No two hiders and no two seekers share a name.
    secret : str
        Decides every split; the same secret gives the same splits.
    rules : {"standard", "neurips2020"}
    splits : int
        Independent splits K.
    limits : Limits
        Caps per run.
    profile : str or None
        ``fast`` or ``full``: how much work baselines do.
    parameters : mapping of str to mapping
        Per submission's name, on top of its ``submission.yml``.
    """

    hiders: tuple[Submission, ...]
    seekers: tuple[Submission, ...]
    secret: str
    rules: Rules = "standard"
    splits: int = 1
    limits: Limits = Limits()
    profile: str | None = None
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """How many runs there are: every hider once per split, every pair once per split."""
        return self.splits * len(self.hiders) * (1 + len(self.seekers))

    def entry(self, submission: Submission) -> Entry:
        """Return a submission with what reaches its ``input_dict["parameters"]``."""
        # A parameter that submission.yml only names has no value unless one is given.
        own = {k: v for k, v in submission.parameters.items() if v is not None}
        profile = {} if self.profile is None else {"profile": self.profile}
        given = self.parameters.get(submission.name, {})
        rules = {"rules": self.rules}
        return Entry(submission, {**own, **profile, **given, **rules})


class Guess(NamedTuple):
    """A seeker's scores and the truth that they are judged by, each array (2N,)."""

    hider: str
    seeker: str
    split: int
    scores: NDArray[np.float64]
    truth: NDArray[np.bool_]


class Played(NamedTuple):
    """What a play leaves in memory for a report.

    Attributes
    ----------
    result : Result
    guesses : list of Guess
        Of the matches that were done.
    releases : dict
        Hider's name to its release on the first split.
    members : Cohort
        The members of the first split.
    """

    result: Result
    guesses: list[Guess]
    releases: dict[str, Release]
    members: Cohort


class Watcher(Protocol):
    """Is told how a play goes on."""

    def started(self, what: str) -> None:
        """Take note that a run has started."""

    def line(self, text: str) -> None:
        """Take the last line that the current run printed."""

    def ended(self, what: str, outcome: Outcome) -> None:
        """Take note of how a run ended."""

    def passed_over(self, what: str) -> None:
        """Take note that a run is not needed, since its hider failed."""


class _Made(NamedTuple):
    """What is kept of a hider's run on one split."""

    outcome: Outcome
    digest: str | None


def play(
    cohort: Cohort, plan: Plan, sandbox: Sandbox, out: Path, watcher: Watcher, data_name: str
) -> Played:
    """Play every hider against every seeker and write the results.

    Parameters
    ----------
    cohort : Cohort
        All patients; an odd one is left out of each split.
    plan : Plan
    sandbox : Sandbox
    out : Path
        Existing folder; gets ``releases/``, ``guesses/``, ``splits/`` (the truth) and
        ``result.json`` when all is played, in place of an earlier play's. Until then, and if the
        play is interrupted, an earlier play's stay as they are.
    watcher : Watcher
    data_name : str
        What the data are called in the result.

    Returns
    -------
    Played

    Raises
    ------
    DataError
        Fewer than two patients.
    """
    with tempfile.TemporaryDirectory(prefix=".playing-", dir=out) as staging:
        played = _play_all(cohort, plan, sandbox, out, Path(staging), watcher, data_name)
        for folder in _FOLDERS:
            shutil.rmtree(out / folder, ignore_errors=True)
            (Path(staging) / folder).rename(out / folder)
        played.result.write(out / "result.json")
    return played


def _play_all(
    cohort: Cohort,
    plan: Plan,
    sandbox: Sandbox,
    out: Path,
    staging: Path,
    watcher: Watcher,
    data_name: str,
) -> Played:
    """Play everything, writing below `staging`; `out` may hold earlier releases."""
    for folder in _FOLDERS:
        (staging / folder).mkdir()
    drawn = [Split.draw(len(cohort), plan.secret, number) for number in range(plan.splits)]
    matches: list[MatchResult] = []
    guesses: list[Guess] = []
    made: dict[str, list[_Made]] = {hider.name: [] for hider in plan.hiders}
    first_releases: dict[str, Release] = {}
    for split in drawn:
        setting = Setting(split.number, plan.secret, plan.limits)
        members, enlarged = cohort.take(split.members), split.enlarge(cohort)
        for hider in plan.hiders:
            label = _label(plan.secret, cohort.digest, split.number)
            name = f"{safe_name(hider.name)}--{split.number}"
            what = _title(plan, split.number, hider.name)
            watcher.started(what)
            run = play_hider(
                sandbox,
                plan.entry(hider),
                members,
                setting,
                watcher.line,
                _earlier(out, name, label),
            )
            watcher.ended(what, run.outcome)
            if run.release is not None:
                _keep(run.release, staging, name, label)
                if split.number == 0:
                    # A release can be 400 MB: only those that the report shows stay in memory.
                    first_releases[hider.name] = run.release
            digest = None if run.release is None else run.release.digest
            made[hider.name].append(_Made(_without_answer(run.outcome), digest))
            matches += _matches(
                plan, sandbox, hider, run, enlarged, setting, watcher, guesses, staging
            )
    for split in drawn:
        split.save(staging / "splits" / f"{split.number}.npz")
    result = _result(cohort, plan, sandbox, drawn, matches, made, data_name)
    return Played(result, guesses, first_releases, cohort.take(drawn[0].members))


def _matches(
    plan: Plan,
    sandbox: Sandbox,
    hider: Submission,
    hider_run: HiderRun,
    enlarged: Enlarged,
    setting: Setting,
    watcher: Watcher,
    guesses: list[Guess],
    staging: Path,
) -> list[MatchResult]:
    """Play one hider's release against every seeker; failures are scored, never dropped."""
    found: list[tuple[Submission, Outcome, MembershipScores | None]] = []
    for seeker in plan.seekers:
        what = _title(plan, setting.split, hider.name, seeker.name)
        if hider_run.release is None:
            watcher.passed_over(what)
            cause = hider_run.outcome.cause or Cause.HARNESS_BUG
            scores = failed_scores(Kind.HIDER, cause, enlarged.n)
            found.append((seeker, Outcome(cause, None, reason=hider_run.outcome.reason), scores))
            continue
        watcher.started(what)
        guess, outcome = play_seeker(
            sandbox,
            plan.entry(seeker),
            hider_run.release,
            enlarged.cohort,
            setting,
            watcher.line,
        )
        watcher.ended(what, outcome)
        if guess is None:
            cause = outcome.cause or Cause.HARNESS_BUG
            found.append((seeker, outcome, failed_scores(Kind.SEEKER, cause, enlarged.n)))
            continue
        seed = derive_seed("score", hider.name, seeker.name, setting.split)
        scores = score_membership(guess, enlarged.truth, plan.rules, seed)
        found.append((seeker, outcome, scores))
        guesses.append(Guess(hider.name, seeker.name, setting.split, guess, enlarged.truth))
        pair = f"{safe_name(hider.name)}--{safe_name(seeker.name)}"
        file = staging / "guesses" / f"{pair}--{setting.split}.npy"
        np.save(file, guess, allow_pickle=False)
    # A seeker that failed has faced the hider too, with a p-value of 1; a pending one has not yet.
    scored = [(i, s.p_value) for i, (_, _, s) in enumerate(found) if s is not None]
    corrected = dict(zip((i for i, _ in scored), holm([p for _, p in scored]), strict=True))
    return [
        MatchResult(
            hider=hider.name,
            seeker=seeker.name,
            split=setting.split,
            status=_status(outcome.cause),
            cause=outcome.cause,
            membership=None
            if scores is None
            else Membership(**asdict(scores), p_value_holm=corrected[i]),
            seconds=outcome.seconds,
            peak_memory_bytes=outcome.peak_memory_bytes,
            evidence=_evidence(outcome),
        )
        for i, (seeker, outcome, scores) in enumerate(found)
    ]


def _label(secret: str, data: str, split: int) -> str:
    """Return what tells a release's data and split without telling the secret."""
    return f"{derive_seed('release of', secret, data, split):x}"


def _keep(release: Release, folder: Path, name: str, label: str) -> None:
    release.save(folder / "releases" / f"{name}.npz")
    (folder / "releases" / f"{name}.split").write_text(label)


def _earlier(folder: Path, name: str, label: str) -> Release | None:
    """Return an earlier play's release, only of the same data and the same split."""
    try:
        if (folder / "releases" / f"{name}.split").read_text() == label:
            return Release.load(folder / "releases" / f"{name}.npz")
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    return None


def safe_name(name: str) -> str:
    """Return a file name for any entry's name; two names never share one.

    Examples
    --------
    >>> safe_name("add_noise")
    'add_noise'
    >>> safe_name("my hider (2)")
    'my_hider_2_-e47d3371'
    """
    plain = re.sub(r"[^A-Za-z0-9._]+", "_", name)
    if plain == name and not name.startswith("."):
        return name
    return f"{plain.lstrip('.')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _title(plan: Plan, split: int, hider: str, seeker: str | None = None) -> str:
    which = f"split {split} ({split + 1} of {plan.splits}) · " if plan.splits > 1 else ""
    return f"{which}{hider}" if seeker is None else f"{which}{hider} x {seeker}"


def _without_answer(outcome: Outcome) -> Outcome:
    return Outcome(**{**vars(outcome), "answer": None})


def _status(cause: Cause | None) -> Status:
    if cause is None:
        return "done"
    return "failed" if is_scored(cause) else "pending"


def _evidence(outcome: Outcome) -> Evidence:
    return Evidence(exit_code=outcome.exit_code, reason=outcome.reason, log_tail=outcome.log_tail)


def _hider_result(made: list[_Made]) -> HiderResult:
    first_cause = next((m.outcome.cause for m in made if m.outcome.cause is not None), None)
    return HiderResult(
        status=_status(first_cause),
        cause=first_cause,
        release_digest=[m.digest for m in made],
        seconds=[m.outcome.seconds for m in made],
        peak_memory_bytes=[m.outcome.peak_memory_bytes for m in made],
        evidence=[_evidence(m.outcome) for m in made],
    )


def _result(
    cohort: Cohort,
    plan: Plan,
    sandbox: Sandbox,
    drawn: list[Split],
    matches: list[MatchResult],
    made: dict[str, list[_Made]],
    data_name: str,
) -> Result:
    def digests(submissions: tuple[Submission, ...]) -> list[EntryDigest]:
        return [
            EntryDigest(
                name=entry.name,
                team=entry.team,
                digest=entry.digest,
                parameters=dict(plan.entry(entry).parameters),
            )
            for entry in submissions
        ]

    return Result(
        harness_version=version("hideseek"),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        rules=plan.rules,
        seed=plan.secret,
        n=drawn[0].n,
        max_seq_len=cohort.max_seq_len,
        splits=plan.splits,
        left_out=[str(cohort.ids[i]) for split in drawn for i in split.left_out],
        truncated=cohort.truncated,
        data=data_name,
        columns=list(cohort.columns),
        sandbox=sandbox.name,
        limits={"memory_bytes": plan.limits.memory, "seconds": plan.limits.seconds},
        digests=Digests(
            data=cohort.digest, hiders=digests(plan.hiders), seekers=digests(plan.seekers)
        ),
        matches=matches,
        hiders={name: _hider_result(runs) for name, runs in made.items()},
    )
