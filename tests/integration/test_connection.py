"""Purchases without a task get the ASGI application's answer, to the byte, and end as its purchases do."""

import asyncio
import json
import logging
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from itertools import product
from typing import Any, cast

import jwt
import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

import fencelock
from app.main import create_app
from app.server import Server
from app.web.connection import ClientConnection
from lab.servers import EtcdMember, Valkey
from tests.harness.clients import BUYERS, FOREIGN_PAGES
from tests.harness.shop import TOKEN, lock_url, settings
from tests.harness.waiting import WITHIN_S, eventually_async

SET = f"PUT /stock HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
SECRET = "a-secret-that-is-long-enough:-32"
SIGNED = jwt.encode({"sub": "ann", "exp": 4_000_000_000}, SECRET, "HS256")
REQUESTS = {
    "signed": f"POST /stock/reduce?buyer={SIGNED} HTTP/1.1\nHost: x\nCookie: a=b\n",
    "get": "GET /stock/reduce HTTP/1.1\nHost: x\n",
    "old": "GET /stock/reduce HTTP/1.0\n",
    "close": "POST /stock/reduce HTTP/1.1\nHost: x\nConnection: close\n",
    "known": "POST /stock/reduce HTTP/1.1\nHost: x\nX-Request-Id: r-1\n",
    "not known": "POST /stock/reduce HTTP/1.1\nHost: x\nX-Request-Id: r 1\n",
    "json": "GET /stock/reduce?quantity=2&buyer=%E7%8E%8B HTTP/1.1\nHost: x\nAccept: application/json\n",
    "too many": "GET /stock/reduce?quantity=100 HTTP/1.1\nHost: x\nIdempotency-Key: too-many\n",
    "no item": "GET /stock/reduce?sku=none HTTP/1.1\nHost: x\n",
    "wrong": "GET /stock/reduce?quantity=0 HTTP/1.1\nHost: x\n",
    "put": "PUT /stock/reduce HTTP/1.1\nHost: x\n",
    "head": "HEAD /stock/reduce HTTP/1.1\nHost: x\n",
    "slash": "GET /stock/reduce/ HTTP/1.1\nHost: x\n",
    "escaped": "GET /stock/%72educe HTTP/1.1\nHost: x\n",
    "long": f"POST /stock/reduce HTTP/1.1\nHost: x\nX-Long: {17_000 * 'x'}\n",
    "body": "POST /stock/reduce HTTP/1.1\nHost: x\nContent-Length: 5\n",
    "chunks": "POST /stock/reduce HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n",
    **BUYERS,
    **FOREIGN_PAGES,
}


class Slow(ClientConnection):
    """A service without the short cut: every purchase is a task, and goes through the ASGI application."""

    def _open_shop(self) -> None:
        return None


