"""The 2020 rules written out one patient at a time with pandas and scikit-learn.

The tests' oracle and the benchmarks' peer. Shares no code with `data_preprocess`.
"""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.preprocessing import MinMaxScaler

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def load(path: Path, max_seq_len: int = 100, by_time: bool = False) -> tuple[Floats, Bools]:
    """Read a CSV row by row; return padded data and mask, (patients, T, 1 + features)."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    rows = list(csv.reader(text.splitlines()))
    header = rows[0]
    where = [i for i, name in enumerate(header) if name not in ("", "Unnamed: 0", "admissionid")]
    patients: dict[float, list[list[float]]] = {}
    for row in rows[1:]:
        values = [float(row[i]) if row[i] != "" else float("nan") for i in where]
        patients.setdefault(float(row[header.index("admissionid")]), []).append(values)
    data = np.full((len(patients), max_seq_len, len(where)), -1.0)
    mask = np.ones(data.shape, dtype=bool)
    for place, admission in enumerate(sorted(patients)):
        kept = patients[admission]
        if by_time:
            kept = sorted(kept, key=lambda values: values[0])
        kept = kept[:max_seq_len]
        data[place, max_seq_len - len(kept) :] = kept
        mask[place, max_seq_len - len(kept) :] = False
    return data, mask


def preprocess(data: Floats, mask: Bools) -> tuple[Floats, Floats]:
    """Impute and scale patient by patient; return (scaled with NaN, imputed and scaled)."""
    width = data.shape[2]
    cells = data[~mask[:, :, 0]]
    median = pd.DataFrame(cells).median()
    raw, filled = [], []
    for values, padded in zip(data, mask, strict=True):
        frame = pd.DataFrame(values[~padded[:, 0]], columns=range(width))
        raw.append(frame)
        filled.append(frame.bfill().ffill().fillna(median).fillna(0.0))
    scaled_parts = MinMaxScaler().fit(pd.concat(raw).to_numpy())
    filled_parts = MinMaxScaler().fit(pd.concat(filled).to_numpy())
    scaled, imputed = np.full(data.shape, -1.0), np.full(data.shape, -1.0)
    for place in range(len(data)):
        real = ~mask[place, :, 0]
        if not real.any():
            continue
        elapsed = data[place, real, 0] - data[place, real, 0].min()
        scaled[place, real] = scaled_parts.transform(raw[place].to_numpy())
        imputed[place, real] = filled_parts.transform(filled[place].to_numpy())
        scaled[place, real, 0] = imputed[place, real, 0] = elapsed
    return scaled, imputed
