"""The local sandbox: each way to go wrong is a test with its expected cause, named by it."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from harness.failures import Cause
from harness.sandbox import Job, Limits, LocalSandbox, Outcome
from harness.submission import load_submission

N, T, WIDTH = 4, 3, 2
LIMITS = Limits(memory=2**30, seconds=20)


class Bench:
    """Runs the text of a hider or seeker in a local sandbox with a scratch folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self._folder = folder
        self._count = 0

    def run(self, text: str, limits: Limits = LIMITS, **more: Any) -> Outcome:
        self._count += 1
        kind = "hider" if "def hider" in text else "seeker"
        root = self._folder / f"entry{self._count}"
        root.mkdir()
        (root / f"{kind}.py").write_text(text)
        for name, content in more.pop("files", {}).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        submission = load_submission(root, self._folder)
        rng = np.random.default_rng(0)
        data = rng.normal(size=(N, T, WIDTH))
        mask = np.zeros(data.shape, dtype=bool)
        arrays: dict[str, Any] = {"data": data, "padding_mask": mask}
        shape: tuple[int, ...] = data.shape
        if kind == "seeker":
            arrays = {
                "generated_data": data,
                "enlarged_data": np.concatenate([data, data + 1]),
                "generated_data_padding_mask": None,
                "enlarged_data_padding_mask": np.zeros((2 * N, T, WIDTH), dtype=bool),
            }
            shape = (2 * N,)
        job = Job(submission, arrays, 7, more.pop("parameters", {}), limits, shape)
        self.lines: list[str] = []
        outcome = LocalSandbox(self.scratch).run(job, self.lines.append)
        assert not list(self.scratch.iterdir()), "a run must leave nothing behind"
        return outcome


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


HIDER = "import numpy as np, os, sys, time\ndef hider(d):\n    x = d['data']\n"
SEEKER = "import numpy as np\ndef seeker(d):\n    n = len(d['enlarged_data'])\n"


@pytest.mark.parametrize(
    ("returned", "has_mask", "n_features"),
    [
        ("x", False, None),
        ("(x, d['padding_mask'])", True, None),
        ("(x, None)", False, None),
        ("(x, 3)", False, 3),
        ("(x, np.int64(0))", False, 0),
        ("(x, d['padding_mask'], 5)", True, 5),
        ("(x, None, None)", False, None),
        ("x.astype('float32')", False, None),
        ("x.tolist()", False, None),
    ],
)
def test_every_return_form_of_2020(
    bench: Bench, returned: str, has_mask: bool, n_features: int | None
) -> None:
    outcome = bench.run(HIDER + f"    return {returned}\n")
    assert outcome.cause is None, outcome
    assert outcome.answer is not None
    assert outcome.answer.values is not None
    assert outcome.answer.values.dtype == np.float64
    assert (outcome.answer.padding_mask is not None) == has_mask
    assert outcome.answer.n_features == n_features
    assert outcome.seconds > 0
    assert outcome.peak_memory_bytes > 2**20


def test_rescore_asks_for_the_earlier_release(bench: Bench) -> None:
    outcome = bench.run(HIDER + "    return 'rescore'\n")
    assert outcome.cause is None
    assert outcome.answer is not None
    assert outcome.answer.values is None


@pytest.mark.parametrize("shape", ["(n,)", "(n, 1)", "(1, n)"])
@pytest.mark.parametrize("kind", ["float", "bool", "int"])
def test_every_shape_of_a_guess(bench: Bench, shape: str, kind: str) -> None:
    outcome = bench.run(SEEKER + f"    return (np.arange(n) % 2).reshape{shape}.astype({kind})\n")
    assert outcome.answer is not None
    assert outcome.answer.values is not None
    assert outcome.answer.values.tolist() == [0, 1] * N


def test_code_of_2020_runs_unchanged(bench: Bench) -> None:
    """Its root is the working directory and first on the path; it writes beside itself."""
    text = """
import os, sys
import numpy as np
from utils.data_preprocess import mark
import data_preprocess

def hider(input_dict):
    data, seed = input_dict["data"], input_dict["seed"]
    assert set(input_dict) == {"data", "padding_mask", "seed", "parameters"}
    assert type(data) is np.ndarray and data.dtype == np.float64 and isinstance(seed, int)
    assert sys.path[0] == os.getcwd() and os.path.isfile("hider.py")
    assert open("examples/settings.txt").read() == "hello"
    open("notes.txt", "w").write("beside itself")
    os.makedirs("tmp/models")
    data[:] = mark
    assert data_preprocess.PADDING == -1.0
    return data
"""
    files = {"utils/data_preprocess.py": "mark = 42\n", "examples/settings.txt": "hello"}
    outcome = bench.run(text, files=files)
    assert outcome.cause is None, outcome
    assert outcome.answer is not None
    assert np.all(outcome.answer.values == 42)


