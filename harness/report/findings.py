"""What the numbers say, in words: shared by the page and the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean
from typing import Literal

from harness.failures import VERDICTS, Cause, is_scored
from harness.result import HiderResult, Interval, MatchResult, Membership, Result, Status

ALPHA = 0.05
# From here on more than half of the members beyond chance are named.
_GIVEN_AWAY = 0.75
_REASON_LENGTH = 300
# Control, format (bidirectional overrides among them), surrogate, line and paragraph separators.
_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

Tone = Literal["leaks", "no leak found", "failed", "pending", "not tested"]


@dataclass(frozen=True)
class Pair:
    """One hider against one seeker, its matches in order of split."""

    hider: str
    seeker: str
    matches: tuple[MatchResult, ...]

    @property
    def done(self) -> list[MatchResult]:
        """Matches that were played to the end."""
        return [match for match in self.matches if match.status == "done" and match.membership]

    @property
    def scored(self) -> list[Membership]:
        """Scores that count: a failed match keeps its cause's score, a pending one has none."""
        return [match.membership for match in self.matches if match.membership]

    @property
    def p_value(self) -> float:
        """Holm-corrected p-value, Bonferroni-corrected for the splits; 1.0 if none was played."""
        found = [match.membership.p_value_holm for match in self.done if match.membership]
        return min(1.0, min(found, default=1.0) * len(found))

    def count(self, status: Status) -> int:
        """Return the number of matches with this status."""
        return sum(match.status == status for match in self.matches)


@dataclass(frozen=True)
class Finding:
    """The verdict on one hider.

    Attributes
    ----------
    hider : str
    tone : str
        The verdict in a word or two.
    headline : str
        A sentence that goes on after "<hider>: ".
    notes : tuple of str
        Whole sentences: what failed, what is pending, what it scores.
    """

    hider: str
    tone: Tone
    headline: str
    notes: tuple[str, ...]


def clean(text: str) -> str:
    """Replace what could steer a terminal or turn text around; strangers choose the names."""
    return "".join(
        "\ufffd" if unicodedata.category(c) in _STEERING and c not in "\n\t" else c for c in text
    )


def clean_line(text: str) -> str:
    """Like `clean`, on one line."""
    return " ".join(clean(text).split())


def interval_text(interval: Interval, digits: int = 2) -> str:
    """Return ``0.97–1.00``."""
    low, high = interval
    return f"{low:.{digits}f}–{high:.{digits}f}"


def where_text(count: int, splits: int) -> str:
    """Return on how many of the splits something happened; nothing where there is only one."""
    if splits <= 1:
        return ""
    return f" on all {splits} splits" if count == splits else f" on {count} of {splits} splits"


def hider_names(result: Result) -> list[str]:
    """Return every hider once, in the order of the result."""
    return list(dict.fromkeys([*result.hiders, *(match.hider for match in result.matches)]))


def seeker_names(result: Result) -> list[str]:
    """Return every seeker once, in the order of the result."""
    entered = (entry.name for entry in result.digests.seekers)
    return list(dict.fromkeys([*entered, *(match.seeker for match in result.matches)]))


def pair_up(result: Result) -> dict[tuple[str, str], Pair]:
    """Group the matches by (hider, seeker)."""
    grouped: dict[tuple[str, str], list[MatchResult]] = {}
    for match in sorted(result.matches, key=lambda match: match.split):
        grouped.setdefault((match.hider, match.seeker), []).append(match)
    return {(h, s): Pair(h, s, tuple(matches)) for (h, s), matches in grouped.items()}


def _position(result: Result, match: MatchResult) -> int:
    return sorted({other.split for other in result.matches}).index(match.split)


def is_hider_at_fault(result: Result, match: MatchResult) -> bool:
    """Tell whether a match that is not done lacks the release, rather than the guess."""
    hider = result.hiders.get(match.hider)
    if match.status == "done" or hider is None:
        return False
    position = _position(result, match)
    if position < len(hider.release_digest):
        return hider.release_digest[position] is None
    return hider.status != "done"


def reason_of(result: Result, match: MatchResult) -> str:
    """Return why a match is not done, in one line."""
    reason = match.evidence.reason
    hider = result.hiders.get(match.hider)
    if not reason and hider and is_hider_at_fault(result, match):
        position = _position(result, match)
        reason = hider.evidence[position].reason if position < len(hider.evidence) else ""
    return _because(match.cause, reason)


def _because(cause: Cause | None, reason: str) -> str:
    """Return "It stopped with an error: <reason>."; either part may be missing."""
    parts = [] if cause is None else [VERDICTS[cause].sentence.rstrip(".")]
    line = clean_line(reason)
    if line:
        parts.append(line if len(line) <= _REASON_LENGTH else line[:_REASON_LENGTH] + "…")
    together = ": ".join(parts)
    return together + "." if together and together[-1] not in ".!?…" else together


