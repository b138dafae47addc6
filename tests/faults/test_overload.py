"""Too many buyers, and misused connections, meet bounded memory, an immediate refusal, and full service right after."""

import asyncio
import json
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any, BinaryIO

import httpx
import psutil
import pytest

from app.web.body_limit import BODY_MAX_BYTES
from app.web.connection_limits import HEAD_MAX_BYTES
from fencelock.etcd.backend import EtcdBackend
from lab.servers import EtcdMember, Valkey
from lab.servers.process import Process, free_port
from tests.harness.crowd import Crowd
from tests.harness.shop import TOKEN, Instance, shop
from tests.harness.waiting import WITHIN_S, eventually

BUYERS = 20_000
QUEUE_MAX = 2_000
MEMORY_MAX_BYTES = 500_000_000
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.slow
def test_twenty_thousand_buyers_at_once(etcd: EtcdMember, valkey: Valkey) -> None:
    """While the lock is elsewhere, two full queues refuse more buyers with 503; then all who wait are served."""

    async def fill() -> None:
        async with shop(etcd.endpoint, valkey.url) as one:
            await one.set_stock("default", 100_000)

    async def lucky() -> int:
        async with shop(etcd.endpoint, valkey.url) as one:
            assert (await one.audit("default")).violations == []
            return int((await one.level("default")).lucky)

    asyncio.run(fill())
    options: dict[str, Any] = {"queue_max": QUEUE_MAX, "purchase_timeout_ms": 240_000, "request_timeout_ms": 240_000}
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

            eventually(overloaded, "the queues are full", 12 * WITHIN_S)
        answers = crowds[0].answers() + crowds[1].answers()
        assert set(answers) == {"200", "503"}, answers
        assert answers.total() == BUYERS
        assert answers["200"] >= 2 * QUEUE_MAX
        assert asyncio.run(lucky()) == answers["200"] + 2
        for instance in instances:
            assert psutil.Process(instance.pid).memory_info().rss < MEMORY_MAX_BYTES
            assert instance.get("/readyz")[0] == 200
            assert Crowd(instance.port, 300).answers() == {"200": 300}


@pytest.mark.slow
def test_a_crowd_at_a_cold_instance(etcd: EtcdMember, valkey: Valkey) -> None:
    """When a sale opens, thousands ask for an item that is not cached yet: nobody is refused for that."""

    async def fill() -> None:
        async with shop(etcd.endpoint, valkey.url) as one:
            await one.set_stock("default", 100_000)

    asyncio.run(fill())
    patient: dict[str, Any] = {"purchase_timeout_ms": 60_000, "request_timeout_ms": 60_000}
    with Instance(etcd.endpoint, valkey.url, wait_ready=False, **patient) as instance:
        assert Crowd(instance.port, 3000).answers() == {"200": 3000}


@pytest.fixture(scope="module")
def guarded(etcd: EtcdMember, valkey_server: Valkey) -> Iterator[Instance]:
    """Start an instance with short time-outs and few connections."""
    options: dict[str, Any] = {"request_timeout_ms": 1000, "connections_max": 60}
    with Instance(etcd.endpoint, valkey_server.url, **options) as instance:
        yield instance


HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


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
    """Connections that send nothing, or half a request, are closed; others are served meanwhile."""
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(guarded)) for _ in range(30)]
        for one in slow:
            one.sendall(part)
        assert guarded.get("/healthz") == (200, "ok")
        for one in slow:
            said = read_all(one)
            assert said.startswith(b"HTTP/1.1 408 "), said
    assert guarded.get("/healthz") == (200, "ok")


def test_an_empty_line_does_not_hold_a_connection(guarded: Instance) -> None:
    """Neither an empty line nor other bytes that begin no request keep a connection open after an answer."""
    with closing(connect(guarded)) as one:
        one.sendall(HEALTHZ)
        assert one.recv(1000).startswith(b"HTTP/1.1 200 ")
        one.sendall(b"\r\n")
        assert b"HTTP/1.1 408 " in read_all(one)


