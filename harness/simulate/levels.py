"""The levels: correlated, slowly changing scores turned into values.

Each column has a standard normal score per row, the sum of a patient's own level and an
autoregressive deviation from it. The column's quantiles turn scores into values, so skewed
laboratory values come out skewed. Columns that a machine or a laboratory computes from others are
computed here too.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from harness.simulate.charting import Chart
from harness.simulate.facts import Column, Facts, Floats

Scores = npt.NDArray[np.float32]
Values = Mapping[str, Floats]

# Typing errors and broken sensors, per measured cell: what the excess variance of temperature in
# PhysioNet 2012, -17.8 included, comes to.
GROSS_ERRORS = 4e-4
# Upper over lower tail (1 % to median) from which a column is skewed.
LONG_TAIL = 2.5


def mean_pressure(v: Values) -> Floats:
    """Return the mean arterial pressure in mmHg: diastolic plus a third of the pulse pressure."""
    return v["dbp"] + (v["sbp"] - v["dbp"]) / 3.0


def bicarbonate(v: Values) -> Floats:
    """Return actual bicarbonate in mmol/l, from pH and pCO2 in mmHg (Henderson-Hasselbalch)."""
    return np.asarray(0.0307 * v["pco2"] * 10.0 ** (v["ph"] - 6.105))


def base_excess(v: Values) -> Floats:
    """Return the base excess in mmol/l, from bicarbonate and pH (Van Slyke without Hb)."""
    return 0.93 * (v["hco3"] - 24.4 + 14.8 * (v["ph"] - 7.4))


def minute_volume(v: Values) -> Floats:
    """Return the expired minute volume in l/min: rate times expired tidal volume in ml."""
    return v["rr_ventilator"] * v["exp_tidal"] / 1000.0


def pressure_control(v: Values) -> Floats:
    """Return pressure control over PEEP in cmH2O: peak pressure minus PEEP."""
    return v["ppeak"] - v["peep_set"]


def corrected_calcium(v: Values) -> Floats:
    """Return calcium in mmol/l as it would be with 40 g/l of albumin."""
    return v["calcium"] + 0.02 * (40.0 - v["albumin"])


# In order: base excess needs bicarbonate.
DERIVED: dict[str, Callable[[Values], Floats]] = {
    "map": mean_pressure,
    "hco3": bicarbonate,
    "be_abg": base_excess,
    "exp_mv": minute_volume,
    "pc_over_peep": pressure_control,
    "calcium_albc": corrected_calcium,
}


def _nearby(v: Values, noise: Floats) -> dict[str, Floats]:
    """Return columns that follow others up to a sensor's noise (standard normal, shape [R])."""
    return {
        "fio2_measured": np.clip(v["fio2_set"] + noise, 21.0, 100.0),
        "paw_mean": v["peep_set"] + 0.3 * (v["ppeak"] - v["peep_set"]) + 0.7 * noise,
    }


NEARBY = ("fio2_measured", "paw_mean")


def _for_scores(correlation: Floats, columns: Sequence[Column]) -> Floats:
    """Return the scores' correlation that gives the values' one, shape [C, C].

    Long tails hide correlation: the log-normal formula, with a log spread of 0 for the others.
    """
    spread = np.array([_log_spread(column) for column in columns])
    tail = np.sqrt(np.expm1(spread**2))
    product = np.outer(spread, spread)
    reach = np.outer(tail, tail)
    known = np.maximum(1.0 + correlation * reach, 0.05)
    return np.asarray(np.clip(np.log(known) / product, -0.98, 0.98))


def _log_spread(column: Column) -> float:
    if not _is_skewed(column):
        return 1e-3
    low, high = np.log([column.quantiles[2], column.quantiles[6]])
    # The formula says little about heavier tails than this.
    return float(min(1.5, (high - low) / (2.0 * ndtri(0.95))))


def _square_root(correlation: Floats) -> Floats:
    """Return L with L L' close to the correlation, which need not be positive definite.

    The symmetric root: unlike the eigenvectors, it is the same on every machine.
    """
    whole = correlation - np.diag(np.diag(correlation)) + np.eye(len(correlation))
    size, vectors = np.linalg.eigh(whole)
    root = (vectors * np.sqrt(np.clip(size, 1e-6, None))) @ vectors.T
    return np.asarray(root / np.linalg.norm(root, axis=1, keepdims=True))


