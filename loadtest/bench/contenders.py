"""What the sale is compared with: each an application of its own, run as two processes like the sale itself.

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
from typing import Annotated, Any

import redis
import redis.asyncio
import uvicorn
import uvloop
from fastapi import FastAPI, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, Response

from app import locks
from app.stock import DEFAULT_SKU, SKU_PATTERN

Sku = Annotated[str, Query(pattern=f"^{SKU_PATTERN}$")]
Quantity = Annotated[int, Query(ge=1)]
Buyer = Annotated[str | None, Query(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")]
Key = Annotated[str | None, Header(min_length=1, max_length=100, pattern=r"^[\x21-\x7e]+$")]

_TAKE = """
local stock = tonumber(redis.call("GET", KEYS[1]))
if stock < tonumber(ARGV[1]) then return 0 end
redis.call("DECRBY", KEYS[1], ARGV[1])
redis.call("INCRBY", KEYS[2], ARGV[1])
return 1
"""


def _app(sell: Callable[[str, int], Awaitable[object]], close: Callable[[], Awaitable[object]]) -> FastAPI:
    """An endpoint with the parameters of ours, declared as FastAPI has it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await close()

    app = FastAPI(lifespan=lifespan)

    @app.get("/stock/reduce")
    async def reduce(
        request: Request,
        sku: Sku = DEFAULT_SKU,
        quantity: Quantity = 1,
        buyer: Buyer = None,
        idempotency_key: Key = None,
    ) -> Response:
        await sell(sku, quantity)
        return PlainTextResponse(f"{request.scope['server'][1]} reduce stock end!")

    return app


def nothing() -> FastAPI:
    """The same parameters, and no work."""

    async def nothing(*_: object) -> None:
        pass

    return _app(nothing, nothing)


def lua() -> FastAPI:
    """No lock: an atomic script for each request, over a pool of connections that is never too small."""
    store = redis.asyncio.Redis.from_url(os.environ["BENCH_STORE"], max_connections=600)
    take = store.register_script(_TAKE)
    return _app(lambda sku, quantity: take(keys=[f"{sku}:stock", f"{sku}:lucky"], args=[quantity]), store.aclose)


def articles() -> FastAPI:
    """A lock and a lease for each request, in a thread, and a bare read-decrement-write."""
    store = redis.Redis.from_url(os.environ["BENCH_STORE"])
    backend = locks.connect(os.environ["BENCH_LOCK"], ttl_s=30, timeout_s=30)

    def sell(sku: str, quantity: int) -> None:
        with backend.lock(f"/bench/articles/{sku}"):
            stock = int(store.get(f"{sku}:stock") or 0)  # type: ignore[arg-type]
            if stock > 0:
                store.set(f"{sku}:stock", stock - quantity)
                store.incrby(f"{sku}:lucky", quantity)

    async def close() -> None:
        backend.close()
        store.close()

    return _app(lambda sku, quantity: run_in_threadpool(sell, sku, quantity), close)


class _Canned(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        answer = b"HTTP/1.1 200 OK\r\ncontent-length: 23\r\ncontent-type: text/plain\r\n\r\n08080 reduce stock end!"
        self._transport.write(answer * data.count(b"\r\n\r\n"))


async def _serve_canned(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Canned, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def main() -> None:
    """Serve one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=["canned", "nothing", "lua", "articles"])
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    if options.name == "canned":
        uvloop.run(_serve_canned(options.port))
    else:
        made = {"nothing": nothing, "lua": lua, "articles": articles}[options.name]()
        uvicorn.run(made, port=options.port, access_log=False, log_level="warning", backlog=4096)


if __name__ == "__main__":
    main()