def test_parameters_and_seed_arrive(bench: Bench) -> None:
    text = HIDER + "    print(d['seed'], d['parameters'])\n    return x\n"
    outcome = bench.run(text, parameters={"sigma": 0.5, "layers": [1]})
    assert "7 {'sigma': 0.5, 'layers': [1]}" in outcome.log_tail


def test_progress_lines_arrive_also_from_carriage_returns(bench: Bench) -> None:
    text = HIDER + (
        "    for i in range(3):\n"
        "        sys.stderr.write('\\r\\x1b[2Kstep %d\\r' % i)\n"
        "        sys.stderr.flush()\n        time.sleep(.05)\n"
        "    return x\n"
    )
    bench.run(text)
    assert bench.lines[-1] == "step 2"


BAD_RELEASES = {
    "nothing": ("None", "It returned None where the data should be"),
    "text": ("'hello'", "returned the text 'hello'"),
    "wrong shape": ("x[1:]", "shape (3, 3, 2), it must be (4, 3, 2)"),
    "flat": ("x.ravel()", "it must be (4, 3, 2)"),
    "too large": ("np.zeros((9, 9, 9))", "larger than"),
    "complex": ("x * 1j", "complex128"),
    "objects": ("np.full(x.shape, None)", "object"),
    "ragged": ("[[1], [2, 3]]", "cannot be made an array"),
    "text cells": ("np.full(x.shape, 'a')", "type <U1"),
    "infinite": ("x + np.inf", "infinite values"),
    "astronomic": ("x * 0 + 1e200", "values beyond 1e+100"),
    "mask shape": ("(x, np.zeros(3, bool))", "padding mask has shape (3,)"),
    "six features": ("(x, 6)", "0 to 5"),
    "half a feature": ("(x, None, .5)", "whole number"),
    "four items": ("(x, 1, 2, 3)", "tuple of 4"),
    "an iterator": ("iter(x)", "object"),
}


@pytest.mark.parametrize(("returned", "says"), BAD_RELEASES.values(), ids=BAD_RELEASES.keys())
def test_attack_bad_release(bench: Bench, returned: str, says: str) -> None:
    outcome = bench.run(HIDER + f"    return {returned}\n")
    assert outcome.cause is Cause.BAD_OUTPUT
    assert says in outcome.reason
    assert outcome.answer is None


BAD_GUESSES = {
    "NaN": ("np.full(n, np.nan)", "8 of the scores are NaN"),
    "wrong length": ("np.zeros(n - 1)", "(7,), they must be (8,)"),
    "matrix": ("np.zeros((2, n // 2))", "(2, 4), they must be (8,)"),
    "complex": ("np.zeros(n) * 1j", "complex128"),
}


@pytest.mark.parametrize(("returned", "says"), BAD_GUESSES.values(), ids=BAD_GUESSES.keys())
def test_attack_bad_guess(bench: Bench, returned: str, says: str) -> None:
    outcome = bench.run(SEEKER + f"    return {returned}\n")
    assert outcome.cause is Cause.BAD_OUTPUT
    assert says in outcome.reason


def test_release_values_are_sanitised(bench: Bench) -> None:
    """Padding, signs of zero and NaN payloads could each carry a message to a seeker."""
    text = HIDER + (
        "    mask = np.zeros(x.shape, bool); mask[:, 0] = True\n"
        "    x[:, 0] = 12345; x[:, 1] = -0.0\n"
        "    x[:, 2] = np.frombuffer(b'secret\\xf8\\xff', '<f8')[0]\n"
        "    return x, mask\n"
    )
    outcome = bench.run(text)
    assert outcome.answer is not None
    values = outcome.answer.values
    assert values is not None
    assert (values[:, 0] == -1.0).all()
    assert not np.signbit(values[:, 1]).any()
    assert values[:, 2].tobytes() == np.full((N, WIDTH), np.nan).tobytes()


CRASHES = {
    "exception": ("raise KeyError('age')", "KeyError: 'age'"),
    "missing module": ("import torch_of_2020", "No module named 'torch_of_2020'"),
    "sys.exit": ("sys.exit(0)", "SystemExit"),
    "exit code": ("os._exit(3)", "exit code 3"),
    "forged 137": ("os._exit(137)", "exit code 137"),
    "unnamed signal": ("os.kill(os.getpid(), 40)", "signal 40"),
    "kills itself": ("os.kill(os.getpid(), 9)", "SIGKILL"),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
}


