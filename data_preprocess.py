"""Sparse ICU CSV to padded arrays; imputation and scaling.

Two forms of everything:

- ``neurips2020``: bit for bit what the NeurIPS 2020 competition did, its mistakes included
  (file order kept, time not scaled, padding -1 in the scaled data).
- ``standard``: rows sorted by time within a patient, time scaled like any feature, unmeasured
  cells kept in a mask, padding 0 in the scaled data.

Submissions may import this module; it needs numpy only, and pyarrow where it reads a CSV.
It never tells padding by its value: a genuine cell may be -1.

Run as a program: ``python data_preprocess.py CSV --out cohort.npz``.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import math
import os
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rules = Literal["neurips2020", "standard"]

PADDING = -1.0
"""What padding cells hold in raw data; which cells are padding is known from the mask alone."""

_ID, _TIME = "admissionid", "time"
_INDEX_NAMES = ("", "Unnamed: 0")
# What pandas and Arrow both read as "not measured".
_MISSING = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND")
    + ("1.#QNAN", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")
)
# Patients per block: 64 x 100 steps x 71 columns of float64 (3.6 MB) stay in a core's cache.
_BLOCK = 64


class DataError(ValueError):
    """The input cannot be used; the message is one sentence for the person who gave it."""


class Padded(NamedTuple):
    """Patients in one rectangular array.

    Attributes
    ----------
    data : float64 array (patients, steps, 1 + features)
        Raw values, NaN = not measured, -1.0 = padding (at the front). Column 0 is time.
    padding_mask : bool array, shape of `data`
        True where a cell is padding.
    ids : array (patients,)
        `admissionid` of each patient, sorted.
    columns : tuple of str
        Names along the last axis; the first is ``time``.
    truncated : int
        Number of patients that had more than `steps` rows.
    """

    data: Floats
    padding_mask: Bools
    ids: NDArray[Any]
    columns: tuple[str, ...]
    truncated: int


class Scaling(NamedTuple):
    """What `fit_scaling` learnt per column, in raw units; each array has shape (1 + features,).

    Attributes
    ----------
    minimum, span : float64 arrays
        Smallest measured value and range; span is 1 where the range is 0, so that a constant
        column scales to 0. An entirely empty column has minimum 0 and span 1.
    median : float64 array
        Median of the measured cells, 0 for an entirely empty column.
    """

    minimum: Floats
    span: Floats
    median: Floats


class Standard(NamedTuple):
    """The ``standard`` form of a padded array.

    Attributes
    ----------
    values : float64 array (patients, steps, 1 + features)
        Imputed and min-max scaled, time included; 0 at padding.
    measured : bool array, same shape
        True where the cell was really measured: neither padding nor missing.
    scaling : Scaling
        What scaled it.
    """

    values: Floats
    measured: Bools
    scaling: Scaling


# --------------------------------------------------------------------------- reading a CSV


def load_and_reshape(
    csv_path: str | os.PathLike[str], max_seq_len: int = 100
) -> tuple[Floats, Bools]:
    """Read a sparse CSV into 2020's padded array.

    Parameters
    ----------
    csv_path : path
        CSV, plain, gzip or zip, with columns ``admissionid``, ``time`` and features.
    max_seq_len : int
        Steps T kept per patient: the first T rows in file order.

    Returns
    -------
    data : float64 array (patients, T, 1 + features)
        NaN = missing, -1.0 = padding at the front; column 0 is time.
    padding_mask : bool array, same shape
        True = padding.

    Raises
    ------
    DataError
        When the file cannot be used, in one sentence.

    Notes
    -----
    Source: the 2020 competition's loading rules; `load_padded` also returns ids and names.
    """
    padded = load_padded(csv_path, max_seq_len, "neurips2020")
    return padded.data, padded.padding_mask


def load_padded(
    csv_path: str | os.PathLike[str], max_seq_len: int = 100, rules: Rules = "standard"
) -> Padded:
    """Read a sparse CSV into a padded array with its ids and column names.

    Parameters
    ----------
    csv_path : path
        CSV, plain, gzip or zip (told by content). A leading unnamed column is dropped.
    max_seq_len : int
        Steps T. A patient with more rows keeps the first T, one with fewer is right-aligned.
    rules : {"standard", "neurips2020"}
        ``standard`` sorts each patient's rows by time (stable) first; ``neurips2020`` keeps
        file order.

    Returns
    -------
    Padded

    Raises
    ------
    DataError
        No such file, a directory, an empty file, no patient, a missing or repeated column,
        ragged rows, text or an infinite value in a numeric cell (row and column named).
    """
    if max_seq_len < 1:
        raise DataError(f"max_seq_len must be at least 1, got {max_seq_len}.")
    path = Path(csv_path)
    header, header_line = _read_header(path)
    table = _read_table(path, header, header_line)
    if table.num_rows == 0:
        raise DataError(f"{path}: the file has a header but no patient: it needs at least one row.")
    ids, patient = _patients(table, path)
    columns = (_TIME, *(name for name in header if name not in (*_INDEX_NAMES, _ID, _TIME)))
    time = _column(table, _TIME) if rules == "standard" else None
    slot, counts = _slots(patient, len(ids), max_seq_len, time)
    del patient, time
    data = np.empty((len(ids), max_seq_len, len(columns)))
    first = max_seq_len - np.minimum(counts, max_seq_len)
    is_padding = np.arange(max_seq_len) < first[:, None]
    data[is_padding] = PADDING
    if not _scatter(table, columns, slot, data.reshape(-1, len(columns))):
        raise _first_bad_cell(path, header) or DataError(f"{path}: it holds an infinite value.")
    mask = np.empty(data.shape, dtype=bool)
    mask[:] = is_padding[:, :, None]
    return Padded(data, mask, ids, columns, int((counts > max_seq_len).sum()))


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Yield the CSV's bytes, decompressed; the format is told by the first bytes."""
    if not path.exists():
        raise DataError(f"{path}: there is no such file.")
    if path.is_dir():
        raise DataError(f"{path}: this is a directory; give the CSV file itself.")
    with path.open("rb") as raw:
        start = raw.read(4)
        raw.seek(0)
        if start[:2] == b"\x1f\x8b":
            with gzip.open(raw) as stream:
                yield stream
        elif start == b"PK\x03\x04":
            with zipfile.ZipFile(raw) as archive:
                names = [
                    info.filename
                    for info in archive.infolist()
                    if not info.is_dir() and not info.filename.startswith("__MACOSX")
                ]
                if len(names) != 1:
                    raise DataError(
                        f"{path}: the zip must hold exactly one CSV, it holds {len(names)}."
                    )
                with archive.open(names[0]) as stream:
                    yield stream
        else:
            yield raw


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what a damaged or foreign file raises into one sentence."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: the compressed file is damaged ({error}).") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: this is not a text file in UTF-8 ({error.reason}).") from error
    except csv.Error as error:
        raise DataError(f"{path}: this is not a CSV file ({error}).") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from error


