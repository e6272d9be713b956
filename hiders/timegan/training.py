"""TimeGAN's losses and its three training phases.

Source: Yoon, Jarrett and van der Schaar, *Time-series Generative Adversarial Networks*, NeurIPS
2019 (equations 7 to 11) and the schedule and weights of the authors' code. Padded steps and
unmeasured cells carry no loss; with everything measured the losses are the paper's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # Inside the submission its own folder is on the import path.
    from hiders.timegan.backend import tf
    from hiders.timegan.networks import Network
    from hiders.timegan.observation import Sequences
else:
    from backend import tf
    from networks import Network
    from observation import Sequences

Tensor: TypeAlias = Any

# The discriminator rests while it is this good already (authors' code).
DISCRIMINATOR_THRESHOLD = 0.15
# Below this a square root's gradient, infinite at 0, is dropped.
_TINY = 1e-12


@dataclass(frozen=True)
class Settings:
    """What a run can choose; the defaults are the `full` profile.

    Attributes
    ----------
    hidden, layers : int
        Units per GRU layer; GRU layers (the supervisor has one fewer, at least 1).
    batch : int
        Patients per update, at most all of them.
    embedding_iterations, supervised_iterations, joint_iterations : int
        Length of phases 1, 2 and 3.
    gamma : float
        Weight of the losses on the generator's unsupervised output.
    learning_rate : float
        Adam's.
    compile : bool
        Compile the recurrent loops with XLA.
    """

    hidden: int = 24
    layers: int = 3
    batch: int = 128
    embedding_iterations: int = 10_000
    supervised_iterations: int = 10_000
    joint_iterations: int = 10_000
    gamma: float = 1.0
    learning_rate: float = 1e-3
    compile: bool = True

    def __post_init__(self) -> None:
        if min(self.hidden, self.layers, self.batch) < 1:
            raise ValueError("hidden, layers and batch must be at least 1.")
        iterations = (self.embedding_iterations, self.supervised_iterations, self.joint_iterations)
        if min(iterations) < 0:
            raise ValueError("The numbers of iterations must not be negative.")


# --------------------------------------------------------------------------- losses


def masked_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Mean of the cells whose weight is 1; 0 where there is none. Shapes broadcast."""
    weights = tf.broadcast_to(weights, tf.shape(values))
    return tf.reduce_sum(values * weights) / tf.maximum(tf.reduce_sum(weights), 1.0)


def safe_root(value: Tensor) -> Tensor:
    """Square root with gradient 0 instead of infinity at 0."""
    return tf.sqrt(tf.maximum(value, _TINY))


def reconstruction_loss(real: Tensor, rebuilt: Tensor, measured: Tensor) -> Tensor:
    """L_R = 10 sqrt(MSE(X, R(E(X)))) over measured cells; all (steps, batch, columns)."""
    return 10.0 * safe_root(masked_mean(tf.square(real - rebuilt), measured))


def supervised_loss(latent: Tensor, predicted: Tensor, alive: Tensor) -> Tensor:
    """L_S = MSE(H[1:], S(H)[:-1]) over steps that exist; `alive` is (steps, batch, 1)."""
    return masked_mean(tf.square(latent[1:] - predicted[:-1]), alive[1:])


def judged(logits: Tensor, label: float, alive: Tensor) -> Tensor:
    """Binary cross-entropy of a discriminator's logits (steps, batch, 1) against one label."""
    entropy = tf.nn.sigmoid_cross_entropy_with_logits(tf.fill(tf.shape(logits), label), logits)
    return masked_mean(entropy, alive)


def moment_loss(real: Tensor, made: Tensor, measured: Tensor) -> Tensor:
    """V1 + V2: difference of standard deviations and of means over the batch.

    Per step and column over the cells that the real batch measured there, in both data sets: a
    deviation from three values is too small on average, and equally so on both sides. Steps and
    columns count by their number of such cells.

    Parameters
    ----------
    real, made : float32 tensors (steps, batch, columns)
    measured : float32 tensor, same shape
        1 = measured.

    Returns
    -------
    float32 scalar
    """
    count = tf.reduce_sum(measured, 1)

    def moments(values: Tensor) -> tuple[Tensor, Tensor]:
        mean = tf.reduce_sum(values * measured, 1) / tf.maximum(count, 1.0)
        squares = tf.square(values - mean[:, None]) * measured
        variance = tf.reduce_sum(squares, 1) / tf.maximum(count, 1.0)
        return mean, tf.sqrt(variance + 1e-6)

    (real_mean, real_deviation), (made_mean, made_deviation) = moments(real), moments(made)
    gap = tf.abs(made_deviation - real_deviation) + tf.abs(made_mean - real_mean)
    return tf.reduce_sum(gap * count) / tf.maximum(tf.reduce_sum(count), 1.0)


# --------------------------------------------------------------------------- training


