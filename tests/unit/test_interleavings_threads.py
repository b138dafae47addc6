"""Threads around a lock, a lease and its renewal thread, in every order that few switches can make of it.

The algorithm itself, which is the same for tasks, is explored in test_interleavings_tasks.py.

Exactly one runs at a time, on a clock of the test's (`tests/harness/stepped.py`), and every schedule with up to two
switches at an odd moment is played. Some tests break the code on purpose, to see that the explorer finds out.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FunctionType
from typing import Any

import pytest

from fencelock import (
    LockCancelled,
    LockError,
    LockLost,
    LockNotHeld,
    LockTimeout,
    attempt,
    callbacks,
    lease,
    owners,
    renewer,
    waiting,
)
from fencelock.callbacks import Callbacks
from fencelock.grant import Grant
from fencelock.lease import Lease
from fencelock.owners import Owners
from fencelock.renewer import ThreadRenewer
from fencelock.steps import in_thread
from fencelock.waiting import Cancel
from tests.harness.explorer import BrokenPromise, Schedule, explore
from tests.harness.memory_locks import MemoryLocks, MemoryLockServer, Wire
from tests.harness.stepped import Stage, Thread, put_on_stage

pytestmark = pytest.mark.exhaustive  # half a minute each

TTL_S = 9.0
DUE_S = TTL_S / 3  # from when a lease was asked for to its first renewal
Play = Callable[[Schedule], None]


@pytest.fixture(autouse=True)
def on_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_stage(monkeypatch)


class Server:
    """A lease's hold, whose calls take two steps: their way there, and their way back."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.knows_it = True
        self.renewals = self.ends = 0
        self.is_handed_back = False
        self.is_late = False  # a renewal was answered after that

    async def renew(self, timeout_s: float) -> bool:
        self.stage.step(lambda: "a renewal arrives")
        self.renewals += 1
        answer = self.knows_it
        self.stage.step(lambda: "its answer arrives")
        self.is_late = self.is_late or self.is_handed_back
        return answer

    async def end(self, timeout_s: float) -> None:
        self.stage.step(lambda: "it is given back")
        self.knows_it, self.ends = False, self.ends + 1
        self.stage.step(lambda: "that is acknowledged")


class NoHold:
    async def renew(self, timeout_s: float) -> bool:
        return True

    async def end(self, timeout_s: float) -> None:
        pass


def passes(seconds: float) -> None:
    """This thread waits while the others go on."""
    Stage.here.wait(lambda: False, seconds)


def jumps(seconds: float) -> None:
    """Time passes, whatever the others are doing."""
    Stage.here.now += seconds


# -- a lease and those who want to hear of its loss --------------------------------------------------------------------


def subscribed_and_lost(schedule: Schedule, mutant: FunctionType | None = None) -> None:
    """A thread subscribes while another one has the lease lost."""
    with Stage(schedule, [lease, callbacks], mutant=mutant, fine=True) as stage:
        one, told = Lease("it", NoHold(), TTL_S), list[str]()

        def subscribes() -> None:
            one.on_lost(lambda: told.append(one.reason))

        def loses() -> None:
            one.lose("it was said so")
            assert one.lost

        stage.play(subscribes, loses)
        assert told == ["it was said so"]


def lost_twice(schedule: Schedule, mutant: FunctionType | None = None) -> None:
    """It is lost for two reasons at once: its time is over, and the server says so."""
    with Stage(schedule, [lease, callbacks], mutant=mutant) as stage:
        one, told, seen = Lease("it", NoHold(), TTL_S), list[str](), list[str]()
        for _ in range(2):
            one.on_lost(lambda: told.append(one.reason))
        jumps(TTL_S)

        def loses() -> None:
            one.lose("the server says so")
            seen.append(one.reason)

        def looks() -> None:
            assert one.lost
            seen.append(one.reason)

        stage.play(loses, looks)
        assert told == seen == [seen[0]] * 2


