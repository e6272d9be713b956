"""When patients were charted: how many rows each has, and at which minutes."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from harness.simulate.facts import Floats, RowFacts

Ints = npt.NDArray[np.int64]

STAY_HOURS = 48


class Kind(IntEnum):
    """Why a row was charted."""

    ROUND = 0
    QUARTER = 1
    FIVE = 2
    ODD = 3


@dataclass(frozen=True)
class Chart:
    """The charted rows of all patients, patient after patient.

    Attributes
    ----------
    counts : Ints
        Rows of each patient, shape [P].
    who : Ints
        Patient of each row, 0..P-1, shape [R].
    minute : Ints
        Minutes since admission, strictly increasing within a patient, shape [R].
    kind : Ints
        A `Kind` for each row, shape [R].
    acuity : Floats
        How sick each patient is, standard normal, shape [P]; the sicker are charted more.
    """

    counts: Ints
    who: Ints
    minute: Ints
    kind: Ints
    acuity: Floats

    @property
    def starts(self) -> Ints:
        """Index of each patient's first row, shape [P]."""
        return np.concatenate([[0], np.cumsum(self.counts)[:-1]]).astype(np.int64)


# Shares among the rows outside the hourly rounds, counted in PhysioNet 2012's set-a.
EXTRA_KINDS = {Kind.QUARTER: 0.45, Kind.FIVE: 0.20, Kind.ODD: 0.35}
HALF_HOUR_AMONG_QUARTERS = 0.51
ROWS_AT_MINUTE_ZERO = 0.92
USUAL_ROUNDS = 46.0
# Nurses chart more often for hours on end, then less: spread and memory of that rate (log scale).
BUSY_SD = 0.75
BUSY_MEMORY_H = 12.0


def _row_counts(rng: np.random.Generator, patients: int, facts: RowFacts) -> tuple[Ints, Floats]:
    """Draw rows per patient and the share of patients with fewer, both of shape [P]."""
    share = np.clip(rng.random(patients), 1e-9, 1.0 - 1e-9)
    counts = np.interp(share, facts.count_shares, facts.count_values)
    last_share, last_value = facts.count_shares[-1], facts.count_values[-1]
    tail = share > last_share
    # The facts end at 99 %; an exponential with this scale passes 168 at 99.9 %, as in set-a.
    counts[tail] = last_value + 12.0 * -np.log((1.0 - share[tail]) / (1.0 - last_share))
    whole: Ints = np.clip(np.rint(counts), 1, facts.largest).astype(np.int64)
    return whole, share


def _rounds(rng: np.random.Generator, counts: Ints) -> Ints:
    """Draw how many of a patient's rows are hourly rounds, shape [P]."""
    # Proportional to the rows of the sparsely charted, levelling off near one an hour.
    few = 0.86 * counts
    usual = (few**-8.0 + USUAL_ROUNDS**-8.0) ** (-1.0 / 8.0)
    drawn = np.rint(usual + 2.5 * rng.standard_normal(len(counts)))
    return np.asarray(np.clip(drawn, 0, np.minimum(counts, STAY_HOURS)), dtype=np.int64)


def _busy(rng: np.random.Generator, patients: int, hours: int) -> Floats:
    """Draw how busily each patient is charted each hour, shape [P, hours], positive."""
    memory = np.exp(-1.0 / BUSY_MEMORY_H)
    level = rng.standard_normal(patients)
    busy = np.empty((patients, hours))
    for hour in range(hours):
        busy[:, hour] = level
        level = memory * level + np.sqrt(1.0 - memory**2) * rng.standard_normal(patients)
    return np.asarray(np.exp(BUSY_SD * busy))


def _extra_minutes(
    rng: np.random.Generator, who: Ints, weights: Floats, phase: Ints, kind: Ints
) -> Floats:
    """Draw the minute of each row outside the rounds, shape [E]."""
    patients, hours = weights.shape
    cumulative = np.cumsum(weights, axis=1)
    cumulative /= cumulative[:, -1:]
    # One sorted array for all patients: patient p's shares lie in (p, p + 1].
    edges = (cumulative + np.arange(patients)[:, None]).ravel()
    hour = np.searchsorted(edges, who + rng.random(len(who)), side="left") - who * hours
    hour = np.clip(hour, 0, hours - 1)
    quarter = np.where(
        rng.random(len(who)) < HALF_HOUR_AMONG_QUARTERS, 30, rng.choice([15, 45], len(who))
    )
    five = rng.choice([5, 10, 20, 25, 35, 40, 50, 55], len(who))
    on_grid = (phase[who] + np.where(kind == Kind.QUARTER, quarter, five)) % 60
    minute = np.where(kind == Kind.ODD, rng.integers(0, 60, len(who)), on_grid)
    return np.asarray(hour * 60 + minute, dtype=np.float64)


