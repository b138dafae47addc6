"""Readers wait for buyers, up to a bound and in their order, and cancelled requests make room."""

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest

from app.web.admission import Admission
from app.web.call import GONE
from tests.harness.waiting import WITHIN_S

CHANGES = ("PUT", "POST")
SCOPE: dict[str, Any] = {"type": "http", "method": "GET", "path": "/stock", "state": {}}


class App:
    """An application that answers when it may."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.may_answer = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun.append(scope["path"])
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await self.may_end.wait()
        await send({"type": "http.response.body", "body": b""})


def nobody() -> bool:
    """Return the number of waiting buyers, which is none."""
    return False


async def ask(admission: Admission, path: str = "/stock") -> tuple[int, dict[str, Any]]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await admission(SCOPE | {"path": path}, lambda: None, send)  # type: ignore[arg-type, return-value]
    body = sent[1]["body"]
    return sent[0]["status"], json.loads(body) if body else {}


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_more_than_the_bound_are_refused() -> None:
    """The bound counts requests that are being answered; after an answer there is room again."""
    app = App()
    admission = Admission(app, at_once=3, buyers_wait=nobody)
    asked = [asyncio.create_task(ask(admission)) for _ in range(3)]
    await settle()
    status, problem = await asyncio.wait_for(ask(admission), WITHIN_S)
    assert (status, problem["type"]) == (503, "urn:seckill:overloaded")
    app.may_answer.set()
    assert [status for status, _ in await asyncio.gather(*asked)] == [200] * 3
    assert (await ask(admission))[0] == 200


async def test_a_stream_that_has_begun_takes_no_room() -> None:
    """Streams have a bound of their own."""
    app = App()
    app.may_answer.set()
    app.may_end.clear()
    admission = Admission(app, at_once=1, buyers_wait=nobody)
    listening = [asyncio.create_task(ask(admission))]
    await settle()
    listening.append(asyncio.create_task(ask(admission)))
    await settle()
    assert len(app.begun) == 2
    app.may_end.set()
    assert [status for status, _ in await asyncio.gather(*listening)] == [200, 200]


async def test_a_few_begin_at_each_turn_in_their_order() -> None:
    """A hundred concurrent requests don't keep the loop from the sale for as long as a hundred answers take."""
    app = App()
    admission = Admission(app, at_once=100, buyers_wait=nobody)
    asked = [asyncio.create_task(ask(admission, str(number))) for number in range(100)]
    most, before = 0, 0
    while len(app.begun) < 100:
        await asyncio.sleep(0)
        most, before = max(most, len(app.begun) - before), len(app.begun)
    assert most <= 4
    assert app.begun == [str(number) for number in range(100)]
    app.may_answer.set()
    await asyncio.gather(*asked)


async def test_a_few_are_refused_at_each_turn_in_their_order() -> None:
    """A hundred refused requests, which would be retried at once, don't keep the loop from the sale."""
    app = App()
    admission = Admission(app, at_once=1, buyers_wait=nobody)
    in_hand = asyncio.create_task(ask(admission))
    await settle()
    refused: list[int] = []

    async def ask_in_vain(number: int) -> None:
        assert (await ask(admission))[0] == 503
        refused.append(number)

    asked = [asyncio.create_task(ask_in_vain(number)) for number in range(100)]
    most, before = 0, 0
    while len(refused) < 100:
        await asyncio.sleep(0)
        most, before = max(most, len(refused) - before), len(refused)
    assert most <= 4
    assert refused == list(range(100))
    app.may_answer.set()
    await asyncio.gather(in_hand, *asked)


@pytest.mark.parametrize("at_once", [1, 1000])
async def test_readers_who_have_hung_up_are_passed_over(at_once: int) -> None:
    """In favour of one who still waits, be it for an answer or for a refusal; what changes something is done."""
    app = App()
    admission = Admission(app, at_once=at_once, buyers_wait=nobody)
    first = asyncio.create_task(ask(admission))
    await settle()

    turn, passed_over, left_at = 0, Counter[int](), list[str]()

    def has_gone() -> bool:
        passed_over[turn] += 1
        return True

    async def gone(method: str) -> None:
        async def receive() -> Any:
            left_at.append(method)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            assert method in CHANGES, message

        scope = SCOPE | {"method": method, "path": f"/{method}", "state": {GONE: has_gone}}
        await admission(scope, receive, send)

    left = [asyncio.create_task(gone(method)) for method in ("GET",) * 40 + CHANGES]
    last = asyncio.create_task(ask(admission, "/there"))
    for _ in range(12):  # in as many turns two of them each would have had theirs
        await asyncio.sleep(0)
        turn += 1
    assert max(passed_over.values()) <= 21  # nor do they keep the loop from the sale
    assert app.begun == (["/stock", "/PUT", "/POST", "/there"] if at_once > 1 else ["/stock"])
    assert last.done() == (at_once == 1)
    app.may_answer.set()
    assert ((await first)[0], (await last)[0]) == (200, 200 if at_once > 1 else 503)
    for one in left[-2:]:
        one.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    assert left_at.count("GET") == 40  # without an answer, once the server knows it, too


async def test_those_who_go_make_room() -> None:
    """A cancelled request makes room, whether it was waiting for its turn or for its answer."""
    app = App()
    admission = Admission(app, at_once=2, buyers_wait=nobody)
    waiting = asyncio.create_task(ask(admission))
    await settle()
    early = asyncio.create_task(ask(admission))
    await asyncio.sleep(0)
    for one in (waiting, early):
        one.cancel()
    await asyncio.gather(waiting, early, return_exceptions=True)
    app.may_answer.set()
    both = asyncio.gather(ask(admission), ask(admission))
    assert [status for status, _ in await asyncio.wait_for(both, WITHIN_S)] == [200, 200]


async def test_readers_rest_while_buyers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers get a fifth of the time, and all of it when no buyer waits any more; a rest has an end."""
    worked_s, buyers, rests = 0.0, True, list[float]()
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def rest(for_s: float, *then: Any) -> Any:
        rests.append(for_s)
        return call_later(for_s, *then)

    monkeypatch.setattr(loop, "call_later", rest)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal worked_s
        began = time.monotonic()
        while time.monotonic() < began + (0.002 if worked_s else 0.05):
            pass
        worked_s += time.monotonic() - began
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    admission = Admission(app, at_once=1000, buyers_wait=lambda: buyers)
    began = time.monotonic()
    await asyncio.gather(*(ask(admission) for _ in range(50)))
    assert worked_s - 0.05 < (time.monotonic() - began - 0.15) / 3
    assert max(rests) == 0.1
    buyers = False
    begun = [asyncio.create_task(ask(admission)) for _ in range(50)]
    await asyncio.wait(begun)