def _rows(stream: IO[bytes] | gzip.GzipFile) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are not blank, the header first, each with its line in the file."""
    text = io.TextIOWrapper(cast("IO[bytes]", stream), encoding="utf-8-sig", newline="")
    reader = csv.reader(text)
    return ((reader.line_num, row) for row in reader if row)


def _read_header(path: Path) -> tuple[list[str], int]:
    """Return the column names and the line of the file that ends the header."""
    with _reading(path), _opened(path) as stream:
        line, header = next(_rows(stream), (0, []))
    if not header:
        raise DataError(f"{path}: the file is empty.")
    header = [name.strip() for name in header]
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated:
        raise DataError(f"{path}: the header names column {repeated[0]!r} more than once.")
    for name in (_ID, _TIME):
        if name not in header:
            hint = ""
            if len(header) == 1 and any(mark in header[0] for mark in ";\t|"):
                hint = " (the columns must be separated by commas)"
            elif name in (other.lower() for other in header):
                hint = " (names are in lower case)"
            raise DataError(f"{path}: the column {name!r} is missing from the header{hint}.")
    unnamed = [i for i, name in enumerate(header) if not name and i > 0]
    if unnamed:
        raise DataError(f"{path}: column {unnamed[0] + 1} has no name in the header.")
    return header, line


def _read_table(path: Path, header: list[str], header_line: int) -> pa.Table:
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    wanted = [name for name in header if name not in _INDEX_NAMES]
    try:
        with _reading(path), _arrow_source(path) as source:
            return pa_csv.read_csv(
                source,
                read_options=pa_csv.ReadOptions(column_names=header, skip_rows=header_line),
                convert_options=pa_csv.ConvertOptions(
                    column_types={name: pa.float64() for name in wanted if name != _ID},
                    include_columns=wanted,
                    null_values=sorted(_MISSING),
                    strings_can_be_null=True,
                ),
            )
    except pa.ArrowInvalid as error:
        raise _first_bad_cell(path, header) or DataError(
            f"{path}: this is not a CSV file that can be read ({str(error).splitlines()[0]})."
        ) from error


@contextmanager
def _arrow_source(path: Path) -> Iterator[Any]:
    """Yield what Arrow reads fastest: its own streams, which need no Python; a zip needs it."""
    import pyarrow as pa

    with path.open("rb") as raw:
        start = raw.read(4)
    if start == b"PK\x03\x04":
        with _opened(path) as stream:
            yield stream
    else:
        packing = "gzip" if start[:2] == b"\x1f\x8b" else None
        with pa.input_stream(str(path), compression=packing) as source:
            yield source


def _first_bad_cell(path: Path, header: list[str]) -> DataError | None:
    """Find what the fast reader stumbled over, by a slow second reading that knows its row."""
    numeric = [(i, name) for i, name in enumerate(header) if name not in (*_INDEX_NAMES, _ID)]
    with _reading(path), _opened(path) as stream:
        for number, (_, row) in enumerate(_rows(stream)):
            if number == 0:
                continue
            where = f"{path}: row {number} below the header"
            if len(row) != len(header):
                return DataError(f"{where} has {len(row)} cells, the header has {len(header)}.")
            for i, name in numeric:
                cell = row[i].strip()
                if cell in _MISSING:
                    continue
                try:
                    value = float(cell)
                except ValueError:
                    return DataError(
                        f"{where}, column {name!r}: {row[i][:40]!r} is not a number; "
                        "leave the cell empty where nothing was measured."
                    )
                if math.isinf(value):
                    return DataError(
                        f"{where}, column {name!r}: the value is infinite; "
                        "leave the cell empty where nothing was measured."
                    )
    return None


def _patients(table: pa.Table, path: Path) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return the sorted unique ids and, per row, the number of its patient."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table.column(_ID)
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py() + 1
        raise DataError(f"{path}: row {row} below the header has no 'admissionid'.")
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        values: NDArray[Any] = column.to_numpy()
        changes = np.flatnonzero(values[1:] != values[:-1]) + 1
        runs = np.concatenate([[0], changes])
        heads = values[runs]
        # Usually a patient's rows stand together: then only the run heads need sorting.
        ids, patient_of_run = np.unique(heads, return_inverse=True)
        lengths = np.diff(np.concatenate([runs, [len(values)]]))
        return ids, np.repeat(patient_of_run, lengths)
    ids, patient = np.unique(np.asarray(column.to_pylist(), dtype=np.str_), return_inverse=True)
    return ids, patient


def _column(table: pa.Table, name: str) -> Floats:
    values: Floats = table.column(name).to_numpy()
    return values


def _slots(
    patient: NDArray[np.intp], n_patients: int, max_seq_len: int, time: Floats | None
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return where each file row goes in the flattened output (-1 = truncated), and row counts."""
    counts = np.bincount(patient, minlength=n_patients)
    grouped = bool((patient[1:] >= patient[:-1]).all())
    order: NDArray[np.intp] | None = None
    if time is not None:
        within = (patient[1:] != patient[:-1]) | (time[1:] >= time[:-1])
        # lexsort is stable, and puts a missing time last.
        if not (grouped and within.all()):
            order = np.lexsort((time, patient))
    elif not grouped:
        order = np.argsort(patient, kind="stable")
    sorted_patient = patient if order is None else patient[order]
    starts = np.cumsum(counts) - counts
    position = np.arange(len(patient)) - starts[sorted_patient]
    first = max_seq_len - np.minimum(counts, max_seq_len)
    slot = np.where(
        position < max_seq_len, sorted_patient * max_seq_len + first[sorted_patient] + position, -1
    )
    if order is None:
        return slot, counts
    unsorted = np.empty_like(slot)
    unsorted[order] = slot
    return unsorted, counts


