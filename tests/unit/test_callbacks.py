"""Callbacks for something that happens once, whichever thread it happens in."""

import logging
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest

from fencelock.callbacks import Callbacks


@pytest.fixture
def told() -> list[str]:
    return []


def test_each_is_called_once_in_its_turn(told: list[str]) -> None:
    """Only the first time counts, and all are called in the order in which they came."""
    callbacks = Callbacks()
    for name in ("a", "b", "c"):
        callbacks.subscribe(partial(told.append, name))
    assert (told, callbacks.fired) == ([], False)
    callbacks.fire()
    callbacks.fire()
    assert (told, callbacks.fired) == (["a", "b", "c"], True)


def test_one_that_comes_too_late_is_called_at_once(told: list[str]) -> None:
    """It is called by `subscribe`; taking it back afterwards does no harm."""
    callbacks = Callbacks()
    callbacks.fire()
    unsubscribe = callbacks.subscribe(partial(told.append, "late"))
    assert told == ["late"]
    unsubscribe()
    callbacks.fire()
    assert told == ["late"]


def test_a_subscription_can_be_taken_back(told: list[str]) -> None:
    """Then it is not called; taking it back twice, or after it was called, does no harm."""
    callbacks = Callbacks()
    first, second = (callbacks.subscribe(partial(told.append, name)) for name in ("a", "b"))
    first()
    first()
    callbacks.fire()
    second()
    assert told == ["b"]


def test_one_that_fails_is_logged_and_stops_no_other(told: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """`fire` raises nothing."""

    def fail() -> None:
        raise ValueError("so it fails")

    callbacks = Callbacks()
    for callback in (partial(told.append, "a"), fail, partial(told.append, "b")):
        callbacks.subscribe(callback)
    with caplog.at_level(logging.ERROR):
        callbacks.fire()
    assert told == ["a", "b"]
    assert "so it fails" in caplog.text


def test_one_that_ends_the_program_stops_no_other(told: list[str]) -> None:
    """A hook may exit when a lock is lost, and the others' locks are lost all the same."""
    callbacks = Callbacks()
    for callback in (partial(told.append, "a"), sys.exit, partial(told.append, "b")):
        callbacks.subscribe(callback)
    with pytest.raises(SystemExit):
        callbacks.fire()
    assert told == ["a", "b"]


def test_a_callback_may_use_what_calls_it(told: list[str]) -> None:
    """It may subscribe another one, take one back that was not called yet, and fire once more."""
    callbacks = Callbacks()

    def busy() -> None:
        unsubscribe()
        callbacks.subscribe(partial(told.append, "from within"))
        callbacks.fire()

    callbacks.subscribe(busy)
    unsubscribe = callbacks.subscribe(partial(told.append, "b"))
    callbacks.subscribe(partial(told.append, "c"))
    callbacks.fire()
    assert told == ["c", "from within"]


def test_whoever_subscribes_while_it_happens_is_called_once() -> None:
    """Many threads subscribe while another one fires: nobody is forgotten, and nobody is called twice."""
    for _ in range(50):
        callbacks, told = Callbacks(), list[int]()
        ready = threading.Barrier(5)

        def subscribe(first: int, callbacks: Callbacks, told: list[int], ready: threading.Barrier) -> None:
            ready.wait()
            for number in range(first, first + 25):
                callbacks.subscribe(partial(told.append, number))

        threads = [threading.Thread(target=subscribe, args=(n, callbacks, told, ready)) for n in range(0, 100, 25)]
        for thread in threads:
            thread.start()
        ready.wait()
        callbacks.fire()
        for thread in threads:
            thread.join()
        assert sorted(told) == list(range(100))


@pytest.mark.parametrize("before", [True, False])
def test_a_signal_handler_may_fire_at_any_moment(told: list[str], before: bool) -> None:
    """A signal comes while the main thread subscribes: its handler doesn't wait for that thread, and none is lost."""
    callbacks = Callbacks()
    callbacks.subscribe(partial(told.append, "first"))

    class Interrupted(list[Callable[[], None]]):
        def append(self, callback: Callable[[], None]) -> None:
            if before:
                signal.raise_signal(signal.SIGUSR1)
            super().append(callback)
            if not before:
                signal.raise_signal(signal.SIGUSR1)

    callbacks._callbacks = Interrupted(callbacks._callbacks)
    usual = signal.signal(signal.SIGUSR1, lambda *_: callbacks.fire())
    try:
        callbacks.subscribe(partial(told.append, "second"))
    finally:
        signal.signal(signal.SIGUSR1, usual)
    assert told == ["first", "second"]
