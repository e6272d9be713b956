"""Binary predictor: which way its scores point, what it reads, that it repeats."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("tensorflow")

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "seekers" / "binary_predictor"
SMALL = {"hidden": 4, "layers": 1, "batch": 16, "epochs": 15, "learning_rate": 0.02}


@pytest.fixture(scope="module")
def seeker() -> Iterator[ModuleType]:
    """The submission's module, found the way the sandbox finds it."""
    other = sys.modules.pop("seeker", None)
    sys.path[:0] = [str(FOLDER), str(ROOT)]
    try:
        yield importlib.import_module("seeker")
    finally:
        del sys.path[:2]
        sys.modules.pop("seeker", None)
        if other is not None:
            sys.modules["seeker"] = other
        # Process-wide: the tests after these did not ask for it.
        importlib.import_module("tensorflow.python.framework.config").disable_op_determinism()


def match(patients: int = 24, steps: int = 6) -> tuple[dict[str, Any], NDArray[np.bool_]]:
    """A release that copies the members, whose third column rises where others' falls."""
    rng = np.random.default_rng(4)
    data = rng.normal(size=(2 * patients, steps, 5))
    data[:, :, 0] = np.cumsum(rng.integers(0, 3, (2 * patients, steps)), axis=1)
    data[:, :, 3] = 7.5
    data[:, :, 4] = np.nan
    data[:, :, 1][rng.random((2 * patients, steps)) < 0.4] = np.nan
    members = rng.permutation(2 * patients) < patients
    data[:, :, 2] += np.where(members, 3.0, -3.0)[:, None] * np.arange(steps)
    lengths = rng.integers(3, steps + 1, 2 * patients)
    lengths[:2] = 1
    padding = np.repeat((np.arange(steps) < steps - lengths[:, None])[:, :, None], 5, axis=2)
    data[padding] = -1.0
    inputs = {
        "enlarged_data": data,
        "enlarged_data_padding_mask": padding,
        "generated_data": data[members],
        "generated_data_padding_mask": padding[members],
        "seed": 9,
        "parameters": dict(SMALL),
    }
    return inputs, members