def taken_back(schedule: Schedule, mutant: FunctionType | None = None) -> None:
    """A subscription is taken back while the lease is lost."""
    with Stage(schedule, [lease, callbacks], mutant=mutant, fine=True) as stage:
        one, told = Lease("it", NoHold(), TTL_S), list[str]()
        forget = one.on_lost(lambda: told.append("first"))
        one.on_lost(lambda: told.append("second"))

        def forgets() -> None:
            forget()

        def loses() -> None:
            one.lose("it was said so")

        stage.play(forgets, loses)
        assert told in (["second"], ["first", "second"])


@pytest.mark.parametrize(
    ("play", "deviations", "at_least"),
    [
        (subscribed_and_lost, 3, 300),
        (lost_twice, 2, 200),
        (taken_back, 3, 100),
    ],
)
def test_each_subscriber_hears_of_a_loss_once(play: Play, deviations: int, at_least: int) -> None:
    """No loss is missed or told twice, only the first reason counts, and lost stays lost."""
    assert explore(play, deviations=deviations).schedules >= at_least


# -- the renewal thread ------------------------------------------------------------------------------------------------


class Renewed:
    """A lease that the renewal thread keeps. `told`: what was heard of it."""

    def __init__(self, stage: Stage) -> None:
        self.server = Server(stage)
        self.told: list[str] = []
        self.renewer = ThreadRenewer(on_event=self.told.append)
        self.lease = Lease("it", self.server, TTL_S)
        self.lease.on_lost(lambda: self.told.append("on_lost"))
        self.renewer.keep(self.lease)

    def hands_back(self) -> None:
        """At the moment when it is to be renewed."""
        passes(DUE_S)
        in_thread(self.renewer.hand_back(self.lease, 2.0))
        self.server.is_handed_back = True


def handed_back_as_it_is_renewed(schedule: Schedule, mutant: FunctionType | None = None) -> None:
    """The renewal may be before it, under way, or not begun."""
    with Stage(schedule, [renewer], mutant=mutant) as stage:
        it = Renewed(stage)

        def hands_back() -> None:
            it.hands_back()
            assert not it.server.knows_it

        stage.play(hands_back, and_then_s=TTL_S)
        assert it.server.renewals <= 1, "it is renewed after it was handed back"
        assert it.server.ends == 1
        assert "on_lost" not in it.told, "that it was given up is no loss"
        assert it.renewer._jobs == {}


def kept_by_two(schedule: Schedule, mutant: FunctionType | None = None) -> None:
    """Two threads have a lease kept, of which the second is due long before the first."""
    with Stage(schedule, [renewer], mutant=mutant) as stage:
        keeper, servers = ThreadRenewer(), [Server(stage) for _ in range(2)]
        leases = [Lease("long", servers[0], 100 * TTL_S), Lease("short", servers[1], 0.9)]

        def keeps() -> None:
            keeper.keep(leases[0])

        def keeps_another() -> None:
            keeper.keep(leases[1])

        stage.play(keeps, keeps_another, and_then_s=0.4)
        assert [server.renewals for server in servers] == [0, 1]
        assert len([thread for thread in stage.threads if thread.lasts]) == 1, "one thread for all"


def handed_back_behind_another(schedule: Schedule, mutant: FunctionType | None = None) -> None:
    """It is not renewed if it was handed back while the one before it was renewed."""
    with Stage(schedule, [renewer], mutant=mutant) as stage:
        it, first = Renewed(stage), Server(stage)
        it.renewer.keep(Lease("first", first, TTL_S, asked_at=stage.now - 0.1))

        def hands_back() -> None:
            it.hands_back()
            first.is_handed_back = True

        stage.play(hands_back, and_then_s=TTL_S / 2)
        assert not (first.is_late and first.renewals == 1 and it.server.renewals)


def closed_as_one_is_kept(schedule: Schedule, mutant: FunctionType | None = None) -> None:
    """At the end of the process somebody still acquires a lock."""
    with Stage(schedule, [renewer], mutant=mutant) as stage:
        keeper, server = ThreadRenewer(), Server(stage)
        one = Lease("it", server, 0.3)

        def keeps() -> None:
            keeper.keep(one)

        def closes() -> None:
            keeper.close()
            assert not [thread for thread in stage.threads if thread.lasts and not thread.ended]
            before = server.renewals
            passes(1.0)
            assert server.renewals == before

        stage.play(keeps, closes)
        assert keeper._jobs == {}