class Served:
    """The service under uvicorn, in this process."""

    def __init__(self, port: int, server: uvicorn.Server) -> None:
        self.port = port
        self.server = server

    @property
    def waiting(self) -> int:
        """Return the number of waiting buyers."""
        found: int = self.server.lifespan.state["seckill"].shop.buyers_waiting
        return found

    @property
    def gone(self) -> int:
        """Return the number of connections whose client is seen to have gone."""
        return sum(cast(Any, connection)._has_gone() for connection in self.server.server_state.connections)

    async def ask(self, request: str) -> list[bytes]:
        """Return the lines of the answer, without those that always differ; and whether the connection then ended."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request.rstrip("\n").replace("\n", "\r\n").encode() + b"\r\n\r\n")
        async with asyncio.timeout(WITHIN_S):
            head = await reader.readuntil(b"\r\n\r\n")
            length = [line.split()[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
            body = await reader.readexactly(int(length[0]) if request[:4] != "HEAD" else 0)
        ends = b"connection: close" in head.lower()
        if ends:
            assert await reader.read() == b""
        writer.close()
        lines = sorted(line for line in head.split(b"\r\n") if not line.startswith((b"date", b"x-seckill-order")))
        own = b"x-request-id: r-1"
        lines = [b"x-request-id" if line.startswith(b"x-request-id") and line != own else line for line in lines]
        order = [line for line in head.split(b"\r\n") if line.startswith(b"x-seckill-order")]
        if order:
            lines.append(b"an order")
            body = body.replace(order[0].partition(b": ")[2], b"its id")
        return [*lines, body.replace(str(self.port).encode(), b"port")]


@asynccontextmanager
async def served(
    etcd: EtcdMember, valkey: Valkey, connection: type[ClientConnection], *, keep_alive_s: int = 75, **others: Any
) -> AsyncIterator[Served]:
    app = create_app(settings(etcd.endpoint, valkey.url, **others))
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        config = uvicorn.Config(
            app,
            http=connection,
            ws="none",
            log_config=None,
            timeout_graceful_shutdown=5,
            timeout_keep_alive=keep_alive_s,
        )
        server = Server(config, drain_timeout_s=5, request_timeout_s=10)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        running = asyncio.create_task(server._serve([listener]))
        await eventually_async(lambda: server.started, "it serves")
        try:
            yield Served(listener.getsockname()[1], server)
        finally:
            server.should_exit = True
            await running


async def fill(served: Served) -> None:
    """Set 1,000 units, with nothing sold."""
    body = '{"stock": 1000, "new_sale": true, "forget_orders": "all"}'
    for path in ("/stock", "/stock?sku=phone"):
        head = SET.replace("/stock", path)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()


H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_offer_of_http_2_does_not_cost_the_body(etcd: EtcdMember, valkey: Valkey, chunked: bool) -> None:
    """Java's client makes one with each request; it is answered in HTTP/1.1, and the body counts, in pieces, too."""
    async with served(etcd, valkey, ClientConnection) as one:
        await fill(one)
        for line, body, expected in (
            ("POST /holds", '{"buyer": "ann"}', b'"outcome":"held"'),
            ("PUT /stock", '{"stock": 77}', b'"stock":77'),
        ):
            length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
            sent = f"{len(body):x}\r\n{body}\r\n0\r\n\r\n" if chunked else body
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
            head = f"{line} HTTP/1.1\r\nHost: x\r\n{H2C}Authorization: Bearer {TOKEN}\r\n"
            head += f"Content-Type: application/json\r\n{length}\r\n\r\n"
            for part in (head + sent[:3], sent[3:7], sent[7:]):
                writer.write(part.encode())
                await writer.drain()
                await asyncio.sleep(0.05)
            async with asyncio.timeout(WITHIN_S):
                answer = await reader.read()
            writer.close()
            assert answer.startswith(b"HTTP/1.1 200")
            assert expected in answer


@pytest.mark.parametrize("more", ["", H2C], ids=["alone", "with an offer of HTTP/2"])
async def test_a_trailer_without_end(etcd: EtcdMember, valkey: Valkey, more: str) -> None:
    """The connection is dropped before it fills the memory."""
    async with served(etcd, valkey, ClientConnection) as one:
        _, writer = await asyncio.open_connection("127.0.0.1", one.port)
        head = f"POST /holds HTTP/1.1\r\nHost: x\r\n{more}Transfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode() + b"2\r\n{}\r\n0\r\nX: ")
        with pytest.raises(ConnectionError):
            for _ in range(1000):
                writer.write(65_536 * b"a")
                await writer.drain()
        writer.close()


async def test_a_body_behind_many_requests_without_one(etcd: EtcdMember, valkey: Valkey) -> None:
    """A client that has asked often on its connection may still send a body behind its head."""
    async with served(etcd, valkey, ClientConnection) as one:
        await fill(one)
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        for _ in range(30):
            writer.write(f"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Pad: {700 * 'x'}\r\n\r\n".encode())
            async with asyncio.timeout(WITHIN_S):
                assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")
        body = b'{"stock": 77}'
        head = f"PUT /stock HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(body)
        async with asyncio.timeout(WITHIN_S):
            answer = await reader.read()
        writer.close()
        assert b'"stock":77' in answer


