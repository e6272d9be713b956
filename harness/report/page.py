"""One self-contained HTML page for organisers, participants and researchers.

The page asks for nothing from anywhere: its style and pictures are inside it, it has no script,
and its content security policy forbids both. Everything a stranger wrote passes the template's
escaping.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.failures import VERDICTS
from harness.report.findings import (
    ALPHA,
    Pair,
    clean,
    clean_line,
    effect_of,
    find,
    hider_names,
    interval_text,
    is_hider_at_fault,
    pair_up,
    reason_of,
    seeker_names,
    where_text,
)
from harness.report.material import Material, Roc, SeriesExample
from harness.result import Evidence, MatchResult, Membership, Result

if TYPE_CHECKING:
    from harness.report.figures import LineStyle

_LOG_LENGTH = 8_000
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# One hue from light to dark reads the same to every kind of colour vision, and in grey print.
_SCALE = ((247, 251, 255), (198, 219, 239), (107, 174, 214), (33, 113, 181), (8, 48, 107))


class Colours(NamedTuple):
    """A cell's background and text, as CSS colours."""

    background: str
    text: str


class Number(NamedTuple):
    """A number as the table shows it, with its exact value and its interval."""

    exact: float
    shown: str
    interval: str


class Swatch(NamedTuple):
    """One entry of a panel's legend."""

    seeker: str
    style: LineStyle
    auc: str


@dataclass(frozen=True)
class HeatCell:
    """One hider against one seeker in the heat map."""

    accuracy: str
    auc: str
    spread: str
    notes: tuple[str, ...]
    colours: Colours | None


@dataclass(frozen=True)
class Row:
    """One match in the table."""

    match: MatchResult
    scores: tuple[Number | None, ...]
    p_value: Number | None
    p_value_holm: Number | None
    status: str
    effect: str
    seconds: str
    memory: str


@dataclass(frozen=True)
class Run:
    """What is known about how one run went, and what else was found out about it."""

    title: str
    status: str
    reason: str
    evidence: Evidence
    log: str
    cut: int
    extras: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Panel:
    """One hider's ROC curves."""

    hider: str
    svg: str
    legend: tuple[Swatch, ...]


@dataclass(frozen=True)
class Look:
    """One hider's real and released series."""

    hider: str
    column: str
    svg: str
    outside: int


class Header(NamedTuple):
    """A column of the match table."""

    name: str
    meaning: str


def write_report(result: Result, material: Material, path: Path) -> None:
    """Write the page, whole or not at all.

    Parameters
    ----------
    result : Result
    material : Material
        Curves and series; it shows real patients' values, and so does the page.
    path : Path
        An ``.html`` file; its folder exists.
    """
    page = _render(result, material).encode("utf-8", "replace")
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(page)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _render(result: Result, material: Material) -> str:
    # Jinja takes longer to import than `hideseek --help` may take to answer.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters["breakable"] = _breakable
    levels = fpr_levels(result)
    return environment.get_template("template.html.j2").render(
        result=result,
        several=result.splits > 1,
        fast=any(
            entry.parameters.get("profile") == "fast"
            for entry in [*result.digests.hiders, *result.digests.seekers]
        ),
        findings=find(result),
        alpha=ALPHA,
        hiders=hider_names(result),
        seekers=seeker_names(result),
        heat=_heat(result),
        scale=[(f"{share:.1f}", colours_of(share)) for share in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)],
        panels=_panels(result, material.rocs),
        headers=_headers(result, levels),
        rows=[_row(result, match, levels) for match in result.matches],
        runs=_runs(result),
        looks=_looks(material.examples),
        facts=_facts(result),
        entries=[
            (kind, entry, _parameters(entry.parameters))
            for kind, listed in (
                ("hider", result.digests.hiders),
                ("seeker", result.digests.seekers),
            )
            for entry in listed
        ],
        chance_sd=f"{0.354 / max(result.n, 1) ** 0.5:.3f}",
        finest=f"{100 / max(result.n, 1):.2g}",
    )


def _finalize(value: Any) -> Any:
    return clean(value) if type(value) is str else value


def _breakable(name: str) -> Any:
    """Let a browser break a name after an underscore rather than anywhere."""
    from markupsafe import Markup, escape

    return Markup("<wbr>").join(escape(part) for part in re.findall("[^_]*_+|[^_]+", clean(name)))


