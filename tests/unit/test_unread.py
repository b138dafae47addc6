"""The judge reads all that a history has: a field that no rule reads may say anything, and no run would fail."""

import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lab.torture import history, judge
from lab.torture.history import (
    Count,
    History,
    LastStand,
    Late,
    Pause,
    Price,
    Reading,
    Recorder,
    Setup,
    Theft,
    load,
    parse,
)
from tests.unit import test_judge, test_judge_drops, test_judge_money, test_judge_protocol

RULES = ("lab.torture.judge", "lab.torture.standing")
ANSWERS = (("paused", 200), ("", 503), ("", 500))
RECORDS: list[type[Any]] = [
    one
    for one in vars(history).values()
    if isinstance(one, type) and is_dataclass(one) and one not in (History, Setup)  # which is what we asked for
]


def whole() -> list[History]:
    """Return histories with each kind of event that there is, and with what makes each rule look closer."""
    plain, money, drops = (one.history() for one in (test_judge, test_judge_money, test_judge_drops))
    plain.thefts = [Theft("a", "default", "one", 1.5, 200, "sold")]
    plain.stands = [LastStand("one", 5.0, 35.0, {"sold": None})]
    plain.lates = [Late(30.0, 31.0)]
    plain.asked = test_judge_protocol.OVERTAKEN
    plain.beliefs.append(replace(plain.beliefs[2], token=1, since=4.85))
    plain.faults.append(test_judge.TAKEN)
    plain.counts.append(Count(9.5, 9.7, "one", "fenced_writes_total", 1))
    plain.readings.append(Reading("two", "default", {}, {}))
    money.pauses = [Pause("ticket", 0.5, 0.6, 1.5, 1.6)]
    money.prices = [Price("ticket", 0.1, 0.2, 600)]
    test_judge_money.told(
        money, *(test_judge_money.call("hold", "ticket~z", 9, outcome, status=status) for outcome, status in ANSWERS)
    )
    line = test_judge_money.history()
    test_judge_money.with_a_line(line)
    line.pauses = [Pause("ticket", 0.5, 0.6, 1.5, 1.6)]
    return [plain, money, drops, line]


def test_each_field_that_is_recorded_is_in_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field is read by a judge, or is in the list of those that no rule reads, which is to be empty."""
    read, histories = set[str](), whole()

    def noting(kind: type[Any]) -> Callable[[Any, str], Any]:
        def get(self: Any, name: str) -> Any:
            if sys._getframe(1).f_globals["__name__"].startswith(RULES):
                read.add(f"{kind.__name__}.{name}")
            return object.__getattribute__(self, name)

        return get

    for kind in RECORDS:
        monkeypatch.setattr(kind, "__getattribute__", noting(kind))
    for one in histories:
        judge.judge(one)
    monkeypatch.undo()
    recorded = {f"{kind.__name__}.{field.name}" for kind in RECORDS for field in fields(kind)}
    assert sorted(recorded - read) == sorted(judge.UNREAD)


def test_a_history_survives_being_written_down(tmp_path: Path) -> None:
    """One that was written and read line by line is the same, and so is what was noted meanwhile."""
    for made in whole():
        file = tmp_path / "history.jsonl"
        with file.open("w") as out:
            recorder = Recorder(History(made.setup), out)
            for one in fields(made):
                for event in getattr(made, one.name) if one.name not in ("setup", "end") else ():
                    recorder.note(event)
            assert made.end is not None
            recorder.note(made.end)
        assert load(file) == made == recorder.history
    with pytest.raises(ValueError, match="not a line of a history"):
        parse(['{"kind": "attempt"}'])
    with pytest.raises(ValueError, match="empty"):
        parse([])