async def test_those_who_have_gone_take_no_places(etcd: EtcdMember, valkey: Valkey) -> None:
    """A body whose client has closed the connection is not waited for, however long it might have taken."""
    how: dict[str, Any] = {"payments_secret": "whsec_" + 32 * "a", "request_timeout_ms": 600_000}
    async with served(etcd, valkey, ClientConnection, **how) as one:
        for _ in range(600):
            _, writer = await asyncio.open_connection("127.0.0.1", one.port)
            writer.write(b"POST /payments/webhook HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\na")
            writer.close()

        async def is_read() -> bool:
            answer = await one.ask("POST /payments/webhook HTTP/1.1\nHost: x\nContent-Length: 0\nConnection: close\n")
            return any(line.startswith(b"HTTP/1.1 400") for line in answer)

        await eventually_async(is_read, "a callback is read")


async def test_a_request_behind_one_that_was_refused(etcd: EtcdMember, valkey: Valkey) -> None:
    """Nothing is sold to a client whose connection is being closed."""
    async with served(etcd, valkey, ClientConnection) as one:
        await fill(one)
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\nPOST /stock/reduce HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\n\r\n")
        async with asyncio.timeout(WITHIN_S):
            answer = await reader.read()
        writer.close()
        assert answer.count(b"HTTP/1.1 ") == 1
        await one.ask("POST /stock/reduce HTTP/1.1\nHost: x\nConnection: close\n")  # is decided after it
        answer = b"".join(await one.ask("GET /stock HTTP/1.1\nHost: x\nConnection: close\n"))
        assert b'"stock":999' in answer


async def test_paths_that_end_in_a_line_end(etcd: EtcdMember, valkey: Valkey) -> None:
    """They are no paths of ours, on neither port: what hides paths, and what routes them, agree."""
    paths = ("/metrics%0A", "/stock%0a", "/holds%0A", "/holds/x/cancel%0A", "/payments/webhook%0A")
    async with served(etcd, valkey, ClientConnection, operator_port=1) as one:
        for path, method in product(paths, ("GET", "POST", "PUT")):
            answer = await one.ask(f"{method} {path} HTTP/1.1\nHost: x\nContent-Length: 0\nConnection: close\n")
            assert any(line.startswith(b"HTTP/1.1 404") for line in answer), answer


async def test_a_hold_whose_body_never_comes(etcd: EtcdMember, valkey: Valkey) -> None:
    """It is refused when its time is up, and holds nothing."""
    async with served(etcd, valkey, ClientConnection) as one:
        await fill(one)
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        writer.write(b"POST /holds HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n{")
        await writer.drain()

        def is_there() -> bool:
            return any(cast(Any, one_)._wish for one_ in one.server.server_state.connections)

        await eventually_async(is_there, "its head has come")
        for connection in list(one.server.server_state.connections):
            cast(Any, connection).sweep(1e9, request_timeout_s=10, reading_timeout_s=1e9)
        async with asyncio.timeout(WITHIN_S):
            assert (await reader.read()).startswith(b"HTTP/1.1 408")
        writer.close()
        assert one.waiting == 0


