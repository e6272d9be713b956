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
import os
import sys
import zipfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
# Gross outliers are data; beyond this, ranges and squares overflow.
_LARGEST = 1e100
# How a zip starts, one without files last.
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
# What pandas and Arrow both read as "not measured".
_MISSING = frozenset(
    ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND")
    + ("1.#QNAN", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")
)
# Bytes of text per block: its rows take some 2 MB as numbers and stay in the cache.
_CHUNK = 1 << 19
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
        ragged rows, text or a value beyond 1e100 in a numeric cell (row and column named).
    """
    if max_seq_len < 1:
        raise DataError(f"max_seq_len must be at least 1, got {max_seq_len}.")
    path = Path(csv_path)
    header, header_line = _read_header(path)
    columns = (_TIME, *(name for name in header if name not in (*_INDEX_NAMES, _ID, _TIME)))
    file = _File(path, header, header_line, columns)
    by_time = rules == "standard"
    placed = _place_grouped(file, max_seq_len, by_time) or _place_any(file, max_seq_len, by_time)
    if len(placed.ids) == 0:
        raise DataError(f"{path}: the file has a header but no patient: it needs at least one row.")
    if not placed.finite:
        raise _first_bad_cell(path, header) or DataError(
            f"{path}: it holds an infinite or too large value."
        )
    mask = np.empty(placed.data.shape, dtype=bool)
    mask[:] = _is_padding(placed.counts, max_seq_len)[:, :, None]
    truncated = int((placed.counts > max_seq_len).sum())
    return Padded(placed.data, mask, placed.ids, columns, truncated)


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
        elif start in _ZIP:
            with zipfile.ZipFile(raw) as archive:
                names = [
                    info.filename
                    for info in archive.infolist()
                    if not info.is_dir() and not info.filename.startswith("__MACOSX")
                ]
                if len(names) != 1:
                    raise DataError(
                        f"{path}: the zip must hold exactly one CSV, it holds {len(names)} files"
                        + (
                            "; this looks like an Excel workbook, save it as CSV."
                            if "xl/workbook.xml" in names
                            else "."
                        )
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
        raise DataError(
            f"{path}: this is not a text file in UTF-8 ({error.reason}); save it as UTF-8."
        ) from error
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


class _File(NamedTuple):
    """A CSV whose header has been read: column names, the header's last line, wanted columns."""

    path: Path
    header: list[str]
    header_line: int
    columns: tuple[str, ...]


class _Block(NamedTuple):
    """Some rows of a file: ids as an Arrow array, the other columns row by row, time first.

    `size` is that of its text in bytes, 0 where that is not known.
    """

    ids: pa.Array
    rows: Floats
    finite: bool
    size: int


class _Placed(NamedTuple):
    """Rows in their places: data, sorted ids, rows per patient in the file, no value too large."""

    data: Floats
    ids: NDArray[Any]
    counts: NDArray[np.intp]
    finite: bool


class _NotLineByLine(Exception):
    """A line of the file may not be a row, so it cannot be cut at line ends."""


def _blocks(file: _File, whole: bool) -> Iterator[_Block]:
    """Yield a file's rows in order, `whole` or cut at line ends and parsed on all cores.

    A block is turned row by row while it is in the cache; a whole Arrow table is first written
    to memory column by column.
    """
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    convert = pa_csv.ConvertOptions(
        column_types={name: pa.float64() for name in file.columns},
        include_columns=[_ID, *file.columns],
        null_values=sorted(_MISSING),
        strings_can_be_null=True,
    )

    def turned(batch: pa.RecordBatch, size: int = 0) -> _Block:
        rows = batch.select(list(file.columns)).to_tensor(null_to_nan=True).to_numpy()
        return _Block(batch.column(0), rows, not (np.abs(rows) > _LARGEST).any(), size)

    def parse(text: bytes) -> list[_Block]:
        options = pa_csv.ReadOptions(
            column_names=file.header, use_threads=False, block_size=len(text) + 1
        )
        table = pa_csv.read_csv(pa.BufferReader(text), options, convert_options=convert)
        return [turned(batch, len(text)) for batch in table.to_batches()]

    try:
        with _reading(file.path), _arrow_source(file.path) as source:
            if whole:
                options = pa_csv.ReadOptions(column_names=file.header, skip_rows=file.header_line)
                table = pa_csv.read_csv(source, options, convert_options=convert)
                yield from (turned(batch) for batch in table.to_batches() if batch.num_rows)
                return
            waiting: deque[Future[list[_Block]]] = deque()
            with ThreadPoolExecutor(_cores()) as pool:
                for text in _pieces(source, file.header_line):
                    waiting.append(pool.submit(parse, text))
                    if len(waiting) > 2 * _cores():
                        yield from waiting.popleft().result()
                while waiting:
                    yield from waiting.popleft().result()
    except pa.ArrowInvalid as error:
        raise _first_bad_cell(file.path, file.header) or DataError(
            f"{file.path}: this is not a CSV file that can be read ({str(error).splitlines()[0]})."
        ) from error


def _pieces(source: Any, header_line: int) -> Iterator[bytes]:
    """Cut a stream into pieces of whole lines, the header's lines left out."""
    rest, more = b"", True
    while more:
        chunk = source.read(_CHUNK)
        more = bool(chunk)
        text = rest + chunk
        while header_line and (end := text.find(b"\n") + 1):
            text, header_line = text[end:], header_line - 1
        cut = text.rfind(b"\n") + 1 if more else len(text)
        if header_line:
            cut = 0
        piece, rest = text[:cut], text[cut:]
        if b'"' in piece:
            raise _NotLineByLine
        if piece.strip():
            yield piece
    if rest.strip():
        raise _NotLineByLine


def _place_grouped(file: _File, steps: int, by_time: bool) -> _Placed | None:
    """Put rows straight into their places, which needs them in order; None where they are not.

    In order: a patient's rows stand together, by ascending time if `by_time`, and ids are whole
    numbers. Beside the output only a few blocks are in memory then.
    """
    width = len(file.columns)
    data = np.empty((0, steps, width))
    ids: list[NDArray[Any]] = []
    counts: list[NDArray[np.intp]] = []
    placed, read, finite = 0, 0, True
    seen: set[int] = set()
    held_id, held = None, np.empty((0, width))

    def place(heads: NDArray[Any], lengths: NDArray[np.intp], rows: Floats) -> bool:
        """Place whole patients; tell whether they came in order."""
        nonlocal data, placed
        patient = np.repeat(np.arange(len(heads)), lengths)
        within = patient[1:] == patient[:-1]
        if by_time and not (rows[1:, 0] >= rows[:-1, 0])[within].all():
            return False
        end = placed + len(heads)
        seen.update(heads.tolist())
        if len(seen) < end:
            return False
        if end > len(data):
            # A guess from the file's size, doubled where that falls short (packed files);
            # memory that is never touched is never taken.
            guess = int(end * file.path.stat().st_size / max(read, 1) * 1.1)
            larger = np.empty((max(2 * end, guess) + 16, steps, width))
            larger[:placed] = data[:placed]
            data = larger
        target = data[placed:end]
        target[_is_padding(lengths, steps)] = PADDING
        _move(rows, _slots(patient, len(heads), steps, None)[0], target.reshape(-1, width))
        ids.append(heads)
        counts.append(lengths)
        placed = end
        return True

    import pyarrow as pa

    try:
        for block in _blocks(file, whole=False):
            if block.ids.null_count or not pa.types.is_integer(block.ids.type):
                return None
            finite &= block.finite
            read += block.size
            values, rows = block.ids.to_numpy(), block.rows
            starts = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
            heads, lengths = values[starts], np.diff(np.append(starts, len(values)))
            if heads[0] == held_id:
                held = np.concatenate([held, rows[: lengths[0]]])
                rows, heads, lengths = rows[lengths[0] :], heads[1:], lengths[1:]
            if len(heads) == 0:
                continue
            if len(held) and not place(np.array([held_id]), np.array([len(held)]), held):
                return None
            # The last patient may go on in the next block.
            whole = len(rows) - lengths[-1]
            if len(heads) > 1 and not place(heads[:-1], lengths[:-1], rows[:whole]):
                return None
            held_id, held = heads[-1], rows[whole:].copy()
    except _NotLineByLine:
        return None
    if len(held) and not place(np.array([held_id]), np.array([len(held)]), held):
        return None
    none = np.empty(0, dtype=np.intp)
    all_ids, all_counts = np.concatenate([none, *ids]), np.concatenate([none, *counts])
    order = np.argsort(all_ids)
    if (np.diff(order) == 1).all():
        return _Placed(data[:placed], all_ids, all_counts, finite)
    data = data[:placed]

    def reorder(step: int) -> None:
        data[:, step : step + 2] = data[order, step : step + 2]

    # A few steps at a time need no second array of this size.
    with ThreadPoolExecutor(_cores()) as pool:
        list(pool.map(reorder, range(0, steps, 2)))
    return _Placed(data, all_ids[order], all_counts[order], finite)


def _place_any(file: _File, steps: int, by_time: bool) -> _Placed:
    """Put rows in their places in whatever order they come, from the whole file in memory."""
    blocks = list(_blocks(file, whole=True))
    if not blocks:
        none = np.empty(0, dtype=np.intp)
        return _Placed(np.empty((0, steps, len(file.columns))), none, none, True)
    ids, patient = _patients([block.ids for block in blocks], file.path)
    time = np.concatenate([block.rows[:, 0] for block in blocks]) if by_time else None
    slot, counts = _slots(patient, len(ids), steps, time)
    data = np.empty((len(ids), steps, len(file.columns)))
    data[_is_padding(counts, steps)] = PADDING
    start = 0
    for block in blocks:
        part = slot[start : start + len(block.rows)]
        _move(block.rows, part, data.reshape(-1, len(file.columns)))
        start += len(block.rows)
    return _Placed(data, ids, counts, all(block.finite for block in blocks))


def _is_padding(counts: NDArray[np.intp], steps: int) -> Bools:
    """Return which steps are padding, at the front, bool (patients, steps)."""
    is_padding: Bools = np.arange(steps) < steps - np.minimum(counts, steps)[:, None]
    return is_padding


def _move(rows: Floats, slot: NDArray[np.intp], out: Floats) -> None:
    """Write rows to their slots in `out` (rows, columns); those of slot -1 are dropped."""
    if slot[0] >= 0 and (np.diff(slot) == 1).all():
        out[slot[0] : slot[-1] + 1] = rows
    else:
        kept = slot >= 0
        out[slot[kept]] = rows[kept]


@contextmanager
def _arrow_source(path: Path) -> Iterator[Any]:
    """Yield what Arrow reads fastest: its own streams, which need no Python; a zip needs it."""
    import pyarrow as pa

    with path.open("rb") as raw:
        start = raw.read(4)
    if start in _ZIP:
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
                if abs(value) > _LARGEST:
                    return DataError(
                        f"{where}, column {name!r}: {cell[:40]} is infinite or too large; "
                        "leave the cell empty where nothing was measured."
                    )
    return None


def _patients(chunks: list[pa.Array], path: Path) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return the sorted unique ids and, per row, the number of its patient."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = pa.chunked_array(chunks)
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
