"""The cohort as a table, and the table as a file."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv

from harness.simulate.charting import Ints, chart_patients
from harness.simulate.facts import load_facts
from harness.simulate.levels import fill_values
from harness.simulate.panels import draw_measured


def simulate_table(
    patients: int, seed: int = 0, *, rows_per_patient: int | None = None
) -> pd.DataFrame:
    """Make up an intensive care cohort in the layout of the Amsterdam file.

    Parameters
    ----------
    patients : int
        P, the number of admissions, at least 1.
    seed : int, default 0
        The same seed gives the same table, another seed another one.
    rows_per_patient : int or None, default None
        Exactly this many rows for every patient; None draws 1 to 211, about 74 on average, as in
        PhysioNet 2012.

    Returns
    -------
    pandas.DataFrame
        R rows, patient after patient, with a fresh row index. `admissionid` (int64, made up),
        `time` (int64, minutes since admission, increasing within a patient), then 70 float64
        feature columns named by item ID, in the unit of `facts.json`; NaN = not measured. Every
        row has at least one measured feature; about 16 % of the cells are measured.

    Raises
    ------
    ValueError
        If `patients` or `rows_per_patient` is less than 1.

    Notes
    -----
    Levels, rates and correlations: PhysioNet/CinC Challenges 2012 and 2019 and the public
    AmsterdamUMCdb dictionary; where they say nothing, guesses. See `facts.json`.

    Examples
    --------
    >>> table = simulate_table(3, seed=1)
    >>> table.columns[:3].tolist()
    ['admissionid', 'time', '6640']
    >>> table["admissionid"].nunique()
    3
    """
    if patients < 1:
        raise ValueError(f"patients must be at least 1, not {patients}.")
    if rows_per_patient is not None and rows_per_patient < 1:
        raise ValueError(f"rows_per_patient must be at least 1, not {rows_per_patient}.")
    facts = load_facts()
    # A stream for each step, so that a change in one step leaves the others' draws alone.
    for_ids, for_chart, for_mask, for_values = np.random.default_rng(seed).spawn(4)
    chart = chart_patients(for_chart, patients, facts.rows, rows_per_patient)
    mask = draw_measured(for_mask, chart, facts)
    values = fill_values(for_values, chart, facts, mask)
    table = pd.DataFrame(values, columns=[column.item for column in facts.columns], copy=False)
    table.insert(0, "time", chart.minute)
    table.insert(0, "admissionid", _admission_ids(for_ids, patients)[chart.who])
    return table


def _admission_ids(rng: np.random.Generator, patients: int) -> Ints:
    """Draw distinct five-digit or longer numbers, in no order, shape [P]."""
    gaps = rng.integers(1, 5, patients)
    return np.asarray(rng.permutation(10_000 + np.cumsum(gaps)), dtype=np.int64)


def write_csv(table: pd.DataFrame, path: str | Path) -> None:
    """Write a table in the layout of the Amsterdam file.

    An unnamed row index comes first, then the table's columns; an empty cell is one that was not
    measured. Feature values are rounded to the decimals to which their column is charted (a
    simulated table is already), so the file stays small.

    Parameters
    ----------
    table : pandas.DataFrame
        As `simulate_table` returns it.
    path : str or pathlib.Path
        Where to write; a name that ends in `.gz` is compressed.
    """
    path = Path(path)
    decimals = {column.item: column.decimals for column in load_facts().columns}
    arrays = {"": pa.array(np.arange(len(table)))}
    for name in table.columns:
        values = table[name].to_numpy()
        if name in decimals:
            values = np.round(values, decimals[name])
            # Whole numbers need no ".0".
            kind = pa.int64() if decimals[name] == 0 else pa.float64()
            empty = np.isnan(values)
            whole = np.where(empty, 0.0, values)
            arrays[name] = pa.array(whole, mask=empty).cast(kind)
        else:
            arrays[name] = pa.array(values, from_pandas=True)
    # pandas' own header; Arrow would quote the names.
    header = ",".join(["", *map(str, table.columns)]) + "\n"
    options = pa_csv.WriteOptions(include_header=False)
    with _open(path) as stream:
        stream.write(header.encode())
        pa_csv.write_csv(pa.table(arrays), stream, options)


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    with path.open("wb") as file:
        if path.suffix != ".gz":
            yield file
            return
        # No name and no time in it: the same table gives the same bytes. Level 9, the default,
        # takes four times as long for a few per cent.
        with gzip.GzipFile("", "wb", compresslevel=5, fileobj=file, mtime=0) as zipped:
            yield cast(IO[bytes], zipped)