def draw_scores(rng: np.random.Generator, chart: Chart, facts: Facts, columns: list[int]) -> Scores:
    """Draw the standard normal scores.

    Parameters
    ----------
    rng : numpy.random.Generator
        Where the chance comes from.
    chart : Chart
        The rows.
    facts : Facts
        Correlations, shares of variance, memory.
    columns : list of int
        The C columns to draw.

    Returns
    -------
    Scores
        Shape [R, C]; correlated over columns and, within a patient, over time.
    """
    picked = np.ix_(columns, columns)
    traits = [facts.columns[c] for c in columns]
    between_root = _square_root(_for_scores(facts.between[picked], traits))
    within_root = _square_root(_for_scores(facts.within[picked], traits))
    share = np.array([trait.between_share for trait in traits])
    noise = np.array([trait.noise_share for trait in traits])
    memory = np.array([trait.relaxation_h for trait in traits])
    for_level, for_noise = np.sqrt((1.0 - share) * (1.0 - noise)), np.sqrt((1.0 - share) * noise)
    patients, size = len(chart.counts), len(columns)

    def draw(count: int, root: Floats) -> Floats:
        # Drawn in float32 for speed, multiplied in float64 so that machines agree.
        return np.asarray(rng.standard_normal((count, size), dtype=np.float32) @ root.T)

    own = np.sqrt(share) * draw(patients, between_root)
    level = draw(patients, within_root)
    scores: Scores = np.empty((len(chart.who), size), dtype=np.float32)
    starts = chart.starts
    # One pass over row numbers, all patients at once: each row needs the one before it.
    for number in range(int(chart.counts.max())):
        here = np.nonzero(chart.counts > number)[0]
        rows = starts[here] + number
        if number > 0:
            hours = (chart.minute[rows] - chart.minute[rows - 1]) / 60.0
            kept = np.exp(-hours[:, None] / memory)
            fresh = draw(len(here), within_root)
            level[here] = kept * level[here] + np.sqrt(1.0 - kept**2) * fresh
        # The passing part shares the panel's correlations: two assays of one sample agree.
        passing = draw(len(here), within_root)
        scores[rows] = own[here] + for_level * level[here] + for_noise * passing
    return scores


def _is_skewed(column: Column) -> bool:
    low, middle, high = (column.quantiles[k] for k in (1, 4, 7))
    return column.quantiles[0] > 0.0 and high - middle > LONG_TAIL * (middle - low)


def _to_values(scores: npt.NDArray[np.floating[Any]], column: Column, shares: Floats) -> Floats:
    """Turn standard normal scores into values with the column's quantiles, shape [R]."""
    knots = ndtri(shares)
    values = np.array(column.quantiles)
    # Between the quantiles of a long-tailed column a straight line lies too high.
    skewed = _is_skewed(column)
    if skewed:
        values = np.log(values)
    # Carry the outer slopes on to five standard deviations, within what was ever charted.
    first, last = np.diff(values)[[0, -1]] / np.diff(knots)[[0, -1]]
    values = np.concatenate(
        [[values[0] - first * (knots[0] + 5.0)], values, [values[-1] + last * (5.0 - knots[-1])]]
    )
    drawn = np.interp(scores, np.concatenate([[-5.0], knots, [5.0]]), values)
    return np.asarray(np.clip(np.exp(drawn) if skewed else drawn, *column.extremes))


def fill_values(
    rng: np.random.Generator, chart: Chart, facts: Facts, mask: npt.NDArray[np.bool_]
) -> Floats:
    """Draw the values of the measured cells.

    Parameters
    ----------
    rng : numpy.random.Generator
        Where the chance comes from.
    chart : Chart
        The rows.
    facts : Facts
        Levels, spread, correlations.
    mask : npt.NDArray[np.bool_]
        Measured cells, shape [R, 70].

    Returns
    -------
    Floats
        Shape [R, 70], column-major, NaN where not measured, rounded as charted.
    """
    names = [column.name for column in facts.columns]
    followers = {*DERIVED, *NEARBY}
    leaders = [c for c, name in enumerate(names) if name not in followers]
    scores = draw_scores(rng, chart, facts, leaders)
    table: Floats = np.empty(mask.shape, dtype=np.float64, order="F")
    for position, c in enumerate(leaders):
        column = facts.columns[c]
        values = _to_values(scores[:, position], column, facts.quantile_shares)
        table[:, c] = np.round(values, column.decimals)
    del scores

    _respect_physics(table, names)
    view = {name: table[:, c] for c, name in enumerate(names)}
    for name, compute in DERIVED.items():
        # Adding 0 turns -0.0, which would be written "-0", into 0.
        view[name][:] = np.round(compute(view), facts.columns[names.index(name)].decimals) + 0.0
    for name, values in _nearby(view, rng.standard_normal(len(table))).items():
        view[name][:] = np.round(values, facts.columns[names.index(name)].decimals)

    for c, column in enumerate(facts.columns):
        table[~mask[:, c], c] = np.nan
        _mistype(rng, table[:, c], column)
    return table


def _respect_physics(table: Floats, names: list[str]) -> None:
    """Mend, in place, pairs of scores that no body and no machine can show."""
    view = {name: table[:, c] for c, name in enumerate(names)}
    np.minimum(view["dbp"], view["sbp"] - 5.0, out=view["dbp"])
    np.minimum(view["peep_set"], view["ppeak"] - 2.0, out=view["peep_set"])


def _mistype(rng: np.random.Generator, values: Floats, column: Column) -> None:
    """Turn a few measured values, in place, into gross errors within what was ever charted."""
    measured = np.nonzero(~np.isnan(values))[0]
    wrong = measured[rng.random(len(measured)) < GROSS_ERRORS]
    low, high = column.extremes
    below = rng.uniform(low, max(low, column.quantiles[0]), len(wrong))
    above = rng.uniform(min(high, column.quantiles[-1]), high, len(wrong))
    error = np.where(rng.random(len(wrong)) < 0.5, below, above)
    values[wrong] = np.round(error, column.decimals)
