"""The time line, one HTML page with inline SVG: faults, answers per second, and who believed to own what.

No script, nothing loaded.
"""

import re
from collections import Counter
from html import escape
from typing import Final

from app.torture.history import History
from app.torture.judge import Finding
from app.torture.judge_service import recovery_s

_BUCKET_S: Final = 0.25
_WIDTH: Final = 1200
_HEIGHT: Final = 320
_LANE: Final = 18  # height of a fault's line above the curves
_LEFT: Final = 120
_GRANT_LANE: Final = 14
_SERIES: Final = (
    ("sold", "#1a7f37"),
    ("sold out", "#8c959f"),
    ("503, try again", "#d4a72c"),
    ("no answer", "#cf222e"),
)


def draw(history: History, findings: list[Finding]) -> str:
    """The page."""
    setup = history.setup
    rows = "".join(
        f"<tr><td>{escape(one.invariant)}</td><td>{escape(one.promise)}</td><td>{escape(one.looked_at)}</td>"
        f'<td class="{"kept" if one.holds else "broken"}">'
        f"{'kept' if one.holds else f'{len(one.violations)} violations'}</td></tr>"
        for one in findings
    )
    violations = "".join(f"<li>{escape(text)}</li>" for one in findings for text in one.violations[:20])
    faults = "".join(
        f"<tr><td>{one.began_at:.1f} s</td><td>{escape(one.name)}</td><td>{escape(one.target)}</td>"
        f"<td>{one.ended_at - one.began_at:.1f} s</td><td>{recovery_s(history, one):.2f} s</td></tr>"
        for one in history.faults
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>seckill torture, seed {setup.seed}</title>
<style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: {_WIDTH}px; padding: 0 1em; color: #1f2328 }}
table {{ border-collapse: collapse; margin: 1em 0 }} td, th {{ padding: .2em .8em .2em 0; text-align: left }}
.kept {{ color: #1a7f37 }} .broken {{ color: #cf222e; font-weight: bold }} svg {{ width: 100%; height: auto }}
</style></head><body>
<h1>{setup.instances} instances, lock: {setup.lock}, store: {setup.store}, guard: {escape(setup.guard)}</h1>
<p>Seed {setup.seed}, lease TTL {setup.ttl_s:g} s, faults: {escape(", ".join(setup.nemeses))}</p>
{_chart(history)}
{_grants(history, findings)}
<h2>Verdict</h2><table>{rows}</table>{f"<ul>{violations}</ul>" if violations else ""}
<h2>Faults</h2><table><tr><th>at</th><th>fault</th><th>struck</th><th>lasted</th>
<th>longest time without a sale</th></tr>{faults}</table>
</body></html>
"""


def _chart(history: History) -> str:
    counts, last_s = _count(history)
    buckets = range(int(last_s / _BUCKET_S) + 1)
    highest = max((counts[name, bucket] for name, _ in _SERIES for bucket in buckets), default=0) or 1
    lanes = _lanes(history)
    top = (max(lanes, default=-1) + 1) * _LANE + 10
    bottom = top + _HEIGHT

    def x(at_s: float) -> str:
        return f"{_LEFT + at_s / max(last_s, _BUCKET_S) * (_WIDTH - _LEFT - 10):.1f}"

    def y(count: int) -> str:
        return f"{bottom - count / highest * _HEIGHT:.1f}"

    parts = [f'<svg viewBox="0 0 {_WIDTH} {bottom + 50}" role="img" aria-label="answers per second and faults">']
    labels = []
    for fault, lane in zip(history.faults, lanes, strict=True):
        left, right = float(x(fault.began_at)), float(x(fault.ended_at))
        name = fault.name if fault.struck else f"({fault.name} missed)"
        width = max(2.0, right - left)
        parts.append(
            f'<rect x="{left}" y="{lane * _LANE + 12}" width="{width:.1f}" height="{bottom - lane * _LANE - 12:.1f}" '
            f'fill="#ddf4ff"/>'
        )
        labels.append(f'<text x="{left}" y="{lane * _LANE + 10}" font-size="11">{escape(name)}</text>')
    parts += labels  # above all the bands
    for level in (0, highest // 2, highest):
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y(level)}" y2="{y(level)}" stroke="#d0d7de"/>'
            f'<text x="0" y="{y(level)}" font-size="11">{level / _BUCKET_S:.0f}/s</text>'
        )
    for second in range(0, int(last_s) + 1, max(1, int(last_s / 12))):
        parts.append(f'<text x="{x(second)}" y="{bottom + 16}" font-size="11">{second} s</text>')
    drawn = [(name, colour) for name, colour in _SERIES if any(counts[name, bucket] for bucket in buckets)]
    for name, colour in drawn:
        line = " ".join(f"{x(bucket * _BUCKET_S)},{y(counts[name, bucket])}" for bucket in buckets)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    for number, (name, colour) in enumerate(drawn):
        parts.append(f'<text x="{_LEFT + number * 140}" y="{bottom + 40}" font-size="13" fill="{colour}">{name}</text>')
    return "".join(parts) + "</svg>"


def _grants(history: History, findings: list[Finding]) -> str:
    """A lane for each instance and lock: its grants, the lost ones in red; and where the violations were."""
    last_s = max((one.done_at for one in history.attempts), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - 10) / last_s
    rows = sorted({(one.lock, one.instance) for one in history.beliefs})
    height = len(rows) * _GRANT_LANE + 30
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="grants of each instance">']
    for fault in history.faults:
        left, width = _LEFT + fault.began_at * scale, max(2.0, (fault.ended_at - fault.began_at) * scale)
        parts.append(f'<rect x="{left:.1f}" y="0" width="{width:.1f}" height="{height - 20}" fill="#ddf4ff"/>')
    for number, (lock, instance) in enumerate(rows):
        y = number * _GRANT_LANE
        own = [one for one in history.beliefs if (one.lock, one.instance) == (lock, instance)]
        short = lock.rpartition("/")[2]
        parts.append(f'<text x="0" y="{y + 10}" font-size="9">{escape(instance[-12:])} {escape(short)}</text>')
        drawn = -1.0  # several grants in one pixel are one mark
        for one in sorted(own, key=lambda belief: belief.since):
            left, width = _LEFT + one.since * scale, max(1.0, (one.until - one.since) * scale)
            if left + width <= drawn and not one.lost:
                continue
            drawn = left + width
            colour = "#cf222e" if one.lost else "#8250df" if one.ended else "#bc4c00"
            text = f"token {one.token}, {one.since:.3f} to {one.until:.3f} s{', lost' if one.lost else ''}"
            parts.append(
                f'<rect x="{left:.1f}" y="{y + 2}" width="{width:.1f}" height="{_GRANT_LANE - 4}" fill="{colour}">'
                f"<title>{escape(text)}</title></rect>"
            )
    for at_s in _moments(findings):
        x = _LEFT + at_s * scale
        ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 16}"'
        parts.append(f'<line {ends} stroke="#cf222e" stroke-dasharray="3 2"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 6}" font-size="10" fill="#cf222e">✗ {at_s:.1f} s</text>')
    return "".join(parts) + "</svg>"


def _moments(findings: list[Finding]) -> list[float]:
    """When the first violation of each promise was, as far as it says so."""
    found = []
    for finding in findings:
        if finding.violations and (match := re.search(r"([0-9]+\.[0-9]+) s\b", finding.violations[0])):
            found.append(float(match[1]))
    return found


def _count(history: History) -> tuple[Counter[tuple[str, int]], float]:
    counts: Counter[tuple[str, int]] = Counter()
    last_s = 0.0
    for attempt in history.attempts:
        last_s = max(last_s, attempt.done_at)
        if attempt.status == 200:
            name = "sold" if attempt.outcome == "sold" else "sold out"
        else:
            name = "no answer" if attempt.status == 0 else "503, try again"
        counts[name, int(attempt.done_at / _BUCKET_S)] += 1
    return counts, last_s


def _lanes(history: History) -> list[int]:
    """Names in turn on four lines, so that neighbours can be read."""
    return [number % 4 for number in range(len(history.faults))]
