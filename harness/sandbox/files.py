"""Files between the harness and a run: inputs written, outputs read through a check.

Layout of a job's folder, the same for every sandbox:

====================  ==========================================================
``input/``            ``manifest.json`` and one ``.npy`` per array; read-only
``work/``             a copy of the submission; the working directory
``lib/``              the shim and ``data_preprocess.py``
``output/``           ``answer.json`` and ``.npy`` files, or ``error.json``
``tmp/``              TMPDIR
====================  ==========================================================

Nothing is ever unpickled, and nothing is read that is not a regular file of a declared name,
size, type and shape.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

import data_preprocess
from harness.failures import Cause
from harness.sandbox import entry
from harness.sandbox.protocol import Answer, Job
from harness.submission import Kind, copy_files

_JSON_BYTES = 64 * 1024
_HEADER_BYTES = 4096
_REASON = 200
# As for input data: beyond it ranges and squares overflow in whatever reads the release.
_LARGEST = 1e100


class BadOutput(ValueError):
    """What a run left behind cannot be used; the message is one sentence."""


class Confession(ValueError):
    """The run itself said why it failed, in ``error.json``."""

    def __init__(self, cause: Cause, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause


def write_job(job: Job, folder: Path) -> None:
    """Lay out everything that a run may see under an empty `folder`."""
    for name in ("input", "work", "lib", "output", "tmp"):
        (folder / name).mkdir()
    copy_files(job.submission.root, folder / "work")
    for module in (data_preprocess, entry):
        source = Path(str(module.__file__))
        (folder / "lib" / source.name).write_bytes(source.read_bytes())
    present = {name: array for name, array in job.arrays.items() if array is not None}
    for name, array in present.items():
        np.save(folder / "input" / f"{name}.npy", array, allow_pickle=False)
    manifest = {
        "kind": str(job.submission.kind),
        "seed": job.seed,
        "parameters": dict(job.parameters),
        "arrays": sorted(present),
        "absent": sorted(set(job.arrays) - set(present)),
    }
    (folder / "input" / "manifest.json").write_text(json.dumps(manifest))


def read_answer(job: Job, output: Path) -> Answer:
    """Return what a finished run left in its output folder, checked and sanitised.

    Raises
    ------
    Confession
        The shim wrote down why it failed.
    BadOutput
        A file is missing, no regular file, too large, of a wrong type or shape, or holds values
        that are not allowed.
    """
    if (output / "error.json").exists():
        raise _confession(output)
    said = _json(output, "answer.json")
    if job.submission.kind is Kind.SEEKER:
        return Answer(_scores(output, job.shape))
    if said.get("rescore") is True:
        return Answer(None)
    n_features = said.get("n_features")
    if n_features is not None and not (type(n_features) is int and 0 <= n_features <= 5):
        raise BadOutput(f"The number of features must be 0 to 5 or None, got {n_features!r}.")
    values = _array(output, "data", job.shape).astype(np.float64)
    if values.shape != job.shape:
        raise BadOutput(f"The release has shape {values.shape}, it must be {job.shape}.")
    mask: NDArray[np.bool_] | None = None
    if (output / "padding_mask.npy").exists():
        raw = _array(output, "padding_mask", job.shape)
        if raw.shape != job.shape:
            raise BadOutput(f"The padding mask has shape {raw.shape}, it must be {job.shape}.")
        mask = raw.astype(bool)
        # What a release holds where it has no data could carry a message.
        values[mask] = data_preprocess.PADDING
    if (np.abs(values) > _LARGEST).any():
        raise BadOutput(f"The release holds infinite values or values beyond {_LARGEST:g}.")
    # -0.0 and NaN payloads could carry a message too.
    values += 0.0
    values[np.isnan(values)] = np.nan
    return Answer(values, mask, n_features)


def _scores(output: Path, shape: tuple[int, ...]) -> NDArray[np.float64]:
    (count,) = shape
    raw = _array(output, "scores", (count, 1))
    if raw.shape not in ((count,), (count, 1), (1, count)):
        raise BadOutput(f"The scores have shape {raw.shape}, they must be ({count},).")
    scores = raw.astype(np.float64).reshape(count)
    if np.isnan(scores).any():
        raise BadOutput(f"{np.isnan(scores).sum():,} of the scores are NaN.")
    return scores


def _confession(output: Path) -> Exception:
    said = _json(output, "error.json")
    cause, reason = said.get("cause"), str(said.get("reason", ""))[:2000]
    allowed = (Cause.CRASH, Cause.OUT_OF_MEMORY, Cause.BAD_OUTPUT)
    if cause not in allowed:
        return BadOutput("It wrote a false error.json.")
    line = " ".join(reason.split())
    # The whole of it stands in the log; this is one sentence among others.
    return Confession(Cause(cause), line if len(line) <= _REASON else line[:_REASON] + "…")


def _open(output: Path, name: str) -> IO[bytes]:
    """Open a regular file without following links and without waiting on a FIFO."""
    try:
        handle = os.open(output / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise BadOutput(f"It ended without writing {name}: nothing was returned.") from None
    except OSError as error:
        raise BadOutput(f"{name} is not a regular file ({error.strerror}).") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BadOutput(f"{name} is not a regular file.")
    return os.fdopen(handle, "rb")


def _json(output: Path, name: str) -> dict[str, Any]:
    with _open(output, name) as stream:
        text = stream.read(_JSON_BYTES + 1)
    try:
        said = json.loads(text) if len(text) <= _JSON_BYTES else None
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise BadOutput(f"{name} is not the JSON that the shim writes.")
    return said


def _array(output: Path, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Read a numeric array of at most the elements of `shape`; its header is judged first."""
    with _open(output, f"{name}.npy") as stream:
        try:
            version = np.lib.format.read_magic(stream)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            claimed, _, dtype = read(stream, max_header_size=_HEADER_BYTES)
        except (ValueError, KeyError, EOFError) as error:
            raise BadOutput(f"{name}.npy is not a .npy file ({error}).") from error
        if dtype.kind not in "biuf":
            raise BadOutput(f"{name}.npy holds {dtype}, it must hold numbers.")
        elements = int(np.prod(shape, dtype=np.int64))
        if (
            min(claimed, default=0) < 0
            or len(claimed) > 8
            or int(np.prod([min(c, 2**31) for c in claimed], dtype=object)) > elements
        ):
            raise BadOutput(f"{name}.npy claims the shape {claimed}, larger than {shape}.")
        stream.seek(0)
        try:
            return np.asarray(np.load(stream, allow_pickle=False))
        except (ValueError, EOFError, OSError) as error:
            raise BadOutput(f"{name}.npy cannot be read ({error}).") from error
