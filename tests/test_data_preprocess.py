"""CSV to padded array, imputation and scaling: against a slow implementation, and bad input."""

from __future__ import annotations

import gzip
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import data_preprocess as dp
from benchmarks import slow_2020
from tests.conftest import ROOT, random_cohort

Floats = NDArray[np.float64]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def slow_preprocess(data: Floats, mask: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    with warnings.catch_warnings():
        # scikit-learn warns of columns that are entirely empty, which are normal here.
        warnings.simplefilter("ignore", RuntimeWarning)
        return slow_2020.preprocess(data, mask)


@st.composite
def csv_files(draw: st.DrawFn) -> str:
    """Draw a CSV with interleaved patients, unsorted times, empty columns and genuine -1."""
    features = draw(st.integers(1, 4))
    cell = st.one_of(
        st.just(""),
        st.just("-1"),
        st.just("-1.0"),
        st.just("1e9"),
        st.floats(-1e3, 1e3, allow_nan=False, width=32).map(lambda x: repr(float(x))),
    )
    empty = draw(st.sets(st.integers(0, features - 1), max_size=1))
    lines = [",admissionid,time," + ",".join(f"f{i}" for i in range(features))]
    for row in range(draw(st.integers(1, 25))):
        cells = ["" if i in empty else draw(cell) for i in range(features)]
        patient, time = draw(st.sampled_from([7, 1, 300, 12])), draw(st.integers(-5, 60))
        lines.append(f"{row},{patient},{time}," + ",".join(cells))
    return "\n".join(lines) + "\n"


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(csv_files(), st.integers(1, 9))
def test_random_files_equal_the_slow_implementation(tmp_path: Path, text: str, steps: int) -> None:
    path = write(tmp_path / "random.csv", text)
    data, mask = dp.load_and_reshape(path, steps)
    slow_data, slow_mask = slow_2020.load(path, steps)
    np.testing.assert_array_equal(data, slow_data)
    np.testing.assert_array_equal(mask, slow_mask)
    for ours, slow in zip(
        dp.preprocess_data(data, mask), slow_preprocess(slow_data, slow_mask), strict=True
    ):
        np.testing.assert_array_equal(ours, slow)


@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
@given(csv_files(), st.integers(1, 9))
def test_standard_form_sorts_rows_by_time(tmp_path: Path, text: str, steps: int) -> None:
    path = write(tmp_path / "random.csv", text)
    padded = dp.load_padded(path, steps, "standard")
    slow_data, slow_mask = slow_2020.load(path, steps, by_time=True)
    np.testing.assert_array_equal(padded.data, slow_data)
    np.testing.assert_array_equal(padded.padding_mask, slow_mask)


@pytest.mark.parametrize("ids", ["ascending", "in any order", "scattered", "quoted"])
@pytest.mark.parametrize("packed", [False, True])
def test_files_cut_into_many_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids: str, packed: bool
) -> None:
    """Pieces of 200 bytes: patients span several, and the output has to grow again and again."""
    rng = np.random.default_rng(5)
    patients = rng.permutation(np.arange(300)) if ids != "ascending" else np.arange(300)
    rows = [(p, t) for p in patients for t in np.sort(rng.integers(0, 90, rng.integers(1, 12)))]
    if ids == "scattered":
        rows = [rows[i] for i in rng.permutation(len(rows))]
    lines = ["admissionid,time,x,y"]
    for p, t in rows:
        number = f'"{p}"' if ids == "quoted" and p == 7 else str(p)
        lines.append(f"{number},{t},{rng.normal():.3f},{'' if rng.random() < 0.5 else -1}")
    text = "\r\n".join(lines)
    path = tmp_path / ("data.csv.gz" if packed else "data.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    monkeypatch.setattr(dp, "_CHUNK", 200)
    for by_time in (False, True):
        padded = dp.load_padded(path, 6, "standard" if by_time else "neurips2020")
        slow_data, slow_mask = slow_2020.load(path, 6, by_time)
        np.testing.assert_array_equal(padded.data, slow_data)
        np.testing.assert_array_equal(padded.padding_mask, slow_mask)
        assert padded.ids.tolist() == list(range(300))
        assert padded.truncated == sum(np.bincount([p for p, _ in rows]) > 6)


def test_grouped_files_take_the_short_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "data.csv", HEAD + "".join(f"{9 - i},0,{i}\n" for i in range(9)))
    monkeypatch.setattr(dp, "_place_any", None)
    assert dp.load_padded(path, 1).data[:, 0, 1].tolist() == list(range(8, -1, -1))


