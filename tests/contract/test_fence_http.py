"""The fence behind HTTP keeps the contract, under a real uvicorn; and what is its own: the header, slow clients."""

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from redis.asyncio import Redis

from fencelock.fence import FenceMiddleware, FenceRefused, Fences, Fencing, MemoryFences, RedisFences, fencing_header
from lab.servers import Valkey
from tests.contract.fence_contract import OLD, OTHER, OURS, FenceContract, FencedThing
from tests.harness.asgi import serving
from tests.harness.waiting import WITHIN_S, eventually

LARGE = [b"x" * 2**20] * 32  # more than the buffers of a connection hold


class Things:
    """An application that keeps what is put.

    `/slow` takes its time to write, `/poll` to read, and `/large` answers a write at length.
    """

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.writing: list[str] = []
        self.go_on = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.fences: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.fences.append(scope.get("fence"))
        self.loop = asyncio.get_running_loop()
        parts = [b""]
        if scope["method"] == "PUT":
            message = await receive()
            assert not message["more_body"]
            self.writing.append(path)
            if path == "/slow":
                await self.go_on.wait()
            self.values[path] = message["body"]
            parts = LARGE if path == "/large" else parts
        elif path == "/poll":
            await self.go_on.wait()
        status = 200 if path in self.values else 404
        await send({"type": "http.response.start", "status": status, "headers": []})
        if scope["method"] == "GET":
            parts = [self.values.get(path, b"")]
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def wake(self) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.go_on.set)


class Served:
    """Things behind a fence, behind a list of what has come in."""

    def __init__(self) -> None:
        self.url = ""
        self.client = httpx.Client(timeout=WITHIN_S)

    def begin(self, store: Fences, **options: Any) -> "Served":
        self.things = Things()
        self.fenced = FenceMiddleware(self.things, store, **options)
        self.came: list[tuple[str, str]] = []
        return self

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.came.append((scope["method"], scope["path"]))
        await self.fenced(scope, receive, send)

    def ask(self, method: str, path: str, token: int, body: bytes | None = None, source: str = OURS) -> httpx.Response:
        headers = fencing_header(Fencing(token, source))
        return self.client.request(method, self.url + path, headers=headers, content=body)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Under one uvicorn for all tests; each begins anew."""
    there = Served()
    with serving(there) as there.url, there.client:
        yield there


@pytest.fixture
def server(served: Served) -> Served:
    return served.begin(MemoryFences())


class BehindHttp(FencedThing):
    def __init__(self, server: Served) -> None:
        self.server = server

    def read(self, token: int, source: str = OURS, *, instead_of: str | None = None) -> str | None:
        answer = self.checked(self.server.ask("GET", "/thing", token, source=source), token, source)
        return None if answer.status_code == 404 else answer.text

    def write(self, token: int, value: str, source: str = OURS) -> None:
        answer = self.server.ask("PUT", "/thing", token, value.encode(), source)
        assert self.checked(answer, token, source).status_code == 200

    def checked(self, answer: httpx.Response, token: int, source: str) -> httpx.Response:
        if answer.status_code == 412:
            said = answer.json()
            kind, highest = said["type"].removeprefix("urn:fencelock:"), int(said.get("highest", 0))
            assert (kind, highest > token) in {("fence-refused", True), ("foreign-source", False)}
            raise FenceRefused(token, source, highest, source if highest else "")
        return answer


class InRedis:
    """Fences in Redis, with a client for each call: nobody could close one on uvicorn's event loop."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def raise_to(self, resource: str, token: int, source: str) -> None:
        async with Redis.from_url(self.url) as client:
            await RedisFences(client, instead_of=OLD).raise_to(resource, token, source)


class TestInMemory(FenceContract):
    @pytest.fixture
    def thing(self, served: Served) -> FencedThing:
        return BehindHttp(served.begin(MemoryFences(instead_of=OLD)))


class TestInRedis(FenceContract):
    @pytest.fixture
    def thing(self, served: Served, valkey: Valkey) -> FencedThing:
        return BehindHttp(served.begin(InRedis(valkey.url)))


# -- the header ----------------------------------------------------------------------------------------------------


def test_the_header_is_a_structured_field() -> None:
    """An Item of RFC 9651: a String with a parameter that is a String; quotes and strokes have a stroke before them."""
    assert fencing_header(Fencing(33, "etcd:1")) == {"Fencing-Token": '"33";source="etcd:1"'}
    assert fencing_header(Fencing(33, 'a"b\\c')) == {"Fencing-Token": r'"33";source="a\"b\\c"'}
    for token in (0, -1, 2**63):
        with pytest.raises(ValueError, match="from 1 to"):
            fencing_header(Fencing(token, OURS))


