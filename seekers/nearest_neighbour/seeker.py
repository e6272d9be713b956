"""Nearest-neighbour baseline: who lies closest to a released series was a member."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_preprocess import fit_scaling, preprocess_data, preprocess_standard

Floats = NDArray[np.float64]

# Rows per block: the block's products with a release of 7,695 stay near 30 MB.
_BLOCK = 1024
# Real values are scaled to [0, 1]; only unscaled time is larger, in whatever unit.
_FAR = 1e9


class Nearest(NamedTuple):
    """For each row: squared distance to, and number of, a nearest row of the other table.

    `reach` is (|x| + max |s|)^2 of the centred rows, which bounds what rounding can do.
    """

    squared: Floats
    neighbour: NDArray[np.intp]
    reach: Floats


def seeker(input_dict: dict[str, Any]) -> Floats:
    """Score every patient by minus the distance to the nearest released series.

    Parameters
    ----------
    input_dict : dict
        ``generated_data``: float64 (N, T, 1 + features); ``enlarged_data``: (2N, T, 1 +
        features); ``generated_data_padding_mask``: bool or None;
        ``enlarged_data_padding_mask``: bool; ``parameters``: ``rules``. Both data arrays are
        used up as working memory under ``standard`` rules.

    Returns
    -------
    float64 array (2N,)
        ``-min_s ||x - s||_2``, higher = more likely a member. The N highest are exactly those
        that a float64 brute force would name.

    Notes
    -----
    Source: data and baseline description of the 2020 challenge, section 3.1, equation 2.
    ``standard`` rules: time and features scaled by the enlarged data's range, padding 0.
    ``neurips2020``: each side preprocessed on its own, time not scaled, padding -1.
    """
    enlarged, release = input_dict["enlarged_data"], input_dict["generated_data"]
    enlarged_mask = input_dict["enlarged_data_padding_mask"]
    release_mask = input_dict["generated_data_padding_mask"]
    if input_dict.get("parameters", {}).get("rules") == "neurips2020":
        enlarged = preprocess_data(enlarged, enlarged_mask)[1]
        release = preprocess_data(release, release_mask)[1]
    else:
        scaling = fit_scaling(enlarged, enlarged_mask)
        enlarged = preprocess_standard(enlarged, enlarged_mask, scaling, out=enlarged).values
        release = preprocess_standard(release, release_mask, scaling, out=release).values
    # Absurd values of a release must not overflow float32 and blind the seeker.
    np.clip(release, -_FAR, _FAR, out=release)
    rows, others = enlarged.reshape(len(enlarged), -1), release.reshape(len(release), -1)
    return -np.sqrt(membership_distances(rows, others, len(others)))


def membership_distances(rows: Floats, others: Floats, n_named: int) -> Floats:
    """Return squared distances whose `n_named` smallest are those of a float64 brute force.

    Parameters
    ----------
    rows, others : float64 arrays (m, d), (n, d)
    n_named : int
        How many rows will be named.

    Returns
    -------
    float64 array (m,)
        Squared L2 distance to the nearest of `others`: exact (float64, direct differences) for
        the neighbour that float32 found, and over all of `others` wherever the float32 error
        bound leaves open on which side of the threshold a row stands.
    """
    nearest = nearest_float32(rows, others)
    squared = _direct(rows, others, nearest.neighbour)
    # Rounding errors of an inner product of length d stay below gamma |x||s|: gamma = d u always
    # (Higham 2002, section 3.1), 12 sqrt(d) u but for a chance of some d exp(-72) (Higham and Mary
    # 2019); 16 more roundings for casts, norms and sums.
    d = rows.shape[1]
    gamma = (min(d, 12 * np.sqrt(d)) + 16) * np.finfo(np.float32).eps / 2
    slack = gamma * nearest.reach
    lowest = squared - 2 * slack
    place = min(n_named, len(rows)) - 1
    floor = np.partition(lowest, place)[place]
    ceiling = np.partition(squared, place)[place]
    unsure = np.flatnonzero((squared >= floor) & (lowest <= ceiling))
    for low in range(0, len(unsure), _BLOCK):
        block = unsure[low : low + _BLOCK]
        squared[block] = _exact(rows[block], others)
    return squared


def nearest_float32(rows: Floats, others: Floats) -> Nearest:
    """Find nearest neighbours by blocked float32 products, shapes (m, d) and (n, d).

    ``||x - s||^2 = ||x||^2 + ||s||^2 - 2 x.s``, both tables centred to lose less to cancellation.
    """
    centre = others.mean(axis=0)
    doubled = np.empty(others.shape, dtype=np.float32)
    norms = np.empty(len(others), dtype=np.float32)
    for low in _starts(others):
        part = np.subtract(
            others[low : low + _BLOCK],
            centre,
            out=doubled[low : low + _BLOCK],
            casting="same_kind",
        )
        norms[low : low + _BLOCK] = np.einsum("ij,ij->i", part, part)
        part *= -2.0
    squared, own = np.empty(len(rows)), np.empty(len(rows))
    neighbour = np.empty(len(rows), dtype=np.intp)
    centred = np.empty((min(_BLOCK, len(rows)), rows.shape[1]), dtype=np.float32)
    products = np.empty((len(centred), len(others)), dtype=np.float32)
    started = reported = time.monotonic()
    for low in _starts(rows):
        block = slice(low, min(low + _BLOCK, len(rows)))
        part = centred[: block.stop - low]
        found = products[: block.stop - low]
        np.subtract(rows[block], centre, out=part, casting="same_kind")
        np.matmul(part, doubled.T, out=found)
        found += norms
        at = found.argmin(axis=1)
        neighbour[block] = at
        squared[block] = found[np.arange(len(part)), at]
        own[block] = np.einsum("ij,ij->i", part, part)
        now = time.monotonic()
        if now - reported > 1:
            reported = now
            left = (now - started) / block.stop * (len(rows) - block.stop)
            print(
                f"nearest neighbours {block.stop:,}/{len(rows):,} · {left:.0f} s left", flush=True
            )
    reach = (np.sqrt(own) + np.sqrt(norms.max())) ** 2
    return Nearest(np.maximum(squared + own, 0.0), neighbour, reach)


def _starts(table: Floats) -> range:
    return range(0, len(table), _BLOCK)


def _direct(rows: Floats, others: Floats, index: NDArray[np.intp]) -> Floats:
    """Return squared distances of each row to its own other row by direct differences."""
    squared = np.empty(len(rows))
    for low in _starts(rows):
        gaps = rows[low : low + _BLOCK] - others[index[low : low + _BLOCK]]
        squared[low : low + _BLOCK] = np.einsum("ij,ij->i", gaps, gaps)
    return squared


def _exact(rows: Floats, others: Floats) -> Floats:
    """Return float64 nearest squared distances: product first, direct differences for the near."""
    expanded = rows @ others.T
    expanded *= -2.0
    expanded += np.einsum("ij,ij->i", others, others)
    expanded += np.einsum("ij,ij->i", rows, rows)[:, None]
    reach = float(np.abs(rows).max(initial=0.0)) + float(np.abs(others).max(initial=0.0))
    slack = (rows.shape[1] + 8) * np.finfo(np.float64).eps * rows.shape[1] * reach**2
    squared = np.empty(len(rows))
    for i, row in enumerate(rows):
        near = np.flatnonzero(expanded[i] <= expanded[i].min() + slack)
        gaps = others[near] - row
        squared[i] = np.einsum("ij,ij->i", gaps, gaps).min()
    return squared
