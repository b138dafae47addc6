"""The contract of every lock, whatever it is made of. A backend's tests inherit `LockContract`, with a `LockSystem`."""

import _thread
import asyncio
import gc
import importlib
import json
import math
import os
import queue
import re
import signal
import subprocess
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from fencelock import (
    Cancel,
    Contender,
    DistributedLock,
    Grant,
    Guarantees,
    Hook,
    LockBackend,
    LockCancelled,
    LockError,
    LockLost,
    LockNotHeld,
    LockTimeout,
    LockUnavailable,
    Scope,
)
from fencelock.clock import now
from fencelock.lease import Lease
from fencelock.waiting import Wake
from lab.servers.process import free_port
from lab.torture.proxy import Proxy
from tests.contract.task_contract import OFTEN, Losses, TaskContract, promise
from tests.harness.forked import Forked
from tests.harness.inside import of_threads
from tests.harness.waiting import WITHIN_S, eventually
from tests.harness.worker import Worker

TTL_S = 1  # the shortest that etcd grants (to its test members, which elect quickly)
STEADY_S = 3  # for what must be renewed beyond its TTL although the machine is busy
CALM_S = 10  # where no lease runs out, however busy the machine is


class LockSystem(ABC):
    """A lock backend's real server, and what only the server's owner can do to it.

    `ttl_s`: the TTL of those who are killed, or lose what they have: as short as the backend allows.
    """

    backend: str  # "module:Class", for other processes
    ttl_s: float = 0.4
    server: Any  # a process, if there is one

    @abstractmethod
    def options(self, ttl_s: float) -> dict[str, Any]:
        """The options that the backend's class is opened with: plain values, to be sent to other processes."""

    @abstractmethod
    def open(self, ttl_s: float, **more: Any) -> LockBackend:
        """The backend, in this process; `more` of what all backends take."""

    @abstractmethod
    def delete_key(self, key: str) -> None:
        """Delete a contender's key behind its back."""

    @abstractmethod
    def end_lease(self, grant: Grant) -> None:
        """End a grant's lease behind its back."""

    @abstractmethod
    def leftovers(self) -> list[str]:
        """Keys and leases that are on the server."""

    def restart(self) -> None:
        """kill -9 the server and start it again, with what it had on disk."""
        self.server.kill()
        self.server.start()

    def pause(self) -> None:
        """Freeze the server."""
        self.server.pause()

    def resume(self) -> None:
        """Let it go on."""
        self.server.resume()


class InThread:
    """Runs a function in a thread; `result()` is what it returned or raised. `...`: see `eventually`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._value: Any = None
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self.thread.join(4 * WITHIN_S)
        assert not self.thread.is_alive(), "the thread did not end"
        if self._error is not None:
            raise self._error
        return self._value


def hold_and_release(lock: DistributedLock) -> int:
    """Take the lock and give it back: its token."""
    with lock as grant:
        return grant.token


def _with_ports(system: LockSystem, ttl_s: float, port: Callable[[re.Match[str]], str]) -> str:
    """The system's options as JSON, with other ports in its addresses."""
    options, number = re.subn(r"(?<=\d):(\d{4,5})\b", port, json.dumps(system.options(ttl_s)))
    return options if number else pytest.skip("there is no network in between")


def _opened(system: LockSystem, options: str, **more: Any) -> LockBackend:
    """A backend with other options than the system's, as JSON."""
    module, _, kind = system.backend.partition(":")
    backend: LockBackend = getattr(importlib.import_module(module), kind)(**json.loads(options), **more)
    return backend


