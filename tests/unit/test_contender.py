"""A contender's own description can be parsed."""

import json
import math
import time

import pytest

from fencelock.contender import describe, parse_owner
from tests.harness.strangers import STRANGERS


def test_what_we_write_is_read() -> None:
    """A contender's description is read completely, with the time for which it has been there."""
    owner, waited_s = parse_owner(describe("here"))
    assert list(owner) == ["instance", "pid", "thread", "version", "since"]
    assert waited_s is not None
    assert 0 <= waited_s < 60


@pytest.mark.parametrize("text", [text for text, _ in STRANGERS.values()], ids=STRANGERS)
def test_what_is_read_can_be_written(text: str) -> None:
    """Any foreign description can be written as JSON, in UTF-8, with a time that is missing or a number."""
    owner, waited_s = parse_owner(text)
    json.dumps(owner, allow_nan=False, ensure_ascii=False).encode()
    assert waited_s is None or math.isfinite(waited_s)


def test_a_clock_that_is_ahead_has_nobody_wait_for_less_than_nothing() -> None:
    assert parse_owner(json.dumps({"since": time.time() + 60}))[1] == 0


@pytest.mark.parametrize(("length", "read"), [(4096, True), (4097, False)])
def test_an_endless_description_is_not_read(length: int, read: bool) -> None:
    frame = len(json.dumps({"who": ""}))
    assert bool(parse_owner(json.dumps({"who": "x" * (length - frame)}))[0]) is read
