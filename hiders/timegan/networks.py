"""The building block of all five TimeGAN networks: stacked GRU layers and one dense layer.

Everything is time-major, (steps, batch, columns), since the recurrence walks over steps.

All layers of a stack advance in one loop: at loop step s, layer l works on time s - l, so that
its input, the state that layer l - 1 reached one loop step earlier, is ready. That needs
steps + layers - 1 small batched products instead of steps x layers, and with the hand-written
gradient and XLA takes less than half the CPU time of three Keras GRU layers (README.md).

The cell is the GRU of Cho et al. (2014) in the form that cuDNN and Keras (`reset_after=True`)
use: z, r = sigmoid(...), c = tanh(W x + b + r * (U h + b')), h' = c + z * (h - c).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:  # Inside the submission its own folder is on the import path.
    from hiders.timegan.backend import tf
else:
    from backend import tf

Tensor: TypeAlias = Any
Activation = Literal["sigmoid", "linear"]


def _forward(
    projected: Tensor, inner: Tensor, recurrent: Tensor, bias: Tensor, candidate_bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run the loop; return states, gates (z, r), candidates and U h + b' of every loop step."""
    layers, hidden = recurrent.shape[0], recurrent.shape[1]
    steps, batch = projected.shape[0] + layers - 1, projected.shape[1]
    projected = tf.concat([projected, tf.zeros([layers - 1, batch, 3 * hidden])], 0)

    def step(s: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        below = projected[s][None]
        if layers > 1:
            below = tf.concat([below, tf.matmul(state[:-1], inner) + bias], 0)
        own = tf.matmul(state, recurrent)
        gates = tf.sigmoid(below[..., hidden:] + own[..., : 2 * hidden])
        update, reset = gates[..., :hidden], gates[..., hidden:]
        memory = own[..., 2 * hidden :] + candidate_bias
        candidate = tf.tanh(below[..., :hidden] + reset * memory)
        return candidate + update * (state - candidate), gates, candidate, memory

    kept = [
        tf.TensorArray(tf.float32, size=steps, element_shape=[layers, batch, width])
        for width in (hidden, 2 * hidden, hidden, hidden)
    ]

    def store(s: Tensor, values: Sequence[Tensor], arrays: Sequence[Tensor]) -> list[Tensor]:
        return [array.write(s, value) for array, value in zip(arrays, values, strict=True)]

    state = tf.zeros([layers, batch, hidden])
    for s in range(layers - 1):
        # Layer l starts at loop step l; until then its state must stay zero.
        started = tf.constant([[[float(s >= layer)]] for layer in range(layers)])
        values = step(s, state)
        state = values[0] * started
        kept = store(s, (state, *values[1:]), kept)

    def body(s: Tensor, state: Tensor, *arrays: Tensor) -> tuple[Tensor, ...]:
        values = step(s, state)
        return s + 1, values[0], *store(s, values, arrays)

    _, _, *kept = tf.while_loop(
        lambda s, *_: s < steps, body, (tf.constant(layers - 1), state, *kept)
    )
    states, gates, candidates, memories = (array.stack() for array in kept)
    return states, gates, candidates, memories


def _backward(
    upstream: Tensor,
    inner: Tensor,
    recurrent: Tensor,
    states: Tensor,
    gates: Tensor,
    candidates: Tensor,
    memories: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `_forward`'s top states with respect to its five arguments.

    Only the chain through the states runs step by step; the local derivatives before it and the
    weights' gradients after it are single products over all steps.
    """
    steps, layers, batch, hidden = states.shape
    before = tf.concat([tf.zeros_like(states[:1]), states[:-1]], 0)
    update, reset = gates[..., :hidden], gates[..., hidden:]
    to_candidate = (1.0 - update) * (1.0 - candidates * candidates)
    # d state / d (candidate input, z input, r input, U h + b', previous state)
    local = tf.stack(
        [
            to_candidate,
            (before - candidates) * update * (1.0 - update),
            to_candidate * memories * reset * (1.0 - reset),
            to_candidate * reset,
            update,
        ],
        axis=3,
    )
    started = np.arange(steps)[:, None] >= np.arange(layers)[None, :]
    local *= tf.constant(started[:, :, None, None, None], tf.float32)
    upstream = tf.concat([tf.zeros([layers - 1, batch, hidden]), upstream], 0)
    inner_t, recurrent_t = tf.transpose(inner, [0, 2, 1]), tf.transpose(recurrent, [0, 2, 1])

    def body(s: Tensor, d_state: Tensor, array: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        d_state = tf.concat([d_state[:-1], d_state[-1:] + upstream[s]], 0)
        parts = tf.reshape(d_state[:, :, None, :] * local[s], [layers, batch, 5 * hidden])
        array = array.write(s, parts[..., : 4 * hidden])
        d_before = parts[..., 4 * hidden :]
        d_before += tf.matmul(parts[..., hidden : 4 * hidden], recurrent_t)
        if layers > 1:
            d_below = tf.matmul(parts[1:, :, : 3 * hidden], inner_t)
            d_before = tf.concat([d_before[:-1] + d_below, d_before[-1:]], 0)
        return s - 1, d_before, array

    array = tf.TensorArray(tf.float32, size=steps, element_shape=[layers, batch, 4 * hidden])
    start = (tf.constant(steps - 1), tf.zeros([layers, batch, hidden]), array)
    _, _, array = tf.while_loop(lambda s, *_: s >= 0, body, start)
    d_inputs = array.stack()
    d_below, d_own = d_inputs[..., : 3 * hidden], d_inputs[..., hidden:]
    return (
        d_below[: steps - layers + 1, 0],
        tf.einsum("slbi,slbj->lij", before[:, :-1], d_below[:, 1:]),
        tf.einsum("slbi,slbj->lij", before, d_own),
        tf.reduce_sum(d_below[:, 1:], [0, 2])[:, None],
        tf.reduce_sum(d_own[..., 2 * hidden :], [0, 2])[:, None],
    )


# Functions of their own: all networks of one shape share one trace, and one compilation.
_plain, _compiled = (
    tuple(tf.function(f, jit_compile=xla, autograph=False) for f in (_forward, _backward))
    for xla in (None, True)
)


def stacked_gru(
    projected: Tensor,
    inner: Tensor,
    recurrent: Tensor,
    bias: Tensor,
    candidate_bias: Tensor,
    compiled: bool = True,
) -> Tensor:
    """Run a stack of GRU layers from zero states.

    Parameters
    ----------
    projected : float32 tensor (steps, batch, 3 hidden)
        First layer's input times its kernel, plus bias; parts (candidate, z, r). Static shape.
    inner : float32 tensor (layers - 1, hidden, 3 hidden)
        Kernels of the other layers, parts (candidate, z, r).
    recurrent : float32 tensor (layers, hidden, 3 hidden)
        Recurrent kernels, parts (z, r, candidate).
    bias : float32 tensor (layers - 1, 1, 3 hidden)
        Input biases of the other layers, parts (candidate, z, r).
    candidate_bias : float32 tensor (layers, 1, hidden)
        The bias b' inside the reset gate's product.
    compiled : bool
        Compile the loops with XLA: pays off after some tens of calls.

    Returns
    -------
    float32 tensor (steps, batch, hidden)
        States of the last layer.
    """
    forward, backward = _compiled if compiled else _plain

    def run(*weights: Tensor) -> tuple[Tensor, Any]:
        states, *rest = forward(*weights)
        _, inner_now, recurrent_now, _, _ = weights

        def gradient(upstream: Tensor) -> Any:
            return backward(upstream, inner_now, recurrent_now, states, *rest)

        return states[recurrent_now.shape[0] - 1 :, -1], gradient

    return tf.custom_gradient(run)(projected, inner, recurrent, bias, candidate_bias)


class Network:
    """GRU layers and a dense layer applied at every step.

    Parameters
    ----------
    inputs, outputs, hidden, layers : int
        Columns in and out, units per GRU layer, number of GRU layers (at least 1).
    activation : {"sigmoid", "linear"}
        Of the dense layer.
    rng : numpy Generator
        Draws the starting weights: Glorot uniform kernels, orthogonal recurrent kernels.
    compiled : bool
        See `stacked_gru`.

    Notes
    -----
    Source: Yoon, Jarrett and van der Schaar (2019), section 4 and its code.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: int,
        layers: int,
        activation: Activation,
        rng: np.random.Generator,
        compiled: bool = True,
    ) -> None:
        self.outputs, self.activation, self.compiled = outputs, activation, compiled

        def glorot(rows: int, columns: int, blocks: int = 1) -> np.ndarray:
            limit = np.sqrt(6.0 / (rows + columns * blocks))
            return rng.uniform(-limit, limit, (rows, columns * blocks))

        def orthogonal() -> np.ndarray:
            tall, upper = np.linalg.qr(rng.normal(size=(3 * hidden, hidden)))
            square: np.ndarray = (tall * np.sign(np.diag(upper))).T
            return square

        def variable(value: np.ndarray) -> Tensor:
            return tf.Variable(value.astype(np.float32))

        inner = [glorot(hidden, hidden, 3) for _ in range(layers - 1)]
        self._kernel = variable(glorot(inputs, hidden, 3))
        self._first_bias = variable(np.zeros(3 * hidden))
        self._inner = variable(np.array(inner).reshape(layers - 1, hidden, 3 * hidden))
        self._recurrent = variable(np.array([orthogonal() for _ in range(layers)]))
        self._bias = variable(np.zeros((layers - 1, 1, 3 * hidden)))
        self._candidate_bias = variable(np.zeros((layers, 1, hidden)))
        self._dense = variable(glorot(hidden, outputs))
        self._dense_bias = variable(np.zeros(outputs))

    @property
    def variables(self) -> list[Tensor]:
        """The trained weights."""
        return [
            self._kernel,
            self._first_bias,
            self._inner,
            self._recurrent,
            self._bias,
            self._candidate_bias,
            self._dense,
            self._dense_bias,
        ]

    def __call__(self, inputs: Tensor) -> Tensor:
        """Map (steps, batch, inputs) to (steps, batch, outputs)."""
        states = stacked_gru(
            _product(inputs, self._kernel) + self._first_bias,
            self._inner.value(),
            self._recurrent.value(),
            self._bias.value(),
            self._candidate_bias.value(),
            self.compiled,
        )
        logits = _product(states, self._dense) + self._dense_bias
        return tf.sigmoid(logits) if self.activation == "sigmoid" else logits


def _product(inputs: Tensor, kernel: Tensor) -> Tensor:
    # One flat product: a batched one would make its gradient a (steps, rows, columns) array.
    steps, batch, columns = inputs.shape
    flat = tf.matmul(tf.reshape(inputs, [steps * batch, columns]), kernel)
    return tf.reshape(flat, [steps, batch, kernel.shape[1]])
