"""The applications that the sale is compared with, each run as two processes like the sale itself.

    python -m loadtest.bench.contenders nothing 8080

`nothing`: the same parameters, declared as FastAPI has it, and no work: the ceiling of an endpoint that is written in
the usual way. `lua`: no lock; one atomic script for each request, which is what a sceptic would do instead. `articles`:
the articles' demo; for each request a lease and a lock, a read, a decrement and two writes, in a thread. `canned`: no
framework; a fixed answer, to see what the load generator itself can do.
"""

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

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
