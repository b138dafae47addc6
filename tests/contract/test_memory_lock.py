"""The lock system in memory keeps the contract, where its time passes; where it stands still, a test moves it."""

import asyncio
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencelock import (
    Cancel,
    ConfigurationError,
    Grant,
    Hook,
    Leader,
    LockBackend,
    LockError,
    LockLost,
    LockTimeout,
    connect,
)
from fencelock.clock import now
from fencelock.registry import CLASSES
from fencelock.testing import MemoryLocks, MemoryServer
from tests.contract.core_contract import CoreContract
from tests.contract.lock_contract import InThread, LockSystem, Losses, hold_and_release
from tests.harness.forked import Forked
from tests.harness.waiting import WITHIN_S, eventually


class MemorySystem(LockSystem):
    backend = "fencelock.testing:MemoryLocks"

    def __init__(self) -> None:
        self.server = MemoryServer(clock=now)

    def options(self, ttl_s: float) -> dict[str, Any]:
        return {"ttl_s": ttl_s}

    def open(self, ttl_s: float, **more: Any) -> LockBackend:
        return MemoryLocks(self.server, **self.options(ttl_s), **more)

    def delete_key(self, key: str) -> None:
        found = [entry for entry, _ in self.server._entries() if entry.key == key]
        assert found
        self.server._remove(found[0])

    def end_lease(self, grant: Grant) -> None:
        self.delete_key(grant.key)

    def leftovers(self) -> list[str]:
        return [entry.key for entry, _ in self.server._entries()]


class TestMemoryLock(CoreContract):
    guarantees = MemoryLocks.guarantees

    @pytest.fixture
    def system(self) -> LockSystem:
        return MemorySystem()

    @pytest.mark.exhaustive
    async def test_a_child_works_anew(self, steady_backend: LockBackend, name: str) -> None:
        """A forked child has a server of its own, with tokens of another source; its parent's lock stays held."""

        def use(_: Any) -> tuple[int, str]:
            with steady_backend.lock(name).holding(wait_s=WITHIN_S) as grant:
                return grant.token, grant.source

        grant = await asyncio.to_thread(steady_backend.lock(name).acquire, owner="me")
        token, source = Forked(use).result()
        assert token > 0
        assert source != grant.source
        assert not grant.lost
        await asyncio.to_thread(steady_backend.force_release, name)


# -- its time stands still -------------------------------------------------------------------------------------------

NAME = "/jobs/nightly"


@pytest.fixture
def locks() -> Iterator[MemoryLocks]:
    with MemoryLocks(ttl_s=6) as locks:
        yield locks


def test_time_passes_only_by_advance(locks: MemoryLocks) -> None:
    """Deadlines are exact, and a holder whose process lives is renewed however far time goes."""
    hook = Losses()
    locks.hook = hook
    with locks.lock(NAME) as grant:
        assert (grant.deadline, grant.lease.left_s, locks.server.now()) == (6, 6, 0)
        locks.server.advance(1.5)
        assert (grant.lease.left_s, hook.renewals) == (4.5, [])
        locks.server.advance(0.5)
        assert (grant.deadline, hook.renewals) == (8, ["renewed"])
        locks.server.advance(3600)
        assert (grant.lost, locks.server.now(), len(hook.renewals)) == (False, 3602, 1801)
        assert locks.contenders(NAME)[0].waited_s == 3602
    assert hook.losses == []


@pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan"), True, "5"])
def test_time_can_not_stand_or_go_back_by_advance(locks: MemoryLocks, wrong: Any) -> None:
    """Nor go on for ever; a thief has the lock for no negative time."""
    with pytest.raises(ValueError, match="for_s must be a number of seconds, above 0"):
        locks.server.advance(wrong)
    with locks.lock(NAME) as grant:
        with pytest.raises(ValueError, match="for_s must be a number of seconds, 0 or more"):
            locks.server.steal(NAME, for_s=-1)
        assert [one.key for one in locks.contenders(NAME)] == [grant.key]


def test_renewals_go_on_when_their_pause_is_over(locks: MemoryLocks) -> None:
    """In time for a lease that has not ended yet, also if time goes further at once."""
    with locks.lock(NAME) as grant:
        locks._pause_renewal(3)
        locks.server.advance(10)
        grant.ensure_held()