SOURCE = ';source="lock:ours"'
HOSTILE = {
    "missing": [],
    "twice": [f'"7"{SOURCE}', f'"7"{SOURCE}'],
    "two in one": [f'"7"{SOURCE}, "8"{SOURCE}'],
    "empty": [""],
    "garbage": ["\x01\x7f;;=,"],
    "not ASCII": [f'"7"{SOURCE}\xff'],
    "a source that is not ASCII": ['"7";source="\xe9"'],
    "an Integer": [f"7{SOURCE}"],
    "no number": [f'"seven"{SOURCE}'],
    "zero": [f'"0"{SOURCE}'],
    "a zero before": [f'"07"{SOURCE}'],
    "negative": [f'"-7"{SOURCE}'],
    "a fraction": [f'"7.0"{SOURCE}'],
    "hexadecimal": [f'"0x7"{SOURCE}'],
    "other digits": [f'"\xb2"{SOURCE}'],
    "too large": [f'"{2**63}"{SOURCE}'],
    "huge": [f'"{"9" * 5000}"{SOURCE}'],
    "no source": ['"7"'],
    "an empty source": ['"7";source=""'],
    "a long source": [f'"7";source="{"x" * 256}"'],
    "a Token as source": ['"7";source=lock'],
    "another parameter": [f'"7"{SOURCE};epoch="1"'],
    "an open text": ['"7";source="lock:ours'],
    "a stroke before a letter": [r'"7";source="lock\:ours"'],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_wrong_header_is_the_clients_mistake(server: Served, name: str) -> None:
    """A problem document names the field; the application is not called, and no fence is raised."""
    headers = [(b"Fencing-Token", value.encode("latin-1")) for value in HOSTILE[name]]
    for method in ("PUT", "POST", "PATCH", "DELETE", "GET", "HEAD"):
        if name == "missing" and method in {"GET", "HEAD"}:
            continue
        answer = server.client.request(method, server.url + "/thing", headers=headers)
        if name == "garbage" and answer.headers.get("content-type") != "application/problem+json":
            assert answer.status_code == 400  # the server itself has none of it
            continue
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/problem+json"
        if method != "HEAD":
            assert [error["field"] for error in answer.json()["errors"]] == ["Fencing-Token"]
            assert answer.json()["detail"].startswith("Fencing-Token ")
    assert not server.things.fences
    assert server.ask("PUT", "/thing", 1, b"first").status_code == 200


@pytest.mark.parametrize("value", [f'"7"{SOURCE}', f'"7"; {SOURCE[1:]}', f'  "7"{SOURCE}  '])
def test_blanks_where_the_rfc_has_them(server: Served, value: str) -> None:
    with closing(HTTPConnection(urlsplit(server.url).netloc, timeout=WITHIN_S)) as connection:
        connection.request("PUT", "/thing", b"a", {"fencing-token": value})
        assert connection.getresponse().status == 200
    assert server.things.fences == [Fencing(7, OURS)]


# -- what is fenced ------------------------------------------------------------------------------------------------


def test_who_has_no_lock_may_look(server: Served) -> None:
    """A GET without the header reads and raises nothing; OPTIONS is no write."""
    server.ask("PUT", "/thing", 7, b"a")
    assert server.client.get(server.url + "/thing").text == "a"
    assert server.client.options(server.url + "/thing").status_code == 200
    assert server.ask("HEAD", "/thing", 8).status_code == 200
    assert server.ask("PUT", "/thing", 7, b"late").status_code == 412


def test_each_path_is_a_resource_unless_one_says_otherwise(server: Served) -> None:
    server.ask("PUT", "/a", 8, b"a")
    assert server.ask("PUT", "/b", 7, b"b").status_code == 200
    server.begin(MemoryFences(), resource=lambda scope: None if scope["path"] == "/free" else "all")
    server.ask("PUT", "/a", 8, b"a")
    assert server.ask("PUT", "/b", 7, b"b").status_code == 412
    assert server.client.put(server.url + "/free", content=b"a").status_code == 200


def test_another_source_is_not_named(server: Served) -> None:
    """How a lock system is called is nobody's business; which token was seen is."""
    server.ask("PUT", "/thing", 2**53 + 1, b"a")
    answer = server.ask("PUT", "/thing", 2**53, b"late")
    assert answer.json()["highest"] == str(2**53 + 1)
    answer = server.ask("PUT", "/thing", 2**60, b"late", OTHER)
    assert answer.status_code == 412
    assert OURS not in answer.text


def test_a_store_that_fails_lets_nobody_in(server: Served) -> None:
    class Broken:
        async def raise_to(self, resource: str, token: int, source: str) -> None:
            raise OSError("the store is away")

    server.begin(Broken())
    assert server.ask("PUT", "/thing", 7, b"a").status_code == 500
    assert not server.things.writing


# -- slow ones -----------------------------------------------------------------------------------------------------


def test_a_write_under_way_is_read(server: Served) -> None:
    """A has passed the check and is not done. B's read waits for it, and so B knows of it."""
    with ThreadPoolExecutor() as pool:
        a = pool.submit(server.ask, "PUT", "/slow", 7, b"a")
        eventually(lambda: server.things.writing, "A writes")
        b = pool.submit(server.ask, "GET", "/slow", 8)
        eventually(lambda: ("GET", "/slow") in server.came, "B has come")
        for _ in range(10):  # more than B would need, and others wait for nothing
            assert server.ask("PUT", "/thing", 7, b"else").status_code == 200
        assert not b.done()
        server.things.wake()
        assert a.result().status_code == 200
        assert b.result().text == "a"
        assert server.ask("PUT", "/slow", 7, b"late").status_code == 412


def raw(server: Served, head: str, body: bytes = b"") -> socket.socket:
    """A connection on which this was sent."""
    connection = socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0), timeout=WITHIN_S)
    token = fencing_header(Fencing(7, OURS))["Fencing-Token"]
    connection.sendall(f"PUT {head}\r\nHost: x\r\nFencing-Token: {token}\r\n\r\n".encode() + body)
    return connection


