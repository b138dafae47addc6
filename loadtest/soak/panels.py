"""The plot: a panel for each quantity over the time of the run, as one SVG."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from loadtest.soak.flatness import Flatness
from loadtest.soak.quantities import Quantity

_COLUMNS: Final = 3
_WIDTH: Final = 320  # of a panel
_HEIGHT: Final = 150
_PLOT: Final = 84  # the part of that with the lines
_TOP: Final = 60  # above the panels
_BUCKETS: Final = 90  # of time: each draws its minimum and its maximum, so that peaks are visible
_LINES: Final = ("#0a3069", "#54aeff")  # the second instance's above the first one's, and lighter
_GREY, _GREEN, _RED, _YELLOW = "#57606a", "#1a7f37", "#cf222e", "#d4a72c"


@dataclass(frozen=True, slots=True)
class Panel:
    """A quantity with its series, and the judgement of each."""

    quantity: Quantity
    series: Mapping[str, Sequence[float | None]]
    verdicts: Mapping[str, Flatness | None]


def draw(title: str, at_s: Sequence[float], panels: Sequence[Panel], faults_s: Sequence[float]) -> str:
    """Return the plot. `faults_s`: when the faults began."""
    rows = -(-len(panels) // _COLUMNS)
    width, height = _COLUMNS * _WIDTH, _TOP + rows * _HEIGHT + 10
    names = [name.rpartition(" ")[0] for name in next(iter(panels)).series] if panels else []
    key = "".join(
        f'<tspan fill="{colour}" dx="14">{escape(text)}</tspan>'
        for text, colour in (
            *zip(names, _LINES, strict=False),
            ("| a fault", _RED),
            ("medians of the second quarter and of the last", _YELLOW),
        )
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" '
        f'font-size="11" role="img" aria-label="{escape(title, quote=True)}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="22" font-size="15" font-weight="600">{escape(title)}</text>',
        f'<text x="-4" y="42">{key}<tspan fill="{_GREY}" dx="14">grey: warm-up</tspan></text>',
    ]
    for number, panel in enumerate(panels):
        left, top = number % _COLUMNS * _WIDTH, _TOP + number // _COLUMNS * _HEIGHT
        parts += [f'<g transform="translate({left} {top})">', *_panel(panel, at_s, faults_s), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, at_s: Sequence[float], faults_s: Sequence[float]) -> list[str]:
    left, right, top = 44, _WIDTH - 14, 22
    bottom, end_s = top + _PLOT, max(at_s[-1], 1.0)
    limits = [one.most for one in panel.verdicts.values() if one is not None and panel.quantity.slack is not None]
    values = [value for of_one in panel.series.values() for value in of_one if value is not None]
    highest = max([*values, *limits, 1e-9]) * 1.05

    def x(seconds: float) -> str:
        return f"{left + seconds / end_s * (right - left):.1f}"

    def y(value: float) -> str:
        return f"{bottom - value / highest * _PLOT:.1f}"

    unit = f", {panel.quantity.unit}" if panel.quantity.unit else ""
    parts = [
        f'<rect x="{left}" y="{top}" width="{(right - left) / 4:.1f}" height="{_PLOT}" fill="#f6f8fa"/>',
        f'<text x="{left}" y="14" font-weight="600">{escape(panel.quantity.title + unit)}</text>',
        f'<text x="{right}" y="14" text-anchor="end" {_said(panel)}</text>',
    ]
    for level in (0.0, highest / 1.05):
        parts.append(
            f'<line x1="{left}" x2="{right}" y1="{y(level)}" y2="{y(level)}" stroke="#d0d7de"/>'
            f'<text x="{left - 4}" y="{float(y(level)) + 4:.1f}" text-anchor="end" fill="{_GREY}">'
            f"{_short(level)}</text>"
        )
    ticks = "".join(f"M{x(fault)} {bottom}v4" for fault in faults_s)
    parts.append(f'<path d="{ticks}" stroke="{_RED}" fill="none"/>')
    for (name, of_one), colour in zip(panel.series.items(), _LINES, strict=False):
        points = " ".join(f"{x(at)},{y(value)}" for at, value in _extremes(at_s, of_one))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1"/>')
        verdict = panel.verdicts.get(name)
        if verdict is not None and panel.quantity.slack is not None:
            for begin, stop, median in ((0.25, 0.5, verdict.before), (0.75, 1.0, verdict.after)):
                parts.append(
                    f'<line x1="{x(begin * end_s)}" x2="{x(stop * end_s)}" y1="{y(median)}" y2="{y(median)}" '
                    f'stroke="{_YELLOW}" stroke-width="2"/>'
                )
    minutes = end_s / 60
    for part in (0, 0.5, 1):
        anchor = ("start", "middle", "end")[int(part * 2)]
        parts.append(
            f'<text x="{x(part * end_s)}" y="{bottom + 18}" text-anchor="{anchor}" fill="{_GREY}">'
            f"{minutes * part:.3g}{' min' if part == 1 else ''}</text>"
        )
    return parts


def _said(panel: Panel) -> str:
    found = [one for one in panel.verdicts.values() if one is not None]
    if panel.quantity.slack is None or not found:
        return f'fill="{_GREY}">not judged'
    medians = ", ".join(f"{_short(one.before)} → {_short(one.after)}" for one in found)
    flat = all(one.flat for one in found)
    return f'fill="{_GREEN if flat else _RED}">{medians}: {"flat" if flat else "grows"}'


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _extremes(at_s: Sequence[float], values: Sequence[float | None]) -> list[tuple[float, float]]:
    """Return the minimum and the maximum of each stretch of time, in the order in which they came."""
    buckets: dict[int, list[tuple[float, float]]] = {}
    for at, value in zip(at_s, values, strict=True):
        if value is not None:
            buckets.setdefault(int(at / max(at_s[-1], 1e-9) * _BUCKETS), []).append((at, value))
    found: list[tuple[float, float]] = []
    for points in buckets.values():
        least, most = min(points, key=lambda point: point[1]), max(points, key=lambda point: point[1])
        found += sorted({least, most})
    return found
