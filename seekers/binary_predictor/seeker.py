"""Binary predictor: learn to tell the enlarged data from the release, name what looks released.

Source: the challenge's data and baseline description, section 3.2 (2020), and the baseline's
settings of 2020: three GRU layers, Adam 1e-3, batch 128, 20 epochs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from data_preprocess import Scaling, fit_scaling, preprocess_data, preprocess_standard

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@contextmanager
def _muted_stderr() -> Iterator[None]:
    # TensorFlow's native code logs before it reads TF_CPP_MIN_LOG_LEVEL, past sys.stderr.
    sys.stderr.flush()
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


try:
    with _muted_stderr():
        import keras
        import tensorflow as tf
except ImportError as error:
    raise ImportError(
        'The binary_predictor seeker needs TensorFlow: pip install "hideseek[baselines]".'
    ) from error

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Tensor: TypeAlias = Any

# Patients preprocessed at a time, to keep the float64 copies small.
_BLOCK = 512


@dataclass(frozen=True)
class Settings:
    """What a run can choose; the defaults are the `full` profile.

    Attributes
    ----------
    hidden : int
        Units per GRU layer; 0 = as many as columns.
    layers : int
        GRU layers.
    batch : int
        Sequences per update.
    epochs : int
        Passes over enlarged data and release together.
    learning_rate : float
        Adam's.
    """

    hidden: int = 0
    layers: int = 3
    batch: int = 128
    epochs: int = 20
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if min(self.layers, self.batch) < 1 or min(self.hidden, self.epochs) < 0:
            raise ValueError("layers and batch must be at least 1, hidden and epochs at least 0.")


# Absurd values of a release must not overflow float32 and blind the seeker; real values are
# scaled to [0, 1], and only unscaled time is larger.
_FAR = 1e9

PROFILES = {
    # A demonstration: under half a minute for 300 patients on two cores.
    "fast": Settings(hidden=16, epochs=12),
    "full": Settings(),
}


class Sequences(NamedTuple):
    """What the network reads.

    Attributes
    ----------
    values : float32 array (patients, steps, columns)
        Scaled and imputed.
    last : int32 array (patients,)
        The step whose state is judged.
    """

    values: NDArray[np.float32]
    last: NDArray[np.int32]


def seeker(input_dict: dict[str, Any]) -> Floats:
    """Score every patient of the enlarged data; higher = more likely a member.

    Parameters
    ----------
    input_dict : dict
        ``generated_data`` (N, steps, 1 + features) and ``enlarged_data`` (2N, ...): float64,
        NaN = missing; ``generated_data_padding_mask`` (bool or None: no padding) and
        ``enlarged_data_padding_mask`` (bool); ``seed``: int; ``parameters``: dict, see
        README.md.

    Returns
    -------
    float64 array (2N,)
        Minus the classifier's logit for "from the enlarged data".

    Raises
    ------
    ValueError
        Unknown rules or profile, or an unusable parameter.
    """
    parameters = input_dict.get("parameters") or {}
    rules = parameters.get("rules", "standard")
    settings = read_settings(parameters)
    enlarged_data = np.asarray(input_dict["enlarged_data"], dtype=np.float64)
    enlarged_mask = np.asarray(input_dict["enlarged_data_padding_mask"], dtype=bool)
    release_data = np.asarray(input_dict["generated_data"], dtype=np.float64)
    given_mask = input_dict.get("generated_data_padding_mask")
    release_mask = None if given_mask is None else np.asarray(given_mask, dtype=bool)
    if rules == "standard":
        scaling = fit_scaling(enlarged_data, enlarged_mask)
        enlarged = _standard(enlarged_data, enlarged_mask, scaling)
        release = _standard(release_data, release_mask, scaling)
    elif rules == "neurips2020":
        enlarged = _as_in_2020(enlarged_data, enlarged_mask)
        release = _as_in_2020(release_data, release_mask)
    else:
        raise ValueError(f"Unknown rules {rules!r}: expected standard or neurips2020.")
    seed = int(input_dict.get("seed", 0))
    return score(enlarged, release, settings, seed, lambda line: print(line, flush=True))


def read_settings(parameters: Mapping[str, Any]) -> Settings:
    """Profile first, then whatever the parameters set on top.

    Parameters
    ----------
    parameters : mapping
        ``profile`` and the fields of `Settings`; other keys are left alone.

    Returns
    -------
    Settings

    Raises
    ------
    ValueError
        An unknown profile or an unusable value.
    """
    profile = parameters.get("profile") or "full"
    if profile not in PROFILES:
        raise ValueError(f"Unknown profile {profile!r}: expected one of {', '.join(PROFILES)}.")
    settings = PROFILES[profile]
    types = {field.name: type(getattr(settings, field.name)) for field in fields(Settings)}
    chosen = {k: v for k, v in parameters.items() if k in types and v is not None}
    try:
        return replace(settings, **{name: types[name](value) for name, value in chosen.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"Unusable parameter of the binary_predictor seeker: {error}") from error


def score(
    enlarged: Sequences,
    release: Sequences,
    settings: Settings,
    seed: int,
    report: Callable[[str], None],
) -> Floats:
    """Train the classifier (enlarged = 1, release = 0) and turn its outputs into scores.

    Parameters
    ----------
    enlarged, release : Sequences
        Of 2N and N patients.
    settings : Settings
    seed : int
        Two calls with one seed return the same scores on one machine.
    report : callable
        Receives a progress line per epoch, and within epochs at most one a second.

    Returns
    -------
    float64 array (2N,)
        Minus the logit: the smaller the output, the more it looks released (section 3.2).
    """
    steps, columns = enlarged.values.shape[1:]
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(seed % 2**32)
    hidden = settings.hidden or columns
    recurrent = keras.Sequential(
        [keras.layers.GRU(hidden, return_sequences=True) for _ in range(settings.layers)]
    )
    # Logits, not probabilities: a sigmoid would round confident outputs into ties.
    head = keras.layers.Dense(1)
    recurrent.build((None, steps, columns))
    head.build((None, hidden))
    adam = keras.optimizers.Adam(settings.learning_rate)
    variables = recurrent.trainable_variables + head.trainable_variables
    adam.build(variables)

    def logits(values: Tensor, last: Tensor) -> Tensor:
        return head(tf.gather(recurrent(values), last, batch_dims=1))[:, 0]

    def learn(values: Tensor, last: Tensor, labels: Tensor) -> Tensor:
        with tf.GradientTape() as tape:
            entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits(values, last))
            loss = tf.reduce_mean(entropy)
        adam.apply(tape.gradient(loss, [v.value for v in variables]), variables)
        return loss

    batch_of = (
        tf.TensorSpec([None, steps, columns], tf.float32),
        tf.TensorSpec([None], tf.int32),
    )
    labelled = (*batch_of, tf.TensorSpec([None], tf.float32))
    # Rewriting the code (autograph) needs a writable temporary folder, and nothing here needs it.
    step = tf.function(learn, input_signature=labelled, autograph=False)
    _train(step, enlarged, release, settings, np.random.default_rng(seed % 2**63), report)

    judge = tf.function(logits, input_signature=batch_of, autograph=False)
    size = settings.batch
    outputs = [
        judge(enlarged.values[low : low + size], enlarged.last[low : low + size]).numpy()
        for low in range(0, len(enlarged.values), size)
    ]
    scores: Floats = -np.concatenate(outputs).astype(np.float64)
    return scores


def _train(
    step: Callable[[Tensor, Tensor, Tensor], Tensor],
    enlarged: Sequences,
    release: Sequences,
    settings: Settings,
    rng: np.random.Generator,
    report: Callable[[str], None],
) -> None:
    """Run the epochs; every batch mixes both sides at random."""
    first, total = len(enlarged.values), len(enlarged.values) + len(release.values)
    batches = -(-total // settings.batch)
    done = 0
    start = last_report = time.monotonic()
    for epoch in range(1, settings.epochs + 1):
        order = rng.permutation(total)
        losses = 0.0
        for number in range(1, batches + 1):
            chosen = order[(number - 1) * settings.batch : number * settings.batch]
            real, made = chosen[chosen < first], chosen[chosen >= first] - first
            loss = step(
                np.concatenate([enlarged.values[real], release.values[made]]),
                np.concatenate([enlarged.last[real], release.last[made]]),
                np.repeat([1.0, 0.0], [len(real), len(made)]).astype(np.float32),
            )
            losses += float(loss)
            done += 1
            now = time.monotonic()
            if done == 1:
                # The first update builds the graph: no measure of the others.
                start = now
            if number == batches or (now - last_report >= 1.0 and done > 1):
                last_report = now
                left = (now - start) / max(done - 1, 1) * (settings.epochs * batches - done)
                where = "" if number == batches else f" · batch {number}/{batches}"
                report(
                    f"epoch {epoch}/{settings.epochs}{where}"
                    f" · loss {losses / number:.4f} · {left:.0f} s left"
                )


def _standard(data: Floats, padding_mask: Bools | None, scaling: Scaling) -> Sequences:
    """Scale by the enlarged data; rows moved to the front, so that padding follows them.

    The state at a patient's last row has then never met padding, and a GPU can use its fused
    kernel, which takes no mask.
    """
    values = np.zeros(data.shape, np.float32)
    last = np.full(len(data), data.shape[1] - 1, np.int32)
    for low in range(0, len(data), _BLOCK):
        block = slice(low, low + _BLOCK)
        mask = None if padding_mask is None else padding_mask[block]
        scaled = np.clip(preprocess_standard(data[block], mask, scaling).values, -_FAR, _FAR)
        if mask is None:
            values[block] = scaled
            continue
        padding = mask.all(axis=2)
        order = np.argsort(padding, axis=1, kind="stable")
        values[block] = np.take_along_axis(scaled, order[:, :, None], axis=1)
        last[block] = np.maximum(np.count_nonzero(~padding, axis=1) - 1, 0)
    return Sequences(values, last)


def _as_in_2020(data: Floats, padding_mask: Bools | None) -> Sequences:
    """Preprocess each side by itself; padding stays -1 and is read like data."""
    values = np.clip(preprocess_data(data, padding_mask)[1], -_FAR, _FAR).astype(np.float32)
    return Sequences(values, np.full(len(data), data.shape[1] - 1, np.int32))