def _scatter(
    table: pa.Table, columns: tuple[str, ...], slot: NDArray[np.intp], out: Floats
) -> bool:
    """Write the table's rows to their slots in `out` (rows, columns); tell if all are finite."""
    batches = table.select(list(columns)).to_batches()
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])

    def write(number: int) -> bool:
        rows = batches[number].to_tensor(null_to_nan=True).to_numpy()
        to = slot[starts[number] : starts[number + 1]]
        if to[0] >= 0 and (np.diff(to) == 1).all():
            out[to[0] : to[-1] + 1] = rows
        else:
            kept = to >= 0
            out[to[kept]] = rows[kept]
        return not np.isinf(rows).any()

    with ThreadPoolExecutor(_cores()) as pool:
        return all(list(pool.map(write, range(len(batches)))))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --------------------------------------------------------------------------- imputing, scaling


def preprocess_data(data: Floats, padding_mask: Bools | None = None) -> tuple[Floats, Floats]:
    """Impute and scale as the 2020 competition did.

    Parameters
    ----------
    data : float64 array (patients, steps, 1 + features)
        Raw values, NaN = missing. Not changed.
    padding_mask : bool array of the same shape, optional
        True = padding. None: every cell counts as data.

    Returns
    -------
    scaled : float64 array, same shape
        Min-max scaled, NaN where missing.
    imputed : float64 array, same shape
        Backward fill, then forward fill, then the column's median, then 0; min-max scaled.
        In both, time is the raw time minus the patient's smallest and NOT scaled, and padding
        is -1.

    Raises
    ------
    DataError
        Wrong shapes or infinite values.
    """
    mask = _checked(data, padding_mask)
    scaling = fit_scaling(data, mask)
    scale, offset = _min_max_terms(scaling)
    scaled, imputed = np.empty_like(data), np.empty_like(data)

    def work(block: slice) -> None:
        raw = data[block]
        pad = None if mask is None else mask[block]
        filled = _impute(raw, pad, scaling.median)
        elapsed = _elapsed(filled, pad)
        np.multiply(raw, scale, out=scaled[block])
        scaled[block] += offset
        scaled[block, :, 0] = np.where(np.isnan(raw[:, :, 0]), np.nan, elapsed)
        np.multiply(filled, scale, out=imputed[block])
        imputed[block] += offset
        imputed[block, :, 0] = elapsed
        if pad is not None:
            np.copyto(scaled[block], -1.0, where=pad)
            np.copyto(imputed[block], -1.0, where=pad)

    _for_blocks(len(data), work)
    return scaled, imputed


