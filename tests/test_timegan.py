"""TimeGAN: its building block, losses, updates and releases.

The expected values come from Keras' own GRU and from loops written out here, never from the
code under test.
"""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("tensorflow")

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "hiders" / "timegan"
MODULES = ("backend", "networks", "observation", "training", "hider")
TINY = {
    "hidden": 4,
    "layers": 1,
    "batch": 16,
    "iterations": 3,
    "compile": False,
}


@pytest.fixture(scope="module")
def timegan() -> Iterator[SimpleNamespace]:
    """The submission's modules, found the way the sandbox finds them."""
    others = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    sys.path[:0] = [str(FOLDER), str(ROOT)]
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        del sys.path[:2]
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.modules.update(others)
        # Process-wide: the tests after these did not ask for it.
        importlib.import_module("tensorflow.python.framework.config").disable_op_determinism()


@pytest.fixture
def eagerly(timegan: SimpleNamespace) -> Iterator[None]:
    """Skip tracing: seconds less for a run of a few updates, the same arithmetic."""
    timegan.backend.tf.config.run_functions_eagerly(True)
    yield
    timegan.backend.tf.config.run_functions_eagerly(False)


def cohort(patients: int = 60, steps: int = 12, seed: int = 0) -> tuple[Any, Any]:
    """Time, a constant, an empty, a rare, a -1 / 0 and a two-column panel; ragged lengths."""
    rng = np.random.default_rng(seed)
    data = rng.normal(50.0, 9.0, (patients, steps, 7))
    data[:, :, 0] = np.cumsum(rng.integers(0, 90, (patients, steps)), axis=1) + 1000.0
    data[:, :, 1] = 3.25
    data[:, :, 2] = np.nan
    data[:, :, 3][rng.random((patients, steps)) < 0.9] = np.nan
    data[:, :, 4] = rng.choice([-1.0, 0.0], (patients, steps))
    data[:, :, 5:][rng.random((patients, steps)) < 0.5] = np.nan
    lengths = rng.integers(1, steps + 1, patients)
    lengths[:4] = 1
    mask = np.arange(steps) < steps - lengths[:, None]
    padding = np.repeat(mask[:, :, None], data.shape[2], axis=2)
    data[padding] = -1.0
    return data, padding


def play(timegan: SimpleNamespace, data: Any, padding: Any, seed: int = 5, **more: Any) -> Any:
    given = data.copy(), padding.copy()
    inputs = {"data": data, "padding_mask": padding, "seed": seed, "parameters": TINY | more}
    result = timegan.hider.hider(inputs)
    assert np.array_equal(data, given[0], equal_nan=True)
    assert np.array_equal(padding, given[1])
    return result


def model(timegan: SimpleNamespace, garbage: float = 0.0, seed: int = 0) -> Any:
    """A TimeGan on 20 ragged sequences; cells after the end hold `garbage`."""
    rng = np.random.default_rng(11)
    lengths = rng.integers(1, 9, 20)
    values = rng.random((8, 20, 3)).astype(np.float32)
    after = np.arange(8)[:, None] >= lengths
    values[after] = garbage
    measured = (rng.random(values.shape) < 0.6) & ~after[:, :, None]
    sequences = timegan.observation.Sequences(values, measured, lengths)
    settings = timegan.training.Settings(hidden=4, layers=2, batch=16, compile=False)
    return timegan.training.TimeGan(sequences, settings, np.random.default_rng(seed))


def weights(network: Any) -> list[NDArray[np.float32]]:
    return [variable.numpy() for variable in network.variables]


# --------------------------------------------------------------------------- building block


