"""The pauses before retries back off."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import StockUnavailable
from fencelock import LockUnavailable
from fencelock.backoff import Backoff


def pauses(backoff: Backoff, count: int) -> list[float]:
    return [backoff.next_s() for _ in range(count)]


def test_each_pause_is_twice_the_last_one_up_to_the_longest() -> None:
    """The first pause is the configured one; none is longer than the longest."""
    assert pauses(Backoff(0.02, 0.5), 8) == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.5])


def test_it_begins_anew_when_it_went_well() -> None:
    """After a success the next failure gets the first pause, which is limited by the longest one, too."""
    backoff = Backoff(1, 60)
    assert pauses(backoff, 3) == [1, 2, 4]
    backoff.reset()
    assert pauses(backoff, 3) == [1, 2, 4]
    assert pauses(Backoff(9, 2), 2) == [2, 2]


@given(st.floats(0.001, 1), st.floats(1, 100), st.integers(1, 30))
def test_with_jitter_a_pause_is_any_part_of_what_it_would_be(first_s: float, longest_s: float, count: int) -> None:
    """A pause with jitter is never longer than without, and never negative."""
    plain, random = Backoff(first_s, longest_s), Backoff(first_s, longest_s, jitter=True)
    for most, pause in zip(pauses(plain, count), pauses(random, count), strict=True):
        assert 0 <= pause <= most <= longest_s


def test_jitter_keeps_those_apart_who_failed_together() -> None:
    """Of a hundred failures at the same moment hardly two are retried at the same one."""
    assert len({round(Backoff(1, 1, jitter=True).next_s(), 6) for _ in range(100)}) > 90


def test_the_same_error_again_is_said_quietly() -> None:
    """A kind of error is logged as a warning once, until another kind comes, or a success."""
    backoff = Backoff(1, 1)
    loud = [
        backoff.loudness(error)
        for error in (StockUnavailable("a"), StockUnavailable("b"), LockUnavailable("c"), StockUnavailable("d"))
    ]
    assert loud == [logging.WARNING, logging.DEBUG, logging.WARNING, logging.WARNING]
    assert backoff.loudness(StockUnavailable("e")) == logging.DEBUG
    backoff.reset()
    assert backoff.loudness(StockUnavailable("f")) == logging.WARNING
