"""The nearest-neighbour seeker at competition size: ``python -m benchmarks.nearest_neighbour``.

The distance stage and the whole seeker against one bare float32 matrix product of the same shape
(release 7,695 x 7,100 against enlarged data 15,390 x 7,100), and the members named against a
float64 brute force on a subset.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.spatial.distance import cdist

from benchmarks.measure import measure
from harness.baselines import shipped

N, STEPS, COLUMNS, SUBSET = 7_695, 100, 71, 600


class Timings(NamedTuple):
    """Seconds of the distance stage and of the whole seeker."""

    distances: float
    whole: float


def seeker_module() -> ModuleType:
    """Import the seeker from its folder, as a sandbox would."""
    path = shipped() / "seekers" / "nearest_neighbour" / "seeker.py"
    spec = importlib.util.spec_from_file_location("nearest_neighbour_seeker", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def make(folder: str, n: int) -> None:
    """Write the enlarged data and an add-noise release of half of them, in the seeker's layout."""
    rng = np.random.default_rng(0)
    shape = (2 * n, STEPS, COLUMNS)
    data = np.lib.format.open_memmap(f"{folder}/enlarged.npy", "w+", np.float64, shape)
    mask = np.lib.format.open_memmap(f"{folder}/enlarged_mask.npy", "w+", np.bool_, shape)
    level = rng.normal(size=(2 * n, 1, COLUMNS))
    lengths = rng.integers(40, 140, 2 * n).clip(max=STEPS)
    for low in range(0, 2 * n, 512):
        part = slice(low, min(low + 512, 2 * n))
        block = level[part] + 0.5 * rng.normal(size=data[part].shape)
        block[rng.random(block.shape) > 0.16] = np.nan
        block[:, :, 0] = np.sort(rng.uniform(0, 2880, block.shape[:2]), axis=1)
        padding = np.arange(STEPS) < STEPS - lengths[part, None]
        block[padding] = -1.0
        data[part], mask[part] = block, padding[:, :, None]
    members = rng.permutation(2 * n)[:n]
    spread = np.nanstd(data[:200], axis=(0, 1))
    release = np.lib.format.open_memmap(f"{folder}/release.npy", "w+", np.float64, (n, *shape[1:]))
    for low in range(0, n, 512):
        chosen = members[low : low + 512]
        noisy = data[chosen] + 0.3 * spread * rng.normal(size=(len(chosen), *shape[1:]))
        release[low : low + 512] = np.where(mask[chosen], -1.0, noisy)
    np.save(f"{folder}/release_mask.npy", mask[members])


def given_to_seeker(folder: str, patients: int | None = None) -> dict[str, Any]:
    """Return the seeker's input, mapped copy-on-write as in a sandbox."""

    def array(name: str, count: int | None) -> Any:
        mapped = np.load(f"{folder}/{name}.npy", mmap_mode="c")
        return np.asarray(mapped[:count])

    half = None if patients is None else patients // 2
    return {
        "enlarged_data": array("enlarged", patients),
        "enlarged_data_padding_mask": array("enlarged_mask", patients),
        "generated_data": array("release", half),
        "generated_data_padding_mask": array("release_mask", half),
        "seed": 0,
        "parameters": {"rules": "standard"},
    }


def product(n: int) -> float:
    """Return the seconds of one bare float32 matrix product of the seeker's shape."""
    rng = np.random.default_rng(0)
    rows = rng.random((2 * n, STEPS * COLUMNS), dtype=np.float32)
    others = rng.random((n, STEPS * COLUMNS), dtype=np.float32)
    out = np.zeros((2 * n, n), dtype=np.float32)
    began = time.perf_counter()
    np.matmul(rows, others.T, out=out)
    return time.perf_counter() - began


def whole_seeker(folder: str) -> Timings:
    """Run the seeker; return its seconds and those of its distance stage."""
    module = seeker_module()
    stage: list[float] = []
    inner = module.nearest_float32

    def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        found = inner(*arguments)
        stage.append(time.perf_counter() - began)
        return found

    module.nearest_float32 = timed  # type: ignore[attr-defined]
    began = time.perf_counter()
    module.seeker(given_to_seeker(folder))
    return Timings(sum(stage), time.perf_counter() - began)


def named_alike(folder: str) -> tuple[int, int]:
    """Return how many of the members named on a subset a float64 brute force names too."""
    module = seeker_module()
    caught: list[Any] = []
    inner = module.membership_distances

    def catching(rows: Any, others: Any, n_named: int) -> Any:
        caught.extend((rows, others))
        return inner(rows, others, n_named)

    module.membership_distances = catching  # type: ignore[attr-defined]
    scores = module.seeker(given_to_seeker(folder, SUBSET))
    brute = cdist(caught[0], caught[1], "sqeuclidean").min(axis=1)
    half = SUBSET // 2
    ours = set(np.argsort(-scores, kind="stable")[:half].tolist())
    return len(ours & set(np.argsort(brute, kind="stable")[:half].tolist())), half


def main() -> None:
    """Print ours, the bare product and the limit side by side."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--members", type=int, default=N)
    given = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        measure(make, folder, given.members)
        console.print(
            f"release {given.members:,}, enlarged data {2 * given.members:,}, "
            f"{STEPS * COLUMNS:,} dimensions"
        )
        bare = measure(product, given.members).value
        ours = measure(whole_seeker, folder)
        alike, half = measure(named_alike, folder).value
        bare = min(bare, measure(product, given.members).value)
    timings: Timings = ours.value
    table = Table("what", "ours", "bare product", "ratio", "limit")
    for what, seconds, limit in (
        ("distance stage, s", timings.distances, "<= 1.3x"),
        ("whole seeker, s", timings.whole, "<= 3x"),
    ):
        table.add_row(what, f"{seconds:.1f}", f"{bare:.1f}", f"{seconds / bare:.2f}x", limit)
    table.add_row("peak memory, MB", f"{ours.peak / 1e6:,.0f}", "", "", "<= 3,000 MB")
    table.add_row(f"members named as float64 brute force (first {2 * half})", f"{alike} of {half}")
    console.print(table)


if __name__ == "__main__":
    main()
