"""Loading and preprocessing at competition size: ``python -m benchmarks.load``.

CSV to padded array against pyarrow's bare read of the same file; imputation and scaling against
the 2020 way (patient by patient with pandas), measured on 1,000 patients and scaled up.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pyarrow.csv
from rich.console import Console
from rich.table import Table

import data_preprocess
from benchmarks import slow_2020
from benchmarks.measure import best_cpu, measure
from harness.simulate import simulate_table, write_csv

PATIENTS, ROWS, PEER_PATIENTS = 15_390, 100, 1_000


def write(path: str, patients: int) -> int:
    """Write the simulated file; return its bytes."""
    write_csv(simulate_table(patients, seed=0, rows_per_patient=ROWS), Path(path))
    return Path(path).stat().st_size


def bare_read(path: str) -> int:
    """Read the file with pyarrow and do nothing else."""
    return int(pyarrow.csv.read_csv(path).num_rows)


def load(path: str) -> int:
    """Read the file into the padded array; return the array's bytes."""
    return int(data_preprocess.load_and_reshape(path, ROWS)[0].nbytes)


def ours(path: str, repeats: int) -> float:
    """Return the CPU seconds of imputing and scaling, best of so many calls."""
    data, mask = data_preprocess.load_and_reshape(path, ROWS)
    return best_cpu(lambda: data_preprocess.preprocess_data(data, mask), repeats)


def peer(path: str) -> float:
    """Return the CPU seconds that 2020's way took on the first 1,000 patients."""
    data, mask = data_preprocess.load_and_reshape(path, ROWS)
    data, mask = data[:PEER_PATIENTS], mask[:PEER_PATIENTS]
    return best_cpu(lambda: slow_2020.preprocess(data, mask), 1)


def main() -> None:
    """Print ours, the peer and the limit side by side."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--patients", type=int, default=PATIENTS)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "competition.csv")
        size = measure(write, path, given.patients).value
        console.print(
            f"{given.patients:,} patients x {ROWS} rows x 71 columns, {size / 1e6:,.0f} MB of CSV"
        )
        # In turns, so that both meet the same machine.
        pairs = [(measure(bare_read, path), measure(load, path)) for _ in range(given.repeats)]
        bare, loaded = (min(runs, key=lambda cost: cost.wall) for runs in zip(*pairs, strict=True))
        cpu = measure(ours, path, given.repeats).value
        slow = measure(peer, path).value * given.patients / min(PEER_PATIENTS, given.patients)
    table = Table("what", "ours", "peer", "ratio", "limit")
    table.add_row(
        "CSV to padded array, wall s (pyarrow's bare read)",
        f"{loaded.wall:.2f}",
        f"{bare.wall:.2f}",
        f"{loaded.wall / bare.wall:.2f}x",
        "<= 1.5x",
    )
    table.add_row(
        "peak memory of loading, MB (the array)",
        f"{loaded.peak / 1e6:,.0f}",
        f"{loaded.value / 1e6:,.0f}",
        f"{loaded.peak / loaded.value:.2f}x",
        "<= 3x",
    )
    table.add_row(
        "imputation and scaling, CPU s (2020's way, scaled up)",
        f"{cpu:.2f}",
        f"{slow:.1f}",
        f"{slow / cpu:.0f}x less",
        ">= 30x less",
    )
    console.print(table)


if __name__ == "__main__":
    main()