@pytest.mark.parametrize("ended", [True, False], ids=["whole", "endless"])
def test_a_head_that_is_too_long(guarded: Instance, ended: bool) -> None:
    """A head beyond the limit gets 431, whether it ends some day or not."""
    with closing(connect(guarded)) as one:
        one.sendall(
            b"GET /stock HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * HEAD_MAX_BYTES + (b"\r\n\r\n" if ended else b"")
        )
        said = read_all(one)
        assert said.startswith(b"HTTP/1.1 431 ")
        assert b'"type":"urn:seckill:request-header-fields-too-large"' in said
    with closing(connect(guarded)) as one:
        one.sendall(b"".join([b"GET /healthz HTTP/1.1\r\n", b"Host: x\r\nX-Long: ", b"x" * 8000, b"\r\n\r\n"]))
        assert one.recv(100).startswith(b"HTTP/1.1 200 ")


def test_a_body_is_no_part_of_the_next_head(etcd: EtcdMember, valkey: Valkey) -> None:
    """A large body does not count against the request after it."""
    body = b"[" * (2 * HEAD_MAX_BYTES)
    with (
        Instance(etcd.endpoint, valkey.url, request_timeout_ms=60_000) as patient,
        closing(connect(patient)) as one,
        one.makefile("rb") as answers,
    ):
        head = f"PUT /stock HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n"
        one.sendall(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        assert answers.readline() + answers.readline() == b"HTTP/1.1 100 Continue\r\n\r\n"
        one.sendall(body)
        assert read_answer(answers)[0] == 422
        one.sendall(HEALTHZ[:10])
        assert patient.get("/healthz") == (200, "ok")
        one.sendall(HEALTHZ[10:])
        assert read_answer(answers) == (200, b"ok")


@pytest.mark.parametrize(
    ("head", "status"), [("POST /stock/reduce", 422), ("GET /stock?sku=nowhere", 404)], ids=["refused", "not looked at"]
)
def test_a_body_that_nobody_needs(guarded: Instance, head: str, status: int) -> None:
    """Neither the answer nor the connection waits for ever for an unneeded body."""
    with closing(connect(guarded)) as one:
        one.sendall(f"{head} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf".encode())
        said = read_all(one)
        assert said.startswith(f"HTTP/1.1 {status} ".encode())
        assert said.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("trailers", ["a: b\r\n" * 100_000, "a: " + "b" * 600_000], ids=["many", "one"])
def test_trailers_are_not_headers(guarded: Instance, trailers: str) -> None:
    """Trailers behind a chunked body change nothing about the request, and are not kept."""
    chunked = b"HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    before = psutil.Process(guarded.pid).memory_info().rss
    with closing(connect(guarded)) as one:
        with suppress(OSError):  # the server does not read for so long
            one.sendall(b"GET /stock?sku=nowhere " + chunked + trailers.encode())
        assert read_all(one).count(b"HTTP/1.1 ") <= 1
    for request, status in ((b"GET /stock?sku=nowhere ", 404), (b"GET /orders?sku=nowhere ", 401)):
        with closing(connect(guarded)) as one:
            one.sendall(request + chunked + f"Authorization: Bearer {TOKEN}\r\nX-Long: {300 * 'x'}\r\n\r\n".encode())
            assert one.recv(1000).startswith(f"HTTP/1.1 {status} ".encode())
    assert psutil.Process(guarded.pid).memory_info().rss - before < 20_000_000


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
def test_an_upgrade_is_not_taken(guarded: Instance, protocol: str) -> None:
    """A request to upgrade the protocol is answered as any other, without a log line, and ends its connection."""
    offer = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {protocol}\r\nHTTP2-Settings: AAMAAABk\r\n"
    lines = guarded.last_lines(1000)
    with closing(connect(guarded)) as one:
        one.sendall(f"GET /healthz HTTP/1.1\r\nHost: x\r\n{offer}\r\n".encode())
        said = read_all(one).lower()
        assert said.startswith(b"http/1.1 200 ")
        assert b"connection: close\r\n" in said
    assert guarded.last_lines(1000) == lines


def test_bodies_that_do_not_come_take_no_places(etcd: EtcdMember, valkey: Valkey) -> None:
    """Many clients that announce a body and send none, authorized or not, keep nobody from reading or logging in."""
    rights = f"Authorization: Bearer {TOKEN}\r\n"
    heads = [f"PUT /stock HTTP/1.1\r\n{rights}", "PUT /stock HTTP/1.1\r\n", "POST /control/login HTTP/1.1\r\n"]
    with Instance(etcd.endpoint, valkey.url, readers_max=3) as instance, ExitStack() as stack:
        httpx.put(f"{instance.url}/stock", json={"stock": 5}, headers=OPERATOR).raise_for_status()
        for number in range(60):
            one = stack.enter_context(closing(connect(instance)))
            one.sendall(f"{heads[number % 3]}Host: x\r\nContent-Length: 100\r\n\r\nx".encode())
        for path in ("/healthz", "/readyz", "/stock", "/"):
            assert instance.get(path)[0] == 200
        assert httpx.put(f"{instance.url}/stock", json={"stock": 6}, headers=OPERATOR).status_code == 200
        assert httpx.post(f"{instance.url}/control/login", data={"token": TOKEN}).status_code == 303
        refused = httpx.put(f"{instance.url}/stock", content=b"x" * 10**6)
        assert refused.status_code == 401


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
@pytest.mark.parametrize(("method", "path", "status"), [("PUT", "/stock", 413), ("POST", "/stock/reduce", 422)])
def test_a_body_that_is_too_large(guarded: Instance, method: str, path: str, status: int, declared: bool) -> None:
    """A body above the limit is refused with 413, and a purchase's body with 422 whatever its size."""

    def chunks() -> Iterator[bytes]:
        for _ in range(3 * BODY_MAX_BYTES // 8192):
            yield b"[" * 8192

    content = b"".join(chunks()) if declared else chunks()
    answer = httpx.request(method, guarded.url + path, content=content, headers=OPERATOR)
    assert answer.status_code == status
    assert answer.json()["type"] == ("urn:seckill:http-413" if status == 413 else "urn:seckill:invalid-request")


STOCK = b"GET /stock HTTP/1.1\r\nHost: x\r\n\r\n"


def test_too_many_connections(guarded: Instance) -> None:
    """Above the limit a request gets 503, but for a look at the instance; when some have left there is room."""
    with ExitStack() as stack:
        for _ in range(60):
            one = stack.enter_context(connect(guarded))
            one.sendall(HEALTHZ)
            assert one.recv(1000).startswith(b"HTTP/1.1 200 ")
        silent = [stack.enter_context(connect(guarded)) for _ in range(70)]
        assert all(read_all(one).startswith(b"HTTP/1.1 503 ") for one in silent[:20])  # the oldest make room
        for path in ("/healthz", "/readyz", "/metrics"):
            assert guarded.get(path)[0] == 200
        with closing(connect(guarded)) as refused:
            refused.sendall(STOCK)
            said = read_all(refused).lower()
            assert said.startswith(b"http/1.1 503 ")
            assert b"retry-after: 1" in said
        waiting = [stack.enter_context(connect(guarded)) for _ in range(40)]
        one.close()

        def has_room() -> bool:
            late = waiting.pop()
            late.sendall(STOCK)
            return not late.recv(100).startswith(b"HTTP/1.1 503 ")

        eventually(has_room, "there is room again")


def test_operators_are_not_behind_the_limit_of_buyers(etcd: EtcdMember, valkey: Valkey) -> None:
    """On the operator's port all is answered while buyers have taken each connection."""
    port = free_port()
    with (
        Instance(etcd.endpoint, valkey.url, connections_max=5, operator_port=port, wait_ready=False) as instance,
        ExitStack() as stack,
    ):
        look = f"http://127.0.0.1:{port}"
        eventually(lambda: httpx.get(f"{look}/readyz").status_code == 200, "it is ready")
        for _ in range(60):
            stack.enter_context(connect(instance))
        for path in ("/healthz", "/readyz", "/metrics", "/log"):
            assert httpx.get(look + path, headers=OPERATOR).status_code == 200


# -- pipelining: requests that are sent before those ahead of them are answered ----------------------------------------


def test_what_is_no_http_behind_a_request(guarded: Instance) -> None:
    """Bytes that are not HTTP end the connection, after the request before them has its answer."""
    with closing(connect(guarded)) as one:
        one.sendall(HEALTHZ + b"and this is no HTTP\r\n\r\n")
        said = read_all(one)
        assert said.startswith(b"HTTP/1.1 200 ")
        assert said.count(b"HTTP/1.1 ") == 1


def test_a_client_that_never_stops_asking(guarded: Instance) -> None:
    """A client that never stops sending gets one answer and loses its connection."""
    requests = 2000 * b"GET /static/uplot-1.6.32.js HTTP/1.1\r\nHost: x\r\n\r\n"
    before = psutil.Process(guarded.pid).memory_info().rss
    with closing(connect(guarded)) as one, pytest.raises(OSError):
        for _ in range(1000):
            one.sendall(requests)
    assert psutil.Process(guarded.pid).memory_info().rss - before < 20_000_000
    assert guarded.get("/healthz") == (200, "ok")


@pytest.mark.slow
def test_who_reads_nothing_loses_the_connection(etcd: EtcdMember, valkey: Valkey) -> None:
    """Clients that send and never read keep their connections for ten seconds; others are served; SIGTERM is not late.

    That holds for answers that fit into the socket's buffers, and for one that is stuck half-way.
    """
    big = b"GET /static/uplot-1.6.32.js HTTP/1.1\r\nHost: x\r\n\r\n"
    with Instance(etcd.endpoint, valkey.url, connections_max=40, drain_timeout_s=600) as instance, ExitStack() as stack:

        def deaf(count: int, times: int) -> None:
            ones = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
            for one in ones:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                one.connect(("127.0.0.1", instance.port))
            for _ in range(times):
                for one in ones:
                    one.sendall(big)
                time.sleep(0.2)  # a request that is sent before the answer to the previous one would be dropped

        process = psutil.Process(instance.pid)

        def open_connections() -> int:
            return sum(
                one.status == psutil.CONN_ESTABLISHED
                for one in process.net_connections("tcp4")
                if one.laddr.port == instance.port
            )

        deaf(20, 1)
        deaf(10, 3)
        assert open_connections() >= 25
        eventually(lambda: open_connections() <= 2, "they have lost their connections")
        assert instance.get("/healthz") == (200, "ok")
        deaf(20, 2)
        instance.signal(signal.SIGTERM)
        eventually(lambda: not instance.running, "it has left, long before its drain would be over")


@pytest.mark.parametrize("end", ["reset", "closed"])
@pytest.mark.slow
def test_a_buyer_who_has_hung_up(etcd: EtcdMember, valkey: Valkey, end: str) -> None:
    """A buyer who hung up is not sold to without a key, as nobody could learn of the order; with one they may retry."""
    with (
        Instance(etcd.endpoint, valkey.url, purchase_timeout_ms=60_000) as instance,
        closing(EtcdBackend([etcd.endpoint], ttl_s=30)) as backend,
    ):
        httpx.put(
            f"{instance.url}/stock", json={"stock": 5, "new_sale": True, "forget_orders": "all"}, headers=OPERATOR
        ).raise_for_status()

        def waiting(number: int) -> bool:
            text = str(instance.get("/metrics")[1])
            return f'seckill_queue_buyers{{sku="default"}} {number}.0' in text

        with backend.lock("/seckill/lock/all"), ExitStack() as stack:
            gone = [stack.enter_context(closing(connect(instance))) for _ in range(6)]
            for number, one in enumerate(gone):
                key = f"Idempotency-Key: k{number}\r\n" if number % 2 else ""
                one.sendall(f"POST /stock/reduce HTTP/1.1\r\nHost: x\r\n{key}\r\n".encode())
            eventually(lambda: waiting(6), "they wait")
            for one in gone:
                if end == "reset":
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.close()
            eventually(
                lambda: (
                    not any(
                        one.status == psutil.CONN_ESTABLISHED and one.raddr
                        for one in psutil.Process(instance.pid).net_connections("tcp4")
                        if one.laddr.port == instance.port
                    )
                ),
                "the instance has noticed",
            )
        eventually(lambda: waiting(0), "they were served, or not")
        eventually(lambda: instance.get("/stock")[1]["lucky"] >= 3, "the stock is told")
        level = instance.get("/stock")[1]
        assert (level["stock"], level["lucky"]) == (2, 3)
        again = httpx.post(
            f"{instance.url}/stock/reduce", headers={"Idempotency-Key": "k1", "Accept": "application/json"}
        )
        assert again.json()["outcome"] == "sold"
        assert again.json()["replayed"]


def test_the_limit_of_open_files_is_raised() -> None:
    """A shell's usual limit is below what the system allows, and each buyer is a file."""
    code = "from app.server import raise_file_limit; print(raise_file_limit())"
    argv = ["sh", "-c", 'ulimit -Sn 128; exec "$@"', "sh", sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) > 128


@pytest.mark.exhaustive
def test_readers_do_not_stop_the_sale(etcd: EtcdMember, valkey: Valkey) -> None:
    """However fast a crowd of readers asks, each buyer is served in time, and readers get 503."""
    items = [f"item-{number}" for number in range(300)]

    async def fill() -> None:
        async with shop(etcd.endpoint, valkey.url) as one:
            for sku in ("default", *items):
                await one.set_stock(sku, 1_000_000)

    async def buy(http: httpx.AsyncClient, told: Counter[str]) -> None:
        while told.total() < 1000:
            answer = await http.post("/stock/reduce")
            told[answer.headers.get("x-seckill-outcome") or answer.text] += 1

    async def sale(url: str) -> Counter[str]:
        told = Counter[str]()
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            await asyncio.gather(*(buy(http, told) for _ in range(20)))
        return told

    asyncio.run(fill())
    with Instance(etcd.endpoint, valkey.url, readers_max=20) as instance:
        unknown = "/orders/default~1-1~" + 32 * "a"
        looks = ["/stock:3000", "/metrics:500", "/readyz:500", "/stock?sku=item-7:500", f"{unknown}:500"]
        argv = [sys.executable, "-m", "loadtest.bench.crowd", "--urls", instance.url, "--get", *looks]
        argv += ["--listeners", "300", "--items", str(len(items))]
        crowd = Process("crowd", lambda _: argv, ready=lambda: "looking" in crowd.last_lines(1), ready_within_s=60)
        with crowd:
            assert set(asyncio.run(sale(instance.url))) == {"sold"}  # no 503, and no unknown outcome
            crowd.signal(signal.SIGTERM)
            eventually(lambda: not crowd.running, "the crowd has gone")
            told = json.loads(crowd.last_lines(1))
    assert told["/stock 200"] > 0
    assert told["/stock 503"] > 0
    # 408 and a lost connection: the crowd itself was too slow to send what it asks.
    assert {what.rpartition(" ")[2] for what in told} <= {"200", "404", "503", "dropped", "408", "lost"}


def connect(instance: Instance) -> socket.socket:
    return socket.create_connection(("127.0.0.1", instance.port), timeout=WITHIN_S)


def read_all(one: socket.socket) -> bytes:
    """Read until the other side closes."""
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


def read_answer(answers: BinaryIO) -> tuple[int, bytes]:
    """Return status and body of the next answer."""
    status = int(answers.readline().split()[1])
    headers = dict(line.lower().strip().split(b": ", 1) for line in iter(answers.readline, b"\r\n"))
    return status, answers.read(int(headers[b"content-length"]))