def test_a_waiter_has_a_greater_token_than_the_thief_before_it(locks: MemoryLocks) -> None:
    """Although it came before the thief."""
    lock = locks.lock(NAME)
    lock.acquire(owner="me")
    waiting = InThread(lambda: hold_and_release(locks.lock(NAME)))
    eventually(lambda: len(lock.contenders()) == 2, "one waits")
    thief = locks.server.steal(NAME)
    locks.server.lose(NAME)
    assert waiting.result() > thief
    locks.server.advance(2)
    with pytest.raises(LockLost):
        lock.release(owner="me")


def test_a_holder_that_loses_its_lock_is_told_at_once(locks: MemoryLocks) -> None:
    """By callback, in the call that takes it; its hook hears of it once, and the next one in the queue has the lock."""
    hook, told = Losses(), list[str]()
    locks.hook = hook
    lock = locks.lock(NAME)
    grant = lock.acquire()
    grant.on_lost(lambda: told.append("lost"))
    waiting = InThread(lambda: hold_and_release(locks.lock(NAME)))
    eventually(lambda: len(lock.contenders()) == 2, "one waits")
    locks.server.lose(NAME)
    assert (told, hook.losses, hook.renewals) == (["lost"], [(NAME, grant.token, grant.lease.reason)], ["lost"])
    assert waiting.result() > grant.token
    with pytest.raises(LockLost):
        lock.release()
    with pytest.raises(LockError, match=f"nobody has {NAME}"):
        locks.server.lose(NAME)


def test_a_thief_has_the_lock_before_its_holder_is_told(locks: MemoryLocks) -> None:
    """As after a pause of the process: the token is greater, and the next renewal tells the holder."""
    with pytest.raises(LockLost), locks.lock(NAME) as grant:
        token = locks.server.steal(NAME)
        assert token > grant.token
        grant.ensure_held()
        locks.server.advance(1.9)
        grant.ensure_held()
        locks.server.advance(0.1)
        assert grant.lost
    assert [(one.token, one.owner) for one in locks.contenders(NAME)] == [(token, {"instance": "a thief"})]
    locks.server.lose(NAME)
    with locks.lock(NAME) as again:
        assert again.token > token


def test_a_wait_for_a_stolen_lock_takes_no_time(locks: MemoryLocks) -> None:
    """It ends when the thief's time is over, or the caller's, whichever comes first, on the server's clock."""
    lock = locks.lock(NAME)
    locks.server.steal(NAME, for_s=3600)
    assert lock.try_acquire() is None
    with pytest.raises(LockTimeout):
        lock.acquire(wait_s=600)
    assert locks.server.now() == 600
    waits: list[float] = []

    class Told(Hook):
        def granted(self, name: str, token: int, waited_s: float) -> None:
            waits.append(waited_s)

    locks.hook = Told()
    with lock.holding(wait_s=7200):
        assert locks.server.now() == 3600
    locks.server.steal(NAME, for_s=5)
    with lock:
        pass
    assert waits == [3000, 5]


def test_a_wait_for_another_instance_of_the_test_ends(locks: MemoryLocks) -> None:
    """In the caller's seconds, although nobody moves the time; it is moved by them, and the holder stays one."""
    with MemoryLocks(locks.server, ttl_s=6) as other, other.lock(NAME) as grant:
        began = now()
        with pytest.raises(LockTimeout):
            locks.lock(NAME).acquire(wait_s=0.5)
        assert now() - began >= 0.5
        assert locks.server.now() == 0.5
        assert [one.key for one in locks.contenders(NAME)] == [grant.key]


def test_many_locks_bear_a_frozen_server(locks: MemoryLocks) -> None:
    """However many renewals find no answer at the same moment."""
    grants = [locks.lock(f"/jobs/{number}").acquire(owner="me") for number in range(300)]
    locks.server.freeze()
    locks.server.advance(3)
    locks.server.thaw()
    locks.server.advance(5)
    assert not [grant for grant in grants if grant.lost]


