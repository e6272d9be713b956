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


class Nearest(NamedTuple):
    """For each row: squared distance to, and number of, a nearest row of the other table."""

    squared: Floats
    neighbour: NDArray[np.intp]


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
    slack = _error_bound(rows, others, float(np.finfo(np.float32).eps))
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
    for low in range(0, len(others), _BLOCK):
        part = others[low : low + _BLOCK] - centre
        norms[low : low + _BLOCK] = np.einsum("ij,ij->i", part, part)
        np.multiply(part, -2.0, out=doubled[low : low + _BLOCK], casting="same_kind")
    squared = np.empty(len(rows))
    index = np.empty(len(rows), dtype=np.intp)
    products = np.empty((min(_BLOCK, len(rows)), len(others)), dtype=np.float32)
    started = reported = time.monotonic()
    for low in range(0, len(rows), _BLOCK):
        part = rows[low : low + _BLOCK] - centre
        found = products[: len(part)]
        np.matmul(part.astype(np.float32), doubled.T, out=found)
        found += norms
        at = found.argmin(axis=1)
        index[low : low + len(part)] = at
        squared[low : low + len(part)] = found[np.arange(len(part)), at]
        squared[low : low + len(part)] += np.einsum("ij,ij->i", part, part)
        now = time.monotonic()
        if now - reported > 1:
            done, reported = low + len(part), now
            left = (now - started) / done * (len(rows) - done)
            print(f"nearest neighbours {done:,}/{len(rows):,} · {left:.0f} s left", flush=True)
    return Nearest(np.maximum(squared, 0.0), index)


def _error_bound(rows: Floats, others: Floats, eps: float) -> Floats:
    """Bound what rounding to unit `eps` / 2 can do to each row's expanded squared distances.

    The standard bound on an inner product of length d, gamma_d |x||s| (Higham 2002, section
    3.1), for the product and the two norms, with the casts counted as two more roundings each.
    """
    centre = others.mean(axis=0)
    largest = max(_norms(others[i : i + _BLOCK] - centre).max() for i in _starts(others))
    norms = np.concatenate([_norms(rows[i : i + _BLOCK] - centre) for i in _starts(rows)])
    gamma = (rows.shape[1] + 8) * eps / 2
    bound: Floats = gamma * (norms + largest) ** 2
    return bound


def _starts(table: Floats) -> range:
    return range(0, len(table), _BLOCK)


def _norms(table: Floats) -> Floats:
    norms: Floats = np.sqrt(np.einsum("ij,ij->i", table, table))
    return norms


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
