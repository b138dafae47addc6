"""Define the fixtures of the web service's tests: a client of it, in this process."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from lab.servers import EtcdMember, Valkey
from tests.harness.shop import TOKEN, client

OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
OpenClient = Callable[..., Awaitable[httpx.AsyncClient]]


@pytest.fixture(autouse=True)
def no_sale_of_the_user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the user's `seckill up` from the tests, and the tests' own from the user's commands."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture
async def open_client(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[OpenClient]:
    """Open the service with the given settings and 5 units in stock; return a client of it."""
    async with AsyncExitStack() as stack:

        async def open_it(**others: Any) -> httpx.AsyncClient:
            http = await stack.enter_async_context(client(etcd.endpoint, valkey.url, **others))
            answer = await http.put("/stock", json={"stock": 5}, headers=OPERATOR)
            assert answer.status_code == 200
            return http

        yield open_it
