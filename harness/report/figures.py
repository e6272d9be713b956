"""The page's pictures as inline SVG. Matplotlib is imported only when something is drawn.

No text of a stranger enters a picture: names stand in the page around it, where they are escaped
and where long ones can wrap.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from harness.report.material import Floats, Roc, Series, SeriesExample

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind people tell apart; yellow is too pale on white.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_DASHES = ("", "6 2", "2 2", "6 2 2 2")
_REAL, _RELEASED = "#0072b2", "#d55e00"
_CHANCE = "#767676"
_FEW_POINTS = 12
# How far beyond the real values the axes follow a release, in ranges of the real values.
_STRETCH = 2.0
_SETTINGS: dict[Any, Any] = {
    "axes.edgecolor": "#767676",
    "axes.grid": True,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.unicode_minus": True,
    "font.size": 9.0,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "hide and seek",
}
# Matplotlib's settings are global, and a server draws in threads.
_LOCK = threading.Lock()


class LineStyle(NamedTuple):
    """How a seeker is drawn, in every panel and in its legend.

    Attributes
    ----------
    colour : str
    dashes : str
        Lengths as in SVG's ``stroke-dasharray``; empty for a solid line.
    """

    colour: str
    dashes: str


class Picture(NamedTuple):
    """An SVG and what it could not show.

    Attributes
    ----------
    svg : str
    outside : int
        Released points that lie beyond the axes.
    """

    svg: str
    outside: int


def line_style(number: int) -> LineStyle:
    """Return the style of the seeker with this number; 28 differ."""
    colour = _COLOURS[number % len(_COLOURS)]
    return LineStyle(colour, _DASHES[number // len(_COLOURS) % len(_DASHES)])


def draw_roc(rocs: Sequence[tuple[Roc, LineStyle]], n: int, prefix: str, label: str) -> Picture:
    """Draw one hider's ROC curves on log-log axes, with the chance diagonal.

    Parameters
    ----------
    rocs : sequence of (Roc, LineStyle)
    n : int
        Number of members N. What is below 0.5/N, 0 included, is drawn at 0.5/N.
    prefix : str
        Put before every id in the SVG, so that pictures on one page do not share any.
    label : str
        What a screen reader says.

    Returns
    -------
    Picture
    """
    floor = 0.5 / max(n, 1)
    with _canvas(4.2, 3.9) as figure:
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlim=(floor * 0.8, 1.15), ylim=(floor * 0.8, 1.15))
        axes.set(xlabel="FPR: non-members wrongly named", ylabel="TPR: members named")
        axes.set_aspect("equal")
        axes.plot([floor, 1], [floor, 1], color=_CHANCE, linewidth=1, dashes=(1.5, 1.5))
        width = 1.6 if len({roc.split for roc, _ in rocs}) == 1 else 0.9
        for roc, style in rocs:
            fpr, tpr = np.clip(roc.fpr, floor, 1), np.clip(roc.tpr, floor, 1)
            (line,) = axes.plot(
                fpr, tpr, color=style.colour, linewidth=width, drawstyle="steps-post"
            )
            if style.dashes:
                line.set_dashes([float(length) / 2 for length in style.dashes.split()])
            if len(roc.fpr) <= _FEW_POINTS:
                axes.plot(fpr, tpr, "o", color=style.colour, markersize=4)
        ticks, names = _share_ticks(floor)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(ticks, names)
            axis.set_ticks([], minor=True)
        return Picture(_inline(figure, prefix, label), 0)


def _share_ticks(floor: float) -> tuple[list[float], list[str]]:
    decades = [10.0**-power for power in range(9, -1, -1)]
    shown = [share for share in decades if share > floor * 1.9]
    return [floor, *shown], ["0", *(f"{share * 100:g} %" for share in shown)]


def draw_example(example: SeriesExample, prefix: str, label: str) -> Picture:
    """Draw real patients on the left and released ones on the right, all on the same axes.

    Parameters
    ----------
    example : SeriesExample
    prefix, label : str
        As for `draw_roc`.

    Returns
    -------
    Picture
        A release may lie anywhere, so the axes follow it only some way beyond the real values.
    """
    rows = max(len(example.real), len(example.released), 1)
    hours = _limits(example, lambda series: series.time / 60)
    values = _limits(example, lambda series: series.values)
    outside = sum(
        int(np.sum(~_within(series.time / 60, hours) | ~_within(series.values, values)))
        for series in example.released
    )
    with _canvas(6.2, 0.75 * rows + 0.7) as figure:
        panels = figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False)
        panels[0, 0].set(xlim=hours, ylim=values)
        for column, (name, patients, colour) in enumerate(
            [("real", example.real, _REAL), ("released", example.released, _RELEASED)]
        ):
            panels[0, column].set_title(name, fontsize=10, color=colour, fontweight="bold")
            panels[-1, column].set_xlabel("hours")
            for row in range(rows):
                series = patients[row] if row < len(patients) else None
                _draw_series(panels[row, column], series, colour, hours, values)
        return Picture(_inline(figure, prefix, label), outside)


def _draw_series(
    axes: Axes,
    series: Series | None,
    colour: str,
    hours: tuple[float, float],
    values: tuple[float, float],
) -> None:
    axes.locator_params(axis="y", nbins=3)
    if series is None or not len(series.values):
        words = "no patient" if series is None else "never measured"
        axes.text(
            0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=_CHANCE
        )
        return
    # Numbers near the largest float overflow in matplotlib; far outside is outside.
    x = np.clip(series.time / 60, *_beyond(hours))
    y = np.clip(series.values, *_beyond(values))
    axes.plot(x, y, color=colour, linewidth=1, marker="o", markersize=2.4)


def _limits(example: SeriesExample, measured: Callable[[Series], Floats]) -> tuple[float, float]:
    real = _finite(example.real, measured)
    released = _finite(example.released, measured)
    anchor = real if len(real) else released
    if not len(anchor):
        return 0.0, 1.0
    low, high = float(anchor.min()), float(anchor.max())
    spread = high - low
    if not np.isfinite(spread):
        return -1.0, 1.0
    spread = spread or max(abs(high), 1.0) * 0.1
    if len(released):
        low = min(low, max(float(released.min()), low - _STRETCH * spread))
        high = max(high, min(float(released.max()), high + _STRETCH * spread))
    margin = 0.06 * max(high - low, spread)
    return low - margin, high + margin


def _finite(patients: Sequence[Series], measured: Callable[[Series], Floats]) -> Floats:
    together = np.concatenate([np.empty(0), *(measured(series) for series in patients)])
    finite: Floats = together[np.isfinite(together)]
    return finite


def _within(
    numbers: Floats, limits: tuple[float, float]
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return (numbers >= limits[0]) & (numbers <= limits[1])


def _beyond(limits: tuple[float, float]) -> tuple[float, float]:
    span = limits[1] - limits[0]
    return limits[0] - span, limits[1] + span


@contextmanager
def _canvas(width: float, height: float) -> Iterator[Figure]:
    """Lend a figure under settings that do not depend on the user's own."""
    import matplotlib
    from matplotlib.figure import Figure

    with _LOCK, matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield Figure(figsize=(width, height), layout="constrained")


def _inline(figure: Figure, prefix: str, label: str) -> str:
    """Return the figure as an SVG element that can stand in an HTML page beside others."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(drawn.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            # The style would hold for the whole page, the metadata are addresses.
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', drawn.getvalue().decode()))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {
            name.rpartition("}")[2]: _tidy(name, value, prefix)
            for name, value in element.attrib.items()
            if name != "id" or value in used
        }
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": label,
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
    }
    return ElementTree.tostring(root, encoding="unicode")


def _tidy(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return prefix + value
    if name.endswith("href"):
        return value.replace("#", "#" + prefix, 1)
    if name == "style":
        # The page's own typeface; matplotlib lists every one it knows, at every word.
        return re.sub(r"font: ([\d.]+px)[^;]*", r"font-size: \1", value)
    value = value.replace("url(#", "url(#" + prefix)
    if name in {"d", "x", "y", "transform"}:
        return re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", value)
    return value
