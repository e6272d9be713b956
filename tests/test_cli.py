"""The command line as a person meets it: the main job, each bad input in one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pytest

from harness import cli
from harness.result import Result
from harness.sandbox import LocalSandbox
from tests.conftest import ROOT

CSV = "admissionid,time,hr,map\n" + "".join(
    f"{p},{t * 10},{60 + (p * 37 + t * 11) % 40},{'' if (p + t) % 3 else 70 + p % 9}\n"
    for p in range(1, 42)
    for t in range(4)
)


class Run(NamedTuple):
    """What a command left: its exit code and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Shell:
    """Runs the command line in this process, which saves a second of imports each time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capfd = monkeypatch, capfd
        monkeypatch.setenv("COLUMNS", "200")

    def hideseek(self, *arguments: str) -> Run:
        self._monkeypatch.setattr(sys, "argv", ["hideseek", *arguments])
        before = signal.getsignal(signal.SIGTERM)
        self._capfd.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as ending:
            code = int(ending.code or 0)
        finally:
            signal.signal(signal.SIGTERM, before)
        out, err = self._capfd.readouterr()
        return Run(code, out, err)

    def play(self, data: Path, out: Path, *more: str) -> Run:
        given = ("--hider", "add_noise", "--seeker", "nearest_neighbour")
        return self.hideseek("play", *given, "--data", str(data), "--out", str(out), *more)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capfd)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "icu data.csv"
    path.write_text(CSV)
    return path


def test_play_writes_result_and_report(shell: Shell, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    run = shell.play(data, out, "--seed", "7", "--splits", "2", "--param", "add_noise.sigma=0")
    assert run.returncode == 0, run.stderr
    assert "1 left out" in run.stderr
    assert "own code" in run.stderr or "trust" in run.stderr
    result = Result.read(out / "result.json")
    assert (result.n, result.splits, result.seed, len(result.matches)) == (20, 2, "7", 2)
    assert result.digests.hiders[0].parameters["sigma"] == 0
    assert str(out / "report.html") in run.stderr
    assert "add_noise" in (out / "report.html").read_text()
    assert "add_noise" in run.stdout


def test_json_goes_to_stdout_alone(shell: Shell, data: Path, tmp_path: Path) -> None:
    run = shell.play(data, tmp_path / "out", "--json", "--rules", "neurips2020")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["rules"] == "neurips2020"


def test_without_a_seed_each_play_draws_its_own(shell: Shell, data: Path, tmp_path: Path) -> None:
    seeds = {Result.model_validate_json(shell.play(data, tmp_path / n, "--json").stdout).seed
             for n in "ab"}  # fmt: skip
    assert len(seeds) == 2


@pytest.mark.parametrize("kind", ["hider", "seeker"])
def test_templates_play_as_they_are(shell: Shell, data: Path, tmp_path: Path, kind: str) -> None:
    template = str(ROOT / "submissions" / f"{kind}_template")
    entries = {"hider": "add_noise", "seeker": "nearest_neighbour", kind: template}
    run = shell.hideseek(
        "play", "--hider", entries["hider"], "--seeker", entries["seeker"],
        "--data", str(data), "--out", str(tmp_path / "out"), "--json",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    (match,) = json.loads(run.stdout)["matches"]
    assert match["status"] == "done", match


def test_data_demo_writes_a_readable_file(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "demo.csv.gz"
    run = shell.hideseek("data", "demo", "--patients", "30", "--out", str(path), "--seed", "3")
    assert run.returncode == 0, run.stderr
    assert "30 patients" in run.stderr
    program = [sys.executable, str(ROOT / "data_preprocess.py"), str(path)]
    subprocess.run([*program, "--out", str(tmp_path / "c.npz")], check=True)
    with np.load(tmp_path / "c.npz") as saved:
        assert saved["data"].shape == (30, 100, 71)


BAD = {
    "no such data": (["--data", "absent.csv"], "absent.csv: there is no such file."),
    "data is a folder": (["--data", "."], "this is a directory"),
    "no such hider": (["--hider", "absent"], "no baseline hider of that name (add_noise"),
    "hider as seeker": (["--seeker", "HIDERS/add_noise"], "it is a hider, and was entered as"),
    "same name twice": (["--hider", "add_noise"], "two hiders are called 'add_noise'"),
    "memory": (["--memory", "lots"], "--memory: 'lots' is not a size"),
    "time": (["--time-limit", "0"], "--time-limit: it must be more than 0 seconds"),
    "param form": (["--param", "sigma=1"], "write it as NAME.key=value"),
    "param name": (["--param", "other.sigma=1"], "no submission is called 'other'"),
    "param key": (["--param", "add_noise.sigm=1"], "its submission.yml names sigma, unit"),
    "param rules": (["--param", "add_noise.rules=x"], "use --rules"),
    "out is a file": (["--out", "icu data.csv"], "--out: icu data.csv cannot be written to"),
    "unknown rules": (["--rules", "mine"], "'mine'"),
    "unknown option": (["--hiders", "x"], "--hiders"),
}


@pytest.mark.parametrize(("arguments", "says"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_sentence_and_exit_code_2(
    shell: Shell,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(data.parent)
    arguments = [a.replace("HIDERS", str(ROOT / "hiders")) for a in arguments]
    given = ["--hider", "add_noise", "--seeker", "nearest_neighbour"]
    given += ["--data", data.name, "--out", "out"]
    run = shell.hideseek("play", *given, *arguments)
    assert run.returncode == 2, run.stderr
    assert says in " ".join(run.stderr.split()), run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""
    assert data.read_text() == CSV


def test_bad_cell_is_named(shell: Shell, data: Path, tmp_path: Path) -> None:
    data.write_text(CSV + "50,1,[bold]fast,1\n")
    run = shell.play(data, tmp_path / "out")
    assert run.returncode == 2
    assert "row 165 below the header, column 'hr': '[bold]fast' is not a number" in run.stderr
    assert not (tmp_path / "out").exists()


def test_one_patient_cannot_be_played(shell: Shell, data: Path, tmp_path: Path) -> None:
    data.write_text("admissionid,time,hr\n1,0,60\n")
    run = shell.play(data, tmp_path / "out")
    assert run.returncode == 2
    assert "icu data.csv: a split needs at least 2 patients" in run.stderr
    assert not (tmp_path / "out").exists()


def test_later_play_replaces_an_earlier_one_whole(shell: Shell, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shell.play(data, out, "--splits", "2")
    (out / "mine.txt").write_text("kept")
    run = shell.play(data, out)
    assert "an earlier play" in run.stderr
    assert sorted(p.name for p in out.iterdir()) == [
        "guesses", "mine.txt", "releases", "report.html", "result.json", "splits",
    ]  # fmt: skip
    assert [p.name for p in (out / "splits").iterdir()] == ["0.npz"]
    assert len(list((out / "guesses").iterdir())) == 1


def test_version(shell: Shell) -> None:
    assert shell.hideseek("--version").stdout.strip() == version("hideseek")


@pytest.fixture
def sleeping(data: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a play whose hider sleeps; yield it once the hider is asleep."""
    (tmp_path / "tmp").mkdir()
    root = tmp_path / "sleeper"
    root.mkdir()
    asleep = tmp_path / "asleep"
    (root / "hider.py").write_text(
        "import os, time\ndef hider(d):\n"
        f"    open({str(asleep)!r}, 'w').write(str(os.getpid()))\n    time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [
            sys.executable, "-m", "harness.cli", "play", "--hider", str(root),
            "--seeker", "nearest_neighbour", "--data", str(data), "--out", str(tmp_path / "out"),
        ],
        stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    )  # fmt: skip
    wait_for(lambda: asleep.exists() and asleep.read_text() != "")
    yield process
    process.kill()
    process.wait()


def wait_for(happens: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_the_run_and_writes_no_result(
    sleeping: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    hider = int((tmp_path / "asleep").read_text())
    sleeping.send_signal(number)
    _, stderr = sleeping.communicate(timeout=20)
    assert sleeping.returncode == 130
    assert "Stopped" in stderr
    assert "Traceback" not in stderr
    assert not psutil.pid_exists(hider)
    assert not list((tmp_path / "out").iterdir())
    assert not list((tmp_path / "tmp").iterdir())


def test_killed_harness_leaves_nothing_behind(
    sleeping: subprocess.Popen[str], tmp_path: Path
) -> None:
    hider = int((tmp_path / "asleep").read_text())
    sleeping.kill()
    sleeping.wait()
    wait_for(lambda: not psutil.pid_exists(hider))
    assert list((tmp_path / "tmp").glob("hideseek-job-*"))
    LocalSandbox(tmp_path / "tmp")
    assert not list((tmp_path / "tmp").glob("hideseek-job-*"))
