"""The report: says what the numbers say, asks for nothing, lets no stranger's text act."""

from __future__ import annotations

import html
import io
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from harness.failures import VERDICTS, Cause
from harness.report import Material, Roc, Series, SeriesExample, print_result, write_report
from harness.report.figures import draw_example, draw_roc, line_style
from harness.report.findings import find
from harness.report.page import colours_of, p_text
from harness.result import (
    Digests,
    EntryDigest,
    Evidence,
    HiderResult,
    MatchResult,
    Membership,
    Result,
)

N = 150
EVIL = "<script>alert(1)</script>"
FULL = Evidence(exit_code=0, log_tail="ok")


def membership(accuracy: float, p_value: float, shift: float = 0.0) -> Membership:
    """Return scores of which no two are alike, so that a mixed-up column shows."""
    tpr = {"0.001": 0.1011 + shift, "0.01": 0.2022 + shift, "0.1": 0.3033 + shift}
    return Membership(
        accuracy=accuracy,
        auc=0.6044 + shift,
        advantage=0.4055 + shift,
        advantage_at_n=2 * accuracy - 1,
        tpr_at_fpr=tpr,
        named=N,
        named_members=round(accuracy * N),
        ci={
            "accuracy": (accuracy - 0.0211, accuracy + 0.0051),
            "auc": (0.5711 + shift, 0.6388 + shift),
            "tpr_at_fpr.0.01": (0.1777 + shift, 0.2444 + shift),
        },
        p_value=p_value,
        p_value_holm=min(1.0, 2 * p_value),
    )


def match(hider: str, seeker: str, split: int = 0, **changes: Any) -> MatchResult:
    given: dict[str, Any] = {
        "status": "done",
        "cause": None,
        "membership": membership(0.52, 0.3),
        "seconds": 12.3,
        "peak_memory_bytes": 300 * 2**20,
        "evidence": FULL,
    }
    return MatchResult(hider=hider, seeker=seeker, split=split, **(given | changes))


def made(splits: int = 1, **changes: Any) -> HiderResult:
    given: dict[str, Any] = {
        "status": "done",
        "cause": None,
        "release_digest": ["sha256:" + "ab" * 32] * splits,
        "seconds": [4.5] * splits,
        "peak_memory_bytes": [2**30] * splits,
        "evidence": [FULL] * splits,
    }
    return HiderResult(**(given | changes))


def result_of(matches: list[MatchResult], hiders: dict[str, HiderResult], **changes: Any) -> Result:
    def entries(names: list[str]) -> list[EntryDigest]:
        return [
            EntryDigest(name=name, team=f"team {place}", digest=f"sha256:{place}", parameters={})
            for place, name in enumerate(dict.fromkeys(names))
        ]

    given: dict[str, Any] = {
        "harness_version": "0.1.0",
        "created": "2025-11-21T00:00:00+00:00",
        "rules": "standard",
        "seed": "seed-2025",
        "n": N,
        "max_seq_len": 97,
        "splits": max((found.split for found in matches), default=0) + 1,
        "left_out": ["patient-301"],
        "truncated": 7,
        "data": "demo.csv",
        "columns": ["time", "heart rate"],
        "sandbox": "local",
        "limits": {"seconds": 3600.0, "memory_bytes": 4.0 * 2**30},
        "digests": Digests(
            data="sha256:data",
            hiders=entries(list(hiders)),
            seekers=entries([found.seeker for found in matches]),
        ),
        "matches": matches,
        "hiders": hiders,
    }
    return Result(**(given | changes))


def sample_result(hider: str = "add_noise", seeker: str = "nearest_neighbour") -> Result:
    """Return 2 hiders against 2 seekers: two matches done, one failed, one pending."""
    failed = Evidence(exit_code=137, reason="stopped after 3,600 s", log_tail="epoch 3 of 10")
    pending = Evidence(reason="image torch:2.9 is not on this machine")
    matches = [
        match(hider, seeker, membership=membership(149 / 150, 3.2e-15)),
        match(
            hider,
            "slow_seeker",
            status="failed",
            cause=Cause.TIMEOUT,
            membership=membership(0.5, 1.0, 0.02).model_copy(update={"ci": {}}),
            evidence=failed,
            seconds=3600.4,
        ),
        match("timegan", seeker, membership=membership(0.52, 0.3, 0.01), seconds=77.7),
        match(
            "timegan",
            "slow_seeker",
            status="pending",
            cause=Cause.IMAGE_MISSING,
            membership=None,
            evidence=pending,
            peak_memory_bytes=0,
        ),
    ]
    return result_of(matches, {hider: made(utility={"skill": 0.6543}), "timegan": made()})