def fit_scaling(data: Floats, padding_mask: Bools | None = None) -> Scaling:
    """Learn each column's minimum, range and median from its measured cells.

    Parameters
    ----------
    data : float64 array (patients, steps, 1 + features)
        Raw values, NaN = missing.
    padding_mask : bool array of the same shape, optional
        True = padding; such cells are left out.

    Returns
    -------
    Scaling

    Raises
    ------
    DataError
        Wrong shapes or infinite values.
    """
    mask = _checked(data, padding_mask)
    width = data.shape[-1]
    parts: list[list[Floats]] = [[] for _ in range(width)]
    by_block: dict[int, list[Floats]] = {}

    def work(block: slice) -> None:
        measured = ~np.isnan(data[block])
        if mask is not None:
            measured &= ~mask[block]
        columns = data[block].reshape(-1, width).T
        chosen = measured.reshape(-1, width).T
        by_block[block.start] = [columns[f][chosen[f]] for f in range(width)]

    _for_blocks(len(data), work)
    for start in sorted(by_block):
        for f, values in enumerate(by_block[start]):
            parts[f].append(values)
    by_block.clear()
    minimum, span, median = np.zeros(width), np.ones(width), np.zeros(width)

    def reduce(f: int) -> None:
        values = np.concatenate(parts[f]) if parts[f] else np.empty(0)
        parts[f] = []
        if values.size == 0:
            return
        low, high = values.min(), values.max()
        if not np.isfinite([low, high]).all():
            raise DataError(f"column {f} of the array holds an infinite value.")
        minimum[f] = low
        # scikit-learn's MinMaxScaler treats a range this small as constant.
        span[f] = 1.0 if high - low < 10 * np.finfo(np.float64).eps else high - low
        median[f] = np.median(values)

    with ThreadPoolExecutor(_cores()) as pool:
        list(pool.map(reduce, range(width)))
    return Scaling(minimum, span, median)


