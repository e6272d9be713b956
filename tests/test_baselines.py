"""Add-noise and nearest-neighbour: their formulae, 2020's form, exact naming."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_preprocess import fit_scaling, preprocess_data, preprocess_standard
from harness.cohort import Cohort
from tests.conftest import ROOT, load_module, random_cohort

Baseline = Callable[[str], ModuleType]
NEAREST = load_module(ROOT / "seekers/nearest_neighbour/seeker.py")


def release_of(module: ModuleType, cohort: Cohort, **parameters: Any) -> Any:
    given = {
        "data": cohort.data.copy(),
        "padding_mask": cohort.padding_mask,
        "seed": 5,
        "parameters": parameters,
    }
    before = cohort.data.copy()
    data, mask = module.hider(given)
    np.testing.assert_array_equal(given["data"], before, "the input must not be changed")
    np.testing.assert_array_equal(mask, cohort.padding_mask)
    return data


def test_noise_is_sigma_of_the_range_on_time_and_every_feature(baseline: Baseline) -> None:
    cohort = random_cohort(patients=4000, seed=1)
    data = release_of(baseline("hiders/add_noise/hider.py"), cohort, sigma=0.25)
    real = ~cohort.padding_mask & ~np.isnan(cohort.data)
    np.testing.assert_array_equal(np.isnan(data), ~real)
    span = fit_scaling(cohort.data, cohort.padding_mask).span
    for column in range(4):
        noise = (data - cohort.data)[:, :, column][real[:, :, column]] / span[column]
        # The standard error of a standard deviation is s / sqrt(2 n).
        assert noise.std() == pytest.approx(0.25, abs=5 * 0.25 / np.sqrt(2 * noise.size))
        assert noise.mean() == pytest.approx(0.0, abs=5 * 0.25 / np.sqrt(noise.size))


def test_noise_in_units_of_the_standard_deviation(baseline: Baseline) -> None:
    cohort = random_cohort(patients=4000, seed=2)
    data = release_of(baseline("hiders/add_noise/hider.py"), cohort, sigma=1.0, unit="std")
    real = ~cohort.padding_mask & ~np.isnan(cohort.data)
    for column in range(4):
        here = real[:, :, column]
        noise = (data - cohort.data)[:, :, column][here]
        assert noise.std() == pytest.approx(cohort.data[:, :, column][here].std(), rel=0.03)


def test_noise_under_2020_rules_is_on_the_preprocessed_data(baseline: Baseline) -> None:
    cohort = random_cohort(patients=3000, seed=3)
    data = release_of(baseline("hiders/add_noise/hider.py"), cohort, rules="neurips2020")
    base = preprocess_data(cohort.data, cohort.padding_mask)[1]
    noise = data - base
    # 2020 took each column's deviation over all cells, padding included.
    np.testing.assert_allclose(noise.std(axis=(0, 1)), 0.1 * base.std(axis=(0, 1)), rtol=0.05)
    assert not np.isnan(data).any()


def test_no_noise_is_a_copy_and_the_seed_repeats(baseline: Baseline) -> None:
    module, cohort = baseline("hiders/add_noise/hider.py"), random_cohort()
    real = ~cohort.padding_mask
    np.testing.assert_array_equal(release_of(module, cohort, sigma=0)[real], cohort.data[real])
    np.testing.assert_array_equal(release_of(module, cohort), release_of(module, cohort))


@pytest.mark.parametrize("parameters", [{"sigma": -1}, {"sigma": "nan"}, {"unit": "sd"}])
def test_bad_parameters_are_named(baseline: Baseline, parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the parameter"):
        release_of(baseline("hiders/add_noise/hider.py"), random_cohort(), **parameters)


@pytest.mark.parametrize("rules", ["standard", "neurips2020"])
@pytest.mark.parametrize("with_mask", [True, False])
def test_nearest_neighbour_equals_brute_force(rules: str, with_mask: bool) -> None:
    enlarged, release = random_cohort(30, seed=4), random_cohort(15, seed=5)
    mask = release.padding_mask if with_mask else None
    scores = NEAREST.seeker(
        {
            "enlarged_data": enlarged.data.copy(),
            "enlarged_data_padding_mask": enlarged.padding_mask,
            "generated_data": release.data.copy(),
            "generated_data_padding_mask": mask,
            "seed": 0,
            "parameters": {"rules": rules},
        }
    )
    if rules == "neurips2020":
        e = preprocess_data(enlarged.data, enlarged.padding_mask)[1]
        s = preprocess_data(release.data, mask)[1]
    else:
        scaling = fit_scaling(enlarged.data, enlarged.padding_mask)
        e = preprocess_standard(enlarged.data, enlarged.padding_mask, scaling).values
        s = preprocess_standard(release.data, mask, scaling).values
    for i in range(30):
        brute = min(float(np.linalg.norm(e[i] - other)) for other in s)
        assert scores[i] == pytest.approx(-brute, rel=1e-5, abs=1e-5)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10_000),
    st.sampled_from(["spread", "near ties", "copies", "grid", "far from the origin"]),
)
def test_named_are_exactly_those_of_float64_brute_force(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 40))
    rows, others = rng.normal(size=(60, d)), rng.normal(size=(30, d))
    if kind == "near ties":
        # All nearest distances within one part in a million: float32 cannot order them.
        directions = rng.normal(size=(60, d))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        others = rng.normal(size=(30, d)) * 50
        rows = others[rng.integers(0, 30, 60)] + directions * (1 + 1e-7 * rng.random((60, 1)))
    elif kind == "copies":
        others = rows[:30].copy()
    elif kind == "grid":
        rows, others = np.round(rows), np.round(others)
    elif kind == "far from the origin":
        rows[:, 0] *= 1e4
        others[:, 0] = others[:, 0] * 1e4 + 3e4
    brute = np.array([min(((row - other) ** 2).sum() for other in others) for row in rows])
    ours = NEAREST.membership_distances(rows, others, 30)
    place = np.sort(brute)
    if place[29] < place[30] * (1 - 1e-12):
        assert set(np.argsort(ours)[:30]) == set(np.argsort(brute)[:30])
    sure = np.abs(ours - brute) <= 1e-9 * (1 + brute)
    assert sure[np.argsort(brute, kind="stable")[29]], "the threshold itself must be exact"
    if kind == "copies":
        assert (ours[:30] == 0).all()


def test_float32_alone_would_name_others() -> None:
    """The check above has teeth: without the second look, near ties are named wrongly."""
    wrong = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        others = rng.normal(size=(30, 20)) * 50
        directions = rng.normal(size=(60, 20))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        rows = others[rng.integers(0, 30, 60)] + directions * (1 + 1e-7 * rng.random((60, 1)))
        brute = np.array([min(((row - other) ** 2).sum() for other in others) for row in rows])
        single = NEAREST.nearest_float32(rows, others).squared
        wrong += set(np.argsort(single)[:30]) != set(np.argsort(brute)[:30])
    assert wrong > 10


@pytest.mark.parametrize("rules", ["standard", "neurips2020"])
def test_attack_huge_values_blind_no_seeker(rules: str) -> None:
    """A hider must not win by making seekers overflow: one absurd patient, the others copies."""
    enlarged = random_cohort(40, seed=6)
    release, mask = enlarged.data[:20].copy(), enlarged.padding_mask[:20]
    release[0, -1, 1:] = [1e99, -1e99, 1e30]
    scores = NEAREST.seeker(
        {
            "enlarged_data": enlarged.data.copy(),
            "enlarged_data_padding_mask": enlarged.padding_mask,
            "generated_data": release,
            "generated_data_padding_mask": mask,
            "seed": 0,
            "parameters": {"rules": rules},
        }
    )
    assert np.isfinite(scores).all()
    if rules == "standard":
        assert (scores[1:20] == 0).all()