def sample_material(result: Result, steps: int = 20) -> Material:
    rng = np.random.default_rng(0)
    shares = np.arange(N + 1) / N
    rocs = [
        Roc(found.hider, found.seeker, found.split, shares, np.sqrt(shares))
        for found in result.matches
        if found.status == "done"
    ]

    def patients() -> list[Series]:
        return [
            Series(np.arange(steps, dtype=np.float64) * 60, rng.normal(80, 5, steps))
            for _patient in range(3)
        ]

    return Material(
        rocs, [SeriesExample(name, "heart rate", patients(), patients()) for name in result.hiders]
    )


class Reader(HTMLParser):
    """What a browser sees: elements with attributes, and the words between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data

    def values(self, *names: str) -> list[str]:
        return [
            attrs.get(name) or "" for _, attrs in self.elements for name in names if name in attrs
        ]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Result], str]:
    def written(result: Result) -> str:
        path = tmp_path / "report.html"
        write_report(result, sample_material(result), path)
        assert [left.name for left in tmp_path.iterdir()] == ["report.html"]
        return path.read_text(encoding="utf-8")

    return written


def section(page: str, name: str) -> str:
    found = re.search(rf'<section aria-labelledby="{name}">(.*?)</section>', page, re.DOTALL)
    assert found is not None
    return found[1]


def test_page_asks_for_nothing_from_anywhere(write: Callable[[Result], str]) -> None:
    page = write(sample_result())
    read = Reader(page)
    for address in read.values("src", "href", "xlink:href", "srcset", "action", "data", "poster"):
        assert address.startswith("#"), address
    tags = {tag for tag, _ in read.elements}
    assert not tags & {"script", "link", "iframe", "img", "object", "embed", "base", "form"}
    assert not re.search(r"url\((?!#)|@import|//\w", page)
    assert "default-src 'none'" in page
    assert not [name for _, attrs in read.elements for name in attrs if name.startswith("on")]


def test_every_reference_inside_the_page_has_one_target(write: Callable[[Result], str]) -> None:
    page = write(sample_result())
    read = Reader(page)
    ids = read.values("id")
    assert len(ids) == len(set(ids))
    used = (
        re.findall(r'(?:url\(|href=")#([^)"]+)', page)
        + " ".join(read.values("aria-labelledby", "aria-describedby")).split()
    )
    assert len(used) > 20 and set(used) <= set(ids)


def test_same_input_gives_the_same_bytes_whatever_matplotlib_is_set_to(tmp_path: Path) -> None:
    import matplotlib

    pages = []
    for name, settings in {
        "a": {},
        "b": {"lines.solid_joinstyle": "bevel", "xtick.direction": "in"},
    }.items():
        with matplotlib.rc_context(settings):  # type: ignore[arg-type]
            write_report(sample_result(), sample_material(sample_result()), tmp_path / name)
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]
    assert len(pages[0]) < 2**20


@pytest.mark.parametrize(
    "evil", [EVIL, '"><img src=x onerror=alert(1)>', "' onclick='x", "{{ 7*7 }}"]
)
def test_name_that_is_markup_stays_text(write: Callable[[Result], str], evil: str) -> None:
    result = sample_result(evil, evil + "2")
    log = match(evil, evil + "2", evidence=Evidence(reason=evil, log_tail=evil), audit={evil: evil})
    entry = EntryDigest(name=evil, team=evil, digest=evil, parameters={evil: evil})
    digests = Digests(data=evil, hiders=[entry], seekers=[entry])
    changes = {"matches": [log, *result.matches[1:]], "digests": digests, "data": evil}
    page = write(result.model_copy(update={**changes, "columns": [evil], "seed": evil}))
    read = Reader(page)
    assert not {tag for tag, _ in read.elements} & {"script", "img"}
    assert not [name for _, attrs in read.elements for name in attrs if name.startswith("on")]
    assert read.words.count(evil) > 10


def test_name_cannot_turn_text_around_or_steer_the_terminal(write: Callable[[Result], str]) -> None:
    result = sample_result("\x1b[31mred\u202eder", "[bold]near[/bold]\nest")
    page = write(result)
    assert "\x1b" not in page and "\u202e" not in page
    out = io.StringIO()
    print_result(result, Console(file=out, width=80))
    assert "\x1b" not in out.getvalue() and "\u202e" not in out.getvalue()
    assert "[bold]near[/bold]" in out.getvalue()


def test_names_that_matplotlib_would_read_as_mathematics(write: Callable[[Result], str]) -> None:
    assert "$\\frac{1$" in html.unescape(write(sample_result("$\\frac{1$", "_hidden")))


def test_every_number_of_the_result_is_on_the_page(write: Callable[[Result], str]) -> None:
    result = sample_result()
    page = write(result)
    table = section(page, "matches")
    for found in result.matches:
        assert f'value="{found.seconds}"' in table
        assert f'value="{found.peak_memory_bytes}"' in table
        if found.membership is None:
            continue
        scores = found.membership
        numbers = [scores.accuracy, scores.auc, scores.advantage, scores.advantage_at_n]
        for number in [*numbers, *scores.tpr_at_fpr.values()]:
            assert f'<data value="{number}">{number:.3f}</data>' in table
        for low, high in scores.ci.values():
            assert f"<small>{low:.3f}–{high:.3f}</small>" in table
        for p_value in (scores.p_value, scores.p_value_holm):
            assert f'<data value="{p_value}">{p_text(p_value)}</data>' in table
    words = Reader(page).words
    for said in (
        "0.6543",
        "seed-2025",
        "patient-301",
        "97 steps",
        "150 of 300",
        "sha256:" + "ab" * 32,
        "4,294,967,296",
        "1 h 0 min",
        "local sandbox is for one's own code only",
        "values of single patients",
    ):
        assert said in words, said


def test_columns_hold_what_their_headers_say(write: Callable[[Result], str]) -> None:
    table = section(write(sample_result()), "matches")
    headers = re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', table)
    first = re.search(r'<tr class="done">.*?</tr>', table, re.DOTALL)
    assert first is not None
    cells = dict(zip(headers, re.findall(r"<t[hd].*?</t[hd]>", first[0], re.DOTALL), strict=True))
    plain = {name.replace("\xa0", " "): re.sub("<.*?>", " ", cell) for name, cell in cells.items()}
    assert plain["Accuracy"].split() == ["0.993", "0.972–0.998"]
    assert plain["TPR at 1 % FPR"].split() == ["0.202", "0.178–0.244"]
    assert plain["Holm p"].split() == ["6.4", "×", "10⁻¹⁵"]
    assert plain["Peak memory"].split() == ["300", "MiB"]


def test_failed_and_pending_are_said_in_words(write: Callable[[Result], str]) -> None:
    page = write(sample_result())
    verdict = Reader(section(page, "verdict")).words
    assert (
        "slow_seeker failed: It ran longer than its time limit: stopped after 3,600 s." in verdict
    )
    assert "A failed seeker scores chance, 0.5." in verdict
    assert "slow_seeker is pending: Its image could not be found: image torch:2.9" in verdict
    assert "It is not scored." in verdict
    heat = Reader(section(page, "heat")).words
    assert "seeker failed" in heat and "pending, not scored" in heat
    details = section(page, "matches")
    assert "epoch 3 of 10" in details and "<dd>137</dd>" in details


def test_verdict_of_a_leak_and_of_none() -> None:
    leak, none = find(sample_result())
    assert leak.headline == (
        "nearest_neighbour named 149 of 150 members (accuracy 0.99, 95 % interval 0.97–1.00): "
        "this release gives its members away."
    )
    assert none.tone == "no leak found"
    assert "(1 of 2) did significantly better than chance (best accuracy 0.52" in none.headline
    assert "not a proof of privacy" in none.headline


def test_verdict_needs_significance_not_a_high_accuracy() -> None:
    matches = [
        match("h", "lucky", membership=membership(0.70, 0.04)),
        match("h", "sure", membership=membership(0.60, 0.001)),
    ]
    finding = find(result_of(matches, {"h": made()}))[0]
    assert finding.tone == "leaks" and finding.headline.startswith("sure named 90 of 150 members")
    assert "some of its members" in finding.headline
    finding = find(result_of(matches[:1], {"h": made()}))[0]
    assert finding.headline.startswith("the only seeker did not do significantly better")


def test_verdict_over_splits_pays_for_their_number() -> None:
    weak = [match("h", "s", k, membership=membership(0.56 + k / 50, 0.02)) for k in range(2)]
    finding = find(result_of(weak, {"h": made(2)}))[0]
    assert finding.tone == "no leak found"
    assert "best mean accuracy 0.57, 0.56 to 0.58 over the splits" in finding.headline
    strong = [*weak, match("h", "s", 2, membership=membership(0.7, 0.005))]
    finding = find(result_of(strong, {"h": made(3)}))[0]
    assert finding.tone == "leaks"
    assert "named 276 of 450 members over 3 splits" in finding.headline


def test_hider_that_failed_on_one_split_is_at_fault_there_only(
    write: Callable[[Result], str],
) -> None:
    hider = made(
        2,
        status="failed",
        cause=Cause.CRASH,
        release_digest=[None, "sha256:second"],
        evidence=[Evidence(reason="it divided by zero"), FULL],
    )
    worst = membership(0.99, 1.0).model_copy(update={"accuracy": 1.0, "ci": {}})
    matches = [
        match("h", "s", 0, status="failed", cause=Cause.CRASH, membership=worst),
        match("h", "s", 1),
    ]
    result = result_of(matches, {"h": hider})
    finding = find(result)[0]
    assert finding.tone == "no leak found"
    assert finding.notes == (
        "The hider failed on 1 of 2 splits: It stopped with an error: it divided by zero. "
        "A failed hider takes the worst privacy score, 1.0.",
    )
    heat = Reader(section(write(result), "heat")).words
    assert "hider failed on 1 of 2 splits" in heat
    assert "0.760" in heat and "0.520–1.000" in heat


@pytest.mark.parametrize(
    ("status", "tone"), [("failed", "failed"), ("pending", "pending"), ("done", "not tested")]
)
def test_nothing_was_played(write: Callable[[Result], str], status: str, tone: str) -> None:
    cause = {"failed": Cause.BAD_OUTPUT, "pending": Cause.DISK_FULL, "done": None}[status]
    changes: dict[str, Any] = {"status": status, "cause": cause}
    if cause is not None:
        changes["release_digest"] = [None]
    lost = match("h", "s", status="failed", cause=Cause.CRASH, membership=membership(0.5, 1.0))
    for matches in ([], [lost]) if status != "pending" else ([],):
        result = result_of(matches, {"h": made(**changes)})
        assert find(result)[0].tone == tone
        if cause is not None and not matches:
            assert VERDICTS[cause].sentence.rstrip(".") in find(result)[0].notes[0]
        assert "There are no ROC curves" in write(result)


def test_an_organisers_cancelling_is_not_scored() -> None:
    gone = match("h", "s", status="failed", cause=Cause.CANCELLED, membership=None)
    notes = find(result_of([gone], {"h": made()}))[0].notes
    assert notes == ("s failed: The organiser cancelled it. It is not scored.",)


def test_interrupted_write_leaves_the_old_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(sample_result(), Material(), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_long_log_is_cut_and_says_so(write: Callable[[Result], str]) -> None:
    log = "x" * 100_000 + "THE END"
    result = result_of([match("h", "s", evidence=Evidence(log_tail=log))], {"h": made()})
    page = write(result)
    assert "THE END" in page and "92,007 earlier characters" in page


def test_roc_of_many_points_stays_small() -> None:
    n = 20_000
    steps = np.random.default_rng(1).random(2 * n) < 0.5
    fpr = np.append(0.0, np.cumsum(steps) / steps.sum())
    tpr = np.append(0.0, np.cumsum(~steps) / (~steps).sum())
    svg = draw_roc([(Roc("h", "s", 0, fpr, tpr), line_style(0))], n, "p-", "words").svg
    assert len(svg) < 60_000


def test_roc_is_drawn_in_steps_through_the_attained_points_only() -> None:
    roc = Roc("h", "s", 0, np.array([0, 0.1, 1.0]), np.array([0, 0.1, 1.0]))
    svg = draw_roc([(roc, line_style(0))], 50, "p-", "words").svg
    path = re.search(rf'd="([^"]*)"[^>]*stroke: {line_style(0).colour}', svg)
    assert path is not None
    points = [tuple(map(float, point.split())) for point in re.split("[ML]", path[1])[1:]]
    (left, low), corner, middle, turn, (right, high) = points
    assert corner == (middle[0], low) and turn == (right, middle[1])
    assert middle[0] == pytest.approx((left + right) / 2, abs=0.02)
    assert middle[1] == pytest.approx((low + high) / 2, abs=0.02)


@pytest.mark.parametrize("n", [1, 2, 50, 10_000])
def test_roc_axis_starts_at_half_a_patient(n: int) -> None:
    roc = Roc("h", "s", 0, np.array([0, 0, 1.0]), np.array([0, 0.5, 1.0]))
    svg = draw_roc([(roc, line_style(0))], n, "p-", "words").svg
    ticks = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert ticks.count("0") == 2 and ticks.count("100 %") == 2


@pytest.mark.filterwarnings("error")
def test_values_beyond_the_axes_are_counted() -> None:
    wild = np.array([1e308, -1e308, np.inf, 70])
    hours = np.arange(4, dtype=np.float64) * 60
    example = SeriesExample(
        "h",
        "x",
        [Series(hours, np.array([70.0, 75, 80, 72])), Series(np.empty(0), np.empty(0))],
        [Series(hours, wild)],
    )
    picture = draw_example(example, "p-", "words")
    assert picture.outside == 3
    assert "nan" not in picture.svg and "inf" not in picture.svg
    assert "never measured" in picture.svg and "no patient" in picture.svg
    assert 'aria-label="words"' in picture.svg and 'role="img"' in picture.svg


def test_cell_colours_are_readable_and_in_order() -> None:
    def luminance(colour: str) -> float:
        parts = colour.strip("#")
        if len(parts) == 3:
            parts = "".join(2 * c for c in parts)
        shares = [int(parts[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        red, green, blue = (
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    pairs = [colours_of(share) for share in np.linspace(0.3, 1.0, 71)]
    backgrounds = [luminance(pair.background) for pair in pairs]
    assert backgrounds == sorted(backgrounds, reverse=True)
    assert backgrounds[20] == backgrounds[0] > backgrounds[30] > backgrounds[-1]
    for pair in pairs:
        low, high = sorted([luminance(pair.background), luminance(pair.text)])
        assert (high + 0.05) / (low + 0.05) >= 4.5


@pytest.mark.parametrize(
    ("p_value", "text"),
    [(1.0, "1.000"), (0.0312, "0.031"), (3.2e-15, "3.2 × 10⁻¹⁵"), (0.0, "< 10⁻³⁰⁰")],
)
def test_p_values_never_read_as_zero(p_value: float, text: str) -> None:
    assert p_text(p_value) == text


@pytest.mark.parametrize("splits", [1, 3])
def test_terminal_shows_every_match_in_80_columns(splits: int) -> None:
    matches = [
        match(hider, seeker, split, membership=membership(0.5 + place / 100, 0.2))
        for place, (hider, seeker, split) in enumerate(
            (h, s, k)
            for h in ("add_noise", "timegan")
            for s in ("nearest_neighbour", "binary_predictor")
            for k in range(splits)
        )
    ]
    lost = {"status": "pending", "cause": Cause.IMAGE_MISSING, "membership": None}
    matches[-1] = matches[-1].model_copy(update=lost)
    out = io.StringIO()
    hiders = {"add_noise": made(splits), "timegan": made(splits)}
    print_result(result_of(matches, hiders), Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    under = ""
    for found in matches:
        if found.hider != under:
            under = found.hider
            lines = lines[next(i for i, line in enumerate(lines) if line.split() == [under]) :]
        accuracy = found.membership.accuracy if found.membership else None
        shown = "pending:" if accuracy is None else f"{accuracy:.3f}"
        wanted = [found.seeker, *([str(found.split)] if splits > 1 else []), shown]
        rows = [line.split() for line in lines]
        assert [row for row in rows if [*row[: len(wanted) - 1]] == wanted[:-1] and shown in row]
    assert "timegan: no" in out.getvalue() or "timegan: none" in out.getvalue()


def test_terminal_that_knows_ascii_only() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    print_result(sample_result("hi\u00fcder"), Console(file=out, width=80))
    out.flush()
    assert b"hi?der" in raw.getvalue()


def test_importing_the_report_leaves_matplotlib_and_jinja_alone() -> None:
    code = "import harness.report, sys; print({'matplotlib', 'jinja2'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


@pytest.fixture
def chromium(tmp_path: Path) -> Callable[..., str]:
    """Return a function that runs headless Chromium in a fresh profile and returns its stdout."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("neither chromium nor google-chrome is installed")
    flags = [
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--hide-scrollbars", "--disable-background-networking", "--disable-sync"),
        "--disable-component-update",
    ]

    def run(*arguments: str) -> str:
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        command = [program, *flags, profile, *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return ran.stdout

    return run


def test_browser_renders_the_page(tmp_path: Path, chromium: Callable[..., str]) -> None:
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    result = sample_result(EVIL)
    write_report(result, sample_material(result), page)
    dom = chromium(
        "--window-size=1280,4000", f"--screenshot={picture}", "--dump-dom", page.as_uri()
    )
    header = picture.read_bytes()[:24]
    assert struct.unpack(">II", header[16:24]) == (1280, 4000)
    assert picture.stat().st_size > 50_000
    assert "<h1>Hide &amp; Seek</h1>" in dom
    assert len(re.findall(r"<svg[^>]*role=\"img\"", dom)) == 4
    assert "<script" not in dom and "&lt;script&gt;alert(1)&lt;/script&gt;" in dom