@pytest.mark.parametrize(("statement", "says"), CRASHES.values(), ids=CRASHES.keys())
def test_crash(bench: Bench, statement: str, says: str) -> None:
    outcome = bench.run(HIDER + f"    {statement}\n    return x\n")
    assert outcome.cause is Cause.CRASH
    assert says in outcome.reason


def test_crash_shows_the_participants_own_line(bench: Bench) -> None:
    outcome = bench.run(HIDER + "    return x / undefined_name\n")
    assert "return x / undefined_name" in outcome.log_tail


def test_attack_exit_without_output(bench: Bench) -> None:
    outcome = bench.run(HIDER + "    os._exit(0)\n")
    assert outcome.cause is Cause.BAD_OUTPUT
    assert "nothing was returned" in outcome.reason


def test_attack_sleep_for_ever_ignoring_sigterm(bench: Bench) -> None:
    text = (
        "import signal\n"
        + HIDER
        + ("    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    time.sleep(600)\n")
    )
    began = time.monotonic()
    outcome = bench.run(text, Limits(seconds=1.5))
    assert outcome.cause is Cause.TIMEOUT
    assert "1.5 s" in outcome.reason
    assert time.monotonic() - began < 10


def test_attack_allocate_ten_times_the_memory(bench: Bench) -> None:
    text = HIDER + "    y = [np.ones(2**24) for _ in range(40)]\n    return x\n"
    outcome = bench.run(text, Limits(memory=2**29, seconds=30))
    assert outcome.cause is Cause.OUT_OF_MEMORY
    assert "512 MiB" in outcome.reason


def test_what_the_harness_holds_is_not_charged_to_the_run(bench: Bench) -> None:
    ballast = np.ones(3 * 2**26)
    outcome = bench.run(HIDER + "    time.sleep(.2)\n    return x\n")
    assert ballast.nbytes > LIMITS.memory
    assert outcome.cause is None, outcome
    assert 10 * 2**20 < outcome.peak_memory_bytes < 300 * 2**20


def test_short_peak_is_seen(bench: Bench) -> None:
    text = HIDER + "    y = np.ones(2**25); del y; time.sleep(.2)\n    return x\n"
    assert 2**28 < bench.run(text).peak_memory_bytes < 2**29


def test_attack_memory_shared_out_to_children(bench: Bench) -> None:
    text = HIDER + (
        "    import subprocess\n"
        "    code = 'import numpy, time; x = numpy.ones(2**25); time.sleep(60)'\n"
        "    ps = [subprocess.Popen([sys.executable, '-c', code]) for _ in range(4)]\n"
        "    [p.wait() for p in ps]\n    return x\n"
    )
    assert bench.run(text, Limits(memory=2**29, seconds=50)).cause is Cause.OUT_OF_MEMORY


def test_memory_error_is_out_of_memory(bench: Bench) -> None:
    outcome = bench.run(HIDER + "    np.ones(2**50)\n    return x\n")
    assert outcome.cause is Cause.OUT_OF_MEMORY


def test_attack_fake_result_after_the_deadline(bench: Bench, tmp_path: Path) -> None:
    """A background process that outlives the run is ended and changes nothing."""
    mark = tmp_path / "survived"
    text = HIDER + (
        "    import subprocess\n"
        f"    mark = {str(mark)!r}\n"
        "    code = f'import time; time.sleep(3); open({mark!r}, chr(119)).write(chr(49))'\n"
        "    subprocess.Popen([sys.executable, '-c', code], start_new_session=True)\n"
        "    time.sleep(.4)\n    return x\n"
    )
    outcome = bench.run(text)
    assert outcome.cause is None
    assert outcome.seconds < 3
    time.sleep(3.5)
    assert not mark.exists()


def test_attack_hundred_megabytes_of_prints(bench: Bench) -> None:
    text = HIDER + "    [print('y' * 10**6) for _ in range(100)]\n    return x\n"
    outcome = bench.run(text)
    assert outcome.cause is None
    assert len(outcome.log_tail) <= 16 * 1024


