"""High-water marks are the orders that a process requires of its store."""

import json
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest

from app.audit.record import AuditRecord, read_record
from app.stock import registry
from app.stock.watermark import Watermark
from fencelock import LockUnavailable

STORE = registry.connect("redis://127.0.0.1:1", "fence")  # which nobody calls
mark_of, position_of = STORE._mark, STORE._unmark


def test_what_was_seen_does_not_go_back() -> None:
    """The answer to an older request may come after that to a later one."""
    watermark = Watermark(mark_of)
    watermark.found((), (1, "9-0", ""))
    watermark.found((), (1, "5-0", ""))
    assert watermark.positions == ((1, "9-0", ""),)
    watermark.found((), (2, "3-0", ""))
    assert watermark.positions == ((2, "3-0", ""),)


def test_what_others_have_seen_is_expected_until_it_was_found() -> None:
    """An order known only from others must be there as well as the last one that we have seen."""
    watermark = Watermark(mark_of)
    assert (watermark.positions, watermark.mark) == ((), None)
    watermark.found((), (1, "5-0", ""))
    for position in ((1, "7-0", ""), (1, "3-0", ""), (1, "7-0", "")):
        watermark.expect(position)
    assert sorted(watermark.positions) == [(1, "3-0", ""), (1, "5-0", ""), (1, "7-0", "")]
    assert watermark.mark == mark_of((1, "7-0", ""))
    watermark.expect((1, "8-0", ""))
    watermark.found(((1, "3-0", ""), (1, "7-0", "")))
    assert sorted(watermark.positions) == [(1, "7-0", ""), (1, "8-0", "")]  # 7 is the last one that we have seen


def test_a_mark_is_greater_for_a_later_order() -> None:
    """As texts, marks compare by the generation's number first, then by the order's, and not digit by digit."""
    positions = [(1, "9-0", ""), (1, "10-2", ""), (1, "10-11", ""), (2, "1-0", ""), (10, "0-1", "")]
    marks = [mark_of(position) for position in positions]
    assert marks == sorted(marks)


def test_a_mark_names_the_order_and_not_only_its_id() -> None:
    """A mark can be read back; one that was written without the order's tag matches any order with that id."""
    position = (1, "9-0", "0123abcd")
    assert position_of(mark_of(position)) == position
    assert position_of(mark_of((1, "9-0", ""))) == (1, "9-0", "")


async def test_an_odd_mark_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """What can be read of an auditor's record is expected, whatever else is in it."""

    class Election:
        async def recorded(self) -> str:
            return json.dumps({"case": "!theirs", "phone": mark_of((1, "9-0", "")), "tv": None})

    store: Any = registry.connect("redis://127.0.0.1:1", "fence")
    election: Any = Election()
    await read_record(election, store)
    assert store.marks() == {"phone": mark_of((1, "9-0", ""))}
    assert "not about this store" in caplog.text


async def test_a_record_has_what_was_sold_last() -> None:
    """The rest would outgrow what the lock system takes; it is written when it changes, and again when that failed."""
    leadership: Any = AsyncMock()
    record, marks = AuditRecord(leadership), {"bag": "1", "case": "1", "lamp": "1"}
    with patch("app.audit.record._ITEMS_MAX", 2):
        await record.write(marks)
        await record.write(marks)
        leadership.record.assert_awaited_once_with('{"case":"1","lamp":"1"}')
        leadership.record.side_effect = LockUnavailable("away")
        with pytest.raises(LockUnavailable):
            await record.write(marks | {"bag": "2"})
        leadership.record.reset_mock(side_effect=True)
        await record.write(marks | {"bag": "2"})
        leadership.record.assert_awaited_once_with('{"bag":"2","lamp":"1"}')
        await record.write(marks | {"bag": "2", "case": "3"})
        leadership.record.assert_awaited_with('{"bag":"2","case":"3"}')
