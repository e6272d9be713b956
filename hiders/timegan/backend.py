"""TensorFlow, imported without its start-up chatter and set up so that runs repeat."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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
        import tensorflow as tf
except ImportError as error:
    raise ImportError(
        'The timegan hider needs TensorFlow: pip install "hideseek[baselines]".'
    ) from error

with suppress(RuntimeError):  # Another program in this process has already used TensorFlow.
    # The time loops are chains of tiny operations: handing each to a second thread costs more
    # than it saves (measured: 3 x slower). Whole networks still run side by side.
    tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.experimental.enable_op_determinism()

__all__ = ["tf"]
