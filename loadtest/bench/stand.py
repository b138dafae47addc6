"""The stand: an etcd, a store, and the contenders, all started before anything is measured."""

import asyncio
import os
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import psutil
import psycopg
import redis
from psycopg import sql

from app.orders import DEFAULT_SKU, TermsChange
from app.settings import PREFIX, load
from app.stock import Fence
from app.wiring import Sale, open_sale
from fencelock import aio, connect
from lab.servers import EtcdMember, Postgres, Valkey
from lab.servers.process import Process, ProcessFailed, free_port
from loadtest.bench.contenders import TABLES

ROOT: Final = Path(__file__).parents[2]
PLENTY: Final = 10**9
_ROWS: Final = 200_000
_POSTGRES: Final = ("-c", "max_connections=200", "-c", "shared_buffers=128MB")  # the second is PostgreSQL's default
_FILLED_AT_ONCE: Final = 50
TOKEN: Final = "of-the-bench"
_STORE_CALLS: Final = ("cmdstat_eval", "cmdstat_evalsha")  # all calls of a sale; the rest is within the scripts


@dataclass(frozen=True)
class ComparedApp:
    """An application to compare.

    `settings`: ours, if it is this service; `stock`: the units that it sells; `pages`: control rooms that look on.
    """

    name: str
    what: str
    program: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    stock: int = PLENTY
    pages: int = 0


CONTENDERS: Final = {
    contender.name: contender
    for contender in (
        ComparedApp("asgi", "uvicorn alone, no work", "asgi"),
        ComparedApp("asgi-wait", "uvicorn alone, answered in groups", "asgi-wait"),
        ComparedApp("nothing", "FastAPI, the same parameters, no work", "nothing"),
        ComparedApp("lua", "no lock, an atomic script per request", "lua"),
        ComparedApp("articles", "a lock and a lease per request, as in the articles", "articles"),
        ComparedApp("batch_max=1", "this service, a lock per purchase", settings={"BATCH_MAX": "1"}),
        ComparedApp("default", "this service"),
        ComparedApp("20 pages", "this service, 20 control rooms open", pages=20),
        ComparedApp("holds", "this service, units are held and paid", settings={"GRACE_S": "0"}),
        ComparedApp("sold out", "this service, after the last unit", stock=0),
        ComparedApp("update", "no lock, UPDATE ... WHERE stock > 0 per request", "update"),
        ComparedApp("skip-locked", "a row per unit, FOR UPDATE SKIP LOCKED", "skip-locked", stock=_ROWS),
        ComparedApp("advisory", "an advisory lock and a transaction per request", "advisory"),
    )
}


class Running:
    """A contender with its instances. Its data in the store is apart from that of the others."""

    def __init__(self, contender: ComparedApp, instances: int, lock_url: str, store_url: str) -> None:
        self.contender = contender
        self._lock_url = lock_url
        self.store_url = store_url
        self._lock_prefix = f"/bench/{contender.name.replace(' ', '-')}"
        self.processes = [self._process(number) for number in range(instances)]

    def _process(self, number: int) -> "HttpProcess":
        port = free_port()
        env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        if self.contender.program is not None:
            env |= {"BENCH_LOCK": self._lock_url, "BENCH_STORE": self.store_url}
            argv = [sys.executable, "-m", "loadtest.bench.contenders", self.contender.program, str(port)]
        else:
            own = {
                "PORT": str(port),
                "LOCK": self._lock_url,
                "STORE": self.store_url,
                "LOCK_PREFIX": self._lock_prefix,
                "PURCHASE_TIMEOUT_MS": "60000",
                "ADMIN_TOKEN": TOKEN,
            }
            env |= {PREFIX + name: value for name, value in (own | self.contender.settings).items()}
            argv = [sys.executable, "-m", "app", "serve"]
        env["PYTHONPATH"] = str(ROOT)
        return HttpProcess(f"{self.contender.name}-{number}", port, argv, env)

    def urls(self, path: str = "/stock/reduce") -> list[str]:
        """Return the URLs of its instances."""
        return [f"http://127.0.0.1:{one.port}{path}" for one in self.processes]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Have its pages look on meanwhile, if it has any."""
        if not self.contender.pages:
            yield
            return
        argv = [sys.executable, "-m", "loadtest.bench.onlookers", "--pages", str(self.contender.pages)]
        argv += ["--token", TOKEN, "--urls", *self.urls("")]
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        pages = Process("pages", lambda _: argv, env=env, ready=lambda: "looking" in pages.last_lines(1))
        with pages:
            yield
            if not pages.running:
                raise ProcessFailed(f"the pages did not stay:\n{pages.last_lines()}")

    def fill(self, skus: tuple[str, ...] = (DEFAULT_SKU,), terms: TermsChange | None = None) -> None:
        """Begin a new sale; `terms`: of the first item."""
        if self.contender.program is not None and self.store_url.startswith("postgres"):
            with psycopg.connect(self.store_url, autocommit=True) as client:
                client.execute("DROP TABLE IF EXISTS items, units, orders")
                client.execute(TABLES)
                for sku in skus:
                    client.execute("INSERT INTO items VALUES (%s, %s)", (sku, self.contender.stock))
                    rows = "INSERT INTO units (sku, unit) SELECT %s, generate_series(1, %s)"
                    client.execute(rows, (sku, self.contender.stock if self.contender.stock < PLENTY else 0))
                client.execute("VACUUM ANALYZE")
            return
        if self.contender.program is not None:
            with redis.Redis.from_url(self.store_url) as client:
                for sku in skus:
                    client.mset({f"{sku}:stock": self.contender.stock, f"{sku}:lucky": 0})
                    client.delete(f"{sku}:keys")
            return

        async def set_stock() -> None:
            async with self._open_sale() as sale:
                await sale.stock.set_stock(skus[0], self.contender.stock, new_sale=True, wait_s=60, terms=terms or {})
                lock_name = sale.shop.lock_name(skus[0])
                async with aio.connect(self._lock_url, ttl_s=60) as locks, locks.lock(lock_name) as grant:
                    fence = Fence(grant.token, grant.source)
                    for first in range(1, len(skus), _FILLED_AT_ONCE):
                        some = skus[first : first + _FILLED_AT_ONCE]
                        await asyncio.gather(
                            *(sale.store.set_stock(sku, fence, self.contender.stock, new_sale=True) for sku in some)
                        )

        asyncio.run(set_stock())

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Keep the lock meanwhile, so that buyers wait."""

        async def lock_name() -> str:
            async with self._open_sale() as sale:
                return sale.shop.lock_name(DEFAULT_SKU)

        backend = connect(self._lock_url, ttl_s=60)
        try:
            with backend.lock(asyncio.run(lock_name())):
                yield
        finally:
            backend.close()

    def _open_sale(self) -> AbstractAsyncContextManager[Sale]:
        return open_sale(load(lock=self._lock_url, store=self.store_url, lock_prefix=self._lock_prefix))


