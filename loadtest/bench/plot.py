"""Bars and lines as SVG, which needs no installation and gives readable diffs."""

import statistics
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _BAR, _GAP, _LEFT = 720, 22, 12, 130


def bars(series: Mapping[str, Sequence[float]], unit: str) -> str:
    """Return a bar for each name: the median, with a line from the minimum to the maximum."""
    longest = max((max(values) for values in series.values()), default=1.0) or 1.0
    height = len(series) * (_BAR + _GAP) + 40
    scale = (_WIDTH - _LEFT - 90) / longest
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="system-ui, sans-serif" '
        f'font-size="13"><rect width="{_WIDTH}" height="{height}" fill="#fff"/>'
    ]
    for number, (name, values) in enumerate(series.items()):
        y = 10 + number * (_BAR + _GAP)
        middle = statistics.median(values)
        parts.append(
            f'<text x="{_LEFT - 10}" y="{y + 16}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{_LEFT}" y="{y}" width="{max(1.0, middle * scale):.1f}" height="{_BAR}" fill="#54aeff"/>'
            f'<line x1="{_LEFT + min(values) * scale:.1f}" x2="{_LEFT + max(values) * scale:.1f}" y1="{y + _BAR / 2}" '
            f'y2="{y + _BAR / 2}" stroke="#0a3069" stroke-width="2"/>'
            f'<text x="{_LEFT + max(values) * scale + 8:.1f}" y="{y + 16}">{middle:,.0f}</text>'
        )
    parts.append(f'<text x="{_LEFT}" y="{height - 10}" fill="#57606a">{escape(unit)}</text></svg>\n')
    return "".join(parts)
