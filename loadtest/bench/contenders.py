"""The applications that the sale is compared with, each run as two processes like the sale itself.

    python -m loadtest.bench.contenders nothing 8080

`nothing`: the same parameters, declared as FastAPI has it, and no work: the ceiling of an endpoint that is written in
the usual way. `lua`: no lock; one atomic script for each request, which is what a sceptic would do instead. `articles`:
the articles' demo; for each request a lease and a lock, a read, a decrement and two writes, in a thread. `canned`: no
framework; a fixed answer, to see what the load generator itself can do.

On PostgreSQL, what one would write there, with an order for each purchase and a key that is unique: `update`: one
statement, which takes a unit if there is one; `skip-locked`: one statement, which takes a row, of a row for each unit,
that nobody else is about to take; `advisory`: an advisory lock until the end of the transaction, and reads and writes.
"""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, Final, LiteralString

import psycopg
import redis
import redis.asyncio
import uvicorn
import uvloop
from fastapi import FastAPI, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, Response

import fencelock
from app.orders import DEFAULT_SKU, SKU_PATTERN

Sku = Annotated[str, Query(pattern=f"^{SKU_PATTERN}$")]
Quantity = Annotated[int, Query(ge=1)]
Buyer = Annotated[str | None, Query(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
Key = Annotated[str | None, Header(min_length=1, max_length=100, pattern=r"^[\x21-\x7e]+$")]

_TAKE = """
if ARGV[2] ~= "" then
  local before = redis.call("HGET", KEYS[3], ARGV[2])
  if before then return before end
end
local stock = tonumber(redis.call("GET", KEYS[1]))
if stock < tonumber(ARGV[1]) then return 0 end
redis.call("DECRBY", KEYS[1], ARGV[1])
redis.call("INCRBY", KEYS[2], ARGV[1])
if ARGV[2] ~= "" then redis.call("HSET", KEYS[3], ARGV[2], 1) end
return 1
"""


TABLES: Final[LiteralString] = """
CREATE TABLE items (sku text PRIMARY KEY, stock bigint NOT NULL CHECK (stock >= 0));
CREATE TABLE units (sku text, unit bigint, sold boolean NOT NULL DEFAULT false, PRIMARY KEY (sku, unit));
CREATE INDEX ON units (sku) WHERE NOT sold;
CREATE TABLE orders (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, sku text NOT NULL, quantity bigint NOT NULL, key text UNIQUE
);
"""
_ORDER: Final[LiteralString] = "INSERT INTO orders (sku, quantity, key) SELECT sku, %(quantity)s, %(key)s FROM "
_UPDATE: Final[LiteralString] = f"""
WITH taken AS (
  UPDATE items SET stock = stock - %(quantity)s WHERE sku = %(sku)s AND stock >= %(quantity)s RETURNING sku
)
{_ORDER} taken
"""
_SKIP_LOCKED: Final[LiteralString] = f"""
WITH free AS (
  SELECT sku, unit FROM units WHERE sku = %(sku)s AND NOT sold LIMIT %(quantity)s FOR UPDATE SKIP LOCKED
), taken AS (
  UPDATE units SET sold = true FROM free WHERE units.sku = free.sku AND units.unit = free.unit
    AND (SELECT count(*) FROM free) = %(quantity)s RETURNING units.sku
)
{_ORDER} (SELECT DISTINCT sku FROM taken) AS taken
"""
_ADVISORY: Final[tuple[LiteralString, ...]] = (
    "SELECT pg_advisory_xact_lock(hashtextextended(%(sku)s, 0))",
    "SELECT stock FROM items WHERE sku = %(sku)s",
    "UPDATE items SET stock = stock - %(quantity)s WHERE sku = %(sku)s",
    f"{_ORDER} items WHERE sku = %(sku)s",
)
_SESSIONS: Final = 20  # a process; more would wait for each other


def _app(sell: Callable[[str, int, str | None], Awaitable[object]], close: Callable[[], Awaitable[object]]) -> FastAPI:
    """Return an application with the parameters of ours, declared as FastAPI has it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await close()

    app = FastAPI(lifespan=lifespan)

    @app.api_route("/stock/reduce", methods=["GET", "POST"])
    async def reduce(
        request: Request,
        sku: Sku = DEFAULT_SKU,
        quantity: Quantity = 1,
        buyer: Buyer = None,
        idempotency_key: Key = None,
    ) -> Response:
        await sell(sku, quantity, idempotency_key)
        return PlainTextResponse(f"{request.scope['server'][1]} reduce stock end!")

    return app


def nothing() -> FastAPI:
    """Return an application with the same parameters, and no work."""

    async def nothing(*_: object) -> None:
        pass

    return _app(nothing, nothing)


def lua() -> FastAPI:
    """Return one without a lock: an atomic script for each request, over a pool that is never too small."""
    store = redis.asyncio.Redis.from_url(os.environ["BENCH_STORE"], max_connections=600)
    take = store.register_script(_TAKE)

    async def sell(sku: str, quantity: int, key: str | None) -> None:
        await take(keys=[f"{sku}:stock", f"{sku}:lucky", f"{sku}:keys"], args=[quantity, key or ""])

    return _app(sell, store.aclose)


def articles() -> FastAPI:
    """Return one with a lock and a lease for each request, in a thread, and a bare read-decrement-write."""
    store = redis.Redis.from_url(os.environ["BENCH_STORE"])
    backend = fencelock.connect(os.environ["BENCH_LOCK"], ttl_s=30, timeout_s=30)

    def sell(sku: str, quantity: int) -> None:
        with backend.lock(f"/bench/articles/{sku}"):
            stock = int(store.get(f"{sku}:stock") or 0)
            if stock > 0:
                store.set(f"{sku}:stock", stock - quantity)
                store.incrby(f"{sku}:lucky", quantity)

    async def close() -> None:
        backend.close()
        store.close()

    return _app(lambda sku, quantity, _: run_in_threadpool(sell, sku, quantity), close)


class _Sessions:
    """Connections to PostgreSQL, made when they are needed; the one that was used last is used next."""

    def __init__(self) -> None:
        self._free: list[psycopg.AsyncConnection] = []
        self._room = asyncio.Semaphore(_SESSIONS)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[psycopg.AsyncConnection]:
        async with self._room:
            url = os.environ["BENCH_STORE"]
            session = self._free.pop() if self._free else await psycopg.AsyncConnection.connect(url, autocommit=True)
            try:
                yield session
            finally:
                self._free.append(session)

    async def close(self) -> None:
        for session in self._free:
            await session.close()


def _in_a_statement(statement: LiteralString) -> FastAPI:
    sessions = _Sessions()

    async def sell(sku: str, quantity: int, key: str | None) -> None:
        async with sessions.one() as session:
            with suppress(psycopg.errors.UniqueViolation):  # it has been sold to this key
                await session.execute(statement, {"sku": sku, "quantity": quantity, "key": key})

    return _app(sell, sessions.close)


def advisory() -> FastAPI:
    """Return one with PostgreSQL's own lock, and a transaction of a read and two writes."""
    sessions = _Sessions()
    lock, read, *writes = _ADVISORY

    async def sell(sku: str, quantity: int, key: str | None) -> None:
        values = {"sku": sku, "quantity": quantity, "key": key}
        with suppress(psycopg.errors.UniqueViolation):  # it has been sold to this key
            async with sessions.one() as session, session.transaction():
                await session.execute(lock, values)
                found = await (await session.execute(read, values)).fetchone()
                if found and found[0] >= quantity:
                    for write in writes:
                        await session.execute(write, values)

    return _app(sell, sessions.close)


_ANSWER: Final = b"8080 reduce stock end!"
_HEAD: Final[Any] = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-length", b"22"), (b"content-type", b"text/plain; charset=utf-8")],
}


async def asgi(scope: Any, _: Any, send: Any) -> None:
    """Answer without a framework and without work."""
    if scope["type"] == "http":
        await send(_HEAD)
        await send({"type": "http.response.body", "body": _ANSWER})


class _TellingTogether:
    """No framework and no work, but each request waits until all that came meanwhile are answered."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        loop = asyncio.get_running_loop()
        told = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._tell)
        self._waiting.append(told)
        await told
        await asgi(scope, receive, send)

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for told in waiting:
            told.set_result(None)


class _Canned(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        answer = b"HTTP/1.1 200 OK\r\ncontent-length: 23\r\ncontent-type: text/plain\r\n\r\n08080 reduce stock end!"
        self._transport.write(answer * data.count(b"\r\n\r\n"))


async def _serve_canned(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Canned, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


_MADE: Final[dict[str, Callable[[], Any]]] = {
    "nothing": nothing,
    "asgi": lambda: asgi,
    "asgi-wait": _TellingTogether,
    "lua": lua,
    "articles": articles,
    "update": lambda: _in_a_statement(_UPDATE),
    "skip-locked": lambda: _in_a_statement(_SKIP_LOCKED),
    "advisory": advisory,
}


def main() -> None:
    """Serve one of the applications."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=["canned", *_MADE])
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    if options.name == "canned":
        uvloop.run(_serve_canned(options.port))
    else:
        made = _MADE[options.name]()
        uvicorn.run(made, port=options.port, access_log=False, log_level="warning", backlog=4096)


if __name__ == "__main__":
    main()
