"""A history as a picture: each party has a lane, time runs downwards, and messages are arrows."""

import textwrap
from enum import StrEnum
from html import escape
from typing import Any, Final

from lab.model.protocol import STORE
from lab.model.search import Model, Note, SearchResult

_LANE: Final = 190
_ROW: Final = 46
_TOP: Final = 118
_LETTERS: Final = 34  # in a line of text beside a lane
_FAULTS: Final = ("crashes", "the lease", "comes back older", "an operator", "hears nothing")


def draw(model: Model[Any], found: SearchResult[Any], without: StrEnum) -> str:
    """Return the picture, as SVG."""
    notes = [note for note, _ in found.history]
    seen = {name for note in notes for name in (note.by, note.to)}
    lanes = [lane for lane in model.lanes if lane in seen]
    x = {lane: 70 + number * _LANE for number, lane in enumerate(lanes)}
    width, bottom = 110 + len(lanes) * _LANE, _TOP + len(notes) * _ROW + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 60}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img" '
        f'aria-label="{escape(found.violation, quote=True)}">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#57606a"/></marker></defs>',
        f'<rect width="{width}" height="{bottom + 60}" fill="#ffffff"/>',
        f'<text x="20" y="28" font-size="17" font-weight="600">Without {escape(without)}</text>',
    ]
    parts += [
        f'<text x="20" y="{50 + 17 * number}" fill="#57606a">{escape(line)}</text>'
        for number, line in enumerate(textwrap.wrap(model.meaning[without], width // 7))
    ]
    for lane, at_x in x.items():
        parts.append(f'<text x="{at_x}" y="{_TOP - 18}" text-anchor="middle" font-weight="600">{escape(lane)}</text>')
        parts.append(f'<line x1="{at_x}" x2="{at_x}" y1="{_TOP - 8}" y2="{bottom}" stroke="#d0d7de"/>')
    sent: dict[tuple[str, str], int] = {}
    parts += [line for number, note in enumerate(notes) for line in _arrow(number, note, x, sent)]
    parts += [line for number, note in enumerate(notes) for line in _text(number, note, x)]
    parts.append(
        f'<text x="20" y="{bottom + 34}" font-size="16" font-weight="600" fill="#cf222e">'
        f"✗ {escape(found.violation)}</text>"
    )
    return "\n".join([*parts, "</svg>", ""])


def _arrow(number: int, note: Note, x: dict[str, int], sent: dict[tuple[str, str], int]) -> list[str]:
    if note.of and not note.to:
        sent[note.by, note.of] = number  # the message arrives later, or never
    if not note.to:
        return []
    begin, end = _y(sent.pop((note.by, note.of), number)), _y(number)
    return [
        f'<line x1="{x[note.by]}" y1="{begin}" x2="{x[note.to]}" y2="{end}" stroke="#57606a" marker-end="url(#tip)"/>'
    ]


def _text(number: int, note: Note, x: dict[str, int]) -> list[str]:
    y, colour = _y(number), "#cf222e" if note.text.startswith(_FAULTS) else "#1f2328"
    lane = x[note.to] if note.to == STORE else x[note.by]
    parts = [f'<circle cx="{lane}" cy="{y}" r="4" fill="{colour}"/>']
    lines = textwrap.wrap(f"{number + 1}. {note.text}", _LETTERS)
    above = 8 + 15 * (len(lines) - 1) if note.to and note.to != STORE else -4
    for line, text in enumerate(lines):
        parts.append(
            f'<text x="{lane + 8}" y="{y - above + 15 * line}" fill="{colour}" stroke="#ffffff" stroke-width="4" '
            f'paint-order="stroke">{escape(text)}</text>'
        )
    return parts


def _y(number: int) -> int:
    return _TOP + number * _ROW + 14