def test_what_runs_out_while_time_passes_does_so_in_its_order(locks: MemoryLocks) -> None:
    """A waiter whose time is over first doesn't get what is free later, however far time goes at once."""
    dead = locks.lock(NAME)
    dead.acquire(owner="dead")
    locks._pause_renewal(6)
    brief, patient = locks.lock(NAME), locks.lock(NAME)
    first = InThread(lambda: brief.acquire(wait_s=0.5))
    eventually(lambda: len(dead.contenders()) == 2, "one waits")
    second = InThread(lambda: patient.acquire(wait_s=7, owner="me"))
    eventually(lambda: len(dead.contenders()) == 3, "two wait")
    locks.server.advance(100)
    with pytest.raises(LockTimeout):
        first.result()
    assert not second.result().lost
    patient.release(owner="me")


def test_a_restart_keeps_all_or_nothing_but_the_tokens(locks: MemoryLocks) -> None:
    """A server that forgets gives the lock to the next one, although its holder doesn't know yet; tokens rise on."""
    lock = locks.lock(NAME)
    grant = lock.acquire()
    waiting = InThread(lambda: locks.lock(NAME).acquire(owner="me"))
    eventually(lambda: len(lock.contenders()) == 2, "one waits")
    locks.server.restart()
    locks.server.advance(60)
    grant.ensure_held()
    assert len(lock.contenders()) == 2
    locks.server.restart(forget=True)
    assert waiting.result().token > grant.token
    grant.ensure_held()
    locks.server.advance(2)
    assert grant.lost
    with pytest.raises(LockLost):
        lock.release()


def test_a_leader_is_elected_and_deposed(locks: MemoryLocks) -> None:
    """The first candidate leads, says and records; an observer hears who leads; a stolen term ends at a renewal."""
    election, cancel = locks.election(NAME), Cancel()
    observed = election.observe(cancel=cancel)
    assert next(observed) is None
    leadership = election.campaign("one")
    assert next(observed) == Leader(leadership.key, "one", leadership.token, leadership.token)
    leadership.proclaim("two")
    leadership.record("done")
    leader = next(observed)
    assert leader is not None
    assert (leader.value, election.recorded()) == ("two", "done")
    second = InThread(lambda: election.campaign("other"))
    eventually(lambda: len(election.candidates()) == 2, "another one stands")
    locks.server.steal(NAME, for_s=10)
    with pytest.raises(LockLost):
        leadership.proclaim("three")
    locks.server.advance(10)
    assert second.result().token > leadership.token
    assert leadership.lost
    observed.close()
    eventually(lambda: not (cancel._callbacks or locks.server._lookouts[NAME]), "nothing is kept of an observer")


def test_who_was_deposed_writes_nothing_down(locks: MemoryLocks) -> None:
    """Although nobody has told it yet."""
    election = locks.election(NAME)
    leadership = election.campaign("one")
    locks.server.steal(NAME)
    with pytest.raises(LockLost):
        leadership.record("late")
    assert election.recorded() is None


def test_a_url_opens_a_server_that_its_name_shares() -> None:
    """Two instances that settings name have one lock, and the test has their server; it is listed among no locks."""
    name = uuid.uuid4().hex
    with connect(f"memory://{name}", ttl_s=5) as one, connect(f"memory://{name}", instance="other") as two:
        with one.lock(NAME):
            assert two.lock(NAME).try_acquire() is None
            assert [entry.name for entry, _ in MemoryServer.named(name)._entries()] == [NAME]
        with connect(f"memory://{name}-2") as third, two.lock(NAME), third.lock(NAME):
            pass
    with pytest.raises(ConfigurationError, match="no option 'ttl'"):
        connect("memory://?ttl=5")
    assert "memory" not in CLASSES


def test_time_passes_by_itself_where_a_program_expects_it() -> None:
    """By URL; a test may let it pass faster."""
    name = uuid.uuid4().hex
    with connect(f"memory://{name}", ttl_s=60) as locks:
        lock = locks.lock(NAME)
        with pytest.raises(LockLost), lock as grant:
            MemoryServer.named(name).advance(3600)
            grant.ensure_held()
            locks._pause_renewal(3600)
            MemoryServer.named(name).advance(61)
        MemoryServer.named(name).steal(NAME)
        with pytest.raises(LockTimeout):
            lock.acquire(wait_s=0.05)


def test_the_page_tests_as_it_says(tmp_path: Path) -> None:
    """The README's test of a program runs as it stands."""
    page = (Path(__file__).parents[2] / "fencelock" / "README.md").read_text()
    (test,) = (
        code for code in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "MemoryLocks" in code
    )
    (tmp_path / "test_report.py").write_text(test)
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