@pytest.mark.parametrize(
    ("play", "deviations", "at_least"),
    [
        (handed_back_as_it_is_renewed, 2, 700),
        (handed_back_behind_another, 1, 50),
        (kept_by_two, 2, 700),
        (closed_as_one_is_kept, 2, 300),
    ],
)
def test_the_renewal_thread_keeps_its_word(play: Play, deviations: int, at_least: int) -> None:
    """A kept lease is renewed in time; one that was handed back is gone, and not renewed; closing ends the thread."""
    assert explore(play, deviations=deviations).schedules >= at_least


# -- who owns a lock ---------------------------------------------------------------------------------------------------


class OnStage(Wire):
    """Each call takes two steps."""

    def in_thread(self, name: str, call: Callable[[], Any]) -> Any:
        Stage.here.step(lambda: f"'{name}' arrives")
        answer = call()
        Stage.here.step(lambda: f"the answer to '{name}' arrives")
        return answer


class Shared:
    """A lock that threads share."""

    def __init__(self, ttl_s: float = TTL_S) -> None:
        self.server = MemoryLockServer()
        self.locks = MemoryLocks(self.server, OnStage(), ttl_s=ttl_s)
        self.lock = self.locks.lock("it")
        self.inside = 0
        self.tokens: list[int] = []

    def work(self, grant: Grant) -> None:
        """Do what a holder does under the lock."""
        self.inside += 1
        Stage.here.step(lambda: "what it does under the lock")
        assert self.inside == 1, "two have the lock"
        self.tokens.append(grant.token)
        self.inside -= 1

    def acquire_and_release(self, owner: str) -> None:
        """Twice as fast as anybody: it is not waited for."""
        with suppress(LockTimeout):
            self.lock.acquire(owner=owner, wait_s=0)
            assert self.server.queues["it"], "it was given back while one had it"
            self.lock.release(owner=owner)

    def check_it_is_free(self) -> None:
        """Nothing is left, here or there."""
        assert self.server.queues.get("it", []) == []
        assert self.lock._owners._held == {}
        assert self.locks.renewer._jobs == {}
        assert self.tokens == sorted(set(self.tokens))


def two_are_one_owner(schedule: Schedule, mutant: FunctionType | None = None) -> None:
    """Two threads call themselves by one name: it is theirs until each has released what it acquired."""
    with Stage(schedule, [owners], mutant=mutant, fine=True) as stage:
        it = Shared()
        it.lock.acquire(owner="we")

        def acquires() -> None:
            it.acquire_and_release("we")

        def releases() -> None:
            it.lock.release(owner="we")

        stage.play(acquires, releases)
        it.check_it_is_free()


def granted_twice_to_one_owner(schedule: Schedule, mutant: FunctionType | None = None) -> None:
    """Two threads of one name were granted it, as the server had forgotten the first."""
    with Stage(schedule, [owners], mutant=mutant, fine=True):
        held, refused = Owners("it"), list[str]()
        grants = [Grant("it", token, "memory", Lease("it", NoHold(), TTL_S)) for token in (1, 2)]

        def adds(grant: Grant) -> None:
            try:
                held.add("we", grant)
            except LockError:
                refused.append("refused")

        def first() -> None:
            adds(grants[0])

        def second() -> None:
            adds(grants[1])

        Stage.here.play(first, second)
        assert refused == ["refused"]
        data = held.leave("we")
        assert data is not None
        assert data.grant in grants


def left_to_the_next(schedule: Schedule, mutant: FunctionType | None = None) -> None:
    """A thread ends without releasing it; the renewal thread gives it back, and another one waits for it."""
    with Stage(schedule, [owners, renewer], mutant=mutant) as stage:
        it = Shared()

        def leaves() -> None:
            it.lock.acquire()

        def waits() -> None:
            with it.lock as grant:
                it.work(grant)

        stage.play(leaves, waits, and_then_s=TTL_S)
        with it.lock as grant:
            it.work(grant)
        it.check_it_is_free()