def preprocess_standard(
    data: Floats,
    padding_mask: Bools | None = None,
    scaling: Scaling | None = None,
    out: Floats | None = None,
) -> Standard:
    """Impute and scale in the ``standard`` form: time like any feature, padding 0.

    Parameters
    ----------
    data : float64 array (patients, steps, 1 + features)
        Raw values, NaN = missing.
    padding_mask : bool array of the same shape, optional
        True = padding. None: every cell counts as data.
    scaling : Scaling, optional
        From `fit_scaling`, where two arrays must share one scale; fitted on `data` when None.
        Values outside its range are not clipped.
    out : float64 array, optional
        Where to write the values, of the same shape; may be `data` itself to save memory.

    Returns
    -------
    Standard

    Raises
    ------
    DataError
        Wrong shapes or infinite values.
    """
    mask = _checked(data, padding_mask)
    if scaling is None:
        scaling = fit_scaling(data, mask)
    if len(scaling.minimum) != data.shape[-1]:
        raise DataError(
            f"the scaling is for {len(scaling.minimum)} columns, the array has {data.shape[-1]}."
        )
    scale, offset = _min_max_terms(scaling)
    median = scaling.median
    values = np.empty_like(data) if out is None else out
    measured = np.empty(data.shape, dtype=bool)

    def work(block: slice) -> None:
        pad = None if mask is None else mask[block]
        np.logical_not(np.isnan(data[block]), out=measured[block])
        if pad is not None:
            measured[block] &= ~pad
        filled = _impute(data[block], pad, median)
        filled *= scale
        filled += offset
        if pad is not None:
            np.copyto(filled, 0.0, where=pad)
        values[block] = filled

    _for_blocks(len(data), work)
    return Standard(values, measured, scaling)


def unscale(values: Floats, scaling: Scaling) -> Floats:
    """Return min-max scaled values (..., 1 + features) in raw units; NaN stays NaN."""
    raw: Floats = values * scaling.span + scaling.minimum
    return raw


def _checked(data: Floats, padding_mask: Bools | None) -> Bools | None:
    if data.ndim != 3:
        raise DataError(f"data must have shape (patients, steps, columns), got {data.shape}.")
    if padding_mask is not None and padding_mask.shape != data.shape:
        raise DataError(f"the padding mask has shape {padding_mask.shape}, the data {data.shape}.")
    return None if padding_mask is None else padding_mask.astype(bool, copy=False)


def _min_max_terms(scaling: Scaling) -> tuple[Floats, Floats]:
    # The same two roundings as scikit-learn's MinMaxScaler: x * scale + offset.
    scale = 1.0 / scaling.span
    return scale, 0.0 - scaling.minimum * scale


def _impute(raw: Floats, pad: Bools | None, median: Floats) -> Floats:
    """Return a filled copy of a block; padding cells hold anything."""
    filled = raw.copy()
    if pad is not None:
        np.copyto(filled, np.nan, where=pad)
    for t in range(filled.shape[1] - 2, -1, -1):
        here = filled[:, t]
        np.copyto(here, filled[:, t + 1], where=np.isnan(here))
    for t in range(1, filled.shape[1]):
        here = filled[:, t]
        np.copyto(here, filled[:, t - 1], where=np.isnan(here))
    np.copyto(filled, median, where=np.isnan(filled))
    return filled


def _elapsed(filled: Floats, pad: Bools | None) -> Floats:
    """Return each step's time minus the patient's smallest, shape (patients, steps)."""
    time = filled[:, :, 0]
    counted = time if pad is None else np.where(pad[:, :, 0], np.inf, time)
    elapsed: Floats = time - counted.min(axis=1, initial=np.inf)[:, None]
    return elapsed


def _for_blocks(patients: int, work: Callable[[slice], None]) -> None:
    """Run `work` over blocks of patients that fit the cache, on all cores."""
    blocks = [slice(low, min(low + _BLOCK, patients)) for low in range(0, patients, _BLOCK)]
    with ThreadPoolExecutor(_cores()) as pool:
        list(pool.map(work, blocks))


def main(arguments: list[str] | None = None) -> int:
    """Write a CSV's padded cohort as ``.npz``; return the exit code (2: unusable input)."""
    parser = argparse.ArgumentParser(description="Sparse ICU CSV to a padded cohort (.npz).")
    parser.add_argument("csv", type=Path, help="CSV, plain, gzip or zip")
    parser.add_argument("--out", type=Path, required=True, help="the .npz to write")
    parser.add_argument("--max-seq-len", type=int, default=100, help="steps kept per patient")
    parser.add_argument("--rules", choices=["standard", "neurips2020"], default="standard")
    given = parser.parse_args(arguments)
    try:
        padded = load_padded(given.csv, given.max_seq_len, given.rules)
        with given.out.open("wb") as out:
            np.savez_compressed(
                out,
                data=padded.data,
                padding_mask=padded.padding_mask,
                ids=padded.ids,
                columns=np.asarray(padded.columns),
            )
    except DataError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{given.out}: cannot be written ({error.strerror}).", file=sys.stderr)
        return 2
    patients, steps, width = padded.data.shape
    print(
        f"{given.out}: {patients:,} patients x {steps} steps x {width} columns"
        + (f"; {padded.truncated:,} patients cut to {steps} rows" if padded.truncated else "")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
