"""Too many buyers, and those who misuse a connection: bounded memory, a plain no, and full service right after."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import httpx
import psutil
import pytest

from app.embedded import EtcdMember, Valkey
from app.locks import EtcdBackend
from app.web.connection import HEAD_MAX_BYTES
from app.web.limits import BODY_MAX_BYTES
from tests.harness.crowd import Crowd
from tests.harness.shop import TOKEN, Instance, shop
from tests.harness.waiting import WITHIN_S, eventually

BUYERS = 20_000
QUEUE_MAX = 2_000
MEMORY_MAX_BYTES = 500_000_000
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}


def test_twenty_thousand_buyers_at_once(etcd: EtcdMember, valkey: Valkey) -> None:
    """Two instances whose lock is elsewhere: queues are bounded, the others get 503; then all who wait are served."""

    async def fill() -> None:
        async with shop(etcd.endpoint, valkey.url) as one:
            await one.set_stock("default", 100_000)

    async def lucky() -> int:
        async with shop(etcd.endpoint, valkey.url) as one:
            assert (await one.audit("default")).violations == []
            return (await one.level("default")).lucky

    asyncio.run(fill())
    options = {"queue_max": QUEUE_MAX, "purchase_timeout_ms": 60_000, "request_timeout_ms": 60_000}
    backend = EtcdBackend([etcd.endpoint], ttl_s=30)
    with ExitStack() as stack:
        stack.callback(backend.close)
        instances = [stack.enter_context(Instance(etcd.endpoint, valkey.url, **options)) for _ in range(2)]
        for instance in instances:
            assert instance.get("/stock/reduce")[0] == 200
        with backend.lock("/seckill/lock/all"):
            crowds = [Crowd(instance.port, BUYERS // 2) for instance in instances]

            def overloaded() -> bool:
                said = [str(instance.get("/metrics")[1]) for instance in instances]
                full = f'seckill_queue_buyers{{sku="default"}} {QUEUE_MAX}.0'
                return all(full in text and 'seckill_purchases_total{outcome="QueueFull"}' in text for text in said)

            eventually(overloaded, "the queues are full", 4 * WITHIN_S)
        answers = crowds[0].answers() + crowds[1].answers()
        assert set(answers) == {"200", "503"}, answers
        assert answers.total() == BUYERS
        assert answers["200"] >= 2 * QUEUE_MAX
        assert asyncio.run(lucky()) == answers["200"] + 2
        for instance in instances:
            assert psutil.Process(instance.pid).memory_info().rss < MEMORY_MAX_BYTES
            assert instance.get("/readyz")[0] == 200
            assert Crowd(instance.port, 300).answers() == {"200": 300}


@pytest.fixture(scope="module")
def guarded(etcd: EtcdMember, valkey_server: Valkey) -> Iterator[Instance]:
    """An instance that is quickly impatient, and takes few connections."""
    options = {"request_timeout_ms": 1000, "connections_max": 60}
    with Instance(etcd.endpoint, valkey_server.url, **options) as instance:
        yield instance


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"GET /stock HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        b"\r\n",
        f"PUT /stock HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 100\r\n\r\nhalf".encode(),
    ],
    ids=["nothing", "half a head", "an empty line", "half a body"],
)
def test_a_request_that_does_not_arrive(guarded: Instance, part: bytes) -> None:
    """Connections that send nothing, or half a request, are given up; the others are served meanwhile."""
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(guarded)) for _ in range(30)]
        for one in slow:
            one.sendall(part)
        assert guarded.get("/healthz") == (200, "ok")
        for one in slow:
            said = read_all(one)
            assert said.startswith(b"HTTP/1.1 408 "), said
    assert guarded.get("/healthz") == (200, "ok")


@pytest.mark.parametrize("ended", [True, False], ids=["whole", "endless"])
def test_a_head_that_is_too_long(guarded: Instance, ended: bool) -> None:
    """More than the limit is 431, whether the head ends some day or not."""
    with closing(connect(guarded)) as one:
        one.sendall(b"GET /stock HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * HEAD_MAX_BYTES)
        if ended:
            one.sendall(b"\r\n\r\n")
        assert read_all(one).startswith(b"HTTP/1.1 431 ")
    with closing(connect(guarded)) as one:
        one.sendall(b"".join([b"GET /healthz HTTP/1.1\r\n", b"Host: x\r\nX-Long: ", b"x" * 8000, b"\r\n\r\n"]))
        assert one.recv(100).startswith(b"HTTP/1.1 200 ")


def test_what_is_sent_after_a_request(guarded: Instance) -> None:
    """Of what comes before the answer nothing is kept; after the answer an empty line doesn't hold the connection."""
    with closing(connect(guarded)) as one:
        one.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 500 + b"and this is no HTTP\r\n\r\n")
        said = read_all(one)
        assert said.count(b"HTTP/1.1 ") == 1
        assert said.startswith(b"HTTP/1.1 200 ")
    with closing(connect(guarded)) as one:
        one.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert one.recv(1000).startswith(b"HTTP/1.1 200 ")
        one.sendall(b"\r\n")
        assert b"HTTP/1.1 408 " in read_all(one)


