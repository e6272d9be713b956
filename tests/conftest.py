"""What several tests share: the shared data folder, baselines loaded by path, small cohorts."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from harness.cohort import Cohort

ROOT = Path(__file__).resolve().parent.parent


def load_module(path: Path) -> ModuleType:
    """Import a submission's file under a name of its own, its folder on the path meanwhile."""
    name = "_".join(path.with_suffix("").parts[-3:])
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


@pytest.fixture(scope="session")
def baseline() -> Callable[[str], ModuleType]:
    """Return a function from ``hiders/add_noise/hider.py`` to its module."""
    return lambda relative: load_module(ROOT / relative)


def shared_data() -> Path | None:
    """Return the folder of shared development data, or None where it is absent."""
    given = os.environ.get("HIDESEEK_SHARED")
    folder = (Path(given) if given else ROOT.parent / "shared") / "data"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def physionet() -> Path:
    """Return the real ICU file; skip where the shared data are absent."""
    folder = shared_data()
    if folder is None:
        pytest.skip("no shared data: set HIDESEEK_SHARED or put shared/ beside the project")
    return folder / "physionet2012_longitudinal.csv.gz"


@pytest.fixture(scope="session")
def icu_stats() -> Path:
    """Return the file of ICU aggregates; skip where the shared data are absent."""
    folder = shared_data()
    if folder is None:
        pytest.skip("no shared data: set HIDESEEK_SHARED or put shared/ beside the project")
    return folder / "icu_stats.json"


def random_cohort(patients: int = 20, steps: int = 6, features: int = 3, seed: int = 0) -> Cohort:
    """Return a ragged cohort with missing cells, genuine -1 values and one-row patients."""
    rng = np.random.default_rng(seed)
    data = np.round(rng.normal(0, 3, (patients, steps, features + 1)), 2)
    data[rng.random(data.shape) < 0.1] = -1.0
    data[rng.random(data.shape) < 0.4] = np.nan
    data[:, :, 0] = np.sort(rng.integers(0, 500, (patients, steps)), axis=1)
    lengths = rng.integers(1, steps + 1, patients)
    padding = np.arange(steps) < steps - lengths[:, None]
    data[padding] = -1.0
    mask = np.repeat(padding[:, :, None], features + 1, axis=2)
    columns = ("time", *(f"x{f}" for f in range(features)))
    return Cohort(data, mask, np.arange(patients) * 7 + 3, columns)


@pytest.fixture
def cohort() -> Cohort:
    """Return a small random cohort of 20 patients."""
    return random_cohort()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in which a test was skipped, where the environment promises all they need."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("HIDESEEK_NO_SKIPS") and reporter and reporter.stats.get("skipped"):
        reporter.write_line("HIDESEEK_NO_SKIPS is set, and tests were skipped.", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