def test_real_file_equals_the_slow_implementation(physionet: Path) -> None:
    data, mask = dp.load_and_reshape(physionet)
    slow_data, slow_mask = slow_2020.load(physionet)
    assert data.shape == (3997, 100, 37)
    assert data.tobytes() == slow_data.tobytes()
    assert mask.tobytes() == slow_mask.tobytes()
    few = slice(None)
    for ours, slow in zip(
        dp.preprocess_data(data[few], mask[few]),
        slow_preprocess(slow_data[few], slow_mask[few]),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, slow)


def test_without_mask_every_cell_counts_as_data() -> None:
    cohort = random_cohort(seed=3)
    nothing_padded = np.zeros(cohort.data.shape, dtype=bool)
    for ours, slow in zip(
        dp.preprocess_data(cohort.data), slow_preprocess(cohort.data, nothing_padded), strict=True
    ):
        np.testing.assert_array_equal(ours, slow)


def test_standard_form_scales_time_and_marks_what_was_measured() -> None:
    cohort = random_cohort(patients=50, seed=1)
    standard = dp.preprocess_standard(cohort.data, cohort.padding_mask)
    real = ~cohort.padding_mask
    assert standard.values[real].min() == 0.0
    assert standard.values[real].max() <= 1.0 + 1e-12
    assert (standard.values[~real] == 0.0).all()
    np.testing.assert_array_equal(standard.measured, real & ~np.isnan(cohort.data))
    time = cohort.data[:, :, 0][real[:, :, 0]]
    np.testing.assert_allclose(
        standard.values[:, :, 0][real[:, :, 0]], (time - time.min()) / np.ptp(time), atol=1e-12
    )
    raw = dp.unscale(standard.values, standard.scaling)
    np.testing.assert_allclose(raw[standard.measured], cohort.data[standard.measured], atol=1e-12)


def test_standard_form_in_place_equals_the_copy() -> None:
    cohort = random_cohort(patients=150, seed=2)
    copy = dp.preprocess_standard(cohort.data, cohort.padding_mask)
    assert np.isnan(cohort.data).any(), "the input must not be changed without being asked"
    in_place = dp.preprocess_standard(cohort.data, cohort.padding_mask, out=cohort.data)
    assert in_place.values is cohort.data
    np.testing.assert_array_equal(copy.values, in_place.values)
    np.testing.assert_array_equal(copy.measured, in_place.measured)


def test_one_scale_serves_two_arrays() -> None:
    cohort = random_cohort(seed=4)
    scaling = dp.fit_scaling(cohort.data, cohort.padding_mask)
    shifted = dp.preprocess_standard(cohort.data + 1000.0, cohort.padding_mask, scaling)
    here = ~cohort.padding_mask & shifted.measured
    assert shifted.values[here].min() > 1.0, "values outside the scale must not be clipped"


@pytest.mark.parametrize("packing", ["plain", "gzip", "zip"])
def test_packing_is_told_by_content(tmp_path: Path, packing: str) -> None:
    text = "admissionid,time,x\n5,1,2.5\n5,2,\n3,7,-1\n"
    path = tmp_path / "data.csv"
    if packing == "plain":
        path.write_text(text)
    elif packing == "gzip":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("inner.csv", text)
    padded = dp.load_padded(path, 2)
    assert padded.ids.tolist() == [3, 5]
    np.testing.assert_array_equal(padded.data, [[[-1, -1], [7, -1]], [[1, 2.5], [2, np.nan]]])
    np.testing.assert_array_equal(padded.padding_mask[:, :, 0], [[True, False], [False, False]])


def test_spreadsheet_habits_are_read(tmp_path: Path) -> None:
    text = '\ufeff\r\n"Unnamed: 0", admissionid ,time,x\r\n0,1,0,"3.5"\r\n\r\n1,2,0,NA\r\n'
    path = write(tmp_path / "data.csv", text)
    padded = dp.load_padded(path, 1)
    assert padded.columns == ("time", "x")
    np.testing.assert_array_equal(padded.data[:, 0, 1], [3.5, np.nan])


def test_text_ids_are_patients_too(tmp_path: Path) -> None:
    path = write(tmp_path / "data.csv", "admissionid,time,x\nb,1,1\na,1,2\nb,2,3\n")
    padded = dp.load_padded(path, 2)
    assert padded.ids.tolist() == ["a", "b"]
    assert padded.data[1, :, 1].tolist() == [1.0, 3.0]


