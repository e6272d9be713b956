"""The shim that runs inside every sandbox: calls hider() or seeker() and saves what it returns.

Standard library and numpy only, Python 3.8 or later, since it runs in any participant's image.
``python entry.py JOB`` expects JOB/input (manifest.json and .npy files), JOB/work (the
submission, which becomes the working directory), JOB/lib and an empty JOB/output. Nothing that
it writes is trusted: the harness checks all of it again.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
import traceback
from typing import Any

import numpy as np


class BadReturn(Exception):
    """The return value is not what the contract asks for."""


def main(job: str) -> int:
    """Run one job; return the exit code."""
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    with open(os.path.join(job, "input", "manifest.json"), encoding="utf-8") as stream:
        manifest = json.load(stream)
    given: dict[str, Any] = {}
    for name in manifest["arrays"]:
        # Copy on write: 2020 code changes its input in place, and memory is taken only then.
        file = os.path.join(job, "input", name + ".npy")
        given[name] = np.asarray(np.load(file, mmap_mode="c", allow_pickle=False))
    for name in manifest["absent"]:
        given[name] = None
    given["seed"] = manifest["seed"]
    given["parameters"] = manifest["parameters"]

    work = os.path.join(job, "work")
    os.chdir(work)
    sys.path[0] = work
    sys.path.append(os.path.join(job, "lib"))
    sys.argv = [manifest["kind"] + ".py"]
    output = os.path.join(job, "output")
    try:
        module = importlib.import_module(manifest["kind"])
        returned = getattr(module, manifest["kind"])(given)
        if manifest["kind"] == "hider":
            said, arrays = hider_answer(returned)
        else:
            said = {}
            arrays = {"scores": as_array(returned, "the scores")}
        for name in arrays:
            save(output, name, arrays[name])
    except BaseException as error:
        traceback.print_exc()
        kind = "out_of_memory" if isinstance(error, MemoryError) else "crash"
        if isinstance(error, BadReturn):
            kind = "bad_output"
        text = f"{type(error).__name__}: {error}" if kind == "crash" else str(error)
        write(output, "error.json", {"cause": kind, "reason": text[:2000]})
        return 1
    write(output, "answer.json", said)
    return 0


def end_with(parent: int) -> None:
    """End this process when the harness that started it is gone, even if it was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def hider_answer(returned: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sort out 2020's return forms: data, (data, mask), (data, n), (data, mask, n), "rescore"."""
    if isinstance(returned, str):
        if returned != "rescore":
            raise BadReturn(f"hider() returned the text {returned[:40]!r}.")
        return {"rescore": True}, {}
    mask = n_features = None
    if isinstance(returned, tuple):
        if not 1 <= len(returned) <= 3:
            raise BadReturn(f"hider() returned a tuple of {len(returned)} items.")
        rest = list(returned[1:])
        if len(rest) == 1 and is_count(rest[0]):
            rest.insert(0, None)
        mask = rest[0] if rest else None
        n_features = rest[1] if len(rest) > 1 else None
        returned = returned[0]
    if n_features is not None and not is_count(n_features):
        raise BadReturn("hider()'s number of features must be a whole number or None.")
    arrays = {"data": as_array(returned, "the data")}
    if mask is not None:
        arrays["padding_mask"] = as_array(mask, "the padding mask")
    return {"n_features": None if n_features is None else int(n_features)}, arrays


def is_count(value: Any) -> bool:
    """Tell whether a value is a whole number and no truth value."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def as_array(value: Any, what: str) -> Any:
    """Return a value as a numeric array."""
    if value is None:
        raise BadReturn(
            f"It returned None where {what} should be; does the function end in return?"
        )
    try:
        array = np.asarray(value)
    except Exception as error:
        raise BadReturn(f"{what.capitalize()} cannot be made an array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise BadReturn(f"{what.capitalize()} have the type {array.dtype}, they must be numbers.")
    return array


def save(folder: str, name: str, array: Any) -> None:
    """Write an array without pickling anything."""
    np.save(os.path.join(folder, name + ".npy"), array, allow_pickle=False)


def write(folder: str, name: str, content: dict[str, Any]) -> None:
    """Write JSON, whole or not at all."""
    file = os.path.join(folder, name)
    with open(file + ".partial", "w", encoding="utf-8") as stream:
        json.dump(content, stream)
    os.replace(file + ".partial", file)


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1])))
