"""The numbers behind the cohort, read once from `facts.json`."""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """One feature column.

    Attributes
    ----------
    item, name, unit : str
        Amsterdam item ID, short English name, unit.
    decimals : int
        Decimals to which the value is charted.
    source : str
        `data set:variable`, or `guess`.
    quantiles : tuple of float
        Values at `Facts.quantile_shares`, in `unit`.
    mean, sd : float
        Of the values between the 0.1 % and the 99.9 % quantile, in `unit`.
    extremes : tuple of float
        Smallest and largest value ever charted, typing errors included.
    between_share : float
        Between-patient variance over total variance.
    noise_share : float
        Part of the within-patient variance that the next measurement has forgotten.
    relaxation_h : float
        Memory of the rest of the within-patient part, in hours.
    lag1h : float or None
        Correlation of hourly means one hour apart, pooled over patients.
    patients_with_any : float or None
        Share of patients with at least one value.
    rate : float
        Share of charted rows with a value.
    rate_from : str
        What the rate was copied from; see `notes` in the file.
    """

    item: str
    name: str
    unit: str
    decimals: int
    source: str
    factor: float
    quantiles: tuple[float, ...]
    mean: float
    sd: float
    extremes: tuple[float, float]
    between_share: float
    noise_share: float
    relaxation_h: float
    lag1h: float | None
    patients_with_any: float | None
    rate: float
    rate_from: str

    @property
    def is_guess(self) -> bool:
        """Whether nobody measured these levels."""
        return self.source == "guess"


@dataclass(frozen=True)
class RowFacts:
    """How often and when patients are charted.

    Attributes
    ----------
    count_shares, count_values : Floats
        Quantiles of the number of rows per patient, both of shape [Q].
    largest : int
        Most rows of any patient.
    by_hour : Floats
        Rows per patient in each hour since admission, shape [48].
    share_100_or_more : float
        Share of patients with 100 rows or more.
    gap_minutes : dict of float to float
        Quantiles of the minutes between one row and the next.
    """

    mean: float
    sd: float
    count_shares: Floats
    count_values: Floats
    largest: int
    by_hour: Floats
    share_100_or_more: float
    gap_minutes: dict[float, float]


@dataclass(frozen=True)
class Facts:
    """All of `facts.json`.

    Attributes
    ----------
    columns : tuple of Column
        The 70 features, in the order of the table.
    quantile_shares : Floats
        Shares at which `Column.quantiles` are given.
    between, within : Floats
        Correlations of patient means and of deviations from them, shape [70, 70], symmetric, not
        always positive definite (their entries come from different patients).
    """

    columns: tuple[Column, ...]
    quantile_shares: Floats
    rows: RowFacts
    between: Floats
    within: Floats

    def index(self, name: str) -> int:
        """Return the position of the column called `name`."""
        return [column.name for column in self.columns].index(name)


def _column(raw: dict[str, Any]) -> Column:
    return Column(
        **{**raw, "quantiles": tuple(raw["quantiles"]), "extremes": tuple(raw["extremes"])}
    )


def _symmetric(lower: list[list[float]]) -> Floats:
    matrix = np.eye(len(lower))
    for row, values in enumerate(lower):
        matrix[row, :row] = matrix[:row, row] = values
    return matrix


@cache
def load_facts() -> Facts:
    """Read the facts that came with the package.

    Returns
    -------
    Facts
        The same object at every call; do not write into its arrays.
    """
    text = resources.files("harness.simulate").joinpath("facts.json").read_text("utf-8")
    raw = json.loads(text)
    rows = raw["rows"]
    quantiles = {float(share): value for share, value in rows["quantiles"].items()}
    return Facts(
        columns=tuple(_column(column) for column in raw["columns"]),
        quantile_shares=np.array(raw["quantile_shares"]),
        rows=RowFacts(
            mean=rows["mean"],
            sd=rows["sd"],
            count_shares=np.array([0.0, *quantiles]),
            count_values=np.array([float(rows["min"]), *quantiles.values()]),
            largest=rows["max"],
            by_hour=np.array(rows["per_active_patient_by_hour"]),
            share_100_or_more=rows["share_100_or_more"],
            gap_minutes={float(share): value for share, value in rows["gap_minutes"].items()},
        ),
        between=_symmetric(raw["correlation_between"]),
        within=_symmetric(raw["correlation_within"]),
    )
