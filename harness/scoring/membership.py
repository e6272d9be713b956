"""Membership inference: how well one seeker told members from non-members in one match.

Definitions are those of the project's scoring rules. Score high = member throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from data_preprocess import Rules
from harness.failures import Cause, is_scored
from harness.seeds import derive_seed
from harness.submission import Kind

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Interval = tuple[float, float]

FPR_LEVELS = (0.001, 0.01, 0.1)
CONFIDENCE = 0.95
_REPLICATES = 1000
# Replicates at a time: 100 x 15,390 weights take 12 MB.
_CHUNK = 100


class Curve(NamedTuple):
    """Attained ROC points from (0, 0) to (1, 1), each array (points,)."""

    fpr: Floats
    tpr: Floats


@dataclass(frozen=True)
class MembershipScores:
    """Membership scores of one match.

    Attributes
    ----------
    accuracy : float
        Share of the 2N labels that are right when exactly N are named (2020's score).
    auc : float
        Area under the ROC curve, ties counted half.
    advantage : float
        Largest TPR - FPR over thresholds; in-sample, so biased upward.
    advantage_at_n : float
        TPR - FPR when N are named.
    tpr_at_fpr : dict
        FPR level, as text, to the largest attained TPR whose FPR is no higher.
    named, named_members : int
        r records named, V of them members.
    ci : dict
        Score's name to [low, high] at 95 %: stratified bootstrap over patients;
        Clopper-Pearson for TPR at its threshold (``tpr_at_fpr.0.01``). Empty without a guess.
    p_value : float
        P(V or more members among r named), were nothing leaked: hypergeometric, exact.
    """

    accuracy: float
    auc: float
    advantage: float
    advantage_at_n: float
    tpr_at_fpr: dict[str, float]
    named: int
    named_members: int
    ci: dict[str, Interval]
    p_value: float


def score_membership(
    scores: Floats, truth: Bools, rules: Rules = "standard", seed: int = 0
) -> MembershipScores:
    """Score one guess.

    Parameters
    ----------
    scores : float64 array (2N,)
        Real-valued or 0/1; higher = more likely a member; no NaN.
    truth : bool array (2N,)
        Exactly N are True.
    rules : {"standard", "neurips2020"}
        Under ``neurips2020`` a 0/1 answer that names another number than N is scored as given;
        else N are named, the tied ones drawn at random.
    seed : int
        For ties and the bootstrap.

    Returns
    -------
    MembershipScores

    Raises
    ------
    ValueError
        The shapes differ, a score is NaN, or the members are not half of the patients.
    """
    if scores.shape != truth.shape or scores.ndim != 1:
        raise ValueError(f"scores {scores.shape} and truth {truth.shape} must be one-dimensional")
    n = int(truth.sum())
    if n == 0 or 2 * n != len(truth):
        raise ValueError(f"{n} of {len(truth)} are members; it must be half of them")
    if np.isnan(scores).any():
        raise ValueError("scores must not be NaN")
    ranks = rank_order(scores, seed)
    as_given = rules == "neurips2020" and bool(np.isin(scores, (0.0, 1.0)).all())
    named = scores > 0.5 if as_given else top(ranks, n)
    r, v = int(named.sum()), int((named & truth).sum())
    curve = roc_curve(scores, truth)
    reached = {str(level): tpr_at(curve, level) for level in FPR_LEVELS}
    ci = _bootstrap(scores, truth, ranks, named if as_given else None, seed)
    for level, tpr in reached.items():
        ci[f"tpr_at_fpr.{level}"] = clopper_pearson(round(tpr * n), n)
    return MembershipScores(
        accuracy=float((named == truth).mean()),
        auc=auc(scores, truth),
        advantage=float((curve.tpr - curve.fpr).max()),
        advantage_at_n=(v - (r - v)) / n,
        tpr_at_fpr=reached,
        named=r,
        named_members=v,
        ci=ci,
        p_value=p_value(v, r, n),
    )


def failed_scores(kind: Kind, cause: Cause, n: int) -> MembershipScores | None:
    """Return what a match scores when its hider or seeker failed; None if it is not scored.

    Parameters
    ----------
    kind : Kind
        Who failed. A seeker scores chance (0.5), a hider the worst privacy score (1.0).
    cause : Cause
        Why; only the submission's own failures score.
    n : int
        Number of members N.
    """
    if not is_scored(cause):
        return None
    if kind is Kind.HIDER:
        return MembershipScores(
            1.0, 1.0, 1.0, 1.0, {str(level): 1.0 for level in FPR_LEVELS}, n, n, {}, 1.0
        )
    return MembershipScores(
        0.5, 0.5, 0.0, 0.0, {str(level): level for level in FPR_LEVELS}, n, n // 2, {}, 1.0
    )


def rank_order(scores: Floats, seed: int) -> NDArray[np.intp]:
    """Return patient numbers from the highest score to the lowest, ties shuffled by the seed."""
    shuffled = np.random.default_rng(derive_seed("ties", seed)).permutation(len(scores))
    order: NDArray[np.intp] = shuffled[np.argsort(-scores[shuffled], kind="stable")]
    return order


def top(ranks: NDArray[np.intp], n: int) -> Bools:
    """Return which patients are among the first n of a ranking, bool (2N,)."""
    named = np.zeros(len(ranks), dtype=bool)
    named[ranks[:n]] = True
    return named


def roc_curve(scores: Floats, truth: Bools) -> Curve:
    """Return the attained ROC points: one per distinct score, and (0, 0)."""
    order = np.argsort(-scores, kind="stable")
    last_of_tie = np.append(scores[order][1:] != scores[order][:-1], True)
    tp = np.cumsum(truth[order])[last_of_tie]
    fp = np.cumsum(~truth[order])[last_of_tie]
    return Curve(
        np.concatenate([[0.0], fp / (~truth).sum()]), np.concatenate([[0.0], tp / truth.sum()])
    )


def tpr_at(curve: Curve, level: float) -> float:
    """Return the largest attained TPR whose FPR is at most `level`; no interpolation."""
    return float(curve.tpr[curve.fpr <= level].max())


def auc(scores: Floats, truth: Bools) -> float:
    """Return P(member's score > non-member's) + P(equal) / 2, from mid-ranks (Mann-Whitney)."""
    members, others = int(truth.sum()), int((~truth).sum())
    rank_sum = stats.rankdata(scores)[truth].sum()
    return float((rank_sum - members * (members + 1) / 2) / (members * others))


def clopper_pearson(successes: int, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the exact binomial interval of a share (Clopper and Pearson 1934)."""
    interval = stats.binomtest(successes, trials).proportion_ci(confidence, method="exact")
    return (float(interval.low), float(interval.high))


def p_value(named_members: int, named: int, n: int) -> float:
    """Return P(V >= v) for V ~ Hypergeometric(2N, N, r): no leakage, r named, v of them members."""
    return min(1.0, float(stats.hypergeom.sf(named_members - 1, 2 * n, n, named)))


def randomised_p_value(named_members: int, named: int, n: int, uniform: float) -> float:
    """Return P(V > v) + u P(V = v): exactly uniform on [0, 1] when nothing leaks.

    Parameters
    ----------
    named_members, named, n : int
        v, r and N as in `p_value`.
    uniform : float
        u, drawn uniformly from [0, 1] without looking at the data.
    """
    law = stats.hypergeom(2 * n, n, named)
    return float(law.sf(named_members) + uniform * law.pmf(named_members))


def holm(p_values: list[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979), in the order given."""
    order = np.argsort(p_values, kind="stable")
    corrected = [0.0] * len(p_values)
    running = 0.0
    for place, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = running
    return corrected


def _bootstrap(
    scores: Floats, truth: Bools, ranks: NDArray[np.intp], as_given: Bools | None, seed: int
) -> dict[str, Interval]:
    """Return percentile intervals over members and non-members resampled separately."""
    n = int(truth.sum())
    rng = np.random.default_rng(derive_seed("bootstrap", seed))
    member = truth[ranks]
    ties = np.flatnonzero(np.append(True, scores[ranks][1:] != scores[ranks][:-1]))
    right = None if as_given is None else (as_given == truth)[ranks]
    drawn: dict[str, list[Floats]] = {"accuracy": [], "auc": [], "advantage": []}
    equal = np.full(n, 1 / n)
    for _ in range(_REPLICATES // _CHUNK):
        weights = np.zeros((_CHUNK, 2 * n))
        weights[:, member] = rng.multinomial(n, equal, size=_CHUNK)
        weights[:, ~member] = rng.multinomial(n, equal, size=_CHUNK)
        hits = np.add.reduceat(np.where(member, weights, 0.0), ties, axis=1)
        misses = np.add.reduceat(np.where(member, 0.0, weights), ties, axis=1)
        below = n - np.cumsum(misses, axis=1)
        drawn["auc"].append((hits * (below + misses / 2)).sum(axis=1) / n**2)
        gap = np.cumsum(hits - misses, axis=1).max(axis=1) / n
        drawn["advantage"].append(np.maximum(gap, 0.0))
        if right is None:
            before = np.cumsum(weights, axis=1) - weights
            taken = np.clip(n - before, 0.0, weights)
            drawn["accuracy"].append((taken * member).sum(axis=1) / n)
        else:
            drawn["accuracy"].append((weights * right).sum(axis=1) / (2 * n))
    tail = (1 - CONFIDENCE) / 2
    intervals: dict[str, Interval] = {}
    for name, parts in drawn.items():
        low, high = np.quantile(np.concatenate(parts), [tail, 1 - tail])
        intervals[name] = (float(low), float(high))
    if right is None:
        # TPR - FPR at N named is 2 accuracy - 1.
        low, high = intervals["accuracy"]
        intervals["advantage_at_n"] = (2 * low - 1, 2 * high - 1)
    return intervals
