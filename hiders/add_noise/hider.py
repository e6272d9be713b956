"""Add-noise baseline: Gaussian noise on time and every measured feature."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_preprocess import fit_scaling, preprocess_data

Floats = NDArray[np.float64]


def hider(input_dict: dict[str, Any]) -> tuple[Floats, NDArray[np.bool_]]:
    """Release the members with i.i.d. noise N(0, (sigma * unit)^2) on every cell.

    Parameters
    ----------
    input_dict : dict
        ``data``: float64 (N, T, 1 + features), raw, NaN = missing; ``padding_mask``: bool, same
        shape; ``seed``: int; ``parameters``: ``sigma`` (default 0.1), ``unit`` (``scaled``: the
        column's range; ``std``: its standard deviation, as in 2020;
        by default ``std`` under ``neurips2020`` rules and ``scaled`` otherwise), ``rules``.

    Returns
    -------
    data : float64 array, same shape
        ``standard``: raw units, NaN where not measured. ``neurips2020``: imputed and scaled, as
        `data_preprocess.preprocess_data` has it.
    padding_mask : bool array
        The members' own.

    Raises
    ------
    ValueError
        `sigma` is negative or no number, or `unit` is unknown.

    Notes
    -----
    Source: data and baseline description of the 2020 challenge, section 2.1, equation 1.
    """
    data: Floats = np.asarray(input_dict["data"])
    mask: NDArray[np.bool_] = np.asarray(input_dict["padding_mask"], dtype=bool)
    parameters = input_dict.get("parameters", {})
    as_2020 = parameters.get("rules") == "neurips2020"
    sigma = float(parameters.get("sigma", 0.1))
    if not sigma >= 0:
        raise ValueError(f"the parameter sigma must be 0 or more, got {sigma}.")
    unit = parameters.get("unit", "std" if as_2020 else "scaled")
    if unit not in ("scaled", "std"):
        raise ValueError(f"the parameter unit must be 'scaled' or 'std', got {unit!r}.")

    if as_2020:
        base = preprocess_data(data, mask)[1]
        # 2020 took the standard deviation over all cells, padding included.
        spread = base.std(axis=(0, 1)) if unit == "std" else fit_scaling(base, mask).span
    else:
        base = np.where(mask, np.nan, data)
        scaling = fit_scaling(data, mask)
        spread = scaling.span if unit == "scaled" else _std(base, scaling.median)
    rng = np.random.default_rng(input_dict["seed"])
    noise = rng.normal(size=data.shape)
    noise *= sigma * spread
    base += noise
    return base, mask


def _std(values: Floats, centre: Floats) -> Floats:
    """Return each column's standard deviation over measured cells, 0 for an empty column."""
    measured = ~np.isnan(values)
    count = np.maximum(measured.sum(axis=(0, 1)), 1)
    gaps = np.where(measured, values - centre, 0.0)
    mean = gaps.sum(axis=(0, 1)) / count
    spread: Floats = np.sqrt(np.maximum((gaps**2).sum(axis=(0, 1)) / count - mean**2, 0.0))
    return spread