class Adam:
    """Adam (Kingma and Ba 2015) over a fixed list of variables, one fused kernel for each."""

    def __init__(self, variables: list[Tensor], learning_rate: float) -> None:
        self.variables, self._rate = variables, learning_rate
        self._first = [tf.Variable(tf.zeros_like(v)) for v in variables]
        self._second = [tf.Variable(tf.zeros_like(v)) for v in variables]
        self._powers = [tf.Variable(0.9), tf.Variable(0.999)]

    def apply(self, gradients: list[Tensor]) -> None:
        """Make one update."""
        slots = zip(self.variables, self._first, self._second, gradients, strict=True)
        for variable, first, second, gradient in slots:
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=first.handle,
                v=second.handle,
                beta1_power=self._powers[0],
                beta2_power=self._powers[1],
                lr=self._rate,
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-7,
                grad=gradient,
            )
        self._powers[0].assign(self._powers[0] * 0.9)
        self._powers[1].assign(self._powers[1] * 0.999)


class TimeGan:
    """The five networks, their updates, and sampling.

    Parameters
    ----------
    sequences : Sequences
        The members.
    settings : Settings
    rng : numpy Generator
        The only source of randomness.
    """

    def __init__(self, sequences: Sequences, settings: Settings, rng: np.random.Generator) -> None:
        self.settings, self._rng = settings, rng
        self.steps, self.patients, self.columns = sequences.values.shape
        self.batch = min(settings.batch, self.patients)
        self._values = tf.constant(sequences.values)
        self._measured = tf.constant(sequences.measured)
        self._lengths = tf.constant(sequences.lengths, tf.int32)

        hidden, layers, compiled = settings.hidden, settings.layers, settings.compile

        def network(inputs: int, outputs: int, depth: int) -> Network:
            return Network(inputs, outputs, hidden, depth, "sigmoid", rng, compiled)

        self.embedder = network(self.columns, hidden, layers)
        self.recovery = network(hidden, self.columns, layers)
        self.generator = network(self.columns, hidden, layers)
        self.supervisor = network(hidden, hidden, max(1, layers - 1))
        self.discriminator = Network(hidden, 1, hidden, layers, "linear", rng, compiled)

        autoencoder = self.embedder.variables + self.recovery.variables
        # As in the authors' code, every update keeps its own Adam moments.
        rate = settings.learning_rate
        self._embedding_adam = Adam(autoencoder, rate)
        self._supervised_adam = Adam(self.supervisor.variables, rate)
        self._generator_adam = Adam(self.generator.variables + self.supervisor.variables, rate)
        self._autoencoder_adam = Adam(autoencoder, rate)
        self._discriminator_adam = Adam(self.discriminator.variables, rate)
        self._embedding_step = _traced(self.embedding_step)
        self._supervised_step = _traced(self.supervised_step)
        self._generator_step = _traced(self.generator_step)
        self._autoencoder_step = _traced(self.autoencoder_step)
        self._discriminator_step = _traced(self.discriminator_step)

    def train(self, report: Callable[[str], None]) -> None:
        """Run the three phases.

        Parameters
        ----------
        report : callable
            Receives progress lines, about one a second.
        """
        settings = self.settings
        phases: list[tuple[str, int, Callable[[], Tensor]]] = [
            (
                "embedding",
                settings.embedding_iterations,
                lambda: self._embedding_step(self.draw_patients()),
            ),
            (
                "supervised",
                settings.supervised_iterations,
                lambda: self._supervised_step(self.draw_patients()),
            ),
            ("joint", settings.joint_iterations, self._joint_iteration),
        ]
        for name, iterations, update in phases:
            _run_phase(name, iterations, update, report)

    def draw_patients(self) -> Tensor:
        """Draw the indices of a fresh batch, without repetition."""
        chosen: NDArray[np.intp] = self._rng.permutation(self.patients)[: self.batch]
        return tf.constant(chosen, tf.int32)

    def draw_seed(self) -> Tensor:
        """Seed of one draw of Z."""
        return tf.constant(self._rng.integers(0, 2**31 - 1, 2), tf.int32)

    def _joint_iteration(self) -> Tensor:
        for _ in range(2):
            loss = self._generator_step(self.draw_patients(), self.draw_seed())
            self._autoencoder_step(self.draw_patients())
        self._discriminator_step(self.draw_patients(), self.draw_seed())
        return loss

    # ----------------------------------------------------------------- one update each

    def _real(self, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values, measured (both (steps, batch, columns)) and alive (steps, batch, 1)."""
        shape = [self.steps, self.batch, self.columns]
        values = tf.ensure_shape(tf.gather(self._values, chosen, axis=1), shape)
        measured = tf.cast(tf.gather(self._measured, chosen, axis=1), tf.float32)
        alive = tf.range(self.steps)[:, None] < tf.gather(self._lengths, chosen)[None]
        return values, measured, tf.cast(alive, tf.float32)[:, :, None]

    def _noise(self, seed: Tensor) -> Tensor:
        return tf.random.stateless_uniform([self.steps, self.batch, self.columns], seed)

    def embedding_step(self, chosen: Tensor) -> Tensor:
        """Phase 1: E, R on L_R."""
        real, measured, _ = self._real(chosen)
        with tf.GradientTape() as tape:
            rebuilt = self.recovery(self.embedder(real))
            loss = reconstruction_loss(real, rebuilt, measured)
        _update(self._embedding_adam, tape, loss)
        return loss

    def supervised_step(self, chosen: Tensor) -> Tensor:
        """Phase 2: S on L_S; the generator does not occur in that loss."""
        real, _, alive = self._real(chosen)
        latent = self.embedder(real)
        with tf.GradientTape() as tape:
            loss = supervised_loss(latent, self.supervisor(latent), alive)
        _update(self._supervised_adam, tape, loss)
        return loss

    def generator_step(self, chosen: Tensor, seed: Tensor) -> Tensor:
        """Phase 3: G, S on L_U + gamma L_Ue + 100 sqrt(L_S) + 100 (V1 + V2)."""
        real, measured, alive = self._real(chosen)
        latent = self.embedder(real)
        with tf.GradientTape() as tape:
            raw = self.generator(self._noise(seed))
            made = self.supervisor(raw)
            fooled = judged(self.discriminator(made), 1.0, alive)
            fooled_raw = judged(self.discriminator(raw), 1.0, alive)
            supervised = supervised_loss(latent, self.supervisor(latent), alive)
            moments = moment_loss(real, self.recovery(made), measured)
            loss = (
                fooled
                + self.settings.gamma * fooled_raw
                + 100.0 * safe_root(supervised)
                + 100.0 * moments
            )
        _update(self._generator_adam, tape, loss)
        return loss

    def autoencoder_step(self, chosen: Tensor) -> Tensor:
        """Phase 3: E, R on L_R + 0.1 L_S."""
        real, measured, alive = self._real(chosen)
        with tf.GradientTape() as tape:
            latent = self.embedder(real)
            rebuilt = reconstruction_loss(real, self.recovery(latent), measured)
            supervised = supervised_loss(latent, self.supervisor(latent), alive)
            loss = rebuilt + 0.1 * supervised
        _update(self._autoencoder_adam, tape, loss)
        return loss

    def discriminator_step(self, chosen: Tensor, seed: Tensor) -> Tensor:
        """Phase 3: D, only while its loss is above the threshold."""
        real, _, alive = self._real(chosen)
        latent = self.embedder(real)
        raw = self.generator(self._noise(seed))
        made = self.supervisor(raw)
        with tf.GradientTape() as tape:
            loss = (
                judged(self.discriminator(latent), 1.0, alive)
                + judged(self.discriminator(made), 0.0, alive)
                + self.settings.gamma * judged(self.discriminator(raw), 0.0, alive)
            )
        gradients = tape.gradient(loss, self._discriminator_adam.variables)

        def learn() -> Tensor:
            self._discriminator_adam.apply(gradients)
            return loss

        return tf.cond(loss > DISCRIMINATOR_THRESHOLD, learn, lambda: loss)

    # ----------------------------------------------------------------- sampling

    def sample(self, patients: int) -> NDArray[np.float64]:
        """Draw X = R(S(G(Z))).

        Parameters
        ----------
        patients : int

        Returns
        -------
        float64 array (patients, steps, columns)
            Left-aligned, every cell filled, in [0, 1].
        """
        draw = _traced(
            lambda seed: self.recovery(self.supervisor(self.generator(self._noise(seed))))
        )
        parts = [
            draw(self.draw_seed()).numpy() for _ in range((patients + self.batch - 1) // self.batch)
        ]
        drawn: NDArray[np.float64] = np.concatenate(parts, axis=1)[:, :patients].astype(np.float64)
        return drawn.transpose(1, 0, 2)


def _traced(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    # No Python control flow depends on tensors here, and rewriting the code costs seconds.
    graph: Callable[..., Tensor] = tf.function(step, autograph=False)
    return graph


def _update(adam: Adam, tape: Any, loss: Tensor) -> None:
    adam.apply(tape.gradient(loss, adam.variables))


def _run_phase(
    name: str, iterations: int, update: Callable[[], Tensor], report: Callable[[str], None]
) -> None:
    """Repeat an update; report about once a second, and at the end."""
    start = last = time.monotonic()
    for done in range(1, iterations + 1):
        loss = update()
        now = time.monotonic()
        if done == 1:
            # The first update builds and compiles the graph: no measure of the others.
            start = now
        if (now - last >= 1.0 and done > 1) or done == iterations:
            last = now
            left = (now - start) / max(done - 1, 1) * (iterations - done)
            report(f"{name} {done}/{iterations} · loss {float(loss):.4f} · {left:.0f} s left")
