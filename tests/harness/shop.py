"""The service for the tests: in this process, and as instances of their own."""

import asyncio
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from app.embedded.process import Process, free_port
from app.main import create_app, open_shop
from app.sale import Answer, Purchase, Shop
from app.settings import PREFIX, Settings

TOKEN = "open-sesame"


def settings(etcd: str, store: str, /, **others: Any) -> Settings:
    """Settings for servers of the tests; nothing from the environment or from .env."""
    values = {"etcd_endpoints": [etcd], "redis_url": store, "instance": "test", "admin_token": TOKEN} | others
    return Settings(_env_file=None, **values)


@asynccontextmanager
async def shop(etcd: str, store: str, /, **others: Any) -> AsyncIterator[Shop]:
    """A shop without HTTP."""
    async with open_shop(settings(etcd, store, **others)) as opened:
        yield opened


async def buy(shop: Shop, count: int, **fields: Any) -> list[Answer | BaseException]:
    """So many at once; what each got, errors included."""
    return list(await asyncio.gather(*(shop.buy(Purchase(**fields)) for _ in range(count)), return_exceptions=True))


@asynccontextmanager
async def client(etcd: str, store: str, /, **others: Any) -> AsyncIterator[httpx.AsyncClient]:
    """The web service in this process, with its lifespan, and a client of it."""
    app = create_app(settings(etcd, store, **others))
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx.ASGITransport(app=with_state, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as http:
            yield http


class Instance(Process):
    """An instance of the service: `seckill serve` on a free port."""

    def __init__(self, etcd: str, store: str, /, *, wait_ready: bool = True, **others: Any) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        variables = {"ETCD_ENDPOINTS": etcd, "REDIS_URL": store, "ADMIN_TOKEN": TOKEN, "INSTANCE": str(self.port)}
        variables |= {name.upper(): str(value) for name, value in others.items()}
        argv = [sys.executable, "-m", "app", "serve", "--port", str(self.port)]
        path = "/readyz" if wait_ready else "/healthz"
        super().__init__(
            "instance",
            lambda _: argv,
            env=os.environ | {PREFIX + name: value for name, value in variables.items()},
            ready=lambda: self.get(path)[0] == 200,
            ready_within_s=30,
        )

    def get(self, path: str) -> tuple[int, Any]:
        """Status and body of a GET; status 0 when nobody answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                return answer.status, _body(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _body(error.read())
        except OSError as error:
            return 0, str(error)


def _body(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode()