@pytest.mark.parametrize(("layers", "compiled"), [(1, False), (3, False), (3, True)])
def test_stack_and_its_gradient_equal_keras_gru(
    timegan: SimpleNamespace, layers: int, compiled: bool
) -> None:
    import keras
    import tensorflow as tf

    inputs, hidden, steps, batch = 5, 3, 6, 4
    rng = np.random.default_rng(1)
    ours = timegan.networks.Network(inputs, 2, hidden, layers, "sigmoid", rng, compiled)
    for variable in ours.variables:
        variable.assign_add(rng.normal(0, 0.2, variable.shape).astype(np.float32))
    kernel, first_bias, inner, recurrent, bias, candidate_bias, dense, dense_bias = weights(ours)

    def keras_order(parts: Any) -> Any:  # (candidate, z, r) to (z, r, candidate)
        return np.concatenate([parts[..., hidden:], parts[..., :hidden]], axis=-1)

    theirs = [
        keras.layers.GRU(hidden, return_sequences=True, reset_after=True) for _ in range(layers)
    ]
    for index, layer in enumerate(theirs):
        below, input_bias = (
            (kernel, first_bias) if index == 0 else (inner[index - 1], bias[index - 1, 0])
        )
        layer.build((batch, steps, below.shape[0]))
        own_bias = np.concatenate([np.zeros(2 * hidden), candidate_bias[index, 0]])
        layer.set_weights(
            [keras_order(below), recurrent[index], np.stack([keras_order(input_bias), own_bias])]
        )

    x = tf.constant(rng.normal(size=(steps, batch, inputs)), tf.float32)
    pull = tf.constant(rng.normal(size=(steps, batch, 2)), tf.float32)

    def run(x: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = ours(x)
            loss = tf.reduce_sum(out * pull)
        return out, tape.gradient(loss, [x, *ours.variables])

    out, gradients = tf.function(run)(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        states = tf.transpose(x, [1, 0, 2])
        for layer in theirs:
            states = layer(states)
        expected = tf.sigmoid(states @ dense + dense_bias)
        loss = tf.reduce_sum(tf.transpose(expected, [1, 0, 2]) * pull)
    kept = [v.value for layer in theirs for v in layer.trainable_variables]
    expected_x, *expected_weights = tape.gradient(loss, [x, *kept])

    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(out, tf.transpose(expected, [1, 0, 2]), **close)
    np.testing.assert_allclose(gradients[0], expected_x, **close)
    for index in range(layers):
        below, own, biases = (g.numpy() for g in expected_weights[3 * index : 3 * index + 3])
        d_below = gradients[1] if index == 0 else gradients[3][index - 1]
        d_bias = gradients[2] if index == 0 else gradients[5][index - 1, 0]
        np.testing.assert_allclose(keras_order(d_below.numpy()), below, **close)
        np.testing.assert_allclose(gradients[4][index], own, **close)
        np.testing.assert_allclose(keras_order(d_bias.numpy()), biases[0], **close)
        np.testing.assert_allclose(gradients[6][index, 0], biases[1, 2 * hidden :], **close)


# --------------------------------------------------------------------------- losses


def test_losses_equal_the_papers_written_out(timegan: SimpleNamespace) -> None:
    rng = np.random.default_rng(2)
    steps, batch, columns = 5, 7, 3
    real, made = rng.random((2, steps, batch, columns)).astype(np.float32)
    latent, predicted = rng.random((2, steps, batch, 4)).astype(np.float32)
    logits = rng.normal(size=(steps, batch, 1)).astype(np.float32)
    lengths = rng.integers(1, steps + 1, batch)
    alive = (np.arange(steps)[:, None] < lengths)[:, :, None].astype(np.float32)
    measured = (alive * (rng.random(real.shape) < 0.7)).astype(np.float32)
    training = timegan.training

    squares, pairs, real_label, fake_label, v1, v2 = [], [], [], [], [], []
    for t in range(steps):
        for b in range(batch):
            squares += [
                (float(real[t, b, c]) - float(made[t, b, c])) ** 2
                for c in range(columns)
                if measured[t, b, c]
            ]
            if t < lengths[b]:
                probability = 1 / (1 + np.exp(-float(logits[t, b, 0])))
                real_label.append(-np.log(probability))
                fake_label.append(-np.log(1 - probability))
            if t + 1 < lengths[b]:
                gap = latent[t + 1, b].astype(float) - predicted[t, b].astype(float)
                pairs += list(gap**2)
        for c in range(columns):
            seen = measured[t, :, c] > 0
            x, y = (values[t, seen, c].astype(float) for values in (real, made))
            if seen.any():
                gap = abs(np.sqrt(y.var() + 1e-6) - np.sqrt(x.var() + 1e-6))
                v1 += [gap] * int(seen.sum())
                v2 += [abs(y.mean() - x.mean())] * int(seen.sum())

    def near(value: Any, expected: Any) -> None:
        assert float(value) == pytest.approx(float(expected), rel=1e-5)

    near(training.reconstruction_loss(real, made, measured), 10 * np.sqrt(np.mean(squares)))
    near(training.supervised_loss(latent, predicted, alive), np.mean(pairs))
    near(training.judged(logits, 1.0, alive), np.mean(real_label))
    near(training.judged(logits, 0.0, alive), np.mean(fake_label))
    near(training.moment_loss(real, made, measured), np.mean(v1) + np.mean(v2))
    # With everything measured the moments are the paper's plain means over steps and columns.
    everything = np.ones_like(real)
    x, y = real.astype(float), made.astype(float)
    deviations = np.abs(np.sqrt(y.var(axis=1) + 1e-6) - np.sqrt(x.var(axis=1) + 1e-6))
    means = np.abs(y.mean(axis=1) - x.mean(axis=1))
    near(training.moment_loss(real, made, everything), deviations.mean() + means.mean())


def test_unmeasured_cells_carry_no_loss(timegan: SimpleNamespace) -> None:
    rng = np.random.default_rng(3)
    real, made = rng.random((2, 4, 6, 3)).astype(np.float32)
    measured = (rng.random(real.shape) < 0.5).astype(np.float32)
    moved = np.where(measured == 0, real + 9.0, real)
    for loss in (timegan.training.reconstruction_loss, timegan.training.moment_loss):
        assert float(loss(real, made, measured)) == float(loss(moved, made, measured))
        assert float(loss(real, made, measured)) != float(loss(real + 1.0, made, measured))


def steps_of(gan: Any) -> dict[str, Any]:
    import tensorflow as tf

    chosen, seed = tf.range(gan.batch), tf.constant([1, 2])
    return {
        "embedding": lambda: gan.embedding_step(chosen),
        "supervised": lambda: gan.supervised_step(chosen),
        "generator": lambda: gan.generator_step(chosen, seed),
        "autoencoder": lambda: gan.autoencoder_step(chosen),
        "discriminator": lambda: gan.discriminator_step(chosen, seed),
    }


def test_steps_after_a_patients_end_carry_no_loss(timegan: SimpleNamespace) -> None:
    clean, dirty = steps_of(model(timegan)), steps_of(model(timegan, garbage=0.9))
    for name in clean:
        assert float(clean[name]()) == float(dirty[name]()), name


@pytest.mark.parametrize("step", ["generator", "autoencoder", "discriminator"])
def test_joint_losses_are_the_stated_sums(timegan: SimpleNamespace, step: str) -> None:
    gan = model(timegan)
    steps = steps_of(gan)
    real, measured, alive = (value.numpy() for value in gan._real(np.arange(gan.batch)))
    latent = gan.embedder(real)
    raw = gan.generator(gan._noise([1, 2]))
    made = gan.supervisor(raw)
    on = alive[:, :, 0] > 0
    pair = on[1:]

    def entropy(states: Any, label: float) -> float:
        probability = 1 / (1 + np.exp(-gan.discriminator(states).numpy().astype(float)[on]))
        return float(-np.log(probability if label else 1 - probability).mean())

    gap = (latent[1:] - gan.supervisor(latent)[:-1]).numpy().astype(float)[pair]
    supervised = float((gap**2).mean())
    if step == "generator":
        moments = float(timegan.training.moment_loss(real, gan.recovery(made), measured))
        expected = entropy(made, 1) + entropy(raw, 1) + 100 * np.sqrt(supervised) + 100 * moments
    elif step == "autoencoder":
        off = (real - gan.recovery(latent).numpy()).astype(float)[measured > 0]
        expected = 10 * np.sqrt((off**2).mean()) + 0.1 * supervised
    else:
        expected = entropy(latent, 1) + entropy(made, 0) + entropy(raw, 0)
    assert float(steps[step]()) == pytest.approx(expected, rel=1e-4)


def test_no_measured_cell_gives_no_nan(timegan: SimpleNamespace) -> None:
    import tensorflow as tf

    x = tf.Variable(np.ones((3, 2, 2), np.float32))
    with tf.GradientTape() as tape:
        loss = timegan.training.reconstruction_loss(x, x * 0.5, tf.zeros_like(x))
    assert np.isfinite(tape.gradient(loss, x).numpy()).all()


# --------------------------------------------------------------------------- updates


@pytest.mark.parametrize(
    ("step", "trained"),
    [
        ("embedding", {"embedder", "recovery"}),
        ("supervised", {"supervisor"}),
        ("generator", {"generator", "supervisor"}),
        ("autoencoder", {"embedder", "recovery"}),
        ("discriminator", {"discriminator"}),
    ],
)
def test_each_update_trains_its_own_networks_only(
    timegan: SimpleNamespace, step: str, trained: set[str]
) -> None:
    gan = model(timegan)
    names = ("embedder", "recovery", "generator", "supervisor", "discriminator")
    before = {name: weights(getattr(gan, name)) for name in names}
    steps_of(gan)[step]()
    changed = {
        name
        for name in names
        if any(
            not np.array_equal(old, new)
            for old, new in zip(before[name], weights(getattr(gan, name)), strict=True)
        )
    }
    assert changed == trained


def test_update_is_adams_on_the_stated_loss(timegan: SimpleNamespace) -> None:
    import tensorflow as tf

    gan = model(timegan)
    chosen = tf.range(gan.batch)
    real, measured, _ = gan._real(chosen)
    with tf.GradientTape() as tape:
        loss = timegan.training.reconstruction_loss(
            real, gan.recovery(gan.embedder(real)), measured
        )
    variables = gan.embedder.variables + gan.recovery.variables
    gradients = [g.numpy() for g in tape.gradient(loss, variables)]
    before = [v.numpy() for v in variables]
    gan.embedding_step(chosen)
    for old, variable, g in zip(before, variables, gradients, strict=True):
        # After bias correction Adam's first step is rate * g / (|g| + epsilon).
        step = 1e-3 * g / (np.abs(g) + 1e-7 / np.sqrt(1 - 0.999))
        np.testing.assert_allclose(variable.numpy(), old - step, atol=2e-5)


def test_discriminator_rests_below_the_threshold(
    timegan: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert timegan.training.DISCRIMINATOR_THRESHOLD == 0.15
    gan = model(timegan)
    before = weights(gan.discriminator)
    monkeypatch.setattr(timegan.training, "DISCRIMINATOR_THRESHOLD", 1e9)
    steps_of(gan)["discriminator"]()
    assert all(map(np.array_equal, before, weights(gan.discriminator)))


def test_joint_iteration_is_two_rounds_then_the_discriminator_on_fresh_batches(
    timegan: SimpleNamespace,
) -> None:
    gan = model(timegan)
    calls: list[tuple[str, tuple[int, ...]]] = []
    for name in ("generator", "autoencoder", "discriminator"):

        def note(chosen: Any, *_: Any, name: str = name) -> float:
            calls.append((name, tuple(chosen.numpy())))
            return 0.0

        setattr(gan, f"_{name}_step", note)
    gan._joint_iteration()
    names = [name for name, _ in calls]
    assert names == ["generator", "autoencoder", "generator", "autoencoder", "discriminator"]
    assert len({batch for _, batch in calls}) == 5
    assert all(len(set(batch)) == gan.batch for _, batch in calls)


# --------------------------------------------------------------------------- releases


def test_alignment(timegan: SimpleNamespace) -> None:
    values = np.arange(1.0, 25.0).reshape(2, 4, 3)
    padding = np.zeros(values.shape, bool)
    padding[0, [0, 2]] = True
    measured = np.ones(values.shape, bool)
    measured[:, :, 1] = False
    left = timegan.observation.align_left(values, measured, padding)
    assert left.lengths.tolist() == [2, 4]
    rows = [values[0, 1], values[0, 3], [0.0] * 3, [0.0] * 3]
    assert np.array_equal(left.values[:, 0], rows)
    assert np.array_equal(left.values[:, 1], values[1])
    assert left.measured[:, 0].tolist() == [[True, False, True]] * 2 + [[False] * 3] * 2
    front = np.zeros(values.shape, bool)
    front[0, :2] = True
    right = timegan.observation.align_right(left.values.transpose(1, 0, 2), front)
    assert np.array_equal(right[0], [[0.0] * 3] * 2 + rows[:2])
    assert np.array_equal(right[1], values[1])


@pytest.fixture(scope="module")
def standard(timegan: SimpleNamespace) -> SimpleNamespace:
    """One release under the standard rules, with what it was made from and what it printed."""
    data, padding = cohort(patients=200)
    with redirect_stdout(StringIO()) as printed:
        release, mask = play(timegan, data, padding)
    return SimpleNamespace(
        data=data, padding=padding, release=release, mask=mask, printed=printed.getvalue()
    )


def test_progress_is_printed(standard: SimpleNamespace) -> None:
    lines = [line for line in standard.printed.splitlines() if " 3/3 · loss " in line]
    assert [line.split()[0] for line in lines] == ["embedding", "supervised", "joint"]
    assert all(line.endswith(" s left") for line in lines)


def test_standard_release(standard: SimpleNamespace) -> None:
    data, padding, release, mask = (
        standard.data,
        standard.padding,
        standard.release,
        standard.mask,
    )
    assert release.shape == mask.shape == data.shape
    assert release.dtype == np.float64
    assert mask.dtype == bool
    rows = mask[:, :, 0]
    assert (mask == rows[:, :, None]).all()
    assert (np.diff(rows.astype(int), axis=1) <= 0).all(), "padding must come first"
    assert (release[mask] == -1.0).all()

    made, real = np.where(mask, np.nan, release), np.where(padding, np.nan, data)
    for column in range(data.shape[2]):
        seen, wanted = ~np.isnan(made[:, :, column]), ~np.isnan(real[:, :, column])
        if column == 2:
            assert not seen.any(), "a column that no member has must stay empty"
            continue
        values, range_ = made[:, :, column][seen], real[:, :, column][wanted]
        assert values.min() >= range_.min()
        assert values.max() <= range_.max()
        rate = seen.sum() / (~rows).sum()
        assert rate == pytest.approx(wanted.sum() / (~padding[:, :, 0]).sum(), abs=0.05)
    assert (made[:, :, 1][~rows] == 3.25).all()
    assert made[:, :, 0][~rows].std() > 0
    for patient in range(len(data)):
        times = release[patient, ~rows[patient], 0]
        assert (np.diff(times) >= 0).all()
    lengths, members = (~rows).sum(axis=1), (~padding[:, :, 0]).sum(axis=1)
    assert set(lengths) <= set(members)
    assert lengths.mean() == pytest.approx(members.mean(), rel=0.15)
    assert lengths.std() == pytest.approx(members.std(), rel=0.25)
    panel = np.isnan(made[:, :, 5]) == np.isnan(made[:, :, 6])
    assert panel.all(), "columns measured together must stay together"


@pytest.mark.usefixtures("eagerly")
def test_2020_release(timegan: SimpleNamespace) -> None:
    data, padding = cohort()
    release, mask = play(timegan, data, padding, rules="neurips2020", iterations=1)
    assert release.shape == data.shape
    assert np.isfinite(release).all()
    assert (release[mask] == -1.0).all()
    features = release[:, :, 1:][~mask[:, :, 1:]]
    assert features.min() >= 0.0
    assert features.max() <= 1.0 + 1e-12
    times = np.where(mask[:, :, 0], np.nan, release[:, :, 0])
    assert (np.nanmin(times, axis=1) == 0.0).all()
    span = np.ptp(data[:, :, 0][~padding[:, :, 0]])
    assert 1.0 < np.nanmax(times) <= span, "time must be in raw units"


def test_seed_repeats(timegan: SimpleNamespace, standard: SimpleNamespace) -> None:
    again, mask = play(timegan, standard.data, standard.padding)
    assert again.tobytes() == standard.release.tobytes()
    assert np.array_equal(mask, standard.mask)


@pytest.mark.usefixtures("eagerly")
def test_seed_matters_and_what_padding_cells_hold_does_not(timegan: SimpleNamespace) -> None:
    data, padding = cohort(patients=20, steps=6)
    moved = np.where(padding, 123.0, data)
    release = play(timegan, data, padding, iterations=1)[0]
    assert release.tobytes() == play(timegan, moved, padding, iterations=1)[0].tobytes()
    other = play(timegan, data, padding, seed=6, iterations=1)[0]
    assert not np.array_equal(release, other, equal_nan=True)


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("patients", [1, 3])
def test_fewer_patients_than_a_batch_and_one_row_each(
    timegan: SimpleNamespace, patients: int
) -> None:
    data = np.full((patients, 4, 3), -1.0)
    data[:, -1] = [5.0, -1.0, np.nan]
    padding = np.ones(data.shape, bool)
    padding[:, -1] = False
    release, mask = play(timegan, data, padding, layers=2, iterations=1)
    assert np.array_equal(mask, padding)
    assert np.array_equal(release, data, equal_nan=True), "constants come back, nothing else"


def test_learns(timegan: SimpleNamespace) -> None:
    gan = model(timegan)
    first = float(gan._embedding_step(gan.draw_patients()))
    for _ in range(60):
        last = float(gan._embedding_step(gan.draw_patients()))
    assert last < 0.97 * first


# --------------------------------------------------------------------------- settings, errors


def test_parameters(timegan: SimpleNamespace) -> None:
    read = timegan.hider.read_settings
    full = read({})
    assert (full.hidden, full.layers, full.batch, full.gamma) == (24, 3, 128, 1.0)
    assert full.joint_iterations == 10_000
    of_2020 = read({"rules": "neurips2020", "profile": "full"})
    assert (of_2020.hidden, of_2020.joint_iterations) == (10, 20_000)
    assert read({"rules": "neurips2020", "profile": "fast"}) == read({"profile": "fast"})
    mixed = read({"profile": "fast", "iterations": "7", "joint_iterations": 2, "gamma": "0.5"})
    assert mixed.compile
    assert not read({"compile": "false"}).compile
    assert (mixed.embedding_iterations, mixed.joint_iterations, mixed.gamma) == (7, 2, 0.5)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"profile": "slow"}, "Unknown profile 'slow'"),
        ({"hidden": 0}, "at least 1"),
        ({"hidden": "many"}, "Unusable parameter"),
        ({"iterations": -1}, "negative"),
        ({"rules": "1999"}, "Unknown rules '1999'"),
    ],
)
def test_unusable_parameters_are_named(
    timegan: SimpleNamespace, parameters: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        play(timegan, *cohort(patients=4, steps=3), **parameters)


def test_no_row_at_all_is_refused(timegan: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="hold no row"):
        play(timegan, np.full((2, 3, 4), -1.0), np.ones((2, 3, 4), bool))


def test_without_tensorflow_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['tensorflow'] = None; import hider"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=FOLDER,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'pip install "hideseek[baselines]"' in result.stderr.splitlines()[-1]
