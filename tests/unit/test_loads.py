"""The benchmarks' clients count what a server of the test's own has answered."""

import asyncio
import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from loadtest.bench import race as races
from loadtest.bench.flow import CountingReceiver
from loadtest.bench.generator import Request, drive
from loadtest.bench.holds import hold, pay
from loadtest.bench.race import OURS, Contestant, Heat, compare, heat_of, medians

Answer = Callable[[str], tuple[int, str] | None]  # by path: a status and a body; None: it hangs up


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := (await reader.readuntil(b"\r\n\r\n")).decode():
            length = head.lower().partition("content-length: ")[2].partition("\r\n")[0]
            await reader.readexactly(int(length or 0))
            found = answer(head.split()[1])
            if found is None:
                break
            status, body = found
            writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(quietly, "127.0.0.1"))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def test_a_load_counts_each_answer() -> None:
    """By status; half of the answers were not later than the median, and few later than the 99th percentile."""
    told, numbers = Counter[str](), itertools.count()

    def answer(path: str) -> tuple[int, str]:
        number = next(numbers)
        if number % 20 == 19:
            time.sleep(0.02)
        status = 503 if number % 5 == 4 else 200
        told[str(status)] += 1
        return status, path

    with serving(answer) as url:
        load = drive([url], 2, 0.5, ["/a", "/b"], never_wrk=True)
    assert load.statuses == told
    assert (load.requests, load.lost) == (told.total(), 0)
    assert 0 < load.p50_ms < 10 < load.p99_ms <= load.longest_ms


def test_a_load_counts_the_connections_that_broke() -> None:
    with serving(lambda path: None) as url:
        load = drive([url], 3, 0.1, ["/a", "/b"], never_wrk=True)
    assert (load.requests, load.lost) == (0, 3)


def test_each_request_of_a_browser_has_a_key_of_its_own() -> None:
    heads = [*itertools.islice(Request.POST.heads("h:1", "/p"), 3), next(Request.POST.heads("h:1", "/p"))]
    assert all(head.startswith(b"POST /p HTTP/1.1\r\nHost: h:1\r\n") and head.endswith(b"\r\n\r\n") for head in heads)
    keys = {line for head in heads for line in head.split(b"\r\n") if line.startswith(b"Idempotency-Key: ")}
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("held", "confirmed", "told"),
    [("held", "confirmed", "200"), ("confirmed", "confirmed", "200 confirmed"), ("held", "held", "200 held")],
)
def test_a_buyer_has_to_hold_and_then_to_pay(held: str, confirmed: str, told: str) -> None:
    asked = list[str]()

    def answer(path: str) -> tuple[int, str]:
        asked.append(path)
        return 200, f'{{"outcome":"{held if path == "/holds" else confirmed}","id":"x"}}'

    with serving(answer) as url:
        load = pay([url], 1, 0)
        assert (load.statuses, load.requests) == ({told: 1}, 1)
        assert asked == ["/holds", "/holds/x/confirm"][: 1 + (held == "held")]
        asked.clear()
        hold([url], 5, 2)
        assert asked == ["/holds"] * 5


def test_an_event_that_comes_twice_confirms_one_order() -> None:
    async def all_there() -> None:
        receiver = CountingReceiver(3)
        application = Starlette(routes=[Route("/", receiver.take, methods=["POST"])])
        client = httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://receiver")

        def event(order: str, kind: str = "order.confirmed") -> dict[str, Any]:
            return {"type": kind, "data": {"order": order}}

        for body in event("a"), event("b", "order.held"), {"events": [event("a"), event("a")]}:
            assert (await client.post("/", json=body)).status_code == 204
        assert not receiver.all_there.is_set()
        await client.post("/", json={"events": [event("c"), event("b")]})
        assert receiver.all_there.is_set()
        await receiver.has("a")
        await client.aclose()

    asyncio.run(all_there())


# -- races -------------------------------------------------------------------------------------------------------------


def heat(name: str, overlaps: int) -> Heat:
    return Heat(name, 2, 0, 10, 1, 2, 3, 4, 5, 6, overlaps)


def test_no_overlap_is_lost_in_a_median() -> None:
    assert medians([heat("x", 0), heat("x", 0), heat("x", 3)])[-1] == "3"


def test_a_handoff_in_the_same_instant_is_no_overlap() -> None:
    found = heat_of("x", 0, [[races.Turn(0, 1, 2)], [races.Turn(0, 2, 3)]])
    assert found is not None
    assert found.overlaps == 0


@pytest.mark.parametrize(("name", "status"), [(OURS[0].name, 1), ("kazoo", 0)])
def test_only_an_overlap_of_ours_is_a_failure(name: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(races, "compare", lambda *_, **__: ([heat(name, 1)], []))
    monkeypatch.setattr(sys, "argv", ["race", "etcd://h:1"])
    assert races.main() == status


def test_who_has_failed_races_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """And who is not installed never does; the others go on, in each round."""
    raced = list[str]()

    def race(one: Contestant, *_: object) -> tuple[list[list[races.Turn]], str]:
        raced.append(one.name)
        return [[races.Turn(0, 1, 2)], [races.Turn(0, 2, 3)]], "broken" if one.name == "bad" else ""

    monkeypatch.setattr(races, "race", race)
    own = [Contestant("bad", ["x"]), Contestant("absent", ["x"], module="no.such_module", package="absent-package")]
    heats, missing = compare(
        "etcd://h:1", contenders=[2], holds_ms=[0, 5], seconds=1, rounds=2, peers=False, programs=own
    )
    ours = [one.name for one in OURS]
    assert raced == [*ours, "bad", *ours * 3]
    assert len(heats) == len(raced)
    assert sorted(missing) == ["absent did not take part: pip install absent-package", "bad: broken"]