def test_a_client_that_stands_still_in_its_body_stops_nobody(server: Served) -> None:
    """A paused in the middle of sending: B reads and writes, and the rest of A's body comes too late."""
    with closing(raw(server, "/thing HTTP/1.1\r\nContent-Length: 10", b"half")) as a:
        eventually(lambda: server.came, "A has come")
        assert server.ask("GET", "/thing", 8).status_code == 404
        assert server.ask("PUT", "/thing", 8, b"b").status_code == 200
        a.sendall(b"a half")
        assert a.recv(4096).startswith(b"HTTP/1.1 412 ")
    assert server.things.values["/thing"] == b"b"


def test_a_client_that_goes_in_the_middle_writes_nothing(server: Served) -> None:
    """The application is told so, and it wasn't given half a body."""
    with closing(raw(server, "/thing HTTP/1.1\r\nContent-Length: 10", b"half")):
        eventually(lambda: server.came, "A has come")
    eventually(lambda: server.things.fences, "the application was asked")
    assert server.ask("GET", "/thing", 8).status_code == 404
    assert not server.things.writing


def test_a_client_that_does_not_listen_stops_nobody(server: Served) -> None:
    """A's write is done when the answer begins; how long A takes to read it is no matter."""
    with closing(raw(server, "/large HTTP/1.1\r\nContent-Length: 1", b"a")):
        eventually(lambda: server.things.values, "A has written")
        assert server.ask("GET", "/large", 8).text == "a"


def test_a_read_that_takes_its_time_stops_nobody(server: Served) -> None:
    """It raised the fence first, and that is all that has to be one step."""
    with ThreadPoolExecutor() as pool:
        a = pool.submit(server.ask, "GET", "/poll", 7)
        eventually(lambda: server.things.fences, "A reads")
        assert server.ask("PUT", "/poll", 8, b"b").status_code == 200
        server.things.wake()
        assert a.result().text == "b"


def test_a_body_has_an_end(server: Served) -> None:
    """What is read before the check is bounded, also if its length is not told before."""
    server.begin(MemoryFences(), body_max=1000)
    assert server.ask("PUT", "/thing", 7, b"x" * 1000).status_code == 200
    assert server.ask("PUT", "/thing", 7, b"x" * 1001).status_code == 413
    with closing(raw(server, "/thing HTTP/1.1\r\nTransfer-Encoding: chunked", b"400\r\n" + b"x" * 1024)) as one:
        assert one.recv(4096).startswith(b"HTTP/1.1 413 ")
    assert len(server.things.values["/thing"]) == 1000
