"""ZooKeeper's protocol: messages come in any pieces, and bytes that are no message are reported as such."""

import struct
from collections.abc import Coroutine
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencelock.zookeeper import session as zookeeper_session
from fencelock.zookeeper import wire
from fencelock.zookeeper.link import Link, Servers
from fencelock.zookeeper.session import Session

WELCOME = struct.pack(">iiqi", 0, 4000, 7, 16) + bytes(16) + b"\0"


def sized(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(1, 20))
def test_messages_come_in_any_pieces(messages: list[bytes], piece: int) -> None:
    """However a connection splits the messages, the same come out."""
    data = b"".join(map(sized, messages))
    stream = wire.Stream()
    cut = [data[begin : begin + piece] for begin in range(0, len(data), piece)]
    assert [message for some in cut for message in stream.messages(some)] == messages


class _Nowhere(Link):
    """A connection that sends nothing, and is never closed: the test supplies the bytes."""

    def __init__(self, *_: object) -> None:
        self.sent: list[bytes] = []

    def start(self) -> None:
        pass

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        pass

    @property
    def loop(self) -> Any:
        return self

    def create_task(self, work: Coroutine[Any, Any, None]) -> None:
        work.close()


def session() -> Session:
    with patch.object(zookeeper_session, "Link", _Nowhere):
        return Session(Servers((), "", 1.0), 4.0, None)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6), st.booleans())
def test_nothing_that_comes_is_an_unexpected_error(messages: list[bytes], after_a_welcome: bool) -> None:
    """Any bytes are understood, or end the session with a reason."""
    one = session()
    one.begin()
    if after_a_welcome:
        one.heard(sized(WELCOME))
        assert one.ready
    for message in messages:
        one.heard(sized(message))
    if one.over is not None:
        assert "does not speak ZooKeeper's protocol" in one.over


@pytest.mark.parametrize("length", [-1, 2**30])
def test_a_length_that_no_message_has(length: int) -> None:
    """An impossible length ends the session instead of a wait for a gigabyte that never comes."""
    with pytest.raises(wire.Malformed):
        list(wire.Stream().messages(struct.pack(">i", length)))


def test_an_answer_to_nothing_is_none() -> None:
    """An answer without a request ends the session."""
    one = session()
    one.heard(sized(WELCOME))
    one.heard(sized(struct.pack(">iqi", 3, 1, 0)))
    assert one.over is not None


@pytest.mark.parametrize(
    ("request_", "path"),
    [(wire.children("/"), b"/part"), (wire.children("/lock"), b"/part/lock"), (wire.delete("/a/b"), b"/part/a/b")],
)
def test_all_is_asked_within_the_folder(request_: wire.Request[object], path: bytes) -> None:
    """The folder is the root of the tree for all requests."""
    assert request_.frame(1, "/part")[12:].startswith(struct.pack(">i", len(path)) + path)
