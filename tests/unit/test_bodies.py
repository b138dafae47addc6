"""Bodies of requests: how large, how long, and how many of strangers at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from app.web import body_limit
from app.web.body_limit import Bodies, has_body, with_body
from tests.harness.virtual import VirtualLoop


def sent(*parts: bytes, every_s: float = 0.0, ends: bool = True) -> Callable[[], Awaitable[Any]]:
    """A client that sends a body in parts, and then the end of it, or nothing any more."""
    left = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    left += [{"type": "http.request"}, {"type": "http.disconnect"}] if ends else []

    async def receive() -> Any:
        await asyncio.sleep(every_s if left else 1e6)
        return left.pop(0)

    return receive


def play(story: Callable[[], Awaitable[Any]]) -> Any:
    loop = VirtualLoop()
    try:
        return loop.play(story())  # type: ignore[arg-type]
    finally:
        loop.close()


async def read(bodies: Bodies, receive: Any, *, known: bool = False, length: int | None = None) -> Any:
    """The body, and what comes after it; or the status of the refusal."""
    try:
        found = await bodies.read(receive, {} if length is None else {b"content-length": b"%d" % length}, known=known)
    except HTTPException as error:
        assert error.headers == {"Connection": "close"}  # the rest of it may still be on its way
        assert error.detail in ("the body is larger than 6 bytes", "no whole body within 10 s")
        return error.status_code
    return (await found()).get("body"), (await found())["type"]


@pytest.mark.parametrize("known", [False, True])
def test_a_body_has_a_size_and_a_time(known: bool) -> None:
    """Whether its length is declared or not, and whoever sends it."""

    async def story() -> None:
        bodies = Bodies(timeout_s=10.0, bytes_max=6)
        whole = b"abcdef", "http.disconnect"
        assert await read(bodies, sent(b"abc", b"def"), known=known, length=6) == whole
        assert await read(bodies, sent(b"abc", b"def", every_s=2.4), known=known) == whole
        assert await read(bodies, sent(b"abc", b"def", every_s=5.1), known=known) == 408
        assert await read(bodies, sent(b"abc", b"def", b"g", ends=False), known=known) == 413
        began = asyncio.get_running_loop().time()
        assert await read(bodies, sent(ends=False), known=known, length=7) == 413
        assert asyncio.get_running_loop().time() == began  # nobody waits for it

        async def gone() -> Any:
            return {"type": "http.disconnect"}

        assert (await (await bodies.read(gone, {}, known=known))())["type"] == "http.disconnect"

    play(story)


def test_the_slowest_stranger_gives_way() -> None:
    """To one who comes when all places are taken; those with rights take none."""

    async def story() -> None:
        bodies = Bodies(timeout_s=10.0, strangers_max=2)
        slow = [
            asyncio.create_task(read(bodies, sent(b"a", every_s=4.0), known=known)) for known in (False, True, False)
        ]
        await asyncio.sleep(0.5)
        assert not any(one.done() for one in slow)
        assert await read(bodies, sent(b"b")) == (b"b", "http.disconnect")
        assert [one.done() for one in slow] == [True, False, False]
        assert [await one for one in slow] == [408, (b"a", "http.disconnect"), (b"a", "http.disconnect")]
        for _ in range(3):  # their places are free again
            assert (
                await asyncio.gather(*(read(bodies, sent(b"c", every_s=1.0)) for _ in range(2)))
                == [(b"c", "http.disconnect")] * 2
            )

    play(story)


def test_strangers_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has taken the longest gives way to the next bytes; what was read is counted no more."""
    monkeypatch.setattr(body_limit, "_STRANGERS_MAX_BYTES", 10)

    async def story() -> None:
        bodies = Bodies(timeout_s=10.0)
        for _ in range(5):
            assert await read(bodies, sent(b"123456")) == (b"123456", "http.disconnect")
        slow = [asyncio.create_task(read(bodies, sent(b"12345", ends=False))) for _ in range(2)]
        await asyncio.sleep(1.0)
        assert await read(bodies, sent(b"1" * 20), known=True) == (b"1" * 20, "http.disconnect")
        assert not any(one.done() for one in slow)
        assert await read(bodies, sent(b"12345")) == (b"12345", "http.disconnect")
        assert [one.done() for one in slow] == [True, False]
        assert [await one for one in slow] == [408, 408]

    play(story)


@pytest.mark.parametrize(
    ("method", "headers", "has"),
    [
        ("POST", {b"content-length": b"10"}, True),
        ("DELETE", {b"transfer-encoding": b"chunked"}, True),
        ("POST", {b"content-length": b"00"}, False),
        ("PUT", {}, False),
        ("GET", {b"content-length": b"10"}, False),
        ("HEAD", {b"transfer-encoding": b"chunked"}, False),
    ],
)
def test_what_announces_a_body(method: str, headers: dict[bytes, bytes], has: bool) -> None:
    """Its headers; a request that only reads has none, whatever it says."""
    assert has_body({"method": method}, headers) is has


def test_a_body_is_given_once() -> None:
    """What comes after it is the client's."""

    async def story() -> None:
        receive = with_body(b"whole", sent(b"more"))
        assert await receive() == {"type": "http.request", "body": b"whole", "more_body": False}
        assert (await receive())["body"] == b"more"

    play(story)