HEAD = "admissionid,time,x\n"
BAD = {
    "empty file": ("", "the file is empty"),
    "no patient": (HEAD, "no patient"),
    "no admissionid": ("id,time,x\n1,1,1\n", "'admissionid' is missing"),
    "no time": ("admissionid,t,x\n1,1,1\n", "'time' is missing"),
    "upper case": ("AdmissionId,time,x\n1,1,1\n", "lower case"),
    "semicolons": ("admissionid;time;x\n1;1;1\n", "separated by commas"),
    "repeated header": ("admissionid,time,x,x\n1,1,1,1\n", "'x' more than once"),
    "unnamed column": ("admissionid,time,,y\n1,1,1,1\n", "column 3 has no name"),
    "text in a number": (HEAD + "1,1,2\n1,2,high\n", "row 2 below the header, column 'x': 'high'"),
    "text in the time": (HEAD + "1,noon,2\n", "row 1 below the header, column 'time'"),
    "short row": (HEAD + "1,1,2\n1,2\n", "row 2 below the header has 2 cells"),
    "long row": (HEAD + "1,1,2\n1,2,3,4\n", "row 2 below the header has 4 cells"),
    "no id in a row": (HEAD + "1,1,2\n,2,3\n", "row 2 below the header has no 'admissionid'"),
    "infinite": (HEAD + "1,1,inf\n", "row 1 below the header, column 'x': inf is infinite"),
    "too large": (HEAD + "1,1,0\n2,1,-1e300\n", "row 2 below the header, column 'x': -1e300 is"),
}


@pytest.mark.parametrize(("text", "says"), BAD.values(), ids=BAD.keys())
def test_bad_file_is_one_sentence_that_says_where(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path / "bad.csv", text)
    with pytest.raises(dp.DataError) as caught:
        dp.load_padded(path)
    message = str(caught.value)
    assert says in message
    assert str(path) in message
    assert "\n" not in message


def test_bad_paths_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(dp.DataError, match="directory"):
        dp.load_padded(tmp_path)
    with pytest.raises(dp.DataError, match="no such file"):
        dp.load_padded(tmp_path / "absent.csv")
    damaged = tmp_path / "damaged.csv.gz"
    damaged.write_bytes(gzip.compress(HEAD.encode() * 1000)[:-20])
    with pytest.raises(dp.DataError, match="damaged"):
        dp.load_padded(damaged)
    binary = tmp_path / "picture.csv"
    binary.write_bytes(bytes(range(256)))
    with pytest.raises(dp.DataError, match="picture.csv"):
        dp.load_padded(binary)
    two = tmp_path / "two.zip"
    with zipfile.ZipFile(two, "w") as archive:
        archive.writestr("a.csv", HEAD)
        archive.writestr("b.csv", HEAD)
    with pytest.raises(dp.DataError, match="exactly one CSV, it holds 2"):
        dp.load_padded(two)


def test_runs_as_a_program(tmp_path: Path) -> None:
    path = write(tmp_path / "data.csv", HEAD + "1,1,2\n2,1,\n")
    out = tmp_path / "cohort.npz"
    command = [sys.executable, str(ROOT / "data_preprocess.py")]
    run = subprocess.run([*command, str(path), "--out", str(out)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    with np.load(out, allow_pickle=False) as saved:
        assert saved["data"].shape == (2, 100, 2)
        assert saved["columns"].tolist() == ["time", "x"]
    bad = subprocess.run(
        [*command, str(tmp_path), "--out", str(out)], capture_output=True, text=True
    )
    assert bad.returncode == 2
    assert "directory" in bad.stderr
    assert "Traceback" not in bad.stderr


def test_grouped_rows_out_of_time_order_are_sorted(tmp_path: Path) -> None:
    path = write(tmp_path / "data.csv", HEAD + "1,5,50\n1,2,20\n1,9,90\n2,1,10\n")
    assert dp.load_padded(path, 3, "standard").data[0, :, 1].tolist() == [20, 50, 90]
    assert dp.load_padded(path, 3, "neurips2020").data[0, :, 1].tolist() == [50, 20, 90]


def test_infinity_in_an_early_piece_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dp, "_CHUNK", 40)
    rows = "".join(f"{p},0,{'inf' if p == 3 else 1}\n" for p in range(40))
    with pytest.raises(dp.DataError, match="row 4 below the header"):
        dp.load_padded(write(tmp_path / "data.csv", HEAD + rows))