def released_as_it_is_lost(schedule: Schedule, mutant: FunctionType | None = None) -> None:
    """The server has forgotten the holder; the renewal thread hears of it while the holder releases."""
    with Stage(schedule, [owners, renewer, lease], mutant=mutant) as stage:
        it, told, heard = Shared(), list[str](), list[str]()

        def holds() -> None:
            grant = it.lock.acquire()
            grant.on_lost(lambda: told.append("lost"))
            it.server.forget_holder("it")
            passes(DUE_S)
            known = grant.lost
            try:
                it.lock.release()
            except LockLost:
                heard.append("lost")
            else:
                assert not known, "it was known to be lost, and nobody is told"
            with pytest.raises(LockNotHeld):
                it.lock.release()
            assert it.lock.acquire(wait_s=0).token > grant.token
            it.lock.release()

        stage.play(holds, and_then_s=TTL_S)
        assert told in ([*heard], ["lost"])
        it.check_it_is_free()


def called_off(schedule: Schedule, mutant: FunctionType | None = None) -> None:
    """A thread's wait is called off while it waits, or begins to; it hears of that at once."""
    with Stage(schedule, [attempt, waiting, callbacks], mutant=mutant) as stage:
        it, cancel = Shared(), Cancel()
        it.lock.acquire(owner="somebody else")

        def waits() -> None:
            with pytest.raises(LockCancelled):
                it.lock.acquire(cancel=cancel)
            assert len(it.server.queues["it"]) == 1

        def calls_off() -> None:
            cancel.set()

        stage.play(waits, calls_off)
        assert stage.now < 1001, "it waited in vain"


@pytest.mark.parametrize(
    ("play", "deviations", "at_least"),
    [
        (two_are_one_owner, 2, 700),
        (granted_twice_to_one_owner, 2, 60),
        (left_to_the_next, 1, 200),
        (released_as_it_is_lost, 1, 100),
        (called_off, 1, 100),
    ],
)
def test_a_lock_has_one_owner_and_is_given_back_once(play: Play, deviations: int, at_least: int) -> None:
    """Owners acquire and release at the same time, lose it or end: nothing is held then that nobody has."""
    assert explore(play, deviations=deviations).schedules >= at_least


# -- what the explorer is good for -------------------------------------------------------------------------------------


def lose_without_mutex(one: Lease, reason: str) -> None:
    if one._reason is None:
        one._reason = reason
        one._on_lost.fire()


def call_and_then_fire(one: Callbacks) -> None:
    one._call_all()
    one.fired = True


def look_and_then_subscribe(one: Callbacks, callback: Callable[[], None]) -> None:
    if one.fired:
        callback()
    else:
        one._callbacks.append(callback)


def reenter_without_mutex(one: Owners, owner: str) -> Grant | None:
    data = one._held.get(owner)
    if data is None:
        return None
    data.hold_count += 1
    return data.grant


def start_without_mutex(one: ThreadRenewer) -> None:
    if one._thread is None and not one._closed:
        one._thread = Thread(target=one._run, name="fencelock-renewer", daemon=True)
        one._thread.start()
    one._changed.set()


@pytest.mark.parametrize(
    ("kind", "name", "mutant", "play", "what"),
    [
        (Lease, "lose", lose_without_mutex, lost_twice, "assert"),
        (Callbacks, "fire", call_and_then_fire, subscribed_and_lost, "assert"),
        (Callbacks, "subscribe", look_and_then_subscribe, subscribed_and_lost, "assert"),
        (Owners, "reenter", reenter_without_mutex, two_are_one_owner, "given back while one had it"),
        (ThreadRenewer, "_look_soon", start_without_mutex, kept_by_two, "one thread for all"),
    ],
)
def test_what_is_broken_is_found(
    kind: type, name: str, mutant: FunctionType, play: Play, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It all goes well if nobody is interrupted, and not otherwise; the schedule that is reported shows it again."""
    monkeypatch.setattr(kind, name, mutant)
    broken = partial(play, mutant=mutant)
    explore(broken, deviations=0)
    with pytest.raises(BrokenPromise, match=what) as found:
        explore(broken, deviations=2)
    with pytest.raises(AssertionError):
        broken(Schedule(found.value.given))