@pytest.mark.parametrize(
    ("others", "statuses"),
    [
        ({}, {"get": 200, "escaped": 200, "too many": 200, "no item": 404, "wrong": 422, "put": 405, "body": 422}),
        ({"allow_get": False}, {"get": 405, "escaped": 405, "requests": 200, "no item": 405}),
        ({"limit_per_buyer": 1}, {"get": 400, "json": 200, "requests": 400}),
        ({"buyer_key": SECRET}, {"get": 400, "json": 403, "signed": 200}),
        ({"sale_ends_at": "2020-01-01T00:00:00Z"}, {"get": 200, "requests": 200}),
        ({"request_ids": True}, {"known": 200, "not known": 422, "no item": 404}),
    ],
    ids=["default", "no GET", "a limit", "signed buyers", "ended", "request ids"],
)
async def test_both_ways_answer_alike(
    etcd: EtcdMember, valkey: Valkey, others: dict[str, Any], statuses: dict[str, int]
) -> None:
    """Each request, sent twice, gets the same answers both ways, except for the date and the order's id."""
    told = {}
    for connection in (ClientConnection, Slow):
        async with served(etcd, valkey, connection, **others) as one:
            await fill(one)
            told[connection] = {
                (name, turn): await one.ask(head) for name, head in REQUESTS.items() for turn in ("first", "second")
            }
    assert told[ClientConnection] == told[Slow]
    said = {
        name: int(next(line for line in told[ClientConnection][name, "first"] if line[:5] == b"HTTP/")[9:12])
        for name in REQUESTS
    }
    assert {name: said[name] for name in statuses} == statuses
    if not others:
        assert {said[name] for name in BUYERS} == {200}
        assert {said[name] for name in FOREIGN_PAGES} == {403}


async def test_request_ids(etcd: EtcdMember, valkey: Valkey, caplog: pytest.LogCaptureFixture) -> None:
    """With the setting each purchase has one, its own or a new one, in its answer, its order and the log; else none."""
    known = REQUESTS["known"]
    async with served(etcd, valkey, ClientConnection) as one:
        await fill(one)
        assert not [line for line in await one.ask(known) if line.startswith(b"x-request-id")]
    async with served(etcd, valkey, ClientConnection, request_ids=True, log_format="json") as one:
        await fill(one)
        caplog.set_level(logging.INFO, "app.web.request_ids")
        for head in (known, REQUESTS["get"], known.replace("reduce", "reduce?sku=none")):
            assert len([line for line in await one.ask(head) if line.startswith(b"x-request-id")]) == 1
    said = [record.getMessage() for record in caplog.records if record.name == "app.web.request_ids"]
    assert [line.rstrip("0123456789-") for line in said] == [
        *["/stock/reduce: sold, default~"] * 2,
        "/stock/reduce: ",
    ]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record the paths of the requests that uvicorn made tasks for."""
    paths: list[str] = []
    start = HttpToolsProtocol._start_asgi_task

    def note(self: Any, cycle: Any, app: Any) -> None:
        paths.append(cycle.scope["path"])
        start(self, cycle, app)

    monkeypatch.setattr(HttpToolsProtocol, "_start_asgi_task", note)
    yield paths


async def test_a_purchase_needs_no_task(etcd: EtcdMember, valkey: Valkey, started: list[str]) -> None:
    """No real client's purchase starts a task. (If uvicorn renames the method that starts one, this test fails.)"""
    async with served(etcd, valkey, ClientConnection) as one:
        await fill(one)
        started.clear()
        for head in (*BUYERS.values(), REQUESTS["get"], REQUESTS["json"]):
            assert b"HTTP/1.1 200 OK" in await one.ask(head)
        assert started == []
        await one.ask(REQUESTS["wrong"])
        assert started == ["/stock/reduce"]


@pytest.mark.parametrize("path", ["/stock/reduce", "/stock"])
async def test_a_connection_that_is_not_used_is_closed(etcd: EtcdMember, valkey: Valkey, path: str) -> None:
    """An idle connection is closed after its time, whatever its requests were; an active one stays."""
    async with served(etcd, valkey, ClientConnection, keep_alive_s=1) as one:
        await fill(one)
        (reader, writer), (other, asking) = [await asyncio.open_connection("127.0.0.1", one.port) for _ in range(2)]
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        writer.write(request)
        ended = asyncio.create_task(reader.read())
        async with asyncio.timeout(WITHIN_S):
            while not ended.done():
                asking.write(request)
                head = await other.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 OK")
                length = re.search(rb"content-length: (\d+)", head)
                await other.readexactly(int(length[1] if length else 0))
        assert (await ended).startswith(b"HTTP/1.1 200 OK")
        for end in (writer, asking):
            end.close()


