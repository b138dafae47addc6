"""The timers of a connection: for a head, for the next request, and for an answer that nobody reads."""

import asyncio
import contextlib
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from app.web.connection_limits import ConnectionLimits, Places

HEAD_S, IDLE_S, STUCK_S = 10.0, 5.0, 30.0


class Wire:
    """A transport whose client has so many bytes to read."""

    def __init__(self) -> None:
        self.unread = 0

    def get_extra_info(self, name: str) -> None:
        assert name == "socket"

    def get_write_buffer_size(self) -> int:
        return self.unread


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def limits(wire: Any) -> ConnectionLimits:
    """The timers of a connection that was made at 100 s."""
    return ConnectionLimits(wire, 100.0)


def test_a_head_has_a_time(limits: ConnectionLimits) -> None:
    """From the connection on, or from its first byte; more bytes don't prolong it, and its end ends it."""
    assert not limits.head_is_late(110.0, HEAD_S)
    assert limits.head_is_late(110.1, HEAD_S)
    limits.bytes_come(109.0)
    assert limits.head_is_late(110.1, HEAD_S)
    limits.head_is_complete()
    assert not limits.head_is_late(1000.0, HEAD_S)
    limits.answered(1000.0)
    assert not limits.head_is_late(2000.0, HEAD_S)
    limits.bytes_come(2000.0)
    limits.bytes_come(2009.0)
    assert not limits.head_is_late(2010.0, HEAD_S)
    assert limits.head_is_late(2010.1, HEAD_S)


def test_an_unused_connection_has_a_time(limits: ConnectionLimits) -> None:
    """From its last answer on, also if another protocol gave that; the next request ends it."""
    assert not limits.is_unused(109.0, IDLE_S)  # it waits for a head
    limits.head_is_complete()
    limits.answered(200.0)
    assert not limits.is_unused(205.0, IDLE_S)
    assert limits.is_unused(205.1, IDLE_S)
    limits.bytes_come(206.0)
    assert not limits.is_unused(300.0, IDLE_S)
    limits.head_is_complete()
    assert not limits.is_unused(400.0, IDLE_S)  # where the answer was not told of, it counts from here
    assert not limits.is_unused(405.0, IDLE_S)
    assert limits.is_unused(405.1, IDLE_S)


def test_an_answer_that_nobody_reads_has_a_time(wire: Wire, limits: ConnectionLimits) -> None:
    """Any progress begins it anew; who keeps asking may stay at the same backlog, which must not grow."""
    for at, unread, asks, stuck in (
        *((0, 9, False, False), (30, 9, False, False), (31, 9, False, True)),
        *((40, 8, False, False), (45, 8, False, False), (75, 9, False, False), (76, 9, False, True)),
        *((80, 0, False, False), (200, 5, False, False), (225, 5, True, False), (240, 5, False, False)),
        *((260, 6, True, False), (269, 6, False, False), (271, 7, True, True), (280, 0, True, False)),
    ):
        wire.unread = unread
        if asks:
            limits.head_is_complete()
        assert limits.is_stuck(1000.0 + at, STUCK_S) is stuck, at


def test_what_the_kernel_has_not_sent_counts() -> None:
    """The transport's own buffer may be empty long before the client has read anything."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as ours,
    ):
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while ours.send(b"x" * 65_536):
                pass
        about = {
            "get_extra_info": {"socket": ours}.get,
            "get_write_buffer_size": lambda: 0,
            "is_closing": lambda: False,
        }
        wire: Any = SimpleNamespace(**about)
        limits = ConnectionLimits(wire, 0.0)
        assert not limits.is_stuck(0.0, STUCK_S)
        assert limits.is_stuck(31.0, STUCK_S)
        wire.is_closing = lambda: True
        ours.close()
        assert not limits.is_stuck(32.0, STUCK_S)


def test_connections_beyond_the_limit_have_no_place() -> None:
    """They are among the connections, and wait."""
    places, both = Places(), [asyncio.Protocol(), asyncio.Protocol()]
    places.connections.update(both)  # type: ignore[arg-type]
    places.beyond[both[0]] = None
    assert places.taken == 1