def chart_patients(
    rng: np.random.Generator, patients: int, facts: RowFacts, rows_per_patient: int | None
) -> Chart:
    """Draw when each patient was charted.

    Hourly rounds fall on the same minute of every hour of a patient's stay; the other rows come
    in busy and quiet periods, denser after admission.

    Parameters
    ----------
    rng : numpy.random.Generator
        Where the chance comes from.
    patients : int
        P, at least 1.
    facts : RowFacts
        Rows per patient and per hour.
    rows_per_patient : int or None
        Exactly this many rows each; None draws them.

    Returns
    -------
    Chart
        R rows in all, patient after patient.
    """
    counts, share = _row_counts(rng, patients, facts)
    if rows_per_patient is not None:
        counts = np.full(patients, rows_per_patient, dtype=np.int64)
    # Longer than the facts only for more rows than any of their patients had.
    hours = STAY_HOURS if rows_per_patient is None else max(STAY_HOURS, rows_per_patient // 5)
    rounds = _rounds(rng, counts)

    acuity = 0.5 * ndtri(share) + np.sqrt(0.75) * rng.standard_normal(patients)

    phase = rng.integers(0, 60, patients)
    by_hour = np.concatenate(
        [facts.by_hour, np.full(hours - len(facts.by_hour), facts.by_hour[-1])]
    )
    # Rounds start late: the first hours are charted as things happen.
    presence = 0.94 - 0.50 * np.exp(-np.arange(hours) / 1.2)
    odds = np.log(presence / (1.0 - presence))
    key = odds[:STAY_HOURS] + rng.gumbel(size=(patients, STAY_HOURS))
    round_hours = np.argsort(-key, axis=1)
    taken = np.arange(STAY_HOURS) < rounds[:, None]
    round_who = np.nonzero(taken)[0]
    round_minute = round_hours[taken] * 60.0 + phase[round_who]

    extras = counts - rounds
    extra_who = np.repeat(np.arange(patients), extras)
    kinds = rng.choice(list(EXTRA_KINDS), len(extra_who), p=list(EXTRA_KINDS.values()))
    extra_rate = by_hour - presence
    extra_rate[0] -= ROWS_AT_MINUTE_ZERO
    weights = extra_rate * _busy(rng, patients, hours)
    extra_minute = _extra_minutes(rng, extra_who, weights, phase, kinds)
    first_extra = np.cumsum(extras)[extras > 0] - extras[extras > 0]
    at_zero = first_extra[rng.random(len(first_extra)) < ROWS_AT_MINUTE_ZERO]
    extra_minute[at_zero] = 0.0
    kinds[at_zero] = Kind.QUARTER

    who = np.concatenate([round_who, extra_who]).astype(np.int64)
    kind = np.concatenate([np.zeros(len(round_who), dtype=np.int64), kinds]).astype(np.int64)
    # Some of the sparsely charted left early.
    left = np.where(counts < 30, rng.random(patients) ** 0.3, 1.0)
    minute = np.floor(np.concatenate([round_minute, extra_minute]) * left[who])
    order = np.lexsort((minute, who))
    who, kind, minute = who[order], kind[order], minute[order].astype(np.int64)
    return Chart(counts, who, _strictly_increasing(who, minute, counts), kind, acuity)


def _strictly_increasing(who: Ints, minute: Ints, counts: Ints) -> Ints:
    """Push rows that share a minute to the next free one."""
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank = np.arange(len(who)) - starts[who]
    # Patients are kept apart by a step larger than any minute, so one pass serves them all.
    step = int(minute.max()) + int(counts.max()) + 1
    pushed = np.maximum.accumulate(minute - rank + who * step)
    return np.asarray(pushed - who * step + rank, dtype=np.int64)