class LockContract(TaskContract):
    """The suite. Every test ends with nothing left on the server."""

    guarantees: Guarantees
    ends_with_its_connection = False  # whose silence a client may notice before the lease's deadline
    returns_by_its_key = False  # whether a waiter whose key was deleted comes back with the same one

    @pytest.fixture
    def system(self) -> LockSystem:
        """A server that tests don't harm; may be shared."""
        raise NotImplementedError

    @pytest.fixture
    def own_system(self) -> Iterator[LockSystem]:
        """A server of the test's own, which it may restart and freeze."""
        raise NotImplementedError

    @pytest.fixture
    def name(self) -> str:
        return f"/test/{uuid.uuid4().hex}"

    @pytest.fixture
    def backend(self, system: LockSystem) -> Iterator[LockBackend]:
        assert system.leftovers() == []
        backend = system.open(CALM_S)
        yield backend
        # A cancelled or failed acquire may leave something for one TTL, nothing for longer.
        eventually(lambda: not system.leftovers(), "nothing is left on the server", CALM_S + WITHIN_S)
        backend.close()

    @pytest.fixture
    def lock(self, backend: LockBackend, name: str) -> DistributedLock:
        return backend.lock(name)

    @pytest.fixture
    def brief_backend(self, system: LockSystem, backend: LockBackend) -> Iterator[LockBackend]:
        """Its leases are short: for what is lost, or noticed by a renewal."""
        brief = system.open(system.ttl_s)
        yield brief
        brief.close()

    @pytest.fixture
    def brief_lock(self, brief_backend: LockBackend, name: str) -> DistributedLock:
        """The lock of that name, with short leases."""
        return brief_backend.lock(name)

    @pytest.fixture
    def steady_backend(self, system: LockSystem, backend: LockBackend) -> Iterator[LockBackend]:
        steady = system.open(STEADY_S)
        yield steady
        steady.close()

    @pytest.fixture
    def blocks(self, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
        """Set once a thread has been told that it must wait, and waits."""
        waits, wait = threading.Event(), Wake.wait
        monkeypatch.setattr(Wake, "wait", lambda wake, timeout_s: (waits.set(), wait(wake, timeout_s))[1])
        return waits

    @pytest.fixture
    def workers(self, system: LockSystem, name: str) -> Iterator[Callable[..., Worker]]:
        with ExitStack() as stack:

            def start(ttl_s: float = CALM_S, under: Sequence[str] = ()) -> Worker:
                return stack.enter_context(Worker(system.backend, system.options(ttl_s), name, under=under))

            yield start

    # -- one at a time -----------------------------------------------------------------------------------------------

    def test_excludes_processes(self, workers: Callable[..., Worker], backend: LockBackend, tmp_path: Path) -> None:
        """Four processes that read, think and write under the lock lose no update."""
        file = tmp_path / "count"
        file.write_text("0")
        crowd = [workers() for _ in range(4)]
        for worker in crowd:
            worker.tell("count", file=str(file), times=50)
        assert [worker.answer()["counted"] for worker in crowd] == [50] * 4
        assert file.read_text() == "200"

    def test_excludes_threads(self, backend: LockBackend, name: str) -> None:
        """Threads exclude each other through one lock object as well as through several."""
        inside = 0
        most = 0

        def work(lock: DistributedLock) -> None:
            nonlocal inside, most
            for _ in range(20):
                with lock:
                    inside += 1
                    most = max(most, inside)
                    time.sleep(0)
                    inside -= 1

        shared = backend.lock(name)
        threads = [InThread(lambda lock=lock: work(lock)) for lock in (shared, shared, backend.lock(name))]
        for thread in threads:
            thread.result()
        assert most == 1

    @promise("fair")
    @promise("shows_queue")
    def test_serves_in_order(self, backend: LockBackend, lock: DistributedLock, name: str) -> None:
        """Contenders get the lock in the order in which they queued, and tokens grow in that order."""
        served: list[tuple[int, int]] = []
        first = lock.acquire()

        def queue_up(number: int) -> None:
            with backend.lock(name) as grant:
                served.append((number, grant.token))

        threads = []
        for number in range(6):
            threads.append(InThread(lambda number=number: queue_up(number)))
            eventually(lambda number=number: len(lock.contenders()) == number + 2, "the next one queues")
        keys = [contender.key for contender in lock.contenders()]
        lock.release()
        for thread in threads:
            thread.result()
        assert [number for number, _ in served] == list(range(6))
        tokens = [first.token] + [token for _, token in served]
        assert tokens == sorted(set(tokens))
        assert len(set(keys)) == 7

    @promise("fair")
    @promise("shows_queue")
    def test_contenders_take_turns(self, backend: LockBackend, name: str) -> None:
        """Three that want it again as soon as they have given it back get it in turn."""
        served: list[int] = []
        enough = 45

        def work(number: int) -> None:
            lock = backend.lock(name)
            while len(served) < enough:
                with lock:
                    served.append(number)
                    if len(served) < enough:
                        eventually(lambda: len(lock.contenders()) == 3, "the others wait")

        threads = [InThread(lambda number=number: work(number)) for number in range(3)]
        for thread in threads:
            thread.result()
        cycle = served[3:6]
        assert sorted(cycle) == [0, 1, 2]
        assert served[3:enough] == cycle * (enough // 3 - 1)

    @promise("fencing")
    def test_tokens_grow(self, backend: LockBackend, name: str) -> None:
        """Each grant has a higher token than the one before, of whichever lock object."""
        tokens = []
        for _ in range(5):
            with backend.lock(name) as grant:
                tokens.append(grant.token)
        assert tokens == sorted(set(tokens))

    # -- the ways to acquire -----------------------------------------------------------------------------------------

    def test_try_acquire(self, lock: DistributedLock, workers: Callable[..., Worker]) -> None:
        """try_acquire gives the lock if it is free, else None, and leaves nothing in the queue."""
        worker = workers()
        worker.ask("acquire")
        assert lock.try_acquire() is None
        eventually(lambda: len(lock.contenders()) == 1, "only the holder is in the queue")
        worker.ask("release")
        grant = lock.try_acquire()
        assert grant is not None
        assert lock.held_by_me
        lock.release()

    def test_timeout_leaves_no_key(
        self, lock: DistributedLock, system: LockSystem, workers: Callable[..., Worker]
    ) -> None:
        """A wait that is over raises LockTimeout; the holder's key and lease are then the only ones."""
        worker = workers()
        worker.ask("acquire")
        alone = len(system.leftovers())
        began = time.monotonic()
        with pytest.raises(LockTimeout):
            lock.acquire(wait_s=0.3)
        assert time.monotonic() - began >= 0.3
        eventually(lambda: len(system.leftovers()) == alone, "nothing but the holder's is left")
        assert not lock.held_by_me
        worker.ask("release")

    def test_cancel_leaves_no_key(
        self, lock: DistributedLock, system: LockSystem, workers: Callable[..., Worker]
    ) -> None:
        """A wait that is called off raises LockCancelled at once; the holder's key and lease are then the only ones."""
        worker = workers()
        worker.ask("acquire")
        alone = len(system.leftovers())
        cancel = Cancel()
        waiting = InThread(lambda: lock.acquire(cancel=cancel))
        self._until_queued(lock, 2)
        cancel.set()
        with pytest.raises(LockCancelled):
            waiting.result()
        eventually(lambda: len(system.leftovers()) == alone, "nothing but the holder's is left")
        worker.ask("release")

    @pytest.mark.parametrize("wrong", [-1, math.nan, "5", True])
    def test_a_wait_that_can_not_be_is_refused(self, lock: DistributedLock, wrong: Any) -> None:
        """A negative wait is the caller's mistake, not a lock that is taken; NaN, a text and True, too."""
        with pytest.raises(ValueError, match="wait_s must be a number"):
            lock.acquire(wait_s=wrong)
        with pytest.raises(ValueError, match="hold_max_s must be a number"):
            lock.acquire(hold_max_s=wrong)

    def test_a_lock_may_have_a_ttl_of_its_own(self, backend: LockBackend, name: str) -> None:
        """Its leases are as long as it says, and others' as long as the backend's."""
        brief, usual = backend.lock(name, ttl_s=2), backend.lock(f"{name}-usual")
        assert (brief.ttl_s, usual.ttl_s) == (2, CALM_S)
        with brief as grant, usual as other:
            if self.guarantees.leases:
                assert grant.deadline < now() + 2.1
                assert other.deadline > now() + 2.1
        wrong: Any
        for wrong in (0, -1, float("inf"), float("nan"), "5", True):
            with pytest.raises(ValueError, match="ttl_s must be a number"):
                backend.lock(name, ttl_s=wrong)

    def test_the_hook_is_told(self, system: LockSystem, backend: LockBackend, name: str) -> None:
        """A hook hears of each grant, wait in vain and release, once, and not of what is re-entered."""
        told: list[tuple[str, str]] = []

        class Told(Hook):
            def granted(self, name: str, token: int, waited_s: float) -> None:
                told.append(("granted", name))

            def not_granted(self, name: str, error: BaseException, waited_s: float) -> None:
                told.append((type(error).__name__, name))

            def released(self, name: str, token: int, held_s: float) -> None:
                told.append(("released", name))

        backend.hook = Told()
        lock = backend.lock(name)
        with lock, lock:
            if self.guarantees.scope is not Scope.NOBODY:
                assert InThread(lock.try_acquire).result() is None
        in_vain = [("LockTimeout", name)] if self.guarantees.scope is not Scope.NOBODY else []
        assert told == [("granted", name), *in_vain, ("released", name)]

    @promise("leases")
    def test_the_hook_is_told_of_renewals_and_of_losses(
        self, system: LockSystem, backend: LockBackend, name: str
    ) -> None:
        """It hears of renewals; of each loss once, with its reason; and of a lock that was released nothing more.

        It may be set at any time, and raise errors.
        """

        class Odd(Losses):
            def renewal(self, event: str) -> None:
                super().renewal(event)
                raise KeyError(event)

        told = Odd()
        with closing(system.open(CALM_S, renew_ratio=OFTEN)) as hooked:
            lock = hooked.lock(name)
            lock.contenders()  # it is connected
            hooked.hook = told
            with lock:
                eventually(lambda: "renewed" in told.renewals, "it is renewed")
            grant = lock.acquire()
            system.end_lease(grant)
            eventually(lambda: told.losses and "lost" in told.renewals, "the loss is told")
            assert told.losses == [(name, grant.token, grant.lease.reason)]
            with pytest.raises(LockLost):
                lock.release()
            left = hooked.lock(name)
            token = InThread(lambda: left.acquire().token).result()
            eventually(lambda: len(told.losses) > 1, "the end of an owner is told")
            assert told.losses[1:] == [(name, token, "its owner ended without releasing it")]
            with hooked.lock(name).holding(wait_s=WITHIN_S):
                pass
        assert "abandoned" in told.renewals
        assert len(told.losses) == 2

    # -- owners ------------------------------------------------------------------------------------------------------

    def test_is_reentrant(self, lock: DistributedLock, workers: Callable[..., Worker]) -> None:
        """The owner may acquire again; only its last release gives the lock back."""
        worker = workers()
        with lock as outer:
            with lock as inner:
                assert inner is outer
                assert lock.hold_count == 2
                assert len(lock.contenders()) == 1
            assert lock.hold_count == 1
            assert worker.ask("acquire", wait_s=0.2) == {"error": "LockTimeout"}
        assert lock.hold_count == 0
        assert not lock.held_by_me
        assert "token" in worker.ask("acquire", wait_s=WITHIN_S)
        worker.ask("release")

    def test_another_thread_is_another_owner(self, lock: DistributedLock) -> None:
        """A thread doesn't own what another thread of the same process acquired."""
        with lock:
            assert InThread(lambda: lock.held_by_me).result() is False
            assert InThread(lock.try_acquire).result() is None

    def test_release_by_a_non_owner_raises(self, lock: DistributedLock, system: LockSystem) -> None:
        """Nobody can release what is not theirs, and trying changes nothing."""
        with pytest.raises(LockNotHeld):
            lock.release()
        with lock as grant:
            with pytest.raises(LockNotHeld):
                InThread(lock.release).result()
            assert lock.held_by_me
            assert [contender.key for contender in lock.contenders()] == [grant.key]

    def test_a_new_thread_does_not_inherit(self, brief_lock: DistributedLock) -> None:
        """The lock of a thread that died is given back; a new thread with its recycled identifier never has it."""

        def look() -> tuple[int, bool, int]:
            return threading.get_ident(), brief_lock.held_by_me, brief_lock.hold_count

        # The first new thread mostly gets the identifier of the last dead one; else a lasting thread of somebody's has
        # it, and another one must die.
        def recycled() -> tuple[int, bool, int] | None:
            dead = InThread(lambda: brief_lock.acquire(wait_s=WITHIN_S))
            dead.result()
            for _ in range(20):
                seen: tuple[int, bool, int] = InThread(look).result()
                if seen[0] == dead.thread.ident:
                    return seen
            return None

        found = eventually(recycled, "an identifier is recycled")
        assert found is not None
        assert found[1:] == (False, 0)
        grant = brief_lock.acquire(wait_s=WITHIN_S)  # the renewal found out that its owner is gone
        assert not grant.lost
        brief_lock.release()

    # -- losing it ---------------------------------------------------------------------------------------------------

    @promise("leases")
    def test_a_lost_lease_raises(self, brief_lock: DistributedLock, system: LockSystem) -> None:
        """A holder whose lease ended is told, by callback, flag and error; after its release it can begin anew."""
        told = threading.Event()
        grant = brief_lock.acquire()
        grant.on_lost(told.set)
        grant.ensure_held()
        system.end_lease(grant)
        assert told.wait(WITHIN_S)
        assert grant.lost
        assert not brief_lock.held_by_me
        with pytest.raises(LockLost):
            grant.ensure_held()
        with pytest.raises(LockLost):
            brief_lock.acquire()  # re-entering what is lost
        with pytest.raises(LockLost):
            brief_lock.release()
        with brief_lock as again:
            assert again.token > grant.token or not self.guarantees.fencing

    @promise("leases")
    def test_with_tells_of_a_loss(self, brief_lock: DistributedLock, system: LockSystem) -> None:
        """A `with` whose lock was lost inside raises at its end, but never hides the body's own error."""
        with pytest.raises(LockLost), brief_lock as grant:
            system.end_lease(grant)
            eventually(lambda grant=grant: grant.lost, "the loss is noticed")
        with pytest.raises(KeyError), brief_lock as grant:
            system.end_lease(grant)
            eventually(lambda grant=grant: grant.lost, "the loss is noticed")
            raise KeyError

    @promise("leases")
    def test_a_thread_that_holds_for_too_long_loses_it(self, brief_lock: DistributedLock) -> None:
        """Whoever the owner is: `holding` has the options of `acquire`."""
        with pytest.raises(LockLost), brief_lock.holding(owner="me", hold_max_s=brief_lock.ttl_s) as grant:
            assert not brief_lock.held_by_me
            eventually(lambda: grant.lost, "it is lost")

    @promise("leases")
    def test_a_deleted_key_is_a_loss(self, brief_lock: DistributedLock, system: LockSystem) -> None:
        """A holder whose key is deleted by hand, its lease alive, is told by the next renewal."""
        grant = brief_lock.acquire()
        system.delete_key(grant.key)
        eventually(lambda: grant.lost, "the loss is noticed")
        with pytest.raises(LockLost):
            brief_lock.release()

    def test_a_release_can_be_forced(
        self, brief_backend: LockBackend, brief_lock: DistributedLock, lock: DistributedLock, name: str
    ) -> None:
        """The next waiter has the lock, with a higher token; the holder is told by its next renewal."""
        if not self.guarantees.forces_release:
            with pytest.raises(LockError, match="can't force a release: only etcd, redis and postgres can"):
                brief_backend.force_release(name)
            return
        grant = brief_lock.acquire()
        waiting = InThread(lambda: hold_and_release(lock))
        had = brief_backend.force_release(name)
        assert had is not None
        assert (had.key, had.token, had.owner["pid"], had.holds) == (grant.key, grant.token, os.getpid(), True)
        assert waiting.result() > grant.token
        eventually(lambda: grant.lost, "the loss is noticed")
        with pytest.raises(LockLost):
            brief_lock.release()
        assert brief_backend.force_release(name) is None

    @promise("leases")
    def test_a_release_spares_the_next_owner(
        self, brief_lock: DistributedLock, system: LockSystem, workers: Callable[..., Worker]
    ) -> None:
        """Releasing a lock that was lost does nothing to its present owner."""
        worker = workers()
        grant = brief_lock.acquire()
        system.end_lease(grant)
        assert "token" in worker.ask("acquire", wait_s=WITHIN_S)
        eventually(lambda: grant.lost, "the loss is noticed")
        with pytest.raises(LockLost):
            brief_lock.release()
        assert worker.ask("lost") == {"lost": False}
        assert len(brief_lock.contenders()) == 1
        worker.ask("release")

    @promise("leases")
    def test_a_callback_may_use_the_lock(self, brief_lock: DistributedLock, system: LockSystem) -> None:
        """An on_lost callback that looks at the lock, or releases it, doesn't block anybody."""
        looked: list[int] = []
        grant = brief_lock.acquire(owner="me")
        grant.on_lost(lambda: looked.append(brief_lock.hold_count))
        system.end_lease(grant)
        eventually(lambda: looked, "the callback was called")
        with pytest.raises(LockLost):
            brief_lock.acquire(owner="me")
        with pytest.raises(LockLost):
            brief_lock.release(owner="me")

    @promise("leases")
    def test_a_renewal_that_is_paused_loses_the_lock(self, system: LockSystem, lock: DistributedLock) -> None:
        """Nothing is renewed for a while: the holder is told at its deadline. Afterwards all is renewed again."""
        ttl_s = 2 * TTL_S  # a starved machine renews late
        backend = system.open(ttl_s)
        brief_lock = backend.lock(lock.name)
        told = threading.Event()
        grant = brief_lock.acquire()
        grant.on_lost(told.set)
        backend.pause_renewal(1.1 * ttl_s)
        assert eventually(lambda: grant.lost, "it is lost without anybody's help")
        with pytest.raises(LockLost):
            brief_lock.release()
        assert told.wait(WITHIN_S)
        renewed = brief_lock.acquire(wait_s=WITHIN_S)
        until = time.monotonic() + 3 * ttl_s
        eventually(lambda: renewed.lost or time.monotonic() > until, "three TTLs are over", 4 * ttl_s)
        renewed.ensure_held()
        brief_lock.release()
        backend.close()

    @promise("leases")
    @pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock here goes on in a suspended machine")
    def test_a_suspended_machine_loses_the_lock(self, lock: DistributedLock, monkeypatch: pytest.MonkeyPatch) -> None:
        """On waking, a machine that was suspended for an hour finds its lease lost at once; nobody has to tell it."""
        told = threading.Event()
        grant = lock.acquire()
        grant.on_lost(told.set)
        read = time.clock_gettime
        # This is how a suspended machine leaves its clocks: the monotonic one stood still.
        monkeypatch.setattr(time, "clock_gettime", lambda which: read(which) + 3600 * (which == time.CLOCK_BOOTTIME))
        assert not lock.held_by_me
        with pytest.raises(LockLost):
            grant.ensure_held()
        assert told.wait(WITHIN_S)
        with pytest.raises(LockLost):
            lock.release()

    @promise("leases")
    def test_a_machine_that_was_suspended_before_is_like_any_other(
        self, lock: DistributedLock, workers: Callable[..., Worker]
    ) -> None:
        """Where the clocks differ by an hour they are not mixed up: a lease is had, renewed, and not lost."""
        under = ["unshare", "--time", "--boottime", "3600"]
        if subprocess.run([*under, "true"], capture_output=True).returncode:
            pytest.skip("no time namespaces for us here")
        worker = workers(STEADY_S, under)
        assert "token" in worker.ask("acquire", wait_s=WITHIN_S)
        with pytest.raises(LockTimeout):
            lock.acquire(wait_s=1.5 * STEADY_S)
        assert worker.ask("lost") == {"lost": False}
        worker.ask("release")

    # -- others die --------------------------------------------------------------------------------------------------

    @promise("leases")
    def test_a_killed_holder_is_succeeded(self, lock: DistributedLock, workers: Callable[..., Worker]) -> None:
        """kill -9 of the holder: the next in line has the lock after about one TTL."""
        worker = workers(TTL_S)
        worker.ask("acquire")
        worker.kill()
        lock.acquire(wait_s=TTL_S + WITHIN_S)
        lock.release()

    @promise("shows_queue")
    @promise("leases")
    def test_a_killed_waiter_is_skipped(self, lock: DistributedLock, workers: Callable[..., Worker]) -> None:
        """kill -9 of a waiter: those behind it get their turn all the same, and not while the holder holds."""
        holder, waiter = workers(2 * TTL_S), workers(TTL_S)
        holder.ask("acquire")
        waiter.tell("acquire")
        eventually(lambda: len(lock.contenders()) == 2, "the waiter is in the queue")
        behind = InThread(lambda: lock.acquire(wait_s=TTL_S + WITHIN_S))
        eventually(lambda: len(lock.contenders()) == 3, "we are behind it")
        waiter.kill()
        eventually(lambda: len(lock.contenders()) == 2, "the dead waiter's lease has ended", TTL_S + WITHIN_S)
        assert lock.contenders()[0].holds
        assert behind.thread.is_alive()
        holder.ask("release")
        assert behind.result().token > 0

    @promise("shows_queue")
    @promise("leases")
    def test_a_waiter_whose_key_is_deleted_starts_again(
        self, system: LockSystem, brief_backend: LockBackend, lock: DistributedLock, name: str
    ) -> None:
        """A waiter whose own key vanished doesn't believe that it is next, and doesn't wait for ever."""
        lock.acquire()
        other = brief_backend.lock(name)
        waiting = InThread(lambda: hold_and_release(other))

        def deleted() -> Contender | None:
            for one in lock.contenders():
                if not one.holds:
                    with suppress(AssertionError):  # on a busy machine its lease may have run out, and it queues anew
                        system.delete_key(one.key)
                        return one
            return None

        before = eventually(deleted, "the waiter's key is deleted")
        assert before is not None
        eventually(
            lambda: any(
                not c.holds and (c.token != before.token or self.returns_by_its_key) for c in lock.contenders()
            ),
            "the waiter is back in the queue",
        )
        assert waiting.thread.is_alive()
        lock.release()
        assert waiting.result() > 0

    # -- this process ------------------------------------------------------------------------------------------------

    # It may come in a finalizer, where Python can't raise it.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_ctrl_c_leaves_nothing(self, backend: LockBackend, lock: DistributedLock) -> None:
        """A Ctrl-C at any moment of an acquire or release leaves no key, and no thread that can't go on."""

        class Interrupted(BaseException):
            pass

        armed = False

        def interrupt(*_: object) -> None:
            if armed:
                raise Interrupted

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            for step in range(30):
                timer = threading.Timer(step * 0.0004, os.kill, (os.getpid(), signal.SIGINT))
                try:
                    armed = True
                    timer.start()
                    with lock:
                        pass
                    timer.join()
                except Interrupted:
                    pass
                finally:
                    armed = False
                    timer.join()
                if lock.hold_count:
                    lock.release()
        finally:
            signal.signal(signal.SIGINT, before)
        backend.ping(WITHIN_S)
        assert backend.renewing
        InThread(lambda: hold_and_release(lock)).result()

    def test_closing_the_backend_ends_waits(self, system: LockSystem, backend: LockBackend, name: str) -> None:
        """Closing the connections takes the waiters out of their queues at once, with LockUnavailable."""
        closing = system.open(60)
        with backend.lock(name):
            threads = [InThread(closing.lock(name).acquire) for _ in range(5)]
            self._until_queued(backend.lock(name), 6)
            closing.pause_renewal(60)  # they leave by themselves, not by its thread
            closing.close()
            for thread in threads:
                with pytest.raises(LockUnavailable):
                    thread.result()
        with pytest.raises(LockUnavailable):
            closing.lock(name).acquire()

    def test_a_thread_without_an_object_must_name_its_owner(self, lock: DistributedLock) -> None:
        """A thread that Python's threading doesn't know has no identity that could be trusted."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def acquire() -> None:
            try:
                answers.put(lock.acquire())
            except LockError as error:
                answers.put(error)

        _thread.start_new_thread(acquire, ())
        answer = answers.get(timeout=WITHIN_S)
        assert isinstance(answer, LockError)
        assert "pass an owner" in str(answer)

    # -- a forked child ----------------------------------------------------------------------------------------------

    def test_a_child_does_not_have_its_parents_lock(self, lock: DistributedLock) -> None:
        """The parent's lock is the parent's: a forked child neither owns it nor can give it back."""

        def look(grant: Grant) -> tuple[Any, ...]:
            found = lock.held_by_me, lock.hold_count, grant.lost
            with pytest.raises(LockError, match="parent"):
                lock.release()
            with pytest.raises(LockLost, match="parent"):
                grant.ensure_held()
            return found

        with lock as grant:
            assert Forked(lambda _: look(grant)).result() == (False, 0, True)
            assert lock.held_by_me
            assert lock.acquire().token == grant.token
            lock.release()
            assert [one.key for one in lock.contenders()] == [grant.key]

    # A child of a running loop shares its parent's epoll; once, on a busy machine, it was seen to harm it.
    @pytest.mark.exhaustive
    async def test_a_child_works_anew(self, steady_backend: LockBackend, name: str) -> None:
        """With what its parent made before the fork a child is a client like any other, and takes nothing from it."""
        locks, tasks = [steady_backend.lock(f"{name}-{number}") for number in range(2)], steady_backend.aio

        async def in_task() -> int:
            gc.collect()
            async with tasks.lock(name).holding(wait_s=WITHIN_S) as grant:
                return grant.token

        def use(parent: Connection) -> list[int]:
            parent.recv()
            for lock in reversed(locks):
                assert (lock.try_acquire() is None) == (self.guarantees.scope is not Scope.PROCESS)
            with steady_backend.lock(name).holding(wait_s=WITHIN_S) as grant:
                time.sleep(1.5 * STEADY_S)  # longer than it would have it without a renewal
                grant.ensure_held()
            tokens = [grant.token, asyncio.run(in_task())]
            steady_backend.close()
            return tokens

        def fork() -> list[int]:
            child = Forked(use)
            with locks[1]:  # a first attempt after the fork, as is the child's
                child.tell("it is taken")
                return child.result()

        before = await in_task()
        held = locks[0].acquire(owner="a thread")
        waiting, has = tasks.lock(locks[0].name), tasks.lock(f"{name}-2")
        of_a_task = await has.acquire(owner="me")
        next_one = asyncio.create_task(waiting.acquire(owner="me"))
        await self._until_in_line(locks[0], 2)
        tokens = [before, *await asyncio.to_thread(fork), await in_task()]
        assert tokens == sorted(set(tokens)) or not self.guarantees.fencing
        assert (held.lost, of_a_task.lost, next_one.done()) == (False, False, False)
        await asyncio.to_thread(locks[0].release, owner="a thread")
        assert (await asyncio.wait_for(next_one, WITHIN_S)).token > held.token or not self.guarantees.fencing
        for lock in (waiting, has):
            await lock.release(owner="me")
        await steady_backend.leave_loop()

    @promise("leases")
    def test_nothing_is_kept_of_a_grant(self, backend: LockBackend, lock: DistributedLock) -> None:
        """After many grants there are as many leases, and as many to renew, as after the first."""

        def kept() -> tuple[int, int]:
            gc.collect()
            return len(of_threads(backend).renewer._jobs), sum(isinstance(one, Lease) for one in gc.get_objects())

        with lock:
            pass
        before = kept()
        for _ in range(20):
            with lock:
                pass
        eventually(lambda: all(now <= was for now, was in zip(kept(), before, strict=True)), f"no more than {before}")

    # -- the server dies ---------------------------------------------------------------------------------------------

    @promise("survives_restart")
    def test_a_waiter_survives_a_restart_of_the_server(self, own_system: LockSystem, blocks: threading.Event) -> None:
        """A server that is killed and comes back within the TTL costs neither the holder nor the waiter its place."""
        backend = own_system.open(10)
        holder, other = backend.lock("/test/restart"), backend.lock("/test/restart")
        grant = holder.acquire()
        waiting = InThread(lambda: hold_and_release(other))
        assert blocks.wait(WITHIN_S)  # not every system shows its waiters
        self._until_queued(holder, 2)
        before = holder.contenders()
        own_system.restart()
        eventually(lambda: self._reachable(holder), "the server answers again")
        assert [c.key for c in holder.contenders()] == [c.key for c in before]
        grant.ensure_held()
        assert waiting.thread.is_alive()
        holder.release()
        assert waiting.result() > grant.token or not self.guarantees.fencing
        eventually(lambda: not own_system.leftovers(), "nothing is left on the server")
        backend.close()

    @promise("survives_silence")
    def test_renewal_survives_a_short_outage(self, own_system: LockSystem) -> None:
        """A server that is frozen for less than the TTL costs nobody a lock."""
        backend = own_system.open(5)
        lock = backend.lock("/test/outage")
        with lock as grant:
            until = grant.deadline
            own_system.pause()
            # Frozen beyond the moment at which it would have been renewed (a third of the TTL).
            eventually(lambda: now() > until - 5 + 2.5, "half of the TTL is over")
            own_system.resume()
            eventually(lambda: grant.deadline > until, "it was renewed after all")
            assert not grant.lost
        eventually(lambda: not own_system.leftovers(), "nothing is left on the server")
        backend.close()

    @promise("survives_cut")
    def test_a_cut_is_not_a_loss(self, system: LockSystem, backend: LockBackend, name: str) -> None:
        """A holder still has the lock when all its connections have been cut, as if nothing had been."""
        with self._behind_proxies(system, STEADY_S) as (behind, paths):
            lock, other = behind.lock(name), backend.lock(name)
            grant = lock.acquire()
            until = grant.deadline
            for path in paths:
                path.reset()
            while grant.deadline == until:
                grant.ensure_held()
                assert other.try_acquire() is None
            lock.release()

    @pytest.mark.slow
    @promise("leases")
    def test_dead_waiters_cost_as_much_as_a_dead_holder(
        self, system: LockSystem, backend: LockBackend, name: str
    ) -> None:
        """If a holder and those behind it vanish without a word, the next one has the lock after a TTL or two."""
        dead, ttl_s = 8, 3
        with self._behind_proxies(system, ttl_s) as (behind, paths):
            for number in range(dead):
                InThread(lambda number=number: behind.lock(name).acquire(owner=number))
                self._until_queued(backend.lock(name), number + 1)
            for path in paths:
                path.stall()
            with backend.lock(name).holding(wait_s=dead * ttl_s - 2 * ttl_s):
                pass
            for path in paths:
                path.restore()

    @promise("leases")
    def test_a_release_that_fails_is_made_good(self, system: LockSystem, backend: LockBackend, name: str) -> None:
        """A lock that could not be given back, as the server was away, is free when it is back, not a TTL later."""
        with self._behind_proxies(system, 60) as (behind, paths):
            lock = behind.lock(name)
            lock.acquire()
            for path in paths:
                path.cut()
            with suppress(LockLost):  # if it is noticed already
                lock.release()
            for late in (paths[1:], paths[:1]):  # of several servers, one is back after the others
                for path in late:
                    path.restore()
                if late:
                    with backend.lock(name).holding(wait_s=WITHIN_S):
                        pass
            eventually(lambda: not system.leftovers(), "nothing is left on the server")

    @promise("leases")
    def test_a_grant_that_came_too_late_is_not_given_out(
        self, system: LockSystem, backend: LockBackend, name: str
    ) -> None:
        """When the calls take longer than the TTL the lock is not "got"; when they are quick again it is."""
        with self._behind_proxies(system, TTL_S, timeout_s=10) as (behind, paths):
            lock = behind.lock(name)
            hold_and_release(lock)
            began = time.monotonic()
            for path in paths:
                path.delay_s = 1.2 * TTL_S
            acquiring = InThread(lambda: lock.acquire(owner="me"))
            eventually(lambda: time.monotonic() > began + 1.5 * TTL_S, "longer than the TTL")
            for path in paths:
                path.delay_s = 0
            try:
                grant = acquiring.result()
            except LockUnavailable:  # where a call may not take so long

                def again() -> Grant | None:
                    with suppress(LockUnavailable):  # the servers have earlier calls to answer
                        return lock.acquire(owner="me")
                    return None

                grant = eventually(again, "the calls are quick again")
            grant.ensure_held()
            lock.release(owner="me")

    @promise("leases")
    @pytest.mark.parametrize("stays_away", [False, True])
    def test_a_waiter_bears_with_an_outage_of_a_ttl(
        self, system: LockSystem, backend: LockBackend, name: str, stays_away: bool, blocks: threading.Event
    ) -> None:
        """A server that is away for longer than a call may take ends no wait; one that stays away does."""
        holder, ttl_s = backend.lock(name), 1 if stays_away else 20
        with self._behind_proxies(system, ttl_s, timeout_s=0.5) as (behind, paths), holder as grant:
            waiting = InThread(lambda: hold_and_release(behind.lock(name)))
            assert blocks.wait(WITHIN_S)
            self._until_queued(holder, 2)
            for path in paths:
                path.cut()
            began = time.monotonic()
            if stays_away:
                with pytest.raises(LockUnavailable):
                    waiting.result()
                assert time.monotonic() > began + 0.7
                return
            eventually(lambda: time.monotonic() > began + 1.2, "two calls have failed")
            assert waiting.thread.is_alive()
            for path in paths:
                path.restore()
            holder.release()
            assert waiting.result() > grant.token or not self.guarantees.fencing
            holder.acquire()

    @promise("leases")
    def test_a_frozen_server_is_an_error_and_not_a_wait(self, own_system: LockSystem) -> None:
        """Taking the lock raises, over a connection that was good a moment ago, too; a `with` does not run its body."""
        backend, ran = own_system.open(own_system.ttl_s), False
        hold_and_release(backend.lock("/test/frozen"))
        own_system.pause()
        try:
            eventually(lambda: not self._answers(backend), "the signal has reached all of its threads")
            with pytest.raises(LockUnavailable):
                backend.lock("/test/frozen").try_acquire()
            with pytest.raises(LockUnavailable), backend.lock("/test/frozen"):
                ran = True
        finally:
            own_system.resume()
        assert not ran
        eventually(lambda: not own_system.leftovers(), "what reached the server nevertheless is gone")
        backend.close()

    @promise("leases")
    def test_a_server_that_is_away_is_an_error_in_time(self, system: LockSystem, name: str) -> None:
        """Without a server an acquire and a ping end with LockUnavailable within their deadlines."""
        nowhere = _with_ports(system, TTL_S, lambda _: f":{free_port()}")
        backend = _opened(system, nowhere, timeout_s=0.5)
        began = time.monotonic()
        for ask in (backend.lock(name).acquire, lambda: backend.ping(0.2)):
            with pytest.raises(LockUnavailable):
                ask()
        assert time.monotonic() - began < WITHIN_S
        backend.close()

    @promise("leases")
    def test_an_outage_longer_than_the_ttl_is_a_loss(self, own_system: LockSystem) -> None:
        """A holder that could not renew for a TTL says so at its deadline, without asking anybody."""
        backend = own_system.open(own_system.ttl_s)
        lock = backend.lock("/test/outage")
        told = threading.Event()
        grant = lock.acquire()
        grant.on_lost(told.set)
        own_system.pause()
        try:
            assert told.wait(own_system.ttl_s + WITHIN_S)
            assert now() >= grant.deadline or self.ends_with_its_connection
            with pytest.raises(LockLost):
                lock.release()
        finally:
            own_system.resume()
        eventually(lambda: not own_system.leftovers(), "nothing is left on the server", own_system.ttl_s + WITHIN_S)
        backend.close()

    # -- help --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _behind_proxies(
        self, system: LockSystem, ttl_s: float, **more: Any
    ) -> Iterator[tuple[LockBackend, list[Proxy]]]:
        """A backend whose paths to its servers can be harmed; what it leaves there is gone in the end."""
        with ExitStack() as stack:

            def through_a_proxy(port: re.Match[str]) -> str:
                paths.append(stack.enter_context(Proxy(int(port[1]))))
                return f":{paths[-1].port}"

            paths: list[Proxy] = []
            options = _with_ports(system, ttl_s, through_a_proxy)
            yield stack.enter_context(closing(_opened(system, options, **more))), paths

    @staticmethod
    def _answers(backend: LockBackend) -> bool:
        with suppress(LockUnavailable):
            backend.ping(0.3)
            return True
        return False

    def _until_queued(self, lock: DistributedLock, number: int) -> None:
        """Holder and waiters are so many, as far as the backend shows them."""
        shown = number if self.guarantees.shows_queue else min(number, 1)
        eventually(lambda: len(lock.contenders()) == shown, f"{shown} in the queue")

    @staticmethod
    def _reachable(lock: DistributedLock) -> bool:
        try:
            return bool(lock.contenders())
        except LockUnavailable:
            return False
