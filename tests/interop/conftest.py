"""Start the servers that our locks and the other clients share."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from lab.servers import Valkey, ZooKeeper
from tests.harness.servers import optional

pytest.register_assert_rewrite("tests.interop.together", "tests.interop.client")


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeper]:
    """Start ZooKeeper 3.8, as Debian packages it."""
    with optional(ZooKeeper) as server:
        yield server


@pytest.fixture(scope="session")
def valkeys() -> Iterator[list[Valkey]]:
    """Start three independent Valkey servers."""
    with ExitStack() as stack:
        yield [stack.enter_context(Valkey(f"valkey-{number}")) for number in (1, 2, 3)]
