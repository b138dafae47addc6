"""The contract of every lock, whatever it is made of. A backend's tests inherit `LockContract`, with a `LockSystem`."""

import asyncio
import gc
import importlib
import json
import os
import re
import subprocess
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

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
    LockTimeout,
    LockUnavailable,
    Scope,
)
from fencelock.aio import AsyncLock
from fencelock.clock import now
from fencelock.lease import Lease
from fencelock.waiting import Wake
from lab.servers.process import free_port
from lab.torture.proxy import Proxy
from tests.harness.forked import Forked
from tests.harness.inside import of_threads
from tests.harness.waiting import WITHIN_S, eventually, eventually_async
from tests.harness.worker import Worker

TTL_S = 1  # the shortest that etcd grants (to its test members, which elect quickly)
STEADY_S = 3  # for what must be renewed beyond its TTL although the machine is busy
CALM_S = 10  # where no lease runs out, however busy the machine is


OFTEN = 0.03  # a renewal ratio, for who waits for renewals and not for a TTL


def promise(name: str) -> pytest.MarkDecorator:
    """A test for backends that guarantee this; for the others it is left out when tests are collected."""
    return pytest.mark.promise(name)


# What goes before the night of the contract with systems other than etcd, Redis and PostgreSQL: its main promises.
SMOKE: Final = frozenset(
    {
        "test_excludes_threads",
        "test_excludes_processes",
        "test_serves_in_order",
        "test_a_cancelled_task_ends",
        "test_a_wait_that_ends_leaves_no_key",
        "test_a_lost_lease_raises",
        "test_a_killed_holder_is_succeeded",
        "test_an_outage_longer_than_the_ttl_is_a_loss",
    }
)


def by_day(names: Iterable[str]) -> list[Any]:
    """Make a parameter of each kind: by day of etcd, Redis, PostgreSQL and this machine, at night of their variants."""
    quick = ("etcd", "redis-fair", "postgres", "file", "local", "memory", "none")
    variants = ("etcd-txn", "redis", "mysql-for-update")
    marks = dict.fromkeys(variants, (pytest.mark.exhaustive,)) | dict.fromkeys(quick, ())
    return [pytest.param(name, marks=marks.get(name, (pytest.mark.slow,))) for name in names]


class Losses(Hook):
    """A hook that notes renewals and losses."""

    def __init__(self) -> None:
        self.renewals: list[str] = []
        self.losses: list[tuple[str, int, str]] = []

    def renewal(self, event: str) -> None:
        self.renewals.append(event)

    def lost(self, name: str, token: int, reason: str) -> None:
        self.losses.append((name, token, reason))


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


