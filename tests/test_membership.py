"""Membership scores: closed cases, an independent implementation, uniform p-values."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve

from harness.failures import VERDICTS, Cause, Side, is_scored
from harness.scoring import membership as ms
from harness.submission import Kind

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def truth_of(n: int, seed: int = 0) -> Bools:
    return np.random.default_rng(seed).permutation(np.arange(2 * n) < n)


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 40), st.integers(1, 12), st.integers(0, 1000))
def test_auc_and_curve_equal_scikit_learn(n: int, levels: int, seed: int) -> None:
    truth = truth_of(n, seed)
    scores = np.random.default_rng(seed).integers(0, levels, 2 * n).astype(float)
    assert ms.auc(scores, truth) == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
    fpr, tpr, _ = roc_curve(truth, scores, drop_intermediate=False)
    ours = ms.roc_curve(scores, truth)
    np.testing.assert_allclose(ours.fpr, fpr)
    np.testing.assert_allclose(ours.tpr, tpr)
    for level in (0.001, 0.1, 0.5):
        assert ms.tpr_at(ours, level) == tpr[fpr <= level].max()


def test_perfect_guess_is_exactly_one() -> None:
    truth = truth_of(50)
    scores = ms.score_membership(truth.astype(float) * 3 - 7, truth)
    assert (scores.accuracy, scores.auc, scores.advantage, scores.advantage_at_n) == (1, 1, 1, 1)
    assert set(scores.tpr_at_fpr.values()) == {1.0}
    assert scores.p_value == pytest.approx(1 / comb(100, 50))


def test_inverted_guess_is_exactly_zero() -> None:
    truth = truth_of(50)
    scores = ms.score_membership(-truth.astype(float), truth)
    assert (scores.accuracy, scores.auc, scores.advantage, scores.advantage_at_n) == (0, 0, 0, -1)
    assert scores.p_value == 1.0


def test_exactly_n_are_named_among_ties() -> None:
    truth = truth_of(100)
    accuracies = [ms.score_membership(np.zeros(200), truth, seed=s).accuracy for s in range(200)]
    one = ms.score_membership(np.zeros(200), truth)
    assert one.named == 100
    assert one.auc == 0.5
    assert len(set(accuracies)) > 5, "ties must be broken anew by each seed"
    # Chance has a standard deviation of 0.354 / sqrt(N); the mean of 200 a fourteenth of it.
    assert np.mean(accuracies) == pytest.approx(0.5, abs=4 * 0.354 / 10 / 14.1)


def test_binary_answers_that_name_another_number() -> None:
    truth = np.arange(20) < 10
    answer = (np.arange(20) < 4).astype(float)
    as_given = ms.score_membership(answer, truth, "neurips2020")
    assert (as_given.named, as_given.named_members) == (4, 4)
    assert as_given.accuracy == pytest.approx(14 / 20)
    assert as_given.p_value == pytest.approx(float(stats.hypergeom(20, 10, 4).pmf(4)))
    completed = ms.score_membership(answer, truth, "standard")
    assert completed.named == 10
    assert completed.named_members >= 4
    too_many = (np.arange(20) < 16).astype(float)
    assert ms.score_membership(too_many, truth, "standard").named == 10
    none = ms.score_membership(np.zeros(20), truth, "neurips2020")
    assert (none.named, none.accuracy, none.p_value) == (0, 0.5, 1.0)


def test_real_scores_under_2020_rules_name_exactly_n() -> None:
    truth = truth_of(30)
    scores = np.random.default_rng(1).random(60)
    assert ms.score_membership(scores, truth, "neurips2020").named == 30


def test_p_value_equals_a_sum_written_out() -> None:
    n, r, v = 12, 9, 7
    tail = sum(comb(n, k) * comb(n, r - k) for k in range(v, r + 1)) / comb(2 * n, r)
    assert ms.p_value(v, r, n) == pytest.approx(tail, rel=1e-12)


def test_random_seekers_p_values_are_uniform() -> None:
    n, p_values = 60, []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        truth = truth_of(n, seed + 10_000)
        scores = ms.score_membership(rng.random(2 * n), truth, seed=seed)
        p_values.append(ms.randomised_p_value(scores.named_members, scores.named, n, rng.random()))
    assert stats.kstest(p_values, "uniform").pvalue > 0.01


def test_leaking_guess_has_no_uniform_p_values() -> None:
    truth = truth_of(100)
    p_values = [
        ms.score_membership(np.random.default_rng(s).normal(truth * 1.0), truth).p_value
        for s in range(30)
    ]
    assert stats.kstest(p_values, "uniform").pvalue < 1e-6


def test_holm_equals_the_definition() -> None:
    assert ms.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert ms.holm([]) == []
    assert ms.holm([0.9, 0.8]) == [1.0, 1.0]


def test_clopper_pearson_equals_beta_quantiles() -> None:
    low, high = ms.clopper_pearson(7, 50)
    assert low == pytest.approx(float(stats.beta.ppf(0.025, 7, 44)))
    assert high == pytest.approx(float(stats.beta.ppf(0.975, 8, 43)))
    assert ms.clopper_pearson(0, 10)[0] == 0.0


def test_intervals_cover_the_true_auc() -> None:
    # For N(1, 1) against N(0, 1) the true AUC is Phi(1 / sqrt 2).
    true_auc, n, covered = float(stats.norm.cdf(1 / np.sqrt(2))), 60, 0
    truth = np.arange(2 * n) < n
    for seed in range(100):
        scores = np.random.default_rng(seed).normal(truth * 1.0)
        low, high = ms.score_membership(scores, truth, seed=seed).ci["auc"]
        covered += low <= true_auc <= high
    assert covered >= 88


def test_bootstrap_equals_resampling_by_hand() -> None:
    rng = np.random.default_rng(0)
    truth = truth_of(40)
    scores = np.round(rng.normal(truth * 1.0), 1)
    ci = ms.score_membership(scores, truth).ci
    members, others = scores[truth], scores[~truth]
    drawn: dict[str, list[float]] = {"auc": [], "accuracy": [], "advantage": []}
    for _ in range(3000):
        m, o = rng.choice(members, 40), rng.choice(others, 40)
        both, label = np.concatenate([m, o]), np.arange(80) < 40
        drawn["auc"].append(float(roc_auc_score(label, both)))
        order = rng.permutation(80)
        chosen = order[np.argsort(-both[order], kind="stable")][:40]
        drawn["accuracy"].append(float((chosen < 40).mean()))
        fpr, tpr, _ = roc_curve(label, both)
        drawn["advantage"].append(float((tpr - fpr).max()))
    for name, values in drawn.items():
        # Ties are shuffled once per guess there and once per draw here, hence the slack.
        np.testing.assert_allclose(ci[name], np.quantile(values, [0.025, 0.975]), atol=0.03)
    assert ci["advantage_at_n"][0] == pytest.approx(2 * ci["accuracy"][0] - 1)


def test_infinite_scores_are_ranked_and_tied() -> None:
    truth = np.array([True, True, False, False])
    scores = np.array([np.inf, np.inf, -np.inf, -np.inf])
    result = ms.score_membership(scores, truth)
    assert (result.accuracy, result.auc) == (1.0, 1.0)
    assert len(ms.roc_curve(scores, truth).fpr) == 3


def test_wrong_inputs_are_refused() -> None:
    truth = truth_of(5)
    with pytest.raises(ValueError, match="NaN"):
        ms.score_membership(np.full(10, np.nan), truth)
    with pytest.raises(ValueError, match="half of them"):
        ms.score_membership(np.zeros(10), np.ones(10, dtype=bool))
    with pytest.raises(ValueError, match="one-dimensional"):
        ms.score_membership(np.zeros(9), truth)


def test_failures_are_scored_per_side_and_never_dropped() -> None:
    for cause in Cause:
        scored = VERDICTS[cause].side is Side.SUBMISSION
        assert is_scored(cause) == scored
        hider = ms.failed_scores(Kind.HIDER, cause, 10)
        seeker = ms.failed_scores(Kind.SEEKER, cause, 10)
        assert (hider is not None) == (seeker is not None) == scored
        if hider is not None and seeker is not None:
            assert (hider.accuracy, seeker.accuracy) == (1.0, 0.5)
            assert (hider.auc, seeker.auc) == (1.0, 0.5)
            assert VERDICTS[cause].retries == 0
