"""Cohort and Split: what the arrays mean, how they are drawn and how they are saved."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from data_preprocess import DataError, Rules, load_padded
from harness.seeds import derive_seed

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Cohort:
    """Patients in one rectangular array.

    Attributes
    ----------
    data : float64 array (patients, steps, 1 + features)
        Raw values, NaN = not measured, -1.0 = padding. Column 0 of the last axis is time.
    padding_mask : bool array, same shape
        True where a cell is padding; nothing else tells padding.
    ids : array (patients,)
        `admissionid` of each patient; never handed to a submission.
    columns : tuple of str
        Names along the last axis.
    truncated : int
        Patients that had more rows than `steps`.
    """

    data: Floats
    padding_mask: Bools
    ids: NDArray[Any]
    columns: tuple[str, ...]
    truncated: int = 0

    def __post_init__(self) -> None:
        if self.data.ndim != 3 or self.padding_mask.shape != self.data.shape:
            raise ValueError("data and padding_mask must share one 3-dimensional shape")
        if len(self.ids) != len(self.data) or len(self.columns) != self.data.shape[2]:
            raise ValueError("ids and columns must fit the data's first and last axis")

    def __len__(self) -> int:
        return len(self.data)

    @property
    def lengths(self) -> Indices:
        """Number of steps of each patient that are not padding, shape (patients,)."""
        lengths: Indices = (~self.padding_mask[:, :, 0]).sum(axis=1)
        return lengths

    @property
    def max_seq_len(self) -> int:
        """Steps T of the rectangular array."""
        return int(self.data.shape[1])

    @cached_property
    def digest(self) -> str:
        """SHA-256 over names, ids, mask and values: one digest, one data set."""
        sha = hashlib.sha256(repr((self.columns, self.data.shape)).encode())
        sha.update(repr(self.ids.tolist()).encode())
        for array in (self.padding_mask, self.data):
            sha.update(np.ascontiguousarray(array).data)
        return "sha256:" + sha.hexdigest()

    def take(self, patients: Indices) -> Self:
        """Return the cohort of the given patients, in the given order."""
        return type(self)(
            self.data[patients], self.padding_mask[patients], self.ids[patients], self.columns
        )

    @classmethod
    def from_csv(
        cls, path: str | os.PathLike[str], max_seq_len: int = 100, rules: Rules = "standard"
    ) -> Self:
        """Read a sparse CSV; see `data_preprocess.load_padded` for its form and errors."""
        return cls(*load_padded(path, max_seq_len, rules))

    def save(self, path: Path) -> None:
        """Write the cohort as a compressed ``.npz`` without pickled objects."""
        with path.open("wb") as out:
            np.savez_compressed(
                out,
                data=self.data,
                padding_mask=self.padding_mask,
                ids=self.ids,
                columns=np.asarray(self.columns),
                truncated=np.int64(self.truncated),
            )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote; nothing is unpickled.

        Raises
        ------
        DataError
            The file is not such an archive.
        """
        try:
            with np.load(path, allow_pickle=False) as saved:
                return cls(
                    saved["data"],
                    saved["padding_mask"],
                    saved["ids"],
                    tuple(saved["columns"].tolist()),
                    int(saved["truncated"]) if "truncated" in saved else 0,
                )
        except (OSError, KeyError, ValueError) as error:
            raise DataError(f"{path}: this is not a saved cohort ({error}).") from error


class Enlarged(NamedTuple):
    """The enlarged data set in the order that a seeker sees.

    Attributes
    ----------
    cohort : Cohort
        2N patients.
    truth : bool array (2N,)
        True = member. Never leaves the harness process.
    """

    cohort: Cohort
    truth: Bools

    @property
    def n(self) -> int:
        """Number of members N."""
        return len(self.truth) // 2


@dataclass(frozen=True, eq=False)
class Split:
    """The secret draw: who is a member, who is not, and in which order each is shown.

    Attributes
    ----------
    number : int
        Which of a competition's independent splits this is.
    members, non_members : int arrays (N,)
        Patient numbers in the cohort; `members` in the order that the hider sees.
    left_out : int array (0 or 1,)
        The odd patient.
    order : int array (2N,)
        Permutation of ``concatenate([members, non_members])`` that the seeker sees.
    """

    number: int
    members: Indices
    non_members: Indices
    left_out: Indices
    order: Indices

    @classmethod
    def draw(cls, patients: int, secret: str | int, number: int = 0) -> Self:
        """Draw N members and N non-members uniformly.

        Parameters
        ----------
        patients : int
            2N or 2N + 1.
        secret : str or int
            Known to the organiser alone; the draw's seed is a hash of it and of `number`.
        number : int
            Which independent split.

        Raises
        ------
        DataError
            Fewer than two patients.
        """
        if patients < 2:
            raise DataError(f"a split needs at least 2 patients, the data have {patients}.")
        n = patients // 2
        shuffled = np.random.default_rng(derive_seed("split", secret, number)).permutation(patients)
        order = np.random.default_rng(derive_seed("enlarged", secret, number)).permutation(2 * n)
        return cls(number, shuffled[:n], shuffled[n : 2 * n], shuffled[2 * n :], order)

    @property
    def n(self) -> int:
        """Number of members N."""
        return len(self.members)

    def enlarge(self, cohort: Cohort) -> Enlarged:
        """Return members and non-members together in the seeker's order, and the truth."""
        both = np.concatenate([self.members, self.non_members])[self.order]
        return Enlarged(cohort.take(both), self.order < self.n)

    def save(self, path: Path) -> None:
        """Write the split as ``.npz``. It holds the truth: keep it away from submissions."""
        with path.open("wb") as out:
            np.savez(
                out,
                number=np.int64(self.number),
                members=self.members,
                non_members=self.non_members,
                left_out=self.left_out,
                order=self.order,
            )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as saved:
            return cls(
                int(saved["number"]),
                saved["members"],
                saved["non_members"],
                saved["left_out"],
                saved["order"],
            )