class LockContract:
    """The suite. Every test ends with nothing left on the server."""

    guarantees: Guarantees
    ends_with_its_connection = False  # whose silence a client may notice before the lease's deadline
    returns_by_its_key = False  # whether a waiter whose key was deleted comes back with the same one

    @pytest.fixture
    def system(self) -> LockSystem:
        """The server; all tests of a module may share it."""
        raise NotImplementedError

    @pytest.fixture
    def own_system(self, system: LockSystem) -> LockSystem:
        """The server, for a test that restarts or freezes it, and leaves it as it was."""
        return system

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
    async def tasks_lock(self, backend: LockBackend, name: str) -> AsyncIterator[AsyncLock]:
        """The lock for tasks of the test's loop."""
        yield backend.aio.lock(name)
        await backend.leave_loop()

    @pytest.fixture
    async def brief_tasks_lock(self, brief_backend: LockBackend, name: str) -> AsyncIterator[AsyncLock]:
        """The same, with short leases."""
        yield brief_backend.aio.lock(name)
        await brief_backend.leave_loop()

    @pytest.fixture
    def blocks(self, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
        """Set once a thread has been told that it must wait, and waits."""
        waits, wait = threading.Event(), Wake.wait
        monkeypatch.setattr(Wake, "wait", lambda wake, timeout_s: (waits.set(), wait(wake, timeout_s))[1])
        return waits

    @pytest.fixture
    def workers(self, system: LockSystem, name: str) -> Iterator[Callable[..., Worker]]:
        with ExitStack() as stack:

            def start(ttl_s: float = CALM_S, under: Sequence[str] = (), **more: Any) -> Worker:
                return stack.enter_context(Worker(system.backend, system.options(ttl_s) | more, name, under=under))

            yield start

    # -- one at a time -----------------------------------------------------------------------------------------------

    def test_excludes_processes(self, workers: Callable[..., Worker], backend: LockBackend, tmp_path: Path) -> None:
        """Four processes that read, think and write under the lock lose no update."""
        file = tmp_path / "count"
        file.write_text("0")
        crowd = [workers() for _ in range(4)]
        for worker in crowd:
            worker.tell("count", file=str(file), times=20)
        assert [worker.answer()["counted"] for worker in crowd] == [20] * 4
        assert file.read_text() == "80"

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

    @promise("shows_queue")
    def test_contenders_say_who_they_are(self, system: LockSystem, name: str) -> None:
        """All under a prefix show who they are, how long they waited, and, if it is known, what a lease has left."""
        with system.open(CALM_S, instance="test") as named, named.lock(f"{name}/a"), named.lock(f"{name}/b"):
            queue = named.contenders(f"{name}/")
        assert [contender.key.rpartition("/")[0] for contender in queue] == [f"{name}/a", f"{name}/b"]
        for contender in queue:
            assert contender.holds
            assert contender.token > 0
            owner = contender.owner
            assert (owner["instance"], owner["pid"]) == ("test", os.getpid())
            assert owner["thread"] == threading.current_thread().name
            assert contender.waited_s is not None
            assert 0 <= contender.waited_s < WITHIN_S
            assert contender.ttl_left_s is None or 0 <= contender.ttl_left_s <= CALM_S

    @promise("fencing")
    def test_tokens_grow(self, backend: LockBackend, name: str) -> None:
        """Each grant has a higher token than the one before, of whichever lock object."""
        tokens = []
        for _ in range(5):
            with backend.lock(name) as grant:
                tokens.append(grant.token)
        assert tokens == sorted(set(tokens))

    # -- tasks ---------------------------------------------------------------------------------------------------------

    async def test_tasks_and_threads_exclude_each_other(self, tasks_lock: AsyncLock, lock: DistributedLock) -> None:
        """Both faces are contenders of the same lock."""
        async with tasks_lock as grant:
            assert await asyncio.to_thread(lock.try_acquire) is None
            assert [one.key for one in await tasks_lock.contenders()] == [grant.key]
        held = await asyncio.to_thread(lock.acquire, owner="a thread")
        assert await tasks_lock.try_acquire() is None
        await asyncio.to_thread(lock.release, owner="a thread")
        async with tasks_lock.holding(wait_s=WITHIN_S) as again:
            assert again.token > held.token or not self.guarantees.fencing

    async def test_a_cancelled_task_leaves_no_key(self, tasks_lock: AsyncLock, lock: DistributedLock) -> None:
        """Cancelling a task that waits takes it out of the queue; cancelling one that holds gives the lock back."""

        async def hold(entered: asyncio.Event) -> None:
            async with tasks_lock:
                entered.set()
                await asyncio.Event().wait()

        entered = asyncio.Event()
        holder = asyncio.create_task(hold(entered))
        await entered.wait()
        waiter = asyncio.create_task(hold(asyncio.Event()))
        await asyncio.to_thread(self._until_queued, lock, 2)
        waiter.cancel()
        await asyncio.wait({waiter})
        await asyncio.to_thread(self._until_queued, lock, 1)
        holder.cancel()
        await asyncio.wait({holder})
        assert await tasks_lock.contenders() == []
        assert holder.cancelled()
        assert waiter.cancelled()

    async def test_a_cancelled_task_ends(self, tasks_lock: AsyncLock) -> None:
        """No cancellation is swallowed, whenever it comes in an acquire or a release, and the lock is free."""

        async def again_and_again() -> None:
            while True:
                async with tasks_lock:
                    pass

        for step in range(40):
            task = asyncio.create_task(again_and_again())
            await asyncio.sleep(0.01 + step * 0.0003)  # not a wait for anything: a different moment each time
            task.cancel()
            await asyncio.wait({task}, timeout=WITHIN_S)
            assert task.cancelled()
        async with tasks_lock.holding(wait_s=WITHIN_S):
            pass

    @promise("leases")
    async def test_a_blocked_loop_loses_the_lock(self, brief_tasks_lock: AsyncLock, lock: DistributedLock) -> None:
        """A loop that stands still has the lock for a TTL, as nothing on it could be told; then others get it."""
        got = threading.Event()

        def take() -> None:
            lock.acquire(wait_s=WITHIN_S)
            got.set()
            lock.release()

        other = threading.Thread(target=take)
        with pytest.raises(LockLost):
            async with brief_tasks_lock:
                other.start()
                assert got.wait(WITHIN_S)  # blocks the loop
        other.join()

    async def test_waiting_tasks_cost_no_thread(self, tasks_lock: AsyncLock, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many wait, there are as many threads; and the holder can release."""
        waiting, sleep = set[Wake](), Wake.wait

        async def sleep_and_tell(wake: Wake, timeout_s: float) -> bool:
            waiting.add(wake)
            return await sleep(wake, timeout_s)

        async def once() -> None:
            async with tasks_lock:
                pass

        monkeypatch.setattr(Wake, "wait", sleep_and_tell)
        async with tasks_lock:
            first = asyncio.create_task(once())
            await eventually_async(lambda: waiting, "the first one waits")
            few = threading.active_count()
            rest = [asyncio.create_task(once()) for _ in range(30)]

            def ended() -> list[asyncio.Task[None]]:
                return [task for task in rest if task.done()]

            await eventually_async(lambda: len(waiting) > 30 or ended(), "all wait")
            for task in ended():
                task.result()  # what it raised says more
            many = threading.active_count()
        await asyncio.wait_for(asyncio.gather(first, *rest), 4 * WITHIN_S)
        assert many <= few + 2

    # -- the ways to acquire -----------------------------------------------------------------------------------------

    def test_try_acquire(self, lock: DistributedLock, steady_backend: LockBackend) -> None:
        """try_acquire gives the lock if it is free, else None, and leaves nothing in the queue."""
        with steady_backend.lock(lock.name):
            assert lock.try_acquire() is None
            eventually(lambda: len(lock.contenders()) == 1, "only the holder is in the queue")
        grant = lock.try_acquire()
        assert grant is not None
        assert lock.held_by_me
        lock.release()

    def test_a_wait_that_ends_leaves_no_key(
        self, backend: LockBackend, system: LockSystem, steady_backend: LockBackend, name: str
    ) -> None:
        """A wait that is over raises LockTimeout, one that is called off LockCancelled; neither leaves anything."""
        holder, lock = steady_backend.lock(name), backend.lock(name)
        with holder:
            alone = len(system.leftovers())
            began = time.monotonic()
            with pytest.raises(LockTimeout):
                lock.acquire(wait_s=0.3)
            assert time.monotonic() - began >= 0.3
            eventually(lambda: len(system.leftovers()) == alone, "nothing but the holder's is left")
            assert not lock.held_by_me
            cancel = Cancel()
            waiting = InThread(lambda: lock.acquire(cancel=cancel))
            self._until_queued(holder, 2)
            cancel.set()
            with pytest.raises(LockCancelled):
                waiting.result()
            eventually(lambda: len(system.leftovers()) == alone, "nothing but the holder's is left")

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

    # -- owners ------------------------------------------------------------------------------------------------------

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
        self, brief_lock: DistributedLock, system: LockSystem, lock: DistributedLock
    ) -> None:
        """Releasing a lock that was lost does nothing to its present owner."""
        grant = brief_lock.acquire()
        system.end_lease(grant)
        with lock.holding(wait_s=WITHIN_S) as present:
            eventually(lambda: grant.lost, "the loss is noticed")
            with pytest.raises(LockLost):
                brief_lock.release()
            present.ensure_held()
            assert len(lock.contenders()) == 1

    @pytest.mark.slow
    @promise("leases")
    def test_a_machine_that_was_suspended_before_is_like_any_other(
        self, lock: DistributedLock, workers: Callable[..., Worker]
    ) -> None:
        """Where the clocks differ by an hour they are not mixed up: a lease is had, renewed, and not lost."""
        under = ["unshare", "--time", "--boottime", "3600"]
        if subprocess.run([*under, "true"], capture_output=True).returncode:
            pytest.skip("no time namespaces for us here")
        ttl_s = 2 * TTL_S
        worker = workers(ttl_s, under, renew_ratio=OFTEN)
        assert "token" in worker.ask("acquire", wait_s=WITHIN_S)
        with pytest.raises(LockTimeout):
            lock.acquire(wait_s=1.5 * ttl_s)
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

    def test_closing_the_backend_ends_waits(self, system: LockSystem, backend: LockBackend, name: str) -> None:
        """Closing the connections takes the waiters out of their queues at once, with LockUnavailable."""
        closing = system.open(60)
        with backend.lock(name):
            threads = [InThread(closing.lock(name).acquire) for _ in range(5)]
            self._until_queued(backend.lock(name), 6)
            closing._pause_renewal(60)  # they leave by themselves, not by its thread
            closing.close()
            for thread in threads:
                with pytest.raises(LockUnavailable):
                    thread.result()
        with pytest.raises(LockUnavailable):
            closing.lock(name).acquire()

    # -- a forked child ----------------------------------------------------------------------------------------------

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
        await asyncio.to_thread(self._until_queued, locks[0], 2)
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

    @pytest.mark.slow
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
