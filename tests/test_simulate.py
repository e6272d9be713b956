"""The demo cohort against the facts it was made from, and against real patients."""

import gzip
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from data_preprocess import Padded, load_padded
from harness.simulate import simulate_table, write_csv
from harness.simulate.charting import chart_patients
from harness.simulate.facts import Column, load_facts
from harness.simulate.panels import GAS, TEMPERATURE_SITES

Floats = npt.NDArray[np.float64]

FACTS = load_facts()
NAMES = [column.name for column in FACTS.columns]
ITEM = {column.name: column.item for column in FACTS.columns}
# Computed from other columns, so their levels follow those and not their own facts.
DERIVED = {"map", "hco3", "be_abg", "exp_mv", "pc_over_peep", "calcium_albc", "paw_mean"}
MEASURED = [c for c in FACTS.columns if not c.is_guess and c.name not in DERIVED]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return simulate_table(2_000, seed=11)


@pytest.fixture(scope="module")
def features(table: pd.DataFrame) -> pd.DataFrame:
    """The features by name, each clipped to its 0.1 % and 99.9 % quantile as the facts were."""
    named = table.iloc[:, 2:].set_axis(NAMES, axis=1)
    return named.clip(named.quantile(0.001), named.quantile(0.999), axis=1)


def test_layout(table: pd.DataFrame) -> None:
    assert table.columns.tolist() == ["admissionid", "time", *ITEM.values()]
    assert len(ITEM) == 70
    assert table.index.equals(pd.RangeIndex(len(table)))
    assert table.dtypes.iloc[:2].eq("int64").all()
    assert table.dtypes.iloc[2:].eq("float64").all()
    assert table.iloc[:, 2:].notna().any(axis=1).all()
    assert table["time"].min() >= 0
    same = table["admissionid"].to_numpy()[1:] == table["admissionid"].to_numpy()[:-1]
    assert (np.diff(table["time"])[same] > 0).all()
    # Patients come one after another and their numbers tell nothing about the order.
    numbers = table["admissionid"].to_numpy()[np.concatenate([[True], ~same])]
    assert len(numbers) == len(set(numbers)) == 2_000
    assert numbers.min() > 2_000
    assert not (np.diff(numbers) > 0).all()


def test_columns_are_those_of_amsterdam(icu_stats: Path) -> None:
    raw = json.loads(icu_stats.with_name("amsterdam_features.json").read_text())
    assert [(str(f["itemid"]), f["name"]) for f in raw["features"]] == [
        (column.item, column.name) for column in FACTS.columns
    ]


def test_seed_decides_everything() -> None:
    before = np.random.get_state(legacy=False)["state"]["key"].copy()
    first, again, other = simulate_table(30, 4), simulate_table(30, 4), simulate_table(30, 5)
    pd.testing.assert_frame_equal(first, again, check_exact=True)
    assert not first.equals(other)
    assert np.array_equal(before, np.random.get_state(legacy=False)["state"]["key"])


@pytest.mark.parametrize("rows", [1, 7, 100, 600])
def test_exact_rows_per_patient(rows: int) -> None:
    table = simulate_table(25, seed=1, rows_per_patient=rows)
    assert (table.groupby("admissionid").size() == rows).all()
    assert (table.groupby("admissionid")["time"].diff().dropna() > 0).all()
    assert table.iloc[:, 2:].notna().any(axis=1).all()


