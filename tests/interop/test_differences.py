"""Other clients' locks differ from ours. docs/interop.md describes how, and these tests are the evidence.

A failure after a new version of a client is no fault of ours: the client has changed, so change the page.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from lab.servers import EtcdMember, Valkey, ZooKeeper
from tests.harness.servers import where_installed
from tests.harness.waiting import eventually
from tests.interop import builds, pairs
from tests.interop.pairs import TTL_S, Pair
from tests.interop.together import SLACK_S, Crowd, marks

pytestmark = marks

Gather = Callable[[Pair], Crowd]


@pytest.fixture
def gather() -> Iterator[Gather]:
    """Start a crowd for a pair."""
    where_installed(builds.java_folder)
    where_installed(builds.go_program)
    with ExitStack() as stack:
        yield lambda pair: stack.enter_context(Crowd(pair))


def test_jetcds_cancelled_wait_stays_in_line(gather: Gather, etcd: EtcdMember) -> None:
    """A cancelled wait of jetcd's gets the lock in the end, for nobody, until the program revokes its lease or ends."""
    crowd = gather(pairs.jetcd(etcd))
    ours, theirs = crowd.start("ours", "theirs")
    ours.ask("acquire", -1)
    crowd.arrive(theirs, "interrupt", 2000)
    assert theirs.answer() == ["interrupted"]
    ours.ask("release")
    assert ours.ask("acquire", TTL_S * 1000 + 500) == ["timeout"]
    assert [(one.holds, one.owner) for one in crowd.contenders()] == [(True, {})]
    theirs.kill()
    assert ours.ask("acquire", (TTL_S + SLACK_S) * 1000)[0] == "granted"


def _reentrant(gather: Gather, pair: Pair) -> bool:
    """Return whether another client's lock is still held after two acquires and one release."""
    crowd = gather(pair)
    ours, theirs = crowd.start("ours", "theirs")
    for words in (("acquire", 1000), ("acquire", 1000), ("release",)):
        assert theirs.ask(*words)[0] in ("granted", "released")
    return ours.ask("acquire", 1000)[0] == "timeout"


def test_go_and_jetcd_count_no_acquires(gather: Gather, etcd: EtcdMember) -> None:
    """A client that acquires twice in Go or jetcd loses the lock with the first release."""
    assert not _reentrant(gather, pairs.go_etcd(etcd))
    assert not _reentrant(gather, pairs.jetcd(etcd))


def test_redisson_and_curator_count_acquires(gather: Gather, valkey: Valkey, zookeeper: ZooKeeper) -> None:
    """Redisson and Curator count acquires, as we do."""
    assert _reentrant(gather, pairs.redisson(valkey))
    assert _reentrant(gather, pairs.redisson_fair(valkey))
    assert _reentrant(gather, pairs.curator(zookeeper))


def test_curator_believes_after_a_freeze(gather: Gather, zookeeper: ZooKeeper) -> None:
    """After the session has expired and the lock is ours, Curator's mutex still says that it is held."""
    crowd = gather(pairs.curator(zookeeper))
    ours, theirs = crowd.start("ours", "theirs")
    theirs.ask("acquire", -1)
    theirs.pause()
    assert ours.ask("acquire", (TTL_S + SLACK_S) * 1000)[0] == "granted"
    theirs.resume()
    # It has had time to notice: a listener for that is notified.
    assert theirs.is_silent(for_s=1)
    assert theirs.ask("holds") == ["holds", "true"]
    assert [one.owner.get("pid") for one in crowd.contenders()] == [ours.pid]


def test_redissons_lost_waiters_add_up(gather: Gather, valkey: Valkey) -> None:
    """An interrupted and a killed waiter cost the waiters behind them a wait time-out each."""
    wait_s = 6
    crowd = gather(pairs.redisson_fair(valkey, wait_s=wait_s))
    holder, interrupted, killed, behind = crowd.start("ours", "theirs", "theirs", "ours")
    holder.ask("acquire", -1)
    crowd.arrive(interrupted, "interrupt", 3000)
    began = time.monotonic()
    crowd.arrive(killed, "acquire", -1)
    crowd.arrive(behind, "acquire", -1)
    killed.kill()
    assert interrupted.answer() == ["interrupted"]
    holder.ask("release")
    assert behind.answer(TTL_S + 2 * wait_s + SLACK_S)[0] == "granted"
    # The rest of the holder's TTL, and two time-outs; with one it would have been TTL_S + wait_s at most.
    assert time.monotonic() - began > 2 * wait_s


def test_redissons_patient_waiter_loses_its_place(gather: Gather, valkey: Valkey) -> None:
    """A living waiter that waits longer than its wait time-out is overtaken by later ones."""
    crowd = gather(pairs.redisson_fair(valkey, wait_s=1))
    holder, theirs, ours = crowd.start("ours", "theirs", "ours")
    holder.ask("acquire", -1)
    crowd.arrive(theirs, "acquire", -1)
    crowd.arrive(ours, "acquire", -1)

    def in_line() -> list[int | None]:
        return [one.owner.get("pid") for one in crowd.contenders()]

    assert in_line() == [holder.pid, None, ours.pid]
    eventually(lambda: in_line()[1] == ours.pid, "ours is ahead")
    assert theirs.is_silent()
