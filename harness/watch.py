"""Shows how a play goes on: a live line on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.failures import VERDICTS
from harness.sandbox import Outcome

# In a log, a training that prints once a second would bury everything else.
_LOG_SECONDS = 10.0


class ConsoleWatcher:
    """A `harness.play.Watcher` that prints to a console."""

    def __init__(self, console: Console, progress: Progress, runs: int) -> None:
        """Print to `console`, moving a task of `progress` once per run."""
        self._console = console
        self._progress = progress
        self._task = progress.add_task("", total=runs)
        self._printed = 0.0
        self._current = ""

    def started(self, what: str) -> None:
        """Show which run has started."""
        self._current, self._printed = what, time.monotonic()
        self._progress.update(self._task, description=escape(what))

    def line(self, text: str) -> None:
        """Show the last line that the current run printed."""
        if self._console.is_terminal:
            self._progress.update(self._task, description=escape(f"{self._current}: {text}"[:100]))
        elif time.monotonic() - self._printed > _LOG_SECONDS:
            self._printed = time.monotonic()
            self._console.print(
                f"  {escape(self._current)}: {escape(text)}", highlight=False, soft_wrap=True
            )

    def ended(self, what: str, outcome: Outcome) -> None:
        """Print how a run ended, and why if it failed."""
        if outcome.cause is None:
            state = "[green]done[/]"
        else:
            state = f"[red]{outcome.cause}[/]: {escape(outcome.reason)}"
            if not outcome.reason:
                state = f"[red]{outcome.cause}[/]: {VERDICTS[outcome.cause].sentence}"
        self._console.print(
            f"{escape(what)} · {outcome.seconds:.1f} s · {state}", highlight=False, soft_wrap=True
        )
        self._progress.advance(self._task)

    def passed_over(self, what: str) -> None:
        """Print that a run is not needed, since its hider failed."""
        self._console.print(
            f"{escape(what)} · not run: the hider failed", highlight=False, soft_wrap=True
        )
        self._progress.advance(self._task)


@contextmanager
def watching(console: Console, runs: int) -> Iterator[ConsoleWatcher]:
    """Yield a watcher; the live line goes away at the end."""
    columns = (
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        yield ConsoleWatcher(console, progress, runs)