async def test_who_sends_no_more_is_answered_and_who_has_gone_is_not_sold_to(etcd: EtcdMember, valkey: Valkey) -> None:
    """Half-closed and closed connections look alike until something is sent. (A buyer with a key can ask again.)"""
    requests = [f"GET /stock/reduce{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for query in ("", "?sku=none")]
    with fencelock.connect(lock_url(etcd.endpoint)) as backend:
        async with served(etcd, valkey, ClientConnection) as one:
            await fill(one)
            for request, status in zip(requests, (b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 404 "), strict=True):
                half_closed, gone = [await asyncio.open_connection("127.0.0.1", one.port) for _ in range(2)]
                async with backend.aio.lock("/seckill/lock/all"):
                    for _, writer in (half_closed, gone):
                        writer.write(request)
                    await eventually_async(lambda: one.waiting == 2, "both wait")
                    half_closed[1].write_eof()
                    gone[1].close()
                    await eventually_async(lambda: one.gone == 1, "one is seen to be gone")
                async with asyncio.timeout(WITHIN_S):
                    assert (await half_closed[0].read()).startswith(status)
                half_closed[1].close()
            level = json.loads((await one.ask("GET /stock HTTP/1.1\nHost: x\n"))[-1])
            assert (level["stock"], level["lucky"]) == (999, 1)


async def test_requests_that_do_not_wait_for_answers(etcd: EtcdMember, valkey: Valkey) -> None:
    """Of pipelined requests only the first is answered, however quickly, and then the connection ends."""
    async with served(etcd, valkey, ClientConnection) as one:
        await fill(one)
        for query in ("", "?quantity=100", "?sku=none", "?quantity=0"):
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
            writer.write(f"GET /stock/reduce{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 50)
            async with asyncio.timeout(WITHIN_S):
                said = await all_of(reader)
            assert said.count(b"HTTP/1.1 ") == 1
            writer.close()


async def test_what_goes_wrong_is_said_all_the_same(
    etcd: EtcdMember, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of ours in any step gives 500, as ever, and leaves no buyer waiting."""

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    async with served(etcd, valkey, ClientConnection) as one:
        await fill(one)
        for step in ("parse", "_with_order"):
            with monkeypatch.context() as patch:
                patch.setattr(f"app.web.purchase.{step}", broken)
                assert b"HTTP/1.1 500 Internal Server Error" in await one.ask(REQUESTS["get"])


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """Read until the other side closes, or resets because it had more to read."""
    said = b""
    try:
        while part := await reader.read(65_536):
            said += part
    except ConnectionResetError:
        pass
    return said


async def test_a_client_that_sends_no_more_at_once(etcd: EtcdMember, valkey: Valkey) -> None:
    """A client that half-closes behind its request gets its answer, whatever the request; nothing of it is left."""
    async with served(etcd, valkey, ClientConnection) as one:
        await fill(one)
        for gone in (False, True):
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
            writer.write(b"POST /stock/reduce HTTP/1.1\r\nHost: x\r\nIdempotency-Key: half\r\n\r\n")
            if gone:
                writer.transport.abort()
            else:
                writer.write_eof()
                async with asyncio.timeout(WITHIN_S):
                    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
                writer.close()
        await eventually_async(lambda: not one.server.server_state.connections, "no connection is left")


async def test_a_reader_that_sends_no_more_is_answered(etcd: EtcdMember, valkey: Valkey) -> None:
    """A half-closed reader gets its answer; a half-closed listener has left its stream."""
    async with served(etcd, valkey, ClientConnection) as one:
        await fill(one)
        for path, stays in (("/stock", True), ("/healthz", True), ("/stock/live", False)):
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            if not stays:
                assert (await reader.readline()).startswith(b"HTTP/1.1 200 OK")
            writer.write_eof()
            async with asyncio.timeout(WITHIN_S):
                said = await reader.read()
            assert said.startswith(b"HTTP/1.1 200 OK") == stays
            writer.close()


@pytest.mark.parametrize("path", ["/holds", "/payments/webhook", "/control/login", "/stock"])
async def test_a_body_that_breaks_off_into_nonsense_is_refused_at_once(
    etcd: EtcdMember, valkey: Valkey, path: str
) -> None:
    """It keeps no place until it is late, which is never here."""
    async with served(etcd, valkey, ClientConnection, request_timeout_ms=600_000) as one:
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode() + b"5\r\nabcde\r\n")
        await asyncio.sleep(0)
        writer.write(b"no number\r\n")
        async with asyncio.timeout(WITHIN_S):
            said = await reader.read()
        assert said.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"urn:seckill:bad-request" in said
        assert said.count(b"HTTP/1.1 ") == 1
        writer.close()
        await eventually_async(lambda: not one.server.server_state.connections, "no connection is left")


async def test_half_a_wish_is_none(etcd: EtcdMember, valkey: Valkey) -> None:
    """A request to cancel one of two units, whose client hangs up in the middle of it, does not cancel both."""
    async with served(etcd, valkey, ClientConnection) as one:
        await fill(one)
        wish = '{"buyer": "ann", "quantity": 2}'
        held = await one.ask(f"POST /holds HTTP/1.1\nHost: x\nContent-Length: {len(wish)}\n\n{wish}")
        order = json.loads(held[-1])["id"]
        head = f"POST /holds/{order}/cancel HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        writer.write(f'{head}5\r\n{{"uni\r\n'.encode())
        await eventually_async(lambda: len(one.server.server_state.connections) == 1, "it is here")
        writer.write_eof()
        async with asyncio.timeout(WITHIN_S):
            assert await reader.read() == b""
        await eventually_async(lambda: not one.server.server_state.tasks, "it is over")
        level = json.loads((await one.ask("GET /stock HTTP/1.1\nHost: x\n"))[-1])
        assert (level["stock"], level["held"]) == (998, 2)
        writer.close()


async def test_purchases_and_other_requests_share_a_connection(
    etcd: EtcdMember, valkey: Valkey, started: list[str]
) -> None:
    """A purchase behind a page needs no task either; the connection is kept as long as either of the two uses it."""
    async with served(etcd, valkey, ClientConnection, keep_alive_s=2) as one:
        await fill(one)
        started.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        for _ in range(2):
            for request in ("GET /stock", "POST /stock/reduce", "POST /stock/reduce"):
                writer.write(f"{request} HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\n".encode())
                async with asyncio.timeout(WITHIN_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = re.search(rb"content-length: (\d+)", head)
                    await reader.readexactly(int(length[1] if length else 0))
                assert head.startswith(b"HTTP/1.1 200 OK")
        assert started == ["/stock", "/stock"]
        writer.close()


async def test_one_host_and_a_known_version(etcd: EtcdMember, valkey: Valkey) -> None:
    """As RFC 9112 has it: a request that two servers in a row could read in two ways is refused by the first."""
    async with served(etcd, valkey, ClientConnection) as served_:
        await fill(served_)
        for head, status in (
            ("POST /stock/reduce HTTP/1.1\nHost: x\n", 200),
            ("GET /stock HTTP/1.0\n", 200),
            ("POST /stock/reduce HTTP/1.1\n", 400),
            ("GET /healthz HTTP/1.1\n", 400),
            ("POST /stock/reduce HTTP/1.1\nHost: x\nHost: y\n", 400),
            ("GET /stock HTTP/1.1\nHost: x\nHost: x\n", 400),
            ("POST /holds HTTP/1.1\nHost: x\nTransfer-Encoding: gzip, chunked\n", 501),
            ("POST /holds HTTP/1.1\nHost: x\nTransfer-Encoding: gzip\nTransfer-Encoding: chunked\n", 501),
            ("GET /stock HTTP/2.0\nHost: x\n", 505),
            ("POST /stock/reduce HTTP/0.9\nHost: x\n", 505),
        ):
            answer = await served_.ask(head)
            assert any(line.startswith(f"HTTP/1.1 {status} ".encode()) for line in answer), head
