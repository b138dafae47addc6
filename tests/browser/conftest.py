"""Instances, and a browser to look at their pages with."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
import redis
from playwright.sync_api import Browser, expect

from lab.servers import EtcdMember, Valkey
from tests.harness.browser import Visitors, chromium
from tests.harness.shop import TOKEN, Instance
from tests.harness.waiting import WITHIN_S

Start = Callable[..., Instance]

expect.set_options(timeout=4_000 * WITHIN_S)

OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
PLENTY = 100
_numbers = itertools.count(1)


class Item:
    """Something to sell, which no other test sells at this time; at any of some instances."""

    def __init__(self, instance: Instance, stock: int | None = PLENTY, sku: str | None = None) -> None:
        self._url = instance.url
        self.sku = sku or f"item-{next(_numbers)}"
        if stock is not None:
            self.set(stock, new_sale=True, forget_orders="all")

    def set(self, stock: int, **how: Any) -> None:
        self._change({"stock": stock, **how})

    def terms(self, **terms: Any) -> None:
        """Give it terms of its own, from now on; its stock stays."""
        self._change(terms)

    def _change(self, change: dict[str, Any]) -> None:
        httpx.put(f"{self._url}/stock", params={"sku": self.sku}, json=change, headers=OPERATOR).raise_for_status()

    def at(self, instance: Instance) -> str:
        """The address of its page."""
        return f"{instance.url}/?sku={self.sku}"

    def room(self, instance: Instance) -> str:
        """The link that opens its control room to anybody who has it."""
        return f"{instance.url}/control?sku={self.sku}&token={TOKEN}"

    def sell(self, quantity: int) -> None:
        """Sell to somebody without a browser."""
        wish: dict[str, str | int] = {"sku": self.sku, "quantity": quantity, "buyer": f"b{next(_numbers)}"}
        answer = httpx.post(f"{self._url}/stock/reduce", params=wish, timeout=30)
        assert answer.headers["x-seckill-outcome"] == "sold"

    def orders(self) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self._url}/orders", params={"sku": self.sku, "limit": 1000}, headers=OPERATOR)
        found: list[dict[str, Any]] = answer.raise_for_status().json()["orders"]
        return found


# Not for the session: while it is open, its event loop is this thread's, and other tests run one of their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def start(etcd: EtcdMember, valkey_server: Valkey) -> Iterator[Start]:
    """Starts instances on one etcd and one store, which is empty at first. Each test has an item of its own."""
    with redis.Redis(port=valkey_server.port) as store:
        store.flushall()
    with ExitStack() as stack:

        def start_one(*, alone: str = "", **others: Any) -> Instance:
            """Start one; `alone`: on a database and on locks of its own, of that number."""
            store = valkey_server.url.removesuffix("/0") + f"/{alone or 0}"
            own: dict[str, Any] = {"lock_prefix": f"/seckill/{alone}/lock"} if alone else {}
            return stack.enter_context(Instance(etcd.endpoint, store, **own, **others))

        yield start_one


@pytest.fixture
def visitors(browser: Browser, start: Start) -> Iterator[Visitors]:
    """People who look at pages; afterwards nothing may have gone wrong in any of them."""
    people = Visitors(browser)
    yield people
    people.leave()
    assert people.unforgiven() == []