FORGED_FILES = {
    "symlink": "os.symlink('/etc/passwd', o + '/data.npy')",
    "FIFO": "os.mkfifo(o + '/data.npy')",
    "directory": "os.mkdir(o + '/data.npy')",
    "pickle": "np.save(o + '/data.npy', np.array([{}], object), allow_pickle=True)",
    "sparse file": ("f = open(o + '/data.npy', 'wb'); f.seek(10**11); f.write(b'x'); f.close()"),
    "huge shape": (
        "f = open(o + '/data.npy', 'wb'); np.lib.format.write_array_header_1_0("
        "f, dict(descr='<f8', fortran_order=False, shape=(10**9, 10**9))); f.close()"
    ),
    "overflowing shape": (
        "f = open(o + '/data.npy', 'wb'); np.lib.format.write_array_header_1_0("
        "f, dict(descr='<f8', fortran_order=False, shape=(2**32, 2**32))); f.close()"
    ),
    "negative shape": (
        "f = open(o + '/data.npy', 'wb'); np.lib.format.write_array_header_1_0("
        "f, dict(descr='<f8', fortran_order=False, shape=(-1,))); f.truncate(10**9); f.close()"
    ),
    "truncated": (
        "f = open(o + '/data.npy', 'wb'); np.lib.format.write_array_header_1_0("
        "f, dict(descr='<f8', fortran_order=False, shape=(4, 3, 2))); f.close()"
    ),
    "no npy": "open(o + '/data.npy', 'w').write('hello')",
}


@pytest.mark.parametrize("statement", FORGED_FILES.values(), ids=FORGED_FILES.keys())
def test_attack_forged_output_file(bench: Bench, statement: str) -> None:
    """The submission writes the answer itself and leaves before the shim can."""
    text = HIDER + (
        f"    o = '../output'\n    {statement}\n"
        "    open(o + '/answer.json', 'w').write('{}')\n    os._exit(0)\n"
    )
    outcome = bench.run(text)
    assert outcome.cause is Cause.BAD_OUTPUT, outcome
    assert outcome.answer is None


@pytest.mark.parametrize("content", ["[]", "[" * 60000, "{", "x" * 10**6, '{"n_features": 1e400}'])
def test_attack_forged_answer(bench: Bench, content: str) -> None:
    text = HIDER + (f"    open('../output/answer.json', 'w').write({content!r})\n    os._exit(0)\n")
    assert bench.run(text).cause is Cause.BAD_OUTPUT


def test_attack_forged_cause(bench: Bench) -> None:
    """A submission cannot blame the infrastructure for its failure."""
    text = HIDER + (
        "    open('../output/error.json', 'w').write('{\"cause\": \"worker_lost\"}')\n"
        "    os._exit(1)\n"
    )
    outcome = bench.run(text)
    assert outcome.cause in (Cause.BAD_OUTPUT, Cause.CRASH)


def test_only_this_runs_inputs_and_a_bare_environment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDESEEK_SECRET", "truth")
    text = HIDER + (
        "    print(sorted(os.listdir('../input')), sorted(os.listdir('..')))\n"
        "    own = os.environ['TMPDIR'] == os.path.abspath('../tmp')\n"
        "    print('HIDESEEK_SECRET' in os.environ, own)\n"
        "    return x\n"
    )
    outcome = bench.run(text)
    assert "['data.npy', 'manifest.json', 'padding_mask.npy']" in outcome.log_tail
    assert "['input', 'lib', 'output', 'tmp', 'work']" in outcome.log_tail
    assert "False True" in outcome.log_tail


def test_nothing_is_left_after_an_interrupt(bench: Bench) -> None:
    text = HIDER + "    print('here', flush=True)\n    time.sleep(600)\n"

    def interrupt(line: str) -> None:
        os.kill(os.getpid(), 2)

    bench.lines = []
    before = set(psutil.Process().children(recursive=True))
    root = bench.scratch.parent / "h"
    root.mkdir()
    (root / "hider.py").write_text(text)
    data = np.zeros((N, T, WIDTH))
    job = Job(load_submission(root, root), {"data": data}, 0, {}, LIMITS, data.shape)
    with pytest.raises(KeyboardInterrupt):
        LocalSandbox(bench.scratch).run(job, interrupt)
    assert not list(bench.scratch.iterdir())
    assert {p for p in psutil.Process().children(recursive=True) if p.is_running()} <= before


def test_full_disk_is_not_the_participants_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("harness.sandbox.local.write_job", full)
    assert bench.run(HIDER + "    return x\n").cause is Cause.DISK_FULL


def test_python_that_cannot_start_is_not_the_participants_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert bench.run(HIDER + "    return x\n").cause is Cause.START_FAILED


def test_default_scratch_is_the_systems(tmp_path: Path) -> None:
    # Other harnesses on this machine may be using the same folder.
    ours = f"hideseek-job-{os.getpid()}-*"
    root = tmp_path / "h"
    root.mkdir()
    (root / "hider.py").write_text("def hider(d):\n    return d['data']\n")
    data = np.zeros((N, T, WIDTH))
    job = Job(load_submission(root, root), {"data": data}, 0, {}, LIMITS, data.shape)
    assert LocalSandbox().run(job).cause is None
    assert not list(Path(tempfile.gettempdir()).glob(ours))
