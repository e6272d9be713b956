"""The result as a table for the terminal, and the verdicts below it."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.report.findings import clean_line, find, hider_names, interval_text
from harness.result import MatchResult, Result

_STYLES = {"leaks": "bold red", "failed": "yellow", "pending": "yellow", "not tested": "yellow"}


def print_result(result: Result, console: Console) -> None:
    """Print every match and, in words, what the numbers say.

    Parameters
    ----------
    result : Result
    console : rich.console.Console
        Readable from 80 columns on.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("Hider, seekers", overflow="fold", min_width=20)
    if result.splits > 1:
        table.add_column("Split", justify="right", no_wrap=True)
    for header in ("Accuracy", "95 % int.", "AUC", "Holm p"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("Status", overflow="fold", min_width=7)
    for hider in hider_names(result):
        table.add_row(_plain(clean_line(hider), console), style="bold")
        for match in result.matches:
            if match.hider == hider:
                split = [str(match.split)] if result.splits > 1 else []
                cells = [*split, *_numbers(match), _status(match)]
                name = Padding(_plain(clean_line(match.seeker), console), (0, 0, 0, 2))
                table.add_row(name, *(_plain(cell, console) for cell in cells))
    console.print(table)
    for finding in find(result):
        line = _plain(clean_line(finding.hider), console)
        line.stylize(_STYLES.get(finding.tone, "bold"))
        said = " ".join([finding.headline, *finding.notes])
        console.print(Text.assemble(line, _plain(": " + said, console)), highlight=False)


def _numbers(match: MatchResult) -> list[str]:
    found = match.membership
    if found is None:
        return ["-"] * 4
    interval = found.ci.get("accuracy")
    return [
        f"{found.accuracy:.3f}",
        "-" if interval is None else interval_text(interval),
        f"{found.auc:.3f}",
        "<1e-300" if found.p_value_holm < 1e-300 else f"{found.p_value_holm:.2g}",
    ]


def _status(match: MatchResult) -> str:
    return match.status if match.cause is None else f"{match.status}: {match.cause}"


def _plain(text: str, console: Console) -> Text:
    """Return text that is never read as markup and that the terminal's encoding can take."""
    encoding = console.encoding
    return Text(text.encode(encoding, "replace").decode(encoding, "replace"))
