"""What surrounds the values: lengths, which cells are measured, order of times, units.

Release and cohort are right-aligned (padding at the front); the networks see left-aligned
sequences, since a recurrence that starts at a patient's first row never meets padding.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Sequences(NamedTuple):
    """Left-aligned, time-major patients.

    Attributes
    ----------
    values : float32 array (steps, patients, columns)
        Imputed and scaled to [0, 1]; 0 after a patient's last row.
    measured : bool array, same shape
        True where a cell was really measured.
    lengths : int array (patients,)
        Rows per patient.
    """

    values: NDArray[np.float32]
    measured: Bools
    lengths: NDArray[np.intp]


def align_left(values: Floats, measured: Bools, padding_mask: Bools) -> Sequences:
    """Move each patient's rows to the front and the patients to the second axis.

    Parameters
    ----------
    values : float64 array (patients, steps, columns)
        Imputed, scaled values; what padding cells hold does not matter.
    measured, padding_mask : bool arrays, same shape
        A row is padding where all its cells are.

    Returns
    -------
    Sequences
    """
    padding: Bools = np.all(padding_mask, axis=2)
    order = np.argsort(padding, axis=1, kind="stable")[:, :, None]
    alive = np.take_along_axis(~padding[:, :, None], order, axis=1)
    moved = np.where(alive, np.take_along_axis(values, order, axis=1), 0.0)
    seen = alive & np.take_along_axis(measured, order, axis=1)
    return Sequences(
        np.ascontiguousarray(moved.transpose(1, 0, 2), dtype=np.float32),
        np.ascontiguousarray(seen.transpose(1, 0, 2)),
        np.count_nonzero(~padding, axis=1),
    )


def draw_observation(
    sequences: Sequences, patients: int, rng: np.random.Generator
) -> tuple[Bools, Bools]:
    """Draw lengths and observation patterns for a release.

    A length is drawn from the members' lengths, a row's pattern (which columns are measured
    together) from all rows of all members: panels stay together, nobody's sequence of patterns
    is copied.

    Parameters
    ----------
    sequences : Sequences
        The members.
    patients : int
        Number of patients in the release.
    rng : numpy Generator

    Returns
    -------
    padding_mask, measured : bool arrays (patients, steps, columns)
        Right-aligned: padding at the front.
    """
    steps, _, columns = sequences.measured.shape
    alive = np.arange(steps)[:, None] < sequences.lengths
    patterns = sequences.measured[alive]
    lengths = rng.choice(sequences.lengths, patients)
    padding = np.arange(steps) < steps - lengths[:, None]
    measured = np.zeros((patients, steps, columns), dtype=bool)
    count = int(lengths.sum())
    measured[~padding] = patterns[rng.integers(0, len(patterns), count)]
    padding_mask = np.repeat(padding[:, :, None], columns, axis=2)
    return padding_mask, measured


def align_right(values: Floats, padding_mask: Bools) -> Floats:
    """Move left-aligned, patient-major rows to the back; padding cells become 0.

    Parameters
    ----------
    values : float64 array (patients, steps, columns)
        The first rows of a patient count, as many as `padding_mask` leaves open.
    padding_mask : bool array, same shape
        Padding at the front.

    Returns
    -------
    float64 array, same shape
    """
    alive = ~padding_mask[:, :, 0]
    moved = np.zeros_like(values)
    moved[alive] = values[np.sort(alive, axis=1)[:, ::-1]]
    return moved


def in_time_order(times: Floats, padding: Bools) -> Floats:
    """Sort each patient's time stamps; padding is left alone.

    Sorting, unlike a running maximum, keeps the distribution of the generated stamps.

    Parameters
    ----------
    times : float64 array (patients, steps)
    padding : bool array, same shape
        Padding at the front.

    Returns
    -------
    float64 array, same shape
        Non-decreasing over each patient's rows.
    """
    ordered = np.sort(np.where(padding, -np.inf, times), axis=1)
    return np.where(padding, times, ordered)