class HttpProcess(Process):
    """A process that serves HTTP on `port`."""

    def __init__(self, name: str, port: int, argv: list[str], env: dict[str, str]) -> None:
        self.port = port
        super().__init__(name.replace(" ", "-"), lambda _: argv, ready=self._answers, env=env, ready_within_s=30)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/openapi.json", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Stand:
    """The servers, and the contenders on them: etcd and a Valkey, or with `postgres` one PostgreSQL for everything."""

    def __init__(self, *, postgres: bool = False) -> None:
        self._all = ExitStack()
        self.etcd = EtcdMember()
        self.store = Valkey(options=["--databases", "64"])
        self.postgres = Postgres(durable=True, options=_POSTGRES) if postgres else None
        self._databases = 0

    def __enter__(self) -> Self:
        for server in (self.etcd, self.store) if self.postgres is None else (self.postgres,):
            self._all.enter_context(server)
        return self

    def __exit__(self, *_: object) -> None:
        self._all.close()

    def start(self, contender: ComparedApp, instances: int = 2) -> Running:
        """Start a contender's instances, which are ready afterwards, and end with the stand."""
        lock_url = f"etcd://{self.etcd.endpoint.partition('://')[2]}"
        store_url = f"redis://127.0.0.1:{self.store.port}/{self._databases}"
        self._databases += 1
        if self.postgres is not None:
            name = f"bench_{self._databases}"
            with psycopg.connect(self.postgres.url, autocommit=True) as client:
                client.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            lock_url = store_url = f"{self.postgres.url.rpartition('/')[0]}/{name}"
        running = Running(contender, instances, lock_url, store_url)
        for one in running.processes:
            self._all.callback(one.stop)
            one.start(wait=False)
        for one in running.processes:
            one.wait_ready()
        return running

    def durability(self) -> str:
        """Return what PostgreSQL does before it answers a commit of any of them, as a sentence; empty without it."""
        if self.postgres is None:
            return ""
        said = "SELECT name || ' is ' || setting FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit')"
        with psycopg.connect(self.postgres.url, autocommit=True) as client:
            return f" In PostgreSQL {' and '.join(words for (words,) in client.execute(said))}."

    def cpu_s(self, running: Running) -> float:
        """Return the CPU time that a contender's instances and the servers have taken so far, in seconds."""
        times = [psutil.Process(one.pid).cpu_times() for one in (*running.processes, self.etcd, self.store)]
        return float(sum(one.user + one.system for one in times))

    def calls(self) -> tuple[int, int]:
        """Return how many calls etcd and the store have served so far, without streams and inspection."""
        with urllib.request.urlopen(f"{self.etcd.endpoint}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        etcd = sum(
            int(float(line.rpartition(" ")[2])) for line in lines if line.startswith("grpc_server_handled_total")
        )
        with redis.Redis.from_url(self.store.url) as client:
            stats = client.info("commandstats")
        return etcd, sum(int(stats[name]["calls"]) for name in _STORE_CALLS if name in stats)
