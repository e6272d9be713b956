"""What the page draws and ``result.json`` does not hold; whoever plays the matches fills it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Roc:
    """The attained ROC points of one match.

    Attributes
    ----------
    hider, seeker : str
        As in the result.
    split : int
        As in the result.
    fpr, tpr : float64 array (points,)
        Non-decreasing, from (0, 0) to (1, 1).
    """

    hider: str
    seeker: str
    split: int
    fpr: Floats
    tpr: Floats


@dataclass(frozen=True, eq=False)
class Series:
    """One patient's measured points of one feature.

    Attributes
    ----------
    time : float64 array (steps,)
        Minutes.
    values : float64 array (steps,)
        NaN dropped.
    """

    time: Floats
    values: Floats


@dataclass(frozen=True, eq=False)
class SeriesExample:
    """A few real patients and a few released ones. They are not paired.

    Attributes
    ----------
    hider : str
        Whose release it is.
    column : str
        Which feature.
    real, released : list of Series
        One entry per patient.
    """

    hider: str
    column: str
    real: list[Series]
    released: list[Series]


@dataclass(frozen=True, eq=False)
class Material:
    """Everything that the page draws. Either list may be empty; the page then says so."""

    rocs: list[Roc] = field(default_factory=list)
    examples: list[SeriesExample] = field(default_factory=list)
