"""Instances, and a browser to look at their pages with."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from playwright.sync_api import Browser, expect

from lab.servers import EtcdMember, Valkey
from tests.harness.browser import Visitors, chromium
from tests.harness.shop import Instance
from tests.harness.waiting import WITHIN_S

Start = Callable[..., Instance]

expect.set_options(timeout=WITHIN_S * 1_000)


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

        def start_one(**others: Any) -> Instance:
            return stack.enter_context(Instance(etcd.endpoint, valkey_server.url, **others))

        yield start_one


@pytest.fixture
def visitors(browser: Browser, start: Start) -> Iterator[Visitors]:
    """People who look at pages; afterwards nothing may have gone wrong in any of them."""
    people = Visitors(browser)
    yield people
    people.leave()
    assert people.unforgiven() == []
