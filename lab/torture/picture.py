"""The time line, a self-contained HTML page: which instance believed that it held a lock, and which faults were active.

Its lanes are the control room's. A page that is opened from a disk may load no modules, so it contains them.
"""

import base64
import json
import re
from collections import Counter
from html import escape
from importlib.resources import files
from itertools import pairwise
from string import Template
from typing import Any, Final

from lab.torture.history import Belief, History
from lab.torture.judge import Finding
from lab.torture.judge_service import recovery_s

_BUCKET_S: Final = 0.25
_BAND_ROWS: Final = 2  # neighbors' labels take turns on so many lines
_ANSWERS: Final = {
    "sold": "--good-strong",
    "sold out": "--quiet",
    "503, try again": "--instance-4",
    "no answer": "--accent",
}
_STATIC: Final = files("app.web") / "static"
_OF_THE_PAGES: Final = ("uplot-1.6.32.js", "colour.js", "dom.js", "lane_plot.js")


def draw(history: History, findings: list[Finding]) -> str:
    """Return the page."""
    setup = history.setup
    here = files("lab.torture")
    run = _run(history, findings)
    facts = (
        f"Seed {setup.seed}, lease TTL {setup.ttl_s:g} s, guard: {setup.guard}, faults: {', '.join(setup.nemeses)}. "
        "A red frame is a grant that was lost while its holder believed in it, an arrow a lock that passed on so, "
        "a shield a late write that the store refused, ▼ a holder that was killed."
    )
    violations = [text for one in findings for text in one.violations[:20]]
    return Template((here / "timeline.html").read_text()).substitute(
        seed=setup.seed,
        style=(_STATIC / "uplot-1.6.32.css").read_text() + (_STATIC / "common.css").read_text(),
        modules=_import_map(
            {name: (_STATIC / name).read_text() for name in _OF_THE_PAGES}
            | {"timeline.js": (here / "timeline.js").read_text()}
        ),
        title=escape(f"{setup.instances} instances, lock: {setup.lock}, store: {setup.store}"),
        setup=escape(facts),
        grants=f"{len(run['bars'])} grants",
        key="".join(
            f'<li style="--own: var({one["stroke"]})">{escape(one["label"])}</li>' for one in run["answers"]["series"]
        ),
        verdict="".join(_verdict(one) for one in findings),
        violations=f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in violations)}</ul>" if violations else "",
        faults="".join(
            f"<tr><td>{one.began_at:.1f} s</td><td>{escape(one.name)}</td><td>{escape(one.target)}</td>"
            f"<td>{one.ended_at - one.began_at:.1f} s</td><td>{recovery_s(history, one):.2f} s</td></tr>"
            for one in history.faults
        ),
        run=json.dumps(run, separators=(",", ":")).replace("<", "\\u003c"),
    )


def _import_map(modules: dict[str, str]) -> str:
    """Return the modules as an import map; they import each other by bare names, as a data URL has no neighbors."""

    def url(text: str) -> str:
        text = re.sub(r'^(import .* from )"\./', r'\1"', text, flags=re.MULTILINE)
        return "data:text/javascript;charset=utf-8;base64," + base64.b64encode(text.encode()).decode()

    return json.dumps({"imports": {name: url(text) for name, text in modules.items()}})


def _verdict(one: Finding) -> str:
    said = "kept" if one.holds else f"{len(one.violations)} violations"
    return (
        f"<tr><td>{escape(one.invariant)}</td><td>{escape(one.promise)}</td><td>{escape(one.looked_at)}</td>"
        f'<td class="{"kept" if one.holds else "broken"}">{said}</td></tr>'
    )


def _run(history: History, findings: list[Finding]) -> dict[str, Any]:
    """Return the argument of `LanePlot.show` for `timeline.js`."""
    counts, last_s = _count(history)
    several = len({one.lock for one in history.beliefs}) > 1

    def lane(instance: str, lock: str) -> str:
        return f"{instance} {lock.rpartition('/')[2]}" if several else instance

    lanes = sorted({(one.instance, one.lock) for one in history.beliefs})
    moments = [bucket * _BUCKET_S for bucket in range(int(last_s / _BUCKET_S) + 1)]
    return {
        "until": max(last_s, _BUCKET_S),
        "lanes": [
            {"id": lane(instance, lock), "name": lane(instance, lock), "instance": instance} for instance, lock in lanes
        ],
        "bars": [
            {
                "key": number,
                "lane": lane(one.instance, one.lock),
                "name": lane(one.instance, one.lock),
                "token": str(one.token),
                "from": one.since,
                "until": one.until,
                "lost": one.lost,
                "ended": one.ended,
                "waited": one.waited_s,
            }
            for number, one in enumerate(history.beliefs)
        ],
        "marks": [
            *({"at": one.since, "kind": "left", "lane": lane(one.instance, one.lock)} for one in _killed(history)),
            *(
                {
                    "at": later.since,
                    "kind": "overtaken",
                    "lane": lane(before.instance, before.lock),
                    "to": lane(later.instance, later.lock),
                }
                for before, later in _overtaken(history)
            ),
            *(
                {"at": one.at, "kind": "fenced", "lane": lane(one.instance, lock)}
                for one in history.counts
                if one.name.startswith("fenced")
                for lock in sorted({belief.lock for belief in history.beliefs if belief.instance == one.instance})[:1]
            ),
        ],
        "bands": [
            *(
                {
                    "from": one.began_at,
                    "until": one.ended_at,
                    "label": one.name if one.struck else f"({one.name} missed)",
                    "row": number % _BAND_ROWS,
                    "bad": False,
                }
                for number, one in enumerate(history.faults)
            ),
            *(
                {"from": at_s, "until": at_s, "label": f"✗ {at_s:.1f} s", "row": _BAND_ROWS, "bad": True}
                for at_s in _moments(findings)
            ),
        ],
        "answers": {
            "moments": moments,
            "series": [
                {"label": name, "stroke": stroke, "rates": rates}
                for name, stroke in _ANSWERS.items()
                if any(rates := [counts[name, bucket] / _BUCKET_S for bucket in range(len(moments))])
            ],
        },
    }


def _killed(history: History) -> list[Belief]:
    return [one for one in history.beliefs if not one.ended]


def _overtaken(history: History) -> list[tuple[Belief, Belief]]:
    """Return the grants that were lost or not released, and whose lock went to another instance, with its grant."""
    found = []
    for lock in {one.lock for one in history.beliefs}:
        grants = sorted((one for one in history.beliefs if one.lock == lock), key=lambda one: one.since)
        found += [
            (before, later)
            for before, later in pairwise(grants)
            if (before.lost or not before.ended) and later.instance != before.instance
        ]
    return found


def _moments(findings: list[Finding]) -> list[float]:
    """Return when the first violation of each promise was, as far as it says so."""
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