def colours_of(accuracy: float) -> Colours:
    """Return a cell's colours: chance is pale, certainty dark, and the text always readable."""
    place = min(max((accuracy - 0.5) / 0.5, 0.0), 1.0) * (len(_SCALE) - 1)
    low = min(int(place), len(_SCALE) - 2)
    rgb = [
        round(a + (b - a) * (place - low))
        for a, b in zip(_SCALE[low], _SCALE[low + 1], strict=True)
    ]
    linear = [c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # WCAG's contrast of black and of white on this background meet at 0.179.
    return Colours("#" + "".join(f"{c:02x}" for c in rgb), "#000" if luminance > 0.179 else "#fff")


def p_text(p_value: float) -> str:
    """Return a p-value with two digits where three decimals would say zero."""
    if p_value >= 0.001:
        return f"{p_value:.3f}"
    if p_value < 1e-300:
        return "< 10" + "-300".translate(_SUPERSCRIPT)
    mantissa, exponent = f"{p_value:.1e}".split("e")
    return f"{mantissa} × 10" + str(int(exponent)).translate(_SUPERSCRIPT)


def seconds_text(seconds: float) -> str:
    """Return seconds as a person says them."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def bytes_text(size: float) -> str:
    """Return a size in MiB or GiB; 0 stands for a sandbox that does not measure."""
    if size <= 0:
        return "not measured"
    return f"{size / 2**20:,.0f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"


def fpr_levels(result: Result) -> list[str]:
    """Return the FPRs at which the result gives the TPR, in order."""
    found = {
        level
        for match in result.matches
        if match.membership
        for level in match.membership.tpr_at_fpr
    }
    return sorted(found, key=float)


def _heat(result: Result) -> dict[tuple[str, str], HeatCell]:
    return {key: _heat_cell(result, pair) for key, pair in pair_up(result).items()}


def _heat_cell(result: Result, pair: Pair) -> HeatCell:
    notes = tuple(dict.fromkeys(_heat_notes(result, pair)))
    scored = pair.scored
    if not scored:
        return HeatCell("", "", "", notes, None)
    each = [found.accuracy for found in scored]
    spread = f"{min(each):.3f}–{max(each):.3f}" if len(each) > 1 and pair.done else ""
    return HeatCell(
        accuracy=f"{fmean(each):.3f}",
        auc=f"{fmean(found.auc for found in scored):.3f}",
        spread=spread,
        notes=notes,
        colours=colours_of(fmean(each)) if pair.done else None,
    )


def _heat_notes(result: Result, pair: Pair) -> list[str]:
    notes = []
    for match in pair.matches:
        if match.status == "done":
            continue
        who = "hider" if is_hider_at_fault(result, match) else "seeker"
        where = where_text(pair.count(match.status), result.splits)
        scored = "" if match.membership else ", not scored"
        failed = f"{who} failed" if match.status == "failed" else "pending"
        notes.append(f"{failed}{where}{scored}")
    return notes


def _headers(result: Result, levels: Sequence[str]) -> list[Header]:
    at_fpr = [
        Header(
            f"TPR at {percent(level)} FPR",
            f"Share of members found while at most {percent(level)} of the non-members are "
            "wrongly named.",
        )
        for level in levels
    ]
    return [
        Header(
            "Accuracy",
            "Share of the enlarged data that the seeker told right when it names its N most "
            "likely members. Chance is 0.5, certainty 1.",
        ),
        Header(
            "AUC",
            "Probability that a random member gets a higher guess than a random non-member. "
            "Chance is 0.5.",
        ),
        *at_fpr,
        Header(
            "Advantage",
            "Largest TPR - FPR over all thresholds. The best threshold is picked on the same "
            "data, so that even chance gives more than 0.",
        ),
        Header("Advantage at N", "TPR - FPR when N are named. Chance is 0."),
        Header(
            "p",
            "How often a seeker that guesses at random names at least as many members "
            "(exact, hypergeometric).",
        ),
        Header(
            "Holm p",
            "The p-value corrected (Holm) because several seekers faced this hider. Below "
            f"{ALPHA} the verdict calls it better than chance.",
        ),
    ]


def percent(level: str) -> str:
    """Return ``0.1 %`` for ``0.001``, with a space that does not break."""
    return f"{float(level) * 100:g}\N{NO-BREAK SPACE}%"


def _row(result: Result, match: MatchResult, levels: Sequence[str]) -> Row:
    found = match.membership
    names = ["accuracy", "auc", *(f"tpr_at_fpr.{level}" for level in levels)]
    status = match.status if match.cause is None else f"{match.status}: {match.cause}"
    return Row(
        match=match,
        scores=tuple(_number(found, name) for name in [*names, "advantage", "advantage_at_n"]),
        p_value=None if found is None else Number(found.p_value, p_text(found.p_value), ""),
        p_value_holm=(
            None if found is None else Number(found.p_value_holm, p_text(found.p_value_holm), "")
        ),
        status=status,
        effect="" if match.status == "done" else effect_of(result, match),
        seconds=seconds_text(match.seconds),
        memory=bytes_text(match.peak_memory_bytes),
    )


def _number(found: Membership | None, name: str) -> Number | None:
    if found is None:
        return None
    table, _, key = name.partition(".")
    exact = found.tpr_at_fpr.get(key) if key else getattr(found, table)
    if exact is None:
        return None
    interval = found.ci.get(name)
    shown = "" if interval is None else interval_text(interval, 3)
    return Number(exact, f"{exact:.3f}", shown)


def _runs(result: Result) -> list[Run]:
    runs = []
    for name, hider in result.hiders.items():
        for position, evidence in enumerate(hider.evidence):
            made = position < len(hider.release_digest) and hider.release_digest[position]
            extras = [("Release", made)] if made else []
            if position < len(hider.seconds):
                extras.append(("Time", seconds_text(hider.seconds[position])))
            if position < len(hider.peak_memory_bytes):
                extras.append(("Peak memory", bytes_text(hider.peak_memory_bytes[position])))
            if position == 0:
                extras += _documents(utility=hider.utility, metrics=hider.metrics)
            status = "done" if made else hider.status
            cause = None if made else hider.cause
            where = f", split {position}" if result.splits > 1 else ""
            title = f"hider {clean_line(name)}{where}"
            sentence = "" if cause is None else VERDICTS[cause].sentence
            label = status if cause is None else f"{status}: {cause}"
            runs.append(_run(title, label, sentence, evidence, extras))
    for match in result.matches:
        where = f", split {match.split}" if result.splits > 1 else ""
        title = f"seeker {clean_line(match.seeker)} against {clean_line(match.hider)}{where}"
        label = match.status if match.cause is None else f"{match.status}: {match.cause}"
        why = "" if match.status == "done" else reason_of(result, match)
        runs.append(_run(title, label, why, match.evidence, _documents(audit=match.audit)))
    return runs


def _run(
    title: str, status: str, why: str, evidence: Evidence, extras: Sequence[tuple[str, str]]
) -> Run:
    log = evidence.log_tail[-_LOG_LENGTH:]
    cut = len(evidence.log_tail) - len(log)
    return Run(title, status, why, evidence, log, cut, tuple(extras))


def _documents(**named: dict[str, Any] | None) -> list[tuple[str, str]]:
    return [
        (name.capitalize(), json.dumps(content, indent=1, default=str))
        for name, content in named.items()
        if content is not None
    ]


def _panels(result: Result, rocs: Sequence[Roc]) -> list[Panel]:
    from harness.report.figures import draw_roc, line_style

    pairs = pair_up(result)
    styles = {seeker: line_style(place) for place, seeker in enumerate(seeker_names(result))}
    panels = []
    for place, hider in enumerate(hider_names(result)):
        drawn = [roc for roc in rocs if roc.hider == hider and roc.seeker in styles]
        if not drawn:
            continue
        legend = []
        for seeker in styles:
            if any(roc.seeker == seeker for roc in drawn):
                scored = pairs[hider, seeker].done if (hider, seeker) in pairs else []
                aucs = [match.membership.auc for match in scored if match.membership]
                auc = f"AUC {fmean(aucs):.3f}" if aucs else ""
                legend.append(Swatch(seeker, styles[seeker], auc))
        picture = draw_roc(
            [(roc, styles[roc.seeker]) for roc in drawn],
            result.n,
            f"roc{place}-",
            f"ROC curves of the seekers that faced {clean_line(hider)}",
        )
        panels.append(Panel(hider, picture.svg, tuple(legend)))
    return panels


def _looks(examples: Sequence[SeriesExample]) -> list[Look]:
    from harness.report.figures import draw_example

    looks = []
    for place, example in enumerate(examples):
        label = (
            f"{clean_line(example.column)}: real patients on the left, the release of "
            f"{clean_line(example.hider)} on the right"
        )
        picture = draw_example(example, f"look{place}-", label)
        looks.append(Look(example.hider, example.column, picture.svg, picture.outside))
    return looks


def _facts(result: Result) -> list[tuple[str, str]]:
    left_out = ", ".join(result.left_out) if result.left_out else "none"
    return [
        ("Data", result.data),
        ("Data digest", result.digests.data),
        ("Features", ", ".join(result.columns)),
        ("Members N", f"{result.n:,} of {2 * result.n:,} patients in the enlarged data"),
        ("Left-out patient", left_out),
        ("Longest series T", f"{result.max_seq_len:,} steps"),
        ("Truncated patients", f"{result.truncated:,}"),
        ("Rules", result.rules),
        ("Splits", f"{result.splits:,}"),
        ("Seed", result.seed),
        ("Sandbox", result.sandbox),
        *(_limit(name, limit) for name, limit in result.limits.items()),
        ("Harness version", result.harness_version),
        ("Created", result.created),
    ]


def _limit(name: str, limit: float) -> tuple[str, str]:
    if "byte" in name or "memory" in name:
        shown = f"{bytes_text(limit)} ({limit:,.0f} bytes)" if limit > 0 else "none"
    elif "time" in name or "second" in name:
        shown = f"{seconds_text(limit)} ({limit:,g} seconds)"
    else:
        shown = f"{limit:,g}"
    return f"Limit: {name.replace('_', ' ')}", shown


def _parameters(parameters: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (key, json.dumps(value, default=str, ensure_ascii=False))
        for key, value in parameters.items()
    ]