def test_a_body_that_nobody_needs(guarded: Instance) -> None:
    """The answer doesn't wait for it, and the connection doesn't wait for it for ever."""
    with closing(connect(guarded)) as one:
        one.sendall(b"POST /stock/reduce?sku=nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
        said = read_all(one)
        assert said.startswith(b"HTTP/1.1 404 ")
        assert said.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("head", ["a: b\r\n" * 100_000, "a: " + "b" * 600_000], ids=["many", "one"])
def test_trailers_are_not_headers(guarded: Instance, head: str) -> None:
    """What follows a body in chunks changes nothing about the request, and is not kept."""
    start = b"GET /stock/reduce?sku=nowhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    before = psutil.Process(guarded.pid).memory_info().rss
    with closing(connect(guarded)) as one:
        with suppress(OSError):  # it doesn't listen for so long
            one.sendall(start + head.encode())
        assert read_all(one).count(b"HTTP/1.1 ") <= 1
    with closing(connect(guarded)) as one:
        one.sendall(start + b"Accept: application/json\r\nIdempotency-Key: " + 300 * b"x" + b"\r\n\r\n")
        assert one.recv(1000).startswith(b"HTTP/1.1 404 ")
    assert psutil.Process(guarded.pid).memory_info().rss - before < 20_000_000


def test_an_upgrade_is_not_taken(guarded: Instance) -> None:
    """We speak no WebSocket: a request that offers it is answered as any other, and is the last of its connection."""
    offer = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n"
    with closing(connect(guarded)) as one:
        one.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + offer + b"\r\n")
        assert read_all(one).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
@pytest.mark.parametrize("path", ["/stock", "/stock/reduce"])
def test_a_body_that_is_too_large(guarded: Instance, path: str, declared: bool) -> None:
    """A problem, 413; nothing of it is kept."""

    def chunks() -> Iterator[bytes]:
        for _ in range(3 * BODY_MAX_BYTES // 8192):
            yield b"[" * 8192

    content = b"".join(chunks()) if declared else chunks()
    method = "PUT" if path == "/stock" else "POST"
    answer = httpx.request(method, guarded.url + path, content=content, headers=OPERATOR)
    if path == "/stock/reduce" and not declared:
        assert answer.status_code in (200, 404)  # it asks for no body, so none is read
    else:
        assert answer.status_code == 413
        assert answer.json()["type"] == "urn:seckill:http-413"


def test_too_many_connections(guarded: Instance) -> None:
    """One more than are welcome is told to come again, at once; when some are gone there is room."""
    with ExitStack() as stack:
        held = [stack.enter_context(connect(guarded)) for _ in range(60)]
        for one in held:
            one.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert one.recv(1000).startswith(b"HTTP/1.1 200 ")
        with closing(connect(guarded)) as refused:
            said = read_all(refused).lower()
            assert said.startswith(b"http/1.1 503 ")
            assert b"retry-after: 1" in said
    eventually(lambda: guarded.get("/healthz") == (200, "ok"), "there is room again")


def connect(instance: Instance) -> socket.socket:
    return socket.create_connection(("127.0.0.1", instance.port), timeout=WITHIN_S)


def read_all(one: socket.socket) -> bytes:
    """Until the other side closes."""
    said = b""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        try:
            part = one.recv(65536)
        except ConnectionResetError:
            return said
        if not part:
            return said
        said += part
    raise AssertionError(f"not closed, said {said!r}")
