"""Run the service for the tests: in this process, and as separate instances."""

import asyncio
import json
import os
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import httpx

from app.main import create_app
from app.orders import Answer, Purchase
from app.server import prepare
from app.settings import PREFIX, Settings
from app.wiring import Sale, open_sale
from lab.servers.process import Process, free_port
from tests.harness.waiting import WITHIN_S, eventually

TOKEN = "open-sesame"


def settings(etcd: str, store: str, /, **others: Any) -> Settings:
    """Return settings for the tests' servers, without anything from the environment or from .env."""
    values = {"lock": lock_url(etcd), "store": store, "instance": "test", "admin_token": TOKEN} | others
    return Settings(_env_file=None, **values)


def lock_url(etcd: str) -> str:
    """Return SECKILL_LOCK for an etcd endpoint."""
    return f"etcd://{etcd.removeprefix('http://')}"


class Counter:
    """Both sides of a sale: the buyers' operations and the operator's."""

    def __init__(self, sale: Sale) -> None:
        self.sale = sale

    @property
    def sender(self) -> Any:
        """Return the candidate for the sender of the only, or the first, receiver."""
        return self.sale.senders[0]

    def __getattr__(self, name: str) -> Any:
        sides = (self.sale.shop, self.sale.stock, self.sale.orders, self.sale.readiness, self.sale.store, self.sale)
        return getattr(next((side for side in sides if hasattr(side, name)), self.sale), name)


@asynccontextmanager
async def shop(etcd: str, store: str, /, *, with_auditor: bool = False, **others: Any) -> AsyncIterator[Counter]:
    """Open a sale without HTTP, and without a candidate for auditor unless one is asked for."""
    async with open_sale(settings(etcd, store, **others), with_auditor=with_auditor) as sale:
        yield Counter(sale)


async def buy(shop: Any, count: int, **fields: Any) -> list[Answer | BaseException]:
    """Buy so many at once; return each answer, errors included."""
    return list(await asyncio.gather(*(shop.submit(Purchase(**fields)) for _ in range(count)), return_exceptions=True))


@asynccontextmanager
async def client(etcd: str, store: str, /, **others: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Run the web service in this process, with its lifespan, and yield a client of it."""
    app = create_app(settings(etcd, store, **others))
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx.ASGITransport(app=with_state, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as http:
            yield http


class Reached:
    """The address of an instance, on a free port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> tuple[int, Any]:
        """GET a path; return status and body, or status 0 without an answer."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                return answer.status, _body(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _body(error.read())
        except OSError as error:
            return 0, str(error)


class ThreadedInstance(Reached):
    """An instance in a thread of this process: a process costs a second of CPU, which most tests need not spend."""

    def __init__(self, etcd: str, store: str, /, **others: Any) -> None:
        super().__init__()
        values = {"port": self.port, "instance": str(self.port)} | others
        self._server, listeners = prepare(settings(etcd, store, **values))
        self._thread = threading.Thread(target=self._server.run, args=(listeners,), name="instance")

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            eventually(lambda: self.get("/readyz")[0] == 200 or not self._thread.is_alive(), "it is ready")
            assert self._thread.is_alive(), "it did not start: see its log"
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End as at SIGTERM."""
        self._server.should_exit = True
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive(), "it has not ended"


class Instance(Reached, Process):
    """An instance of the service: `seckill serve` on a free port; `under`: a program that runs it, if any."""

    def __init__(
        self, etcd: str, store: str, /, *, wait_ready: bool = True, under: Sequence[str] = (), **others: Any
    ) -> None:
        Reached.__init__(self)
        variables = {"LOCK": lock_url(etcd), "STORE": store, "ADMIN_TOKEN": TOKEN, "INSTANCE": str(self.port)}
        variables |= {name.upper(): str(value) for name, value in others.items()}
        argv = [*under, sys.executable, "-m", "app", "serve", "--port", str(self.port)]
        path = "/readyz" if wait_ready else "/healthz"
        Process.__init__(
            self,
            "instance",
            lambda _: argv,
            env=os.environ | {PREFIX + name: value for name, value in variables.items()},
            ready=lambda: self.get(path)[0] == 200,
            ready_within_s=90,
        )


def _body(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode()
