"""What the tests of the web service share: a client of it, in this process."""

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
    """A `seckill up` of whoever runs the tests is not found by them, nor one of theirs by the user's commands."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture
async def open_client(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[OpenClient]:
    """Opens the service, with the settings that it is given and 5 units in stock; answers a client of it."""
    async with AsyncExitStack() as stack:

        async def open_it(**others: Any) -> httpx.AsyncClient:
            http = await stack.enter_async_context(client(etcd.endpoint, valkey.url, **others))
            answer = await http.put("/stock", json={"stock": 5}, headers=OPERATOR)
            assert answer.status_code == 200
            return http

        yield open_it