def changed(inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return inputs | {"parameters": inputs["parameters"] | more}


@pytest.mark.parametrize("rules", ["standard", "neurips2020"])
def test_members_that_look_released_score_higher(
    seeker: ModuleType, rules: str, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, members = match()
    before = {k: v.copy() for k, v in inputs.items() if isinstance(v, np.ndarray)}
    scores = seeker.seeker(changed(inputs, rules=rules))
    assert scores.shape == (len(members),)
    assert scores.dtype == np.float64
    assert np.isfinite(scores).all()
    assert len(set(scores)) == len(scores), "logits must not tie"
    higher = (scores[members][:, None] > scores[~members]).mean()
    assert higher > 0.9
    for name, value in before.items():
        assert np.array_equal(inputs[name], value, equal_nan=True)
    ends = [line for line in capsys.readouterr().out.splitlines() if "batch" not in line]
    assert len(ends) == SMALL["epochs"]
    assert ends[-1].startswith("epoch 15/15 · loss ")


def test_seed_repeats_and_another_differs(seeker: ModuleType) -> None:
    inputs, _ = match(patients=8)
    first, again = (seeker.seeker(changed(inputs, epochs=2)) for _ in range(2))
    assert first.tobytes() == again.tobytes()
    # Without training the scores show the starting weights alone.
    start, other = (seeker.seeker(changed(inputs, epochs=0) | {"seed": s}) for s in (9, 10))
    assert not np.allclose(start, other)


@pytest.mark.parametrize("rules", ["standard", "neurips2020"])
def test_no_mask_means_no_padding(seeker: ModuleType, rules: str) -> None:
    inputs, _ = match(patients=8)
    inputs = changed(inputs, epochs=1, rules=rules)
    none = np.zeros(inputs["generated_data"].shape, bool)
    scores = [
        seeker.seeker(inputs | {"generated_data_padding_mask": mask}) for mask in (None, none)
    ]
    assert scores[0].tobytes() == scores[1].tobytes()


def test_standard_reads_rows_by_the_mask(seeker: ModuleType) -> None:
    data = np.array([[[9.0, 9.0], [-1.0, 2.0], [3.0, -1.0]], [[0.0, 4.0], [1.0, 0.0], [2.0, 1.0]]])
    mask = np.zeros(data.shape, bool)
    mask[0, 0] = True
    scaling = seeker.fit_scaling(data, mask)
    read = seeker._standard(data, mask, scaling)
    low, span = np.array([-1.0, -1.0]), np.array([4.0, 5.0])
    np.testing.assert_allclose(read.values[0], [*((data[0, 1:] - low) / span), [0.0, 0.0]])
    np.testing.assert_allclose(read.values[1], (data[1] - low) / span)
    assert read.last.tolist() == [1, 2]


def test_standard_ignores_what_follows_the_last_row(seeker: ModuleType) -> None:
    rng = np.random.default_rng(0)
    values = rng.random((6, 5, 3)).astype(np.float32)
    last = np.array([0, 1, 2, 3, 4, 2], np.int32)
    after = np.arange(5) > last[:, None]
    dirty = values.copy()
    dirty[after] = 50.0
    settings = seeker.Settings(hidden=3, layers=1, epochs=2, batch=4)
    scores = [
        seeker.score(
            seeker.Sequences(v, last), seeker.Sequences(v[:3], last[:3]), settings, 1, print
        )
        for v in (values, dirty)
    ]
    assert scores[0].tobytes() == scores[1].tobytes()


def test_2020_reads_padding_as_data_and_scales_each_side_by_itself(seeker: ModuleType) -> None:
    data = np.array([[[5.0, 2.0], [60.0, 10.0]], [[7.0, 4.0], [9.0, 6.0]]])
    mask = np.zeros(data.shape, bool)
    mask[0, 0] = True
    read = seeker._as_in_2020(data, mask)
    expected = [[[-1.0, -1.0], [0.0, 1.0]], [[0.0, 0.0], [2.0, 1 / 3]]]
    np.testing.assert_allclose(read.values, expected, rtol=1e-6)
    assert read.last.tolist() == [1, 1]


def test_loss_is_cross_entropy_with_enlarged_as_one(
    seeker: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    enlarged, release = (
        seeker.Sequences(rng.normal(size=(n, 4, 3)).astype(np.float32), np.full(n, 3, np.int32))
        for n in (6, 3)
    )
    untrained = seeker.Settings(hidden=3, layers=2, epochs=0)
    # The starting weights depend on the seed alone.
    of_enlarged = -seeker.score(enlarged, release, untrained, 7, print)
    of_release = -seeker.score(release, enlarged, untrained, 7, print)
    capsys.readouterr()
    seeker.score(enlarged, release, seeker.Settings(hidden=3, layers=2, epochs=1), 7, print)
    said = float(capsys.readouterr().out.split("loss ")[1].split()[0])
    losses = np.concatenate([np.log1p(np.exp(-of_enlarged)), np.log1p(np.exp(of_release))])
    assert said == pytest.approx(losses.mean(), abs=6e-5)


def test_full_profile_is_the_seed_documents_network(
    seeker: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = seeker.read_settings({})
    assert (full.layers, full.batch, full.epochs, full.learning_rate) == (3, 128, 20, 1e-3)
    assert seeker.read_settings({"profile": "fast", "epochs": "3"}).epochs == 3
    units = []
    gru = seeker.keras.layers.GRU

    def note(hidden: int, **more: Any) -> Any:
        units.append(hidden)
        return gru(hidden, **more)

    monkeypatch.setattr(seeker.keras.layers, "GRU", note)
    inputs, _ = match(patients=3)
    seeker.seeker(inputs | {"parameters": {"epochs": 0}})
    assert units == [5, 5, 5]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"profile": "slow"}, "Unknown profile 'slow'"),
        ({"rules": "1999"}, "Unknown rules '1999'"),
        ({"batch": 0}, "at least 1"),
        ({"epochs": "few"}, "Unusable parameter"),
    ],
)
def test_unusable_parameters_are_named(
    seeker: ModuleType, parameters: dict[str, Any], said: str
) -> None:
    inputs, _ = match(patients=2)
    with pytest.raises(ValueError, match=said):
        seeker.seeker(changed(inputs, **parameters))


def test_without_tensorflow_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['tensorflow'] = None; import seeker"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=FOLDER,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'pip install "hideseek[baselines]"' in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("rules", ["standard", "neurips2020"])
def test_attack_huge_values_blind_no_seeker(seeker: ModuleType, rules: str) -> None:
    """A hider must not win by making seekers overflow."""
    inputs, _ = match()
    release = inputs["generated_data"].copy()
    release[3, -1] = [50.0, 1e99, -1e99, 1e30, 1e60]
    assert np.isfinite(
        seeker.seeker(changed(inputs | {"generated_data": release}, rules=rules))
    ).all()