@pytest.mark.parametrize("patients", [1, 2, 3])
def test_tiny_cohorts(patients: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(20):
            table = simulate_table(patients, seed)
            assert table["admissionid"].nunique() == patients
            assert table.iloc[:, 2:].notna().any(axis=1).all()


def test_refuses_no_patients_and_no_rows() -> None:
    with pytest.raises(ValueError, match=r"^patients must be at least 1, not 0\.$"):
        simulate_table(0)
    with pytest.raises(ValueError, match=r"^rows_per_patient must be at least 1, not -3\.$"):
        simulate_table(2, rows_per_patient=-3)


@pytest.mark.parametrize("name", ["cohort.csv", "cohort.csv.gz"])
def test_written_file_reads_back(tmp_path: Path, name: str) -> None:
    table = simulate_table(40, seed=2)
    write_csv(table, tmp_path / name)
    read = pd.read_csv(tmp_path / name)
    assert read.columns[0] == "Unnamed: 0"
    assert read["Unnamed: 0"].tolist() == list(range(len(table)))
    pd.testing.assert_frame_equal(
        read.iloc[:, 1:].astype(table.dtypes.to_dict()), table, check_exact=True
    )
    padded = load_padded(tmp_path / name, 100)
    assert padded.data.shape == (40, 100, 71)
    assert padded.ids.tolist() == sorted(table["admissionid"].unique())


def test_file_is_small_and_the_same_every_time(tmp_path: Path) -> None:
    table = simulate_table(20, seed=2)
    paths = [tmp_path / "a.csv.gz", tmp_path / "b.csv.gz"]
    for path in paths:
        write_csv(table, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    # No time of writing in the gzip header.
    assert paths[0].read_bytes()[4:8] == bytes(4)
    text = gzip.decompress(paths[0].read_bytes()).decode()
    assert text.startswith(",admissionid,time,6640,")
    # 70 commas and the three numbers in front; 11 values of three or four characters.
    assert len(text) / len(table) < 140
    assert "-0," not in text
    # Heart rate is charted in whole numbers, pH to two decimals.
    cells = pd.read_csv(paths[0], dtype=str)
    assert cells[ITEM["hr"]].dropna().str.fullmatch(r"\d+").all()
    assert cells[ITEM["ph"]].dropna().str.fullmatch(r"\d+\.\d{1,2}").all()


def test_writing_rounds_as_charted_and_leaves_the_table_alone(tmp_path: Path) -> None:
    table = simulate_table(5, seed=2)
    finer = table.astype({ITEM["hr"]: float})
    finer[ITEM["hr"]] += 0.25
    kept = finer.copy()
    write_csv(finer, tmp_path / "finer.csv")
    pd.testing.assert_frame_equal(finer, kept)
    read = pd.read_csv(tmp_path / "finer.csv")[ITEM["hr"]]
    np.testing.assert_array_equal(read, table[ITEM["hr"]])


def test_observation_rates(table: pd.DataFrame) -> None:
    observed = table.iloc[:, 2:].notna().set_axis(NAMES, axis=1)
    assert observed.to_numpy().mean() == pytest.approx(0.16, abs=0.01)
    rates = observed.mean()
    # One site or assay per patient: few patients decide how often each is measured.
    few = {*TEMPERATURE_SITES, "pt_inr_old", "pt_inr_new", "aptt_old", "aptt_new"}
    for column in FACTS.columns:
        tolerance = 0.25 if column.name in few else 0.10
        assert rates[column.name] == pytest.approx(column.rate, rel=tolerance, abs=0.002), column
    assert rates[list(TEMPERATURE_SITES)].sum() == pytest.approx(0.29, rel=0.05)
    assert (rates < 0.05).sum() >= 20


def test_patients_with_any_value(table: pd.DataFrame) -> None:
    observed = table.iloc[:, 2:].notna().set_axis(NAMES, axis=1)
    share = observed.groupby(table["admissionid"]).any().mean()
    for column in FACTS.columns:
        # Elsewhere the rate or the panel is Amsterdam's and not the source's.
        if column.rate_from == "source" and column.patients_with_any and "ptt" not in column.name:
            assert share[column.name] == pytest.approx(column.patients_with_any, abs=0.08), column


def test_lengths_of_stay() -> None:
    rows = FACTS.rows
    counts = chart_patients(np.random.default_rng(3), 20_000, rows, None).counts
    assert counts.mean() == pytest.approx(rows.mean, rel=0.02)
    assert counts.std() == pytest.approx(rows.sd, rel=0.05)
    assert (counts >= 100).mean() == pytest.approx(rows.share_100_or_more, abs=0.01)
    assert (counts == 1).sum() > 0
    assert 140 < counts.max() <= rows.largest
    for share, value in zip(rows.count_shares[1:], rows.count_values[1:], strict=True):
        assert np.quantile(counts, share) == pytest.approx(value, abs=2)


def test_charted_minutes(table: pd.DataFrame) -> None:
    rows = FACTS.rows
    hour = (table["time"] // 60).value_counts(sort=False).sort_index() / 2_000
    # A crowded last hour pushes rows past its end.
    assert hour.index.max() <= 48
    np.testing.assert_allclose(hour.loc[:47], rows.by_hour, rtol=0.2)
    gaps = table.groupby("admissionid")["time"].diff().dropna()
    for share, minutes in rows.gap_minutes.items():
        assert gaps.quantile(share) == pytest.approx(minutes, abs=6)
    # The stay does not depend on who else is there.
    short = simulate_table(300, seed=1, rows_per_patient=100)["time"].max()
    assert short <= 49 * 60
    # A patient's rounds fall on the same minute of the hour, another patient's on another.
    minute = (table["time"] % 60).groupby(table["admissionid"])
    usual = minute.agg(lambda minutes: minutes.mode().iloc[0])
    on_round = (table["time"] % 60) == usual.loc[table["admissionid"]].to_numpy()
    assert on_round.mean() == pytest.approx(0.58, abs=0.05)
    assert usual.nunique() == 60


def test_levels(table: pd.DataFrame, features: pd.DataFrame) -> None:
    patients = features.notna().groupby(table["admissionid"]).any().sum()
    shares = FACTS.quantile_shares.tolist()
    for column in MEASURED:
        values = features[column.name].dropna()
        median = column.quantiles[shares.index(0.5)]
        # Few patients: their mean is as uncertain as they differ, and one typing error moves it.
        if patients[column.name] < 1_000:
            assert abs(values.median() - median) < 0.35 * column.sd, column
            continue
        assert abs(values.median() - median) < 0.20 * column.sd, column
        assert abs(values.mean() - column.mean) < 0.20 * column.sd, column
        # The standard deviation of a long tail is a matter of a few patients; its bulk is not.
        spread = values.quantile(0.95) - values.quantile(0.05)
        wanted = column.quantiles[shares.index(0.95)] - column.quantiles[shares.index(0.05)]
        assert spread == pytest.approx(wanted, rel=0.25), column


def test_between_and_within_patients(table: pd.DataFrame, features: pd.DataFrame) -> None:
    for name in ("hr", "sbp", "dbp", "spo2", "rr_monitor"):
        column = FACTS.columns[NAMES.index(name)]
        values = features[name].groupby(table["admissionid"])
        within = float(values.var().mean())
        between = float(values.mean().var())
        assert between / (between + within) == pytest.approx(column.between_share, abs=0.1), name


def test_autocorrelation(table: pd.DataFrame, features: pd.DataFrame) -> None:
    hours = features.groupby([table["admissionid"], table["time"] // 60]).mean()
    later = hours.copy()
    later.index = pd.MultiIndex.from_arrays(
        [later.index.get_level_values(0), later.index.get_level_values(1) - 1]
    )
    later = later.reindex(hours.index)
    compared = 0
    for column in MEASURED:
        both = hours[column.name].notna() & later[column.name].notna()
        if column.lag1h is None or both.sum() < 1_500:
            continue
        found = np.corrcoef(hours[column.name][both], later[column.name][both])[0, 1]
        assert found == pytest.approx(column.lag1h, abs=0.13), column
        compared += 1
    assert compared >= 10


@pytest.mark.parametrize("level", ["between", "within"])
def test_correlations(level: str, table: pd.DataFrame, features: pd.DataFrame) -> None:
    if level == "between":
        values, target = features.groupby(table["admissionid"]).mean(), FACTS.between
    else:
        grid = features.groupby([table["admissionid"], table["time"] // 360]).mean()
        values, target = grid - grid.groupby(level=0).transform("mean"), FACTS.within
    found = values.corr(min_periods=300).to_numpy()
    pairs = [
        (i, j)
        for i, one in enumerate(FACTS.columns)
        for j, other in enumerate(FACTS.columns[:i])
        if one in MEASURED
        and other in MEASURED
        and one.source != other.source
        and target[i, j] != 0
        and not np.isnan(found[i, j])
    ]
    assert len(pairs) > 300
    seen = np.array([found[pair] for pair in pairs])
    wanted = np.array([target[pair] for pair in pairs])
    assert np.abs(seen - wanted).mean() < 0.07
    assert np.corrcoef(seen, wanted)[0, 1] > 0.8


def test_panels_arrive_together(table: pd.DataFrame) -> None:
    observed = table.iloc[:, 2:].notna().set_axis(NAMES, axis=1)
    together = [
        *(("ph", name) for name in GAS if name != "ph"),
        ("sbp", "dbp"),
        ("peep_set", "ppeak"),
        ("sodium", "creatinine"),
        ("hb", "ht"),
        ("alat", "asat"),
    ]
    for one, other in together:
        both = (observed[one] & observed[other]).sum()
        assert both / min(observed[one].sum(), observed[other].sum()) > 0.75, (one, other)
    per_row = observed.sum(axis=1)
    assert per_row.max() >= 35
    assert per_row.min() == 1


def test_laboratory_draws_keep_their_distance(table: pd.DataFrame) -> None:
    drawn = table.loc[table[ITEM["sodium"]].notna(), ["admissionid", "time"]]
    hours = drawn.groupby("admissionid")["time"].diff().dropna() / 60
    # PhysioNet 2012: a quarter within 6 h, half within 10 h, three quarters within 18 h.
    assert hours.quantile([0.25, 0.5, 0.75]).tolist() == pytest.approx([6, 10, 18], rel=0.3)
    assert (hours < 1).mean() < 0.02


def test_patients_have_one_or_the_other(table: pd.DataFrame) -> None:
    has = table.iloc[:, 2:].notna().set_axis(NAMES, axis=1).groupby(table["admissionid"]).any()
    for old, new in (("pt_inr_old", "pt_inr_new"), ("aptt_old", "aptt_new")):
        assert has[old].any()
        assert has[new].any()
        assert not (has[old] & has[new]).any()
    assert has[list(TEMPERATURE_SITES)].any().all()
    assert has[list(TEMPERATURE_SITES)].sum(axis=1).max() == 1


def test_derived_columns(table: pd.DataFrame) -> None:
    v = table.iloc[:, 2:].set_axis(NAMES, axis=1)
    formulas = {
        "map": (v["dbp"] + (v["sbp"] - v["dbp"]) / 3, 0.51),
        "hco3": (0.0307 * v["pco2"] * 10 ** (v["ph"].clip(6, 8) - 6.105), 0.051),
        "be_abg": (0.93 * (v["hco3"] - 24.4 + 14.8 * (v["ph"] - 7.4)), 0.051),
        "exp_mv": (v["rr_ventilator"] * v["exp_tidal"] / 1000, 0.051),
        "pc_over_peep": (v["ppeak"] - v["peep_set"], 0.01),
        "calcium_albc": (v["calcium"] + 0.02 * (40 - v["albumin"]), 0.0051),
        "fio2_measured": (v["fio2_set"], 5.0),
        "paw_mean": (v["peep_set"] + 0.3 * (v["ppeak"] - v["peep_set"]), 4.0),
    }
    for name, (expected, tolerance) in formulas.items():
        gap = (v[name] - expected).abs().dropna()
        assert len(gap) > 500, name
        # What is left over are typing errors in one of the columns.
        assert (gap <= tolerance).mean() > 0.994, name
    assert (v["dbp"] < v["sbp"])[v["dbp"].notna() & v["sbp"].notna()].mean() > 0.999


def test_gross_errors_are_there_and_rare(table: pd.DataFrame) -> None:
    v = table.iloc[:, 2:].set_axis(NAMES, axis=1)
    absurd = (v["temp_axillary"] < 25) | (v["ph"] > 8) | (v["ph"] < 6) | (v["hr"] > 220)
    assert 5 <= absurd.sum() < 0.001 * len(v)
    for column in FACTS.columns:
        if column.name not in DERIVED | {"fio2_measured"}:
            low, high = column.extremes
            step = 10.0**-column.decimals
            assert v[column.name].dropna().between(low - step, high + step).all(), column


def test_facts_are_copied_from_the_shared_data(icu_stats: Path) -> None:
    stats = json.loads(icu_stats.read_text())
    for column in FACTS.columns:
        if column.is_guess:
            continue
        source = _source(stats, column)
        quantiles = [source["quantiles"][str(share)] for share in FACTS.quantile_shares]
        np.testing.assert_allclose(
            column.quantiles[1:], np.array(quantiles[1:]) * column.factor, rtol=1e-3
        )
        if column.rate_from == "source" and "2012" in column.source:
            assert column.rate == pytest.approx(source["fraction_of_rows_observed"], rel=1e-3)
    rows = stats["physionet2012_abc"]["summary"]["rows_per_patient"]
    assert rows["mean"] == FACTS.rows.mean
    assert (
        FACTS.rows.by_hour.tolist()
        == (stats["physionet2012_abc"]["rows_per_active_patient_by_hour"][:48])
    )


def test_agrees_with_icu_stats(
    icu_stats: Path, table: pd.DataFrame, features: pd.DataFrame
) -> None:
    stats = json.loads(icu_stats.read_text())
    order = stats["physionet2012_abc"]["correlation"]["order"]
    target = np.array(stats["physionet2012_abc"]["correlation"]["patient_means"])
    means = features.groupby(table["admissionid"]).mean()
    gaps = []
    own = [c for c in MEASURED if c.rate_from == "source" and "2012" in c.source]
    for column in own:
        source = _source(stats, column)
        rate = features[column.name].notna().mean()
        assert rate == pytest.approx(source["fraction_of_rows_observed"], rel=0.1, abs=0.001)
        sd = source["sd_clipped_0p1_99p9"] * column.factor
        median = source["quantiles"]["0.5"] * column.factor
        assert abs(features[column.name].median() - median) < 0.3 * sd, column
        for other in own[: own.index(column)]:
            i, j = (order.index(c.source.split(":")[1]) for c in (column, other))
            found = means[column.name].corr(means[other.name], min_periods=300)
            gaps.append(abs(found - target[i, j]))
    assert len(gaps) > 150
    assert np.nanmean(gaps) < 0.07
    summary = stats["physionet2012_abc"]["summary"]
    counts = table.groupby("admissionid").size()
    assert (counts >= 100).mean() == pytest.approx(
        summary["fraction_patients_with_ge_100_rows"], abs=0.03
    )


def _source(stats: dict[str, Any], column: Column) -> dict[str, Any]:
    data_set, variable = column.source.split(":")
    found: dict[str, Any] = stats[data_set]["variables"][variable]
    return found


@pytest.fixture(scope="module")
def cohorts(physionet: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Padded, Padded]:
    """Real patients and simulated ones."""
    path = tmp_path_factory.mktemp("hardness") / "simulated.csv"
    write_csv(simulate_table(1_500, seed=7), path)
    return load_padded(physionet, 100), load_padded(path, 100)


@pytest.mark.parametrize("rules", ["neurips2020", "standard"])
def test_about_as_hard_as_real_patients(
    rules: str,
    cohorts: tuple[Padded, Padded],
    baseline: Callable[[str], ModuleType],
) -> None:
    hider = baseline("hiders/add_noise/hider.py").hider
    seeker = baseline("seekers/nearest_neighbour/seeker.py").seeker

    def accuracy(cohort: Padded, seed: int) -> float:
        rng = np.random.default_rng(seed)
        patients = rng.choice(len(cohort.data), 1_000, replace=False)
        data, mask = cohort.data[patients], cohort.padding_mask[patients]
        is_member = np.zeros(1_000, dtype=bool)
        is_member[rng.choice(1_000, 500, replace=False)] = True
        parameters = {"rules": rules, "sigma": 0.1}
        members = {"data": data[is_member], "padding_mask": mask[is_member]}
        release, release_mask = hider({**members, "seed": seed, "parameters": parameters})
        scores = seeker(
            {
                "generated_data": release,
                "generated_data_padding_mask": release_mask,
                "enlarged_data": data,
                "enlarged_data_padding_mask": mask,
                "seed": seed,
                "parameters": parameters,
            }
        )
        named = np.argsort(-np.ravel(scores), kind="stable")[:500]
        return float(is_member[named].mean())

    on_real, on_simulated = (
        np.mean([accuracy(cohort, seed) for seed in range(2)]) for cohort in cohorts
    )
    assert abs(on_real - on_simulated) <= 0.1, (on_real, on_simulated)
