"""Cohort and Split: sizes, secrecy, independence, saving."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data_preprocess import DataError
from harness.cohort import Cohort, Split
from harness.seeds import derive_seed
from tests.conftest import random_cohort


@pytest.mark.parametrize(("patients", "n", "left_out"), [(2, 1, 0), (3, 1, 1), (41, 20, 1)])
def test_split_halves_and_says_who_is_left_out(patients: int, n: int, left_out: int) -> None:
    split = Split.draw(patients, "secret")
    assert split.n == len(split.members) == len(split.non_members) == n
    assert len(split.left_out) == left_out
    everyone = np.concatenate([split.members, split.non_members, split.left_out])
    assert sorted(everyone) == list(range(patients))


def test_enlarged_data_hold_the_truth_in_their_order() -> None:
    cohort = random_cohort(patients=21)
    split = Split.draw(21, "secret", 3)
    enlarged = split.enlarge(cohort)
    assert enlarged.truth.sum() == enlarged.n == 10
    members = set(cohort.ids[split.members].tolist())
    for patient, is_member in zip(enlarged.cohort.ids.tolist(), enlarged.truth, strict=True):
        assert (patient in members) == is_member
    assert enlarged.truth[:10].sum() not in (0, 10), "members must not stand in front"


def test_same_secret_same_split_other_secret_or_number_another() -> None:
    base = Split.draw(100, "secret", 0)
    np.testing.assert_array_equal(base.members, Split.draw(100, "secret", 0).members)
    for other in (Split.draw(100, "Secret", 0), Split.draw(100, "secret", 1)):
        assert set(base.members.tolist()) != set(other.members.tolist())


def test_every_patient_is_a_member_equally_often() -> None:
    counts = np.zeros(10)
    for number in range(2000):
        counts[Split.draw(10, "secret", number).members] += 1
    # Binomial(2000, 1/2) has a standard deviation of 22.
    assert np.abs(counts - 1000).max() < 5 * 22.4


def test_one_patient_cannot_be_split() -> None:
    with pytest.raises(DataError, match="at least 2 patients"):
        Split.draw(1, "secret")


def test_names_cannot_collide_by_concatenation() -> None:
    assert derive_seed("ab", "c") != derive_seed("a", "bc")
    assert derive_seed("x", 1) == derive_seed("x", "1")
    assert 0 <= derive_seed("x", bits=31) < 2**31


def test_saving_keeps_everything(tmp_path: Path) -> None:
    cohort = random_cohort()
    cohort.save(tmp_path / "cohort.npz")
    back = Cohort.load(tmp_path / "cohort.npz")
    assert back.digest == cohort.digest
    assert back.columns == cohort.columns
    split = Split.draw(20, "s", 2)
    split.save(tmp_path / "split.npz")
    again = Split.load(tmp_path / "split.npz")
    assert again.number == 2
    np.testing.assert_array_equal(again.order, split.order)


def test_digest_sees_every_part() -> None:
    cohort = random_cohort()
    changed = cohort.data.copy()
    changed[3, -1, 1] += 1.0
    others = [
        Cohort(changed, cohort.padding_mask, cohort.ids, cohort.columns),
        Cohort(cohort.data, ~cohort.padding_mask, cohort.ids, cohort.columns),
        Cohort(cohort.data, cohort.padding_mask, cohort.ids + 1, cohort.columns),
        Cohort(cohort.data, cohort.padding_mask, cohort.ids, ("t", *cohort.columns[1:])),
    ]
    assert len({cohort.digest, *(other.digest for other in others)}) == 5


def test_foreign_archive_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_text("no archive")
    with pytest.raises(DataError, match="not a saved cohort"):
        Cohort.load(tmp_path / "x.npz")
