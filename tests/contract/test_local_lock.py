"""The lock of one process keeps the contract as far as a process goes; beyond that it is no lock."""

from typing import Any

import pytest

from fencelock import Grant, LockBackend, local
from fencelock.local import LocalBackend
from tests.contract.lock_contract import TTL_S, LockContract, LockSystem
from tests.harness.worker import Worker


class LocalSystem(LockSystem):
    backend = "fencelock.local:LocalBackend"

    def options(self, ttl_s: float) -> dict[str, Any]:
        return {"ttl_s": ttl_s}

    def open(self, ttl_s: float, **more: Any) -> LockBackend:
        return LocalBackend(**self.options(ttl_s), **more)

    def delete_key(self, key: str) -> None:
        queue = local._queues[key.rpartition("/")[0]]
        for place in list(queue):
            if place.key == key:
                local._leave(key.rpartition("/")[0], place)

    def end_lease(self, grant: Grant) -> None:
        self.delete_key(grant.key)

    def leftovers(self) -> list[str]:
        return list(local._queues)


class TestLocalLock(LockContract):
    guarantees = LocalBackend.guarantees

    @pytest.fixture
    def system(self) -> LockSystem:
        return LocalSystem()


def test_two_processes_have_two_locks() -> None:
    """Both have "the" lock at once; only their tokens tell who came later, whichever process gave them."""
    system = LocalSystem()
    backend = system.open(TTL_S)
    with Worker(system.backend, system.options(TTL_S), "/test/both") as other, backend.lock("/test/both") as grant:
        theirs = other.ask("acquire")["token"]
        assert theirs > grant.token
    with backend.lock("/test/both") as later:
        assert later.token > theirs
    backend.close()
