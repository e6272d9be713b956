"""Layers point one way; submissions know nothing of the harness; heavy imports stay out."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

# Each room may import those of lower number, and itself.
LAYERS = {
    "cli": 6,
    "watch": 5,
    "web": 6,
    "league": 5,
    "report": 5,
    "play": 4,
    "result": 3,
    "match": 3,
    "sandbox": 2,
    "scoring": 2,
    "metrics": 2,
    "baselines": 1,
    "simulate": 1,
    "submission": 1,
    "cohort": 1,
    "failures": 0,
    "seeds": 0,
}
"""``play`` and ``result`` belong to ``match``: the matches of one sitting, and what they say."""

ENTRIES = sorted([*ROOT.glob("hiders/*"), *ROOT.glob("seekers/*"), *ROOT.glob("submissions/*")])


def imported(file: Path) -> set[str]:
    """Return the dotted names that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide the layer"
            names.add(str(node.module))
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def rooms_of(names: set[str]) -> set[str]:
    parts = (name.split(".") for name in names)
    return {part[1] for part in parts if part[0] == "harness" and len(part) > 1}


def test_layers_point_one_way() -> None:
    for file in sorted((ROOT / "harness").rglob("*.py")):
        inside = file.relative_to(ROOT / "harness").parts[0].removesuffix(".py")
        if inside in ("__init__", "_shipped"):
            continue
        assert inside in LAYERS, f"{inside}: give the new room a layer"
        for room in rooms_of(imported(file)) & set(LAYERS):
            assert (
                room == inside
                or LAYERS[room] < LAYERS[inside]
                or {room, inside}
                <= {
                    "cohort",
                    "submission",
                    "baselines",
                    "simulate",
                }
            ), f"{file.relative_to(ROOT)} must not import harness.{room}"


def test_data_preprocess_stands_alone() -> None:
    assert not rooms_of(imported(ROOT / "data_preprocess.py"))


def test_the_shim_needs_nothing_but_the_standard_library_and_numpy() -> None:
    names = {name.split(".")[0] for name in imported(ROOT / "harness/sandbox/entry.py")}
    assert names - set(sys.stdlib_module_names) == {"numpy"}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda path: str(path.relative_to(ROOT)))
def test_submissions_never_import_the_harness(entry: Path) -> None:
    for file in entry.rglob("*.py"):
        assert "harness" not in {name.split(".")[0] for name in imported(file)}, file


def test_help_never_imports_tensorflow_or_plots() -> None:
    code = (
        "import sys, runpy; sys.argv = ['hideseek', '--help']\n"
        "try: runpy.run_module('harness.cli', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = {'tensorflow', 'keras', 'matplotlib', 'pandas', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
