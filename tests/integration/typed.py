"""Uses of the package as a type checker sees them; nothing here is run.

A wrong use has a comment that has its error ignored. Where the types are too loose to see it, mypy (strict) finds that
the comment is not used.
"""

from typing import assert_type

import fencelock
from fencelock import (
    AsyncElection,
    AsyncLeadership,
    AsyncLocks,
    AsyncOnce,
    AsyncSession,
    Contender,
    DistributedLock,
    Election,
    Grant,
    Leader,
    Leadership,
    LockBackend,
    Once,
    Session,
    Start,
    aio,
    connect,
    fence,
    kit,
    testing,
)


def for_threads() -> None:
    locks = assert_type(connect("etcd://127.0.0.1:2379", ttl_s=5), LockBackend)
    connect("etcd://127.0.0.1:2379", ttl=5)  # type: ignore[call-arg]
    connect("etcd://127.0.0.1:2379", instrument=("prometheus", "structlog"), raise_on_lost_release=False)
    connect("etcd://127.0.0.1:2379", raise_on_lost_release="no")  # type: ignore[arg-type]
    assert_type(testing.MemoryLocks(ttl_s=5).server.steal("/x", for_s=2), int)
    with assert_type(locks.lock("/x"), DistributedLock).holding(wait_s=1, hold_max_s=5, owner="me") as grant:
        assert_type(grant, Grant).ensure_held()
    locks.lock("/x", ttl_s=5).acquire(wait=1)  # type: ignore[call-arg]

    with assert_type(locks.session(ttl_s=10), Session) as session, session.lock("/y") as grant:
        assert_type(grant.token + session.lease_id, int)
    session.lokc("/y")  # type: ignore[attr-defined]
    session.lock("/y", 2, 3)  # type: ignore[call-arg]
    locks.session(ttl=10)  # type: ignore[call-arg]

    election = assert_type(locks.election("/e"), Election)
    with assert_type(election.campaign("me", wait_s=1), Leadership) as leadership:
        leadership.proclaim("me")
    assert_type(election.leader(), Leader | None)
    assert_type(next(election.observe()), Leader | None)
    assert_type(session.election("/e"), Election)
    election.campain("me")  # type: ignore[attr-defined]
    leadership.proclam("me")  # type: ignore[attr-defined]
    election.leader().value  # type: ignore[union-attr]  # noqa: B018

    with assert_type(locks.once("/o", every_s=60), Once) as start:
        assert_type(start, Start | None)
    start.token  # type: ignore[union-attr]  # noqa: B018
    locks.once("/o", every=60)  # type: ignore[call-arg]
    assert_type(locks.once("/o", slot="a")(report)(1, of="it"), str | None)
    locks.once("/o", slot="a")(report)("1")  # type: ignore[call-arg, arg-type]

    with locks.leading("/p", "me") as term:
        assert_type(assert_type(term, Leadership).trusted_s, float)
    assert_type(locks.leading("/p")(lead)(1), str)
    locks.leading("/p")(lead)()  # type: ignore[call-arg]
    locks.leading("/p")(report)  # type: ignore[arg-type]


def report(number: int, *, of: str) -> str:
    return of * number


def lead(term: Leadership, number: int) -> str:
    return f"{term.token}: {number}"


async def report_as_task(number: int) -> str:
    return str(number)


async def lead_as_task(term: AsyncLeadership, number: int) -> str:
    return f"{term.token}: {number}"


async def for_tasks() -> None:
    locks = assert_type(aio.connect("etcd://127.0.0.1:2379"), AsyncLocks)
    async with locks.session(ttl_s=10) as session, session.lock("/y") as grant:
        assert_type(session, AsyncSession).ensure_held()
        assert_type(grant, Grant)
    session.lokc("/y")  # type: ignore[attr-defined]
    locks.session(lease="1")  # type: ignore[call-arg]

    election = assert_type(locks.election("/e"), AsyncElection)
    async with election.campaigning("me") as leadership:
        await assert_type(leadership, AsyncLeadership).proclaim("me")
    async for leader in election.observe():
        assert_type(leader, Leader | None)
    assert_type(await election.candidates(), list[Contender])
    leadership.proclam("me")  # type: ignore[attr-defined]

    async with assert_type(locks.once("/o", slot="a"), AsyncOnce) as start, locks.leading("/p") as term:
        assert_type(start, Start | None)
        assert_type(term, AsyncLeadership)
    assert_type(await locks.once("/o", slot="a")(report_as_task)(1), str | None)
    locks.once("/o", slot="a")(report)  # type: ignore[arg-type]
    assert_type(await locks.leading("/p")(lead_as_task)(1), str)
    await locks.leading("/p")(lead_as_task)("1")  # type: ignore[arg-type]
    with locks.lock("/x"):  # type: ignore[attr-defined]
        pass


class Try(kit.Attempt[kit.Connection]):
    async def take(self, wait: kit.Wait) -> Grant | float:
        return Grant(self.name, "1", "own", kit.Lease(self.name, self, 5))  # type: ignore[arg-type]

    async def renew(self, timeout_s: float) -> bool:
        return assert_type(self.connection.terms.ttl_s, float) > 0

    async def end(self, timeout_s: float) -> None: ...


def of_ones_own() -> None:
    fencelock.register("own", "module:Class")
    fencelock.register("own", LockBackend)
    fencelock.register("own", Try)  # type: ignore[arg-type]


def names() -> None:
    kit.Attemt  # type: ignore[attr-defined]  # noqa: B018
    fencelock.conect("etcd://127.0.0.1:2379")  # type: ignore[attr-defined]
    fence.RedisFense  # type: ignore[attr-defined]  # noqa: B018