def effect_of(result: Result, match: MatchResult) -> str:
    """Return what a match that is not done scores, in words."""
    if match.status == "pending" or (match.cause is not None and not is_scored(match.cause)):
        return "It is not scored."
    if is_hider_at_fault(result, match):
        return "A failed hider takes the worst privacy score, 1.0."
    return "A failed seeker scores chance, 0.5."


def find(result: Result) -> list[Finding]:
    """Return the verdict on every hider, in the order of the result."""
    pairs = pair_up(result)
    by_hider = [
        (name, [pair for pair in pairs.values() if pair.hider == name])
        for name in hider_names(result)
    ]
    return [_judge(result, name, faced) for name, faced in by_hider]


def _judge(result: Result, hider: str, pairs: Sequence[Pair]) -> Finding:
    played = [pair for pair in pairs if pair.done]
    notes = tuple(_notes(result, hider, pairs))
    if not played:
        tone, headline = _unplayed(result, hider, pairs)
        return Finding(hider, tone, headline, notes)
    worst = max(played, key=lambda pair: (pair.p_value < ALPHA, _accuracy(pair)))
    if worst.p_value < ALPHA:
        return Finding(hider, "leaks", _leak(result, worst), notes)
    if comb(2 * result.n, result.n) * ALPHA <= len(pairs) * max(result.splits, 1):
        return Finding(
            hider,
            "not tested",
            f"too few patients to tell (N = {result.n}): even a seeker that names every member is "
            "not significantly better than chance.",
            notes,
        )
    if len(pairs) == 1:
        who = "the only seeker did not do"
    elif len(played) == len(pairs):
        who = "no seeker did"
    else:
        who = f"none of the seekers that finished ({len(played)} of {len(pairs)}) did"
    best = "best mean accuracy" if len(worst.done) > 1 else "best accuracy"
    headline = (
        f"{who} significantly better than chance ({best} {_spread(worst)}, by "
        f"{clean_line(worst.seeker)}). That is not a proof of privacy: it only says that these "
        "seekers found no leak."
    )
    return Finding(hider, "no leak found", headline, notes)


def _unplayed(result: Result, hider: str, pairs: Sequence[Pair]) -> tuple[Tone, str]:
    own = result.hiders.get(hider)
    if own is not None and own.status == "failed":
        return "failed", "the hider failed, so that no seeker saw a release."
    if own is not None and own.status == "pending":
        return "pending", "there is no release yet."
    if any(pair.count("pending") for pair in pairs):
        return "pending", "no match has been played to the end yet."
    return "not tested", "no seeker finished, so that nothing is known about this release."


def _leak(result: Result, worst: Pair) -> str:
    members = [match.membership for match in worst.done if match.membership]
    right = sum(found.named_members for found in members)
    named = sum(found.named for found in members)
    of = len(members) * result.n
    several = len(members) > 1
    over = f" over {len(members)} splits" if several else ""
    among = "" if named == of else f" among the {named:,} patients that it named"
    release, its, gives = (
        ("these releases", "their", "give") if several else ("this release", "its", "gives")
    )
    extent = f"{its} members" if _accuracy(worst) >= _GIVEN_AWAY else f"some of {its} members"
    mean = "mean accuracy" if several else "accuracy"
    return (
        f"{clean_line(worst.seeker)} named {right:,} of {of:,} members{among}{over} "
        f"({mean} {_spread(worst)}): {release} {gives} {extent} away."
    )


def _accuracy(pair: Pair) -> float:
    return fmean(match.membership.accuracy for match in pair.done if match.membership)


def _spread(pair: Pair) -> str:
    members = [match.membership for match in pair.done if match.membership]
    text = f"{_accuracy(pair):.2f}"
    if len(members) > 1:
        each = [found.accuracy for found in members]
        return f"{text}, {min(each):.2f} to {max(each):.2f} over the splits"
    interval = members[0].ci.get("accuracy")
    return text if interval is None else f"{text}, 95 % interval {interval_text(interval)}"


def _notes(result: Result, hider: str, pairs: Sequence[Pair]) -> list[str]:
    """Say once per subject and reason what failed or is pending, and what that scores."""
    subjects: dict[tuple[str, str], list[MatchResult]] = {}
    for pair in pairs:
        for match in pair.matches:
            if match.status == "done":
                continue
            verb = "failed" if match.status == "failed" else "is pending"
            fault = is_hider_at_fault(result, match)
            subject = "The hider" if fault else clean_line(match.seeker)
            why = f"{reason_of(result, match)} {effect_of(result, match)}".strip()
            subjects.setdefault((f"{subject} {verb}", why), []).append(match)
    own = result.hiders.get(hider)
    if not pairs and own is not None and own.status != "done":
        return [_hider_alone(own)]
    notes = []
    for (said, why), matches in subjects.items():
        where = where_text(len({match.split for match in matches}), result.splits)
        notes.append(f"{said}{where}: {why}")
    return notes


def _hider_alone(own: HiderResult) -> str:
    verb = "failed" if own.status == "failed" else "is pending"
    reasons = [evidence.reason for evidence in own.evidence if evidence.reason]
    why = _because(own.cause, "".join(reasons[:1]))
    return f"The hider {verb}: {why} It faced no seeker."
