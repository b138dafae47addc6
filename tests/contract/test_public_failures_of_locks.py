"""What went wrong in public with other lock libraries, on each lock system. docs/lock-failures.md lists all of it."""

import ast
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import DistributedLock, Grant, LockBackend, LockLost, LockUnavailable, connect
from fencelock.registry import CLASSES, backend_class
from lab.servers.lock_servers import LockServers
from lab.torture.proxy import Proxy
from tests.contract.lock_contract import InThread, by_day
from tests.harness.servers import optional
from tests.harness.waiting import WITHIN_S, eventually

TTL_S = 2  # the shortest that etcd grants by its defaults
CALM_S = 10  # where no lease runs out, however busy the machine is


def those_with(promise: str) -> pytest.MarkDecorator:
    """Run the test on each lock system that promises this."""
    names = [name for name in CLASSES if getattr(backend_class(name).guarantees, promise)]
    return pytest.mark.parametrize("servers", by_day(names), indirect=True, scope="module")


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest) -> Iterator[LockServers]:
    with optional(lambda: LockServers(request.param)) as servers:
        yield servers


@pytest.fixture
def locks(servers: LockServers) -> Iterator[LockBackend]:
    with connect(servers.url, ttl_s=CALM_S) as locks:
        yield locks


@pytest.fixture
def other(servers: LockServers, name: str) -> Iterator[DistributedLock]:
    """The lock, as another program has it."""
    with connect(servers.url, ttl_s=CALM_S) as locks:
        yield locks.lock(name)


@pytest.fixture
def name() -> str:
    return f"/test/{uuid.uuid4().hex}"


@contextmanager
def behind(servers: LockServers, **options: Any) -> Iterator[tuple[list[Proxy], LockBackend]]:
    """Locks whose paths to their servers can be harmed."""
    with ExitStack() as stack:
        paths = [stack.enter_context(Proxy(port)) for port in servers.ports]
        yield paths, stack.enter_context(connect(servers.url_by([path.port for path in paths]), **options))
        for path in paths:
            path.restore()


def lose_an_answer(path: Proxy) -> None:
    """Have the next request arrive, and cut the path in the place of its answer."""
    path.lose_answer_to(b"")


@those_with("forces_release")
def test_a_lock_that_was_removed_and_is_taken_again_is_renewed(
    servers: LockServers, locks: LockBackend, name: str
) -> None:
    """In the same process, whose renewal still knows the grant of before (redisson/redisson#3712)."""
    with connect(servers.url, ttl_s=TTL_S) as brief:
        lock = brief.lock(name)
        first = lock.acquire(owner="first")
        locks.force_release(name)
        second = lock.acquire(owner="second", wait_s=WITHIN_S)
        until = second.deadline + TTL_S
        eventually(lambda: first.lost and (second.lost or second.deadline > until), "it was renewed for a TTL")
        second.ensure_held()
        with pytest.raises(LockLost):
            lock.release(owner="first")
        assert locks.lock(name).try_acquire() is None
        lock.release(owner="second")


@those_with("leases")
def test_a_release_whose_answer_was_lost_ends_no_later_grant(
    servers: LockServers, other: DistributedLock, name: str
) -> None:
    """It is sent again, and by then the same process may have the lock anew (etcd-io/etcd#22082)."""
    with behind(servers, ttl_s=CALM_S, timeout_s=2, renew_ratio=0.1) as (paths, locks):
        lock = locks.lock(name)
        first = lock.acquire(owner="first")
        lose_an_answer(paths[0])
        lock.release(owner="first")
        for path in paths:
            path.restore()

        held: list[Grant] = []

        def again() -> bool:
            with suppress(LockUnavailable):  # over a connection that was cut
                held.append(lock.acquire(owner="second", wait_s=1))
            return bool(held)

        eventually(again, "the path is there again", CALM_S + WITHIN_S)
        (second,) = held
        assert second.token > first.token or not locks.guarantees.fencing
        until = second.deadline
        eventually(lambda: second.lost or second.deadline > until, "it was renewed")
        second.ensure_held()
        assert other.try_acquire() is None
        lock.release(owner="second")


@those_with("survives_cut")
def test_a_renewal_whose_answer_was_lost_is_no_loss(servers: LockServers, other: DistributedLock, name: str) -> None:
    """The next renewal finds what the one before it has done (cirello-io/dynamolock#280)."""
    with behind(servers, ttl_s=CALM_S, timeout_s=2, renew_ratio=0.1) as (paths, locks), locks.lock(name) as grant:
        for _ in range(3):
            lose_an_answer(paths[0])
            assert paths[0].struck.wait(WITHIN_S)
            until = grant.deadline
            paths[0].restore()
            eventually(lambda until=until: grant.lost or grant.deadline > until, "it was renewed")
            grant.ensure_held()
        assert other.try_acquire() is None


@those_with("leases")
def test_a_deadline_counts_from_before_the_request(servers: LockServers, name: str) -> None:
    """An answer that takes long makes no grant last longer here than on the server (go-redsync/redsync#72)."""
    with behind(servers, ttl_s=60, timeout_s=20) as (paths, locks):
        with locks.lock(name):
            pass  # what is only done once is done
        late_s = 0.3 if servers.url.startswith("redlock") else 1  # its calls have half a second
        for path in paths:
            path.answer_delay_s = late_s
        grant = locks.lock(name).acquire(owner="me", wait_s=WITHIN_S)
        assert grant.trusted_s < 60 - 0.9 * late_s
        for path in paths:
            path.answer_delay_s = 0
        if locks.guarantees.forces_release:
            locks.force_release(name)


@those_with("leases")
def test_a_release_during_a_renewal_is_the_end(servers: LockServers, other: DistributedLock, name: str) -> None:
    """Neither the renewal under way nor one that follows it makes the lock anew (redisson#7272, and others')."""
    with behind(servers, ttl_s=CALM_S, renew_ratio=0.05) as (paths, locks):
        lock = locks.lock(name)
        for _ in range(3):
            lock.acquire(owner="me", wait_s=WITHIN_S)
            paths[0].stall_at(b"")
            assert paths[0].struck.wait(WITHIN_S)  # by the renewal
            releasing = InThread(lambda: lock.release(owner="me"))
            paths[0].restore()
            releasing.result()
            with other.holding(wait_s=WITHIN_S):
                assert len(other.contenders()) == 1
        assert other.contenders() == []


@pytest.mark.slow
@those_with("leases")
def test_one_renewer_serves_many_locks(servers: LockServers, name: str) -> None:
    """Sixty that are held at once are all renewed in time, for longer than their TTL (lukas-krecan/ShedLock#1587)."""
    with connect(servers.url, ttl_s=6) as locks:
        held = [(lock := locks.lock(f"{name}-{number}"), lock.acquire()) for number in range(60)]
        until = max(grant.deadline for _, grant in held) + locks.ttl_s

        def renewed() -> bool:
            return all(grant.lost or grant.deadline > until for _, grant in held)

        eventually(renewed, "each was renewed for a TTL", 4 * locks.ttl_s)
        assert not [grant.lease.reason for _, grant in held if grant.lost]
        for lock, _ in held:
            lock.release()


def test_no_check_is_an_assertion() -> None:
    """`python -O` takes none of them away (wolph/portalocker#144)."""
    for file in Path(fencelock.__file__).parent.rglob("*.py"):
        assert not [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Assert)], file
