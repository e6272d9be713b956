"""The command line: parses, calls, prints. Exit code 2: the input cannot be used."""

from __future__ import annotations

import json
import math
import secrets
import signal
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from harness.cohort import Cohort
    from harness.play import Plan, Played
    from harness.submission import Kind, Submission

app = typer.Typer(
    help="Hide & Seek: synthetic clinical time series against membership inference.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Data to play on.", no_args_is_help=True)
app.add_typer(data_app, name="data")

# Progress and words for people go to stderr, so that --json leaves stdout to machines.
_console = Console(stderr=True)

_LOCAL_WARNING = (
    "The local sandbox limits time and memory but does not confine code: "
    "play only submissions that you trust."
)


# What Typer makes of Ctrl-C.
_INTERRUPTED = 130


class SandboxChoice(StrEnum):
    """Where submissions run."""

    AUTO = "auto"
    LOCAL = "local"


class RulesChoice(StrEnum):
    """Whose rules a match is played by."""

    STANDARD = "standard"
    NEURIPS2020 = "neurips2020"


class Profile(StrEnum):
    """How much work the baselines do."""

    FAST = "fast"
    FULL = "full"


class BadOption(ValueError):
    """An option on the command line cannot be used; the message is one sentence."""


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("hideseek"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and stop.")
    ] = False,
) -> None:
    """Hide & Seek: synthetic clinical time series against membership inference."""


Seed = Annotated[str | None, typer.Option(help="Secret of the split; drawn anew if not given.")]
Json = Annotated[bool, typer.Option("--json", help="Print result.json to stdout.")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for report and results.")] = Path(
        "hideseek-demo"
    ),
    patients: Annotated[int, typer.Option(min=8, help="Simulated patients, 2N.")] = 500,
    seed: Annotated[str, typer.Option(help="Secret of the split.")] = "demo",
    as_json: Json = False,
) -> None:
    """Play the baseline hiders against the baseline seekers on a simulated cohort."""
    from harness.cohort import Cohort
    from harness.play import Plan
    from harness.simulate import simulate_table, write_csv
    from harness.submission import Kind

    _make_folder(out)
    file = out / "cohort.csv.gz"
    _say(f"Simulating {patients} ICU patients into {file}")
    write_csv(simulate_table(patients, seed=1), file)
    cohort = Cohort.from_csv(file)
    with tempfile.TemporaryDirectory(prefix="hideseek-") as workspace:
        _play(
            cohort,
            Plan(
                hiders=_load(["add_noise", "timegan"], Kind.HIDER, workspace),
                seekers=_load(["nearest_neighbour", "binary_predictor"], Kind.SEEKER, workspace),
                secret=seed,
                profile="fast",
            ),
            out,
            f"simulated cohort of {patients} patients ({file.name})",
            as_json,
        )


@app.command()
def play(
    hider: Annotated[list[str], typer.Option(help="Folder, zip or baseline name; repeatable.")],
    seeker: Annotated[list[str], typer.Option(help="Folder, zip or baseline name; repeatable.")],
    data: Annotated[Path, typer.Option(help="Sparse ICU CSV: plain, .gz or .zip.")],
    out: Annotated[Path, typer.Option(help="Folder for report and results.")],
    sandbox: Annotated[
        SandboxChoice, typer.Option(help="Where submissions run.")
    ] = SandboxChoice.AUTO,
    rules: Annotated[RulesChoice, typer.Option(help="Rules of the match.")] = RulesChoice.STANDARD,
    splits: Annotated[int, typer.Option(min=1, help="Independent splits K.")] = 1,
    seed: Seed = None,
    max_seq_len: Annotated[int, typer.Option(min=1, help="Steps T kept per patient.")] = 100,
    time_limit: Annotated[float, typer.Option(help="Seconds that one run may take.")] = 3600,
    memory: Annotated[str, typer.Option(help="Memory that one run may use, like 4GB.")] = "8GB",
    param: Annotated[
        list[str] | None, typer.Option(help="NAME.key=value for a submission; repeatable.")
    ] = None,
    profile: Annotated[Profile | None, typer.Option(help="How much work baselines do.")] = None,
    as_json: Json = False,
) -> None:
    """Play every hider against every seeker on a sparse ICU CSV."""
    from harness.cohort import Cohort
    from harness.play import Plan
    from harness.sandbox import Limits
    from harness.submission import Kind, parse_size

    del sandbox  # one sandbox so far: auto is local
    try:
        limits = Limits(memory=parse_size(memory), seconds=time_limit)
    except ValueError as error:
        raise BadOption(f"--memory: {error}.") from error
    if not 0 < time_limit < math.inf:
        raise BadOption(f"--time-limit: it must be more than 0 seconds, got {time_limit:g}.")
    with tempfile.TemporaryDirectory(prefix="hideseek-") as workspace:
        hiders = _load(hider, Kind.HIDER, workspace)
        seekers = _load(seeker, Kind.SEEKER, workspace)
        plan = Plan(
            hiders=hiders,
            seekers=seekers,
            secret=seed if seed is not None else secrets.token_hex(16),
            rules=rules.value,
            splits=splits,
            limits=limits,
            profile=profile and profile.value,
            parameters=_parameters(param or [], hiders + seekers),
        )
        with _console.status(escape(f"Reading {data}")):
            cohort = Cohort.from_csv(data, max_seq_len, plan.rules)
        if len(cohort) < 2:
            raise BadOption(f"{data}: a split needs at least 2 patients, the data have 1.")
        _make_folder(out)
        _play(cohort, plan, out, data.name, as_json)


