"""Chooses what a report draws from what a play left in memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data_preprocess import preprocess_data
from harness.match import Release
from harness.play import Played
from harness.report.material import Material, Roc, Series, SeriesExample
from harness.scoring.membership import roc_curve

_PATIENTS = 4
_COLUMNS = 3
_FEWEST_POINTS = 5


def collect(played: Played) -> Material:
    """Return ROC curves of every match that was done and example series of every release.

    The features shown are the most often measured ones; the patients are the first with enough
    points in the random order of members and release, so nothing is picked for its looks.
    """
    rocs = [
        Roc(guess.hider, guess.seeker, guess.split, *roc_curve(guess.scores, guess.truth))
        for guess in played.guesses
    ]
    members = played.members
    real = members.data
    if played.result.rules == "neurips2020":
        # A release of 2020's baselines is in these units, so that one axis fits both.
        real = preprocess_data(members.data, members.padding_mask)[1]
    measured = ~np.isnan(members.data) & ~members.padding_mask
    often = np.argsort(-measured[:, :, 1:].mean(axis=(0, 1)), kind="stable")[:_COLUMNS] + 1
    examples = [
        SeriesExample(
            hider,
            members.columns[column],
            _series(real, members.padding_mask, column),
            _released(release, column),
        )
        for hider, release in played.releases.items()
        for column in sorted(often)
    ]
    return Material(rocs, examples)


def _released(release: Release, column: int) -> list[Series]:
    mask = release.padding_mask
    if mask is None:
        mask = np.zeros(release.data.shape, dtype=bool)
    return _series(release.data, mask, column)


def _series(data: NDArray[np.float64], mask: NDArray[np.bool_], column: int) -> list[Series]:
    usable = ~mask[:, :, column] & ~np.isnan(data[:, :, column]) & ~np.isnan(data[:, :, 0])
    counts = usable.sum(axis=1)
    enough = np.flatnonzero(counts >= min(_FEWEST_POINTS, counts.max(initial=0)))[:_PATIENTS]
    shown = []
    for i in enough:
        time, values = data[i, usable[i], 0], data[i, usable[i], column]
        # Noise on time leaves rows out of order, and a line through them would be a scribble.
        order = np.argsort(time, kind="stable")
        shown.append(Series(time[order], values[order]))
    return shown
