"""The local sandbox: a fresh process with limits. For one's own code only.

It limits time and memory and gives a run its own folder, but it does not confine the code: a
local run can read this machine's files and use its network, as anything its user starts can.
Strangers' code belongs in a container.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

import psutil

from harness.failures import Cause
from harness.sandbox.files import BadOutput, Confession, read_answer, write_job
from harness.sandbox.protocol import Job, Limits, Outcome, Progress
from harness.submission import Refused

_POLL_SECONDS = 0.05
_TAIL_BYTES = 16 * 1024
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
_PREFIX = "hideseek-job-"


class LocalSandbox:
    """Runs each job in a fresh Python process of this very environment."""

    name = "local"

    def __init__(self, scratch: Path | None = None) -> None:
        """Use folders under `scratch` (default: the system's temporary folder).

        What harnesses that were killed have left there is removed.
        """
        self._scratch = scratch
        for folder in Path(scratch or tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
            if owner.isdigit() and not psutil.pid_exists(int(owner)):
                shutil.rmtree(folder, ignore_errors=True)

    def run(self, job: Job, on_progress: Progress = lambda line: None) -> Outcome:
        """Run one job; what goes wrong becomes the outcome's cause."""
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=self._scratch))
        try:
            try:
                write_job(job, folder)
            except Refused as refused:
                return Outcome(Cause.REFUSED, None, reason=str(refused))
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                cause = Cause.DISK_FULL if full else Cause.START_FAILED
                return Outcome(cause, None, reason=f"The inputs cannot be written: {error}.")
            try:
                run = _Run(folder, job.limits, on_progress)
            except OSError as error:
                return Outcome(Cause.START_FAILED, None, reason=f"Python cannot start: {error}.")
            try:
                run.wait()
            finally:
                run.end()
            return _judge(job, folder, run)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _judge(job: Job, folder: Path, run: _Run) -> Outcome:
    """Turn how a process ended and what it wrote into an outcome."""
    limits, cause, answer, reason = job.limits, run.killed_for, None, ""
    if cause is Cause.TIMEOUT:
        reason = f"It was stopped after its time limit of {limits.seconds:g} s."
    elif cause is Cause.OUT_OF_MEMORY:
        reason = f"It was stopped above its memory limit of {limits.memory / 2**20:,.0f} MiB."
    else:
        try:
            answer = read_answer(job, folder / "output")
        except Confession as confession:
            cause, reason = confession.cause, str(confession)
        except BadOutput as bad:
            cause, reason = Cause.BAD_OUTPUT, str(bad)
            if run.exit_code != 0:
                cause, reason = Cause.CRASH, _ending(run.exit_code)
        except Exception as error:  # whatever its files make a parser raise is the submission's
            cause = Cause.BAD_OUTPUT
            reason = f"What it wrote cannot be read ({type(error).__name__})."
        if cause is None and run.exit_code != 0:
            answer, cause, reason = None, Cause.CRASH, _ending(run.exit_code)
    return Outcome(
        cause, answer, run.seconds, run.peak_memory, run.exit_code, reason, run.log_tail()
    )


def _ending(exit_code: int) -> str:
    if exit_code < 0:
        known = {number.value: number.name for number in signal.Signals}
        return f"The process was ended by {known.get(-exit_code, f'signal {-exit_code}')}."
    return f"The process ended with exit code {exit_code}."


def _high_water(pid: int) -> int:
    """Return the most memory that a process has held, in bytes; 0 where the system does not say.

    Not getrusage's figure: that one counts what the harness held when it forked.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


class _Run:
    """One process and its descendants, watched against the limits."""

    def __init__(self, folder: Path, limits: Limits, on_progress: Progress) -> None:
        self._limits = limits
        self._on_progress = on_progress
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._line = b""
        self._seen: dict[int, psutil.Process] = {}
        self.killed_for: Cause | None = None
        self.peak_memory = 0
        self.exit_code = 0
        self.seconds = 0.0
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {
            "HOME": str(folder / "tmp"),
            "TMPDIR": str(folder / "tmp"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
            "PYTHONNOUSERSITE": "1",
        }
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, str(folder / "lib" / "entry.py"), str(folder)],
            cwd=folder / "work",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._seen[self._process.pid] = psutil.Process(self._process.pid)
        self._exited = threading.Event()
        threading.Thread(target=self._await_exit, daemon=True).start()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def wait(self) -> None:
        """Return when the process has ended or has been found over a limit."""
        while not self._exited.wait(_POLL_SECONDS):
            if time.monotonic() - self._started > self._limits.seconds:
                self.killed_for = Cause.TIMEOUT
                return
            self.peak_memory = max(self.peak_memory, self._memory())
            if self.peak_memory > self._limits.memory:
                self.killed_for = Cause.OUT_OF_MEMORY
                return
        # A process that ended by itself after the deadline, between two looks, is late as well.
        if self.seconds > self._limits.seconds:
            self.killed_for = Cause.TIMEOUT

    def end(self) -> None:
        """Kill every process that the run started and still has."""
        self._look()
        for process in self._seen.values():
            try:
                # is_running compares start times, so a recycled number is never hit.
                if process.is_running():
                    process.kill()
            except psutil.NoSuchProcess:
                continue
        self._exited.wait()
        # A descendant that escaped may still hold the pipe; the log is not worth waiting for.
        self._reader.join(timeout=2)

    def log_tail(self) -> str:
        """Return the last lines that the run printed, without control characters."""
        text = b"".join(self._tail)[-_TAIL_BYTES:].decode(errors="replace")
        return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).strip()

    def _await_exit(self) -> None:
        self.exit_code = self._process.wait()
        self.seconds = time.monotonic() - self._started
        self._exited.set()

    def _look(self) -> list[psutil.Process]:
        """Return the run's living processes, remembering them all."""
        for process in list(self._seen.values()):
            try:
                for child in process.children(recursive=True):
                    self._seen.setdefault(child.pid, child)
            except psutil.NoSuchProcess:
                continue
        return [process for process in self._seen.values() if process.is_running()]

    def _memory(self) -> int:
        """Return the bytes that all processes hold now, or the most that one of them ever held."""
        total, highest = 0, 0
        for process in self._look():
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            highest = max(highest, _high_water(process.pid))
        return max(total, highest)

    def _read_log(self) -> None:
        assert self._process.stdout is not None
        while chunk := os.read(self._process.stdout.fileno(), 65536):
            self._tail.append(chunk[-_TAIL_BYTES:])
            self._tail_size += len(self._tail[-1])
            while self._tail_size - len(self._tail[0]) > _TAIL_BYTES:
                self._tail_size -= len(self._tail.popleft())
            lines = re.split(rb"[\r\n]+", self._line[-1000:] + chunk)
            self._line = lines.pop()
            if line := next((text for text in reversed(lines) if text.strip()), b""):
                self._on_progress(_CONTROL.sub("", line.decode(errors="replace")).strip()[:200])
        self._process.stdout.close()