@data_app.command("demo")
def data_demo(
    out: Annotated[Path, typer.Option(help="CSV to write; .gz compresses it.")],
    patients: Annotated[int, typer.Option(min=1, help="How many patients.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same file.")] = 0,
) -> None:
    """Write a simulated Amsterdam-style ICU CSV."""
    from harness.simulate import simulate_table, write_csv

    table = simulate_table(patients, seed=seed)
    write_csv(table, out)
    _say(f"{out}: {patients:,} patients, {len(table):,} rows, {table.shape[1] - 2} features")


def _load(given: list[str], kind: Kind, workspace: str) -> tuple[Submission, ...]:
    from harness import baselines
    from harness.submission import load_submission

    loaded: list[Submission] = []
    for text in given:
        entry = load_submission(baselines.find(text, kind), Path(workspace), kind)
        for note in entry.notes:
            _say(f"{entry.name}: {note}")
        if entry.image:
            _say(
                f"{entry.name}: it names the image {entry.image}; the local sandbox runs it in "
                "this project's own Python instead"
            )
        if any(entry.name == other.name for other in loaded):
            raise BadOption(
                f"--{kind}: two {kind}s are called {entry.name!r}; "
                "give one another name in its submission.yml."
            )
        loaded.append(entry)
    return tuple(loaded)


def _parameters(given: list[str], entries: tuple[Submission, ...]) -> dict[str, dict[str, Any]]:
    """Read ``NAME.key=value`` options; a value is JSON where it is that, else text."""
    parameters: dict[str, dict[str, Any]] = {}
    for text in given:
        left, equals, value = text.partition("=")
        name, dot, key = left.rpartition(".")
        if not (equals and dot and name and key):
            raise BadOption(f"--param: write it as NAME.key=value, got {text!r}.")
        named = [entry for entry in entries if entry.name == name]
        if not named:
            known = ", ".join(sorted({entry.name for entry in entries}))
            raise BadOption(f"--param: no submission is called {name!r} (there are {known}).")
        if key == "rules":
            raise BadOption("--param: the rules are those of the match; use --rules.")
        declared = {known for entry in named for known in entry.parameters}
        if declared and key not in declared:
            raise BadOption(
                f"--param: {name} has no parameter {key!r}; its submission.yml names "
                f"{', '.join(sorted(declared))}."
            )
        if not declared:
            _say(f"{name}: its submission.yml names no parameters, so {key!r} may go unread")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        parameters.setdefault(name, {})[key] = parsed
    return parameters


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise BadOption(f"--out: {out} cannot be written to ({error.strerror}).") from error
    if (out / "result.json").exists():
        _say(f"{out} holds the results of an earlier play: they are replaced when this one is done")


def _play(cohort: Cohort, plan: Plan, out: Path, data_name: str, as_json: bool) -> None:
    from harness.play import play as play_all
    from harness.report import print_result
    from harness.sandbox import LocalSandbox
    from harness.watch import watching

    _say(_describe(cohort, plan))
    _say(_LOCAL_WARNING, style="yellow")
    with watching(_console, plan.runs) as watcher:
        played = play_all(cohort, plan, LocalSandbox(), out, watcher, data_name)
    report = _report(played, out)
    if as_json:
        print(played.result.model_dump_json(indent=2))
    else:
        print_result(played.result, Console())
    _say(f"Report: {report.resolve()}")
    _say(f"Result: {(out / 'result.json').resolve()}")


def _report(played: Played, out: Path) -> Path:
    from harness.report import write_report
    from harness.report.collect import collect

    path = out / "report.html"
    write_report(played.result, collect(played), path)
    return path


def _describe(cohort: Cohort, plan: Plan) -> str:
    n = len(cohort) // 2
    words = [
        f"{len(cohort):,} patients: {n:,} members, {n:,} non-members",
        f"{len(plan.hiders)} x {len(plan.seekers)} matches"
        + (f" on {plan.splits} splits" if plan.splits > 1 else ""),
        f"rules {plan.rules}",
    ]
    if len(cohort) % 2:
        words.insert(1, "1 left out, since their number is odd")
    if cohort.truncated:
        words.append(f"{cohort.truncated:,} patients cut to their first {cohort.max_seq_len} rows")
    return "; ".join(words) + "."


def _fail(message: str) -> NoReturn:
    _say(f"Error: {message}", style="red")
    sys.exit(2)


def _say(words: str, style: str | None = None) -> None:
    """Print words that may hold a stranger's names, as they are."""
    _console.print(words, style=style, markup=False, highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command line; bad input becomes one sentence and exit code 2."""
    from data_preprocess import DataError
    from harness.submission import Refused

    # A stopped service is ended by SIGTERM; runs must be cleared away then as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except (DataError, Refused, BadOption) as error:
        _fail(str(error))
    except SystemExit as ending:
        if ending.code == _INTERRUPTED:
            _say("Stopped. What was running is ended; no result was written.")
        raise
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        _fail(f"{named}{error.strerror or error}.")


if __name__ == "__main__":
    main()
