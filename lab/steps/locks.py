"""Operations of a lock, and what must hold after each: one owner, growing tokens, and nothing that stays behind."""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

import fencelock
from app.locks.fallback import FallbackBackend
from fencelock import AsyncLock, AsyncSession, Grant, LockBackend, LockError
from fencelock.fence import AsyncRedisFence, FenceRefused
from fencelock.redis import lock as redis_lock
from fencelock.registry import backend_class
from lab.steps.play import (
    AFTER_LEASE,
    AS_ANSWERED,
    AWAY,
    CANCELLED,
    FORGETFUL,
    LATE,
    LATER,
    PATIENCE_S,
    TAKEN,
    TIMEOUT_S,
    TTL_S,
    Play,
)
from lab.steps.systems import ACTOR

_LOOK_EVERY_S: Final = 0.05
_TOLD_S: Final = 0.7
_NOTICED_S: Final = TTL_S / 3 + _TOLD_S  # in which an owner has renewed, and so is told of what ended behind its back
_LOOKS: Final = 10
_UNLOCKED_MAX: Final = 2
UNLOCKED: Final = "no lock"  # the source of grants without a lock
_FIRST_S: Final = 1.0  # in which the first one waits, unless it was cancelled before that
_WOKEN_S: Final = 0.7  # B has renewed by then, so that a waiter who is not woken sleeps for longer
_GIVEN_BACK_S: Final = 0.7 * TTL_S  # a lock that is not given back runs out later than that
_DIRECT_S: Final = 5.0  # of a call without a wire
_TRIES: Final = 6
_SETTLED_S: Final = 0.3  # in which a late message has reached its server


@dataclass(slots=True)
class Held:
    """A grant, which says by itself whether its owner may believe in it: also while it is given back."""

    whose: str
    grant: Grant
    excused_at: float | None = None

    @property
    def believed(self) -> bool:
        """Whether its owner believes that it owns the lock."""
        return not self.grant.lost


Operation = Callable[["LockPlay"], Awaitable[None]]


class LockPlay(Play):
    """A run of an operation of a lock: A, the actor, goes through the wire, and B and C don't."""

    allowed = (LockError,)
    b_session: AsyncSession

    async def set_up(self) -> None:
        """See `Play`."""
        system = self.systems["lock"]
        self.system = system
        self.outlives_its_loop = system.outlives_its_loop
        self.url = await system.tapped(self.wire, "lock")
        self.helds: list[Held] = []
        self.tokens: list[int] = []
        self._mutex = threading.Lock()
        self.b = self._connect(system.direct, "B")  # and C's
        self.b_held: Held | None = None
        self.may_release = threading.Event()
        self.released_at = math.inf  # by B
        self._ended_at = -math.inf  # the actor's lease, behind its back
        self._keep_until = -math.inf  # B has it for so long
        self.starts: list[str] = []  # of the one slot, by whom
        async with self.b.aio.lock(self.name).holding():
            pass  # the servers know the scripts, and have the tables
        if self.case.operation in BEHIND:
            await self._take_b(PATIENCE_S)
        if self.case.operation == "take over":
            dead = self._connect(system.direct, "D")
            await dead.aio.lock(self.name).acquire(owner="D")
            await dead.aio.close()
            await asyncio.sleep(TTL_S)

    def _connect(self, url: str, whose: str) -> LockBackend:
        timeout_s = TIMEOUT_S if whose == ACTOR else _DIRECT_S
        return fencelock.connect(url, ttl_s=TTL_S, timeout_s=timeout_s, instance=whose)

    def told(self, whose: str, grant: Grant) -> Held:
        """Note a grant, and hold it against those that are believed in."""
        on_its_way = whose == "A" and time.monotonic() - self._ended_at < _NOTICED_S
        held = Held(whose, grant, excused_at=math.inf if on_its_way else None)
        if grant.source == UNLOCKED or grant.lost:  # which it says itself
            return held
        with self._mutex:
            for other in self.helds:
                if not other.believed or other.excused_at is not None:
                    continue
                if held.excused_at is None:
                    self.violated(
                        f"TWO OWNERS: {whose} has token {grant.token}, {other.whose} believes in {other.grant.token}"
                    )
                elif self.fenced and grant.token > other.grant.token:  # a fence would refuse the owner
                    self.violated(
                        f"{whose} has lost the lock to {other.whose}, and token {grant.token} is above"
                        f" {other.grant.token}"
                    )
            if self.fenced and held.excused_at is None:
                if self.tokens and grant.token <= max(self.tokens):
                    self.violated(f"token {grant.token} of {whose} came after {max(self.tokens)}")
                self.tokens.append(grant.token)
            self.helds.append(held)
        return held

    @property
    def fenced(self) -> bool:
        """Whether the lock has tokens."""
        return self.b.guarantees.fencing

    @asynccontextmanager
    async def owning(self, lock: AsyncLock, whose: str = "A", **how: Any) -> AsyncIterator[Grant]:
        """Hold a lock, and note for how long it is believed in."""
        async with lock.holding(**how) as grant:
            held, heard = self.told(whose, grant), asyncio.Event()
            grant.on_lost(heard.set)
            try:
                yield grant
            finally:
                # Its lease was ended behind its back: it is told at its next renewal.
                since = held.excused_at
                if since is not None and time.monotonic() - since > _NOTICED_S and not heard.is_set():
                    self.violated("A was not told that it had lost the lock")

    async def open(self) -> None:
        """See `Play`."""
        self.a = self._connect(self.url, ACTOR)
        if self.case.operation == FALL_BACK:
            self.a = FallbackBackend(self.a, most=_UNLOCKED_MAX)
        self.lock = self.a.aio.lock(self.name)

    async def operate(self) -> None:
        """See `Play`."""
        await OPERATIONS[self.case.operation](self)

    async def shut(self) -> None:
        """See `Play`."""
        await self.a.aio.close()

    async def meanwhile(self) -> None:
        """See `Play`: B gives the lock back when A waits for it."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if self.b_held is not None and (self.case.operation not in _SAY_WHEN or self.may_release.is_set()):
                await self.quiet()
                # A lost answer is silence, too: whoever believes too soon that it is their turn must meet B.
                left_s = self.wire.struck_at + 1.5 * TIMEOUT_S - asyncio.get_running_loop().time()
                if self.wire.struck and left_s > 0:
                    await asyncio.sleep(left_s)
                # And so must one that renews what is B's by now, or waits for a place that it has lost.
                await asyncio.sleep(self._keep_until - time.monotonic())
                await self._release_b()

    async def _release_b(self) -> None:
        if self.b_held is not None:
            self.b_held = None
            self.released_at = time.monotonic()
            await self._b_lock.release(owner="B")

    async def end_leases(self) -> None:
        """See `Play`. What follows from it its owner learns only at the next renewal."""
        if await self.system.end_leases(self.wire, self.name):
            self._excuse()

    async def throw_out(self) -> None:
        """See `Play`."""
        thrown_out = await self.system.throw_out(self.wire, self.name)
        if thrown_out and self.b_held is None:
            self._excuse()
        elif thrown_out:  # and at once it would have been A's turn, which is B's again before A can look
            await self._release_b()
            await self._take_b(TTL_S + PATIENCE_S)
            self._keep_until = time.monotonic() + _NOTICED_S

    def _excuse(self, those: str = "A") -> None:
        self._ended_at = time.monotonic()
        self._keep_until = self._ended_at + _NOTICED_S
        for held in self.helds:
            if held.whose in those and held.excused_at is None:
                held.excused_at = time.monotonic()

    async def between(self, what: str) -> None:
        """See `Play`."""
        if what in (TAKEN, AWAY) and self.b_held is None:
            await self._take_b(TTL_S + PATIENCE_S)
            self._keep_until = time.monotonic() + _NOTICED_S
        elif what == "try":
            with contextlib.suppress(LockError):
                async with self.owning(self.b.aio.lock(self.name), "B", wait_s=0, owner="between"):
                    pass
        elif what == "force":
            with contextlib.suppress(LockError):
                if await self.b.aio.force_release(self.name):
                    self._excuse("AB")
        elif what == "once":
            with contextlib.suppress(LockError):
                await self.start_once(self.b, "B")

    async def _take_b(self, within_s: float) -> None:
        if self.case.operation == JOIN and not hasattr(self, "b_session"):
            self.b_session = await self.b.begin_session(TTL_S, None, False)
            self._b_lock = self.b_session.lock(self.name)
        else:
            self._b_lock = self.b.aio.lock(self.name)
        self.b_held = self.told("B", await self._b_lock.acquire(wait_s=within_s, owner="B"))

    async def start_once(self, locks: LockBackend, whose: str, wait_s: float = 0) -> None:
        """Start the one slot, if it was not started."""
        async with locks.aio.once(self.name, slot="the one", wait_s=wait_s) as start:
            if start is not None:
                self.told(whose, start.grant)
                self.starts.append(whose)
        forgotten = any(fault == FORGETFUL for _, fault in self._strikes)
        if len(self.starts) > 1 and not forgotten:
            self.violated(f"one slot was started {len(self.starts)} times, by {self.starts}")

    async def stand(self) -> None:
        """Be elected as B, in turn, and resign."""
        async with self.b.aio.election(self.name).campaigning("B", wait_s=PATIENCE_S) as leadership:
            self.told("B", leadership)

    async def arrive(self) -> None:
        """Have what is late arrive, while somebody has the lock: C must not get it."""
        self.let_go.set()
        for _ in range(_TRIES if self._late else 1):  # again and again, as its owner may be told soon
            await asyncio.sleep(_SETTLED_S / _TRIES if self._late else 0)
            await self.between("try")

    async def write(self, url: str, grant: Grant, value: str) -> None:
        """Write a value under a fence."""
        async with aclosing(Redis.from_url(url, decode_responses=True)) as client:
            await AsyncRedisFence(client, self._fenced_key).write(grant, value)

    async def _written(self) -> Any:
        async with aclosing(Redis.from_url(self.system.direct, decode_responses=True)) as client:
            return await client.hget(self._fenced_key, "value")

    @property
    def _fenced_key(self) -> str:
        return f"{self.name}!record"

    # -- the judge -----------------------------------------------------------------------------------------------------

    async def judge(self) -> None:
        """See `Play`."""
        self.wire.heal()
        if self.killed:
            await self._set_up_again()
        began = time.monotonic()
        try:
            if self.b_held is None:
                await self._take_b(PATIENCE_S)
        except LockError as error:
            self.violated(f"the next one doesn't get it: {error!r}")
        waited_s = time.monotonic() - began
        cancelled = any(fault.startswith(("cancelled", "all cancelled")) for _, fault in self._strikes)
        if cancelled and self.alive and waited_s > _GIVEN_BACK_S:
            self.violated(f"A was cancelled, and the next one had to wait for {waited_s:.1f} s")
        if isinstance(self.raised, fencelock.LockTimeout):
            self.violated(f"A waited in vain: {self.raised}")
        if self.case.operation == FENCE and self.b_held is not None:
            await self.write(self.system.direct, self.b_held.grant, "B's")
        if not any(fault == LATER for _, fault in self._strikes):
            await self.arrive()
        if self.case.operation == FENCE and (written := await self._written()) != "B's":
            self.violated(f"B has written last, and there is {written}")
        with contextlib.suppress(LockError):
            await self._release_b()
        if self.alive:
            await self._a_again()
        try:
            async with self.owning(self.b.aio.lock(self.name), "C", wait_s=PATIENCE_S, owner="C"):
                pass
        except LockError as error:
            self.violated(f"a third one doesn't get it: {error!r}")
        if self.case.operation == ONCE:
            await self.start_once(self.b, "B", PATIENCE_S)
        await self.b.aio.close()
        if self.alive:
            await self.close_actor()
        await self.nothing_is_left(self.system)

    async def _set_up_again(self) -> None:
        self.system = self.systems["lock"]
        self._mutex = threading.Lock()
        self.helds, self.b_held, self._ended_at = [], None, -math.inf
        self.b = self._connect(self.system.direct, "B")

    def remember(self) -> Any:
        """See `Play`."""
        return self.tokens, self.starts

    def recall(self, known: Any) -> None:
        """See `Play`."""
        self.tokens, self.starts = known

    @property
    def _late(self) -> bool:
        return any(fault in (LATE, LATER, AFTER_LEASE) for _, fault in self._strikes)

    async def _a_again(self) -> None:
        """The actor's own client is as good as before."""

        async def again() -> None:
            while isinstance(self.a, FallbackBackend) and self.a.degraded:  # noqa: ASYNC110 - a thread sees to it
                await asyncio.sleep(_LOOK_EVERY_S)
            async with self.owning(self.a.aio.lock(self.name), wait_s=PATIENCE_S):
                if not self.let_go.is_set():
                    await self.on_stage(self.arrive)

        # The first try finds connections that are cut, which is said, and nothing more.
        last: BaseException | None = None
        for _ in range(3):
            try:
                await self.on_actor(again, 2 * PATIENCE_S)
                break
            except LockError as error:
                last = error
            except TimeoutError:
                self.violated("A's client hangs")
                return
        else:
            self.violated(f"A's client doesn't get it any more: {last!r}")
        slots = [self.a.slots] * _UNLOCKED_MAX if isinstance(self.a, FallbackBackend) else []
        if not all(one.acquire(blocking=False) for one in slots):
            self.violated("a grant without a lock is never given back")

    def forget(self) -> None:
        """See `Play`."""
        self.helds = []
        del self.lock, self.a


# -- the operations ----------------------------------------------------------------------------------------------------


async def _take(play: LockPlay) -> None:
    """Take a free lock and give it back."""
    async with play.owning(play.lock):
        pass


async def _take_behind(play: LockPlay) -> None:
    """Take a lock that somebody else has, and give it back."""
    async with play.owning(play.lock, wait_s=PATIENCE_S):
        pass


async def _take_over(play: LockPlay) -> None:
    """Take a lock whose owner has died, and give it back."""
    async with play.owning(play.lock, wait_s=PATIENCE_S):
        pass


async def _two_wait(play: LockPlay) -> None:
    """Two wait for a lock that somebody else has: whatever becomes of the first, the other one is woken in its turn."""
    redis_lock._LOOK_AGAIN_S = PATIENCE_S  # type: ignore[misc] # else it looks by itself soon, woken or not

    async def other() -> None:
        first_waits = asyncio.run_coroutine_threadsafe(play.quiet(), play.stage)
        await asyncio.wait({asyncio.wrap_future(first_waits)}, timeout=_FIRST_S)
        play.may_release.set()
        async with play.owning(play.a.aio.lock(play.name), wait_s=PATIENCE_S):
            waited_s = time.monotonic() - play.released_at
        if any(fault in (CANCELLED, AS_ANSWERED) for _, fault in play._strikes) and waited_s > _WOKEN_S:
            play.violated(f"the first one was cancelled, and the other one heard of it after {waited_s:.1f} s")

    behind = asyncio.create_task(other())
    behind.add_done_callback(lambda _: play.may_release.set())
    try:
        async with play.owning(play.lock, wait_s=PATIENCE_S):
            pass
    finally:
        await asyncio.wait({behind})
    await behind


async def _give_up(play: LockPlay) -> None:
    """Wait for a lock, and give up; take it a moment later."""
    with contextlib.suppress(fencelock.LockTimeout):
        async with play.owning(play.lock, wait_s=0.3):
            pass
    play.may_release.set()
    async with play.owning(play.lock, wait_s=PATIENCE_S):
        pass


async def _re_enter(play: LockPlay) -> None:
    """Take a lock twice, and give it back twice."""
    async with play.owning(play.lock), play.lock:
        pass


async def _hold(play: LockPlay) -> None:
    """Hold a lock for longer than its TTL."""
    async with play.owning(play.lock):
        await asyncio.sleep(TTL_S * 1.8)


async def _in_a_thread(play: LockPlay) -> None:
    """Take a lock in a thread, and give it back."""

    def take() -> None:
        with play.a.lock(play.name).holding(wait_s=PATIENCE_S) as grant:
            play.told("A", grant)

    await asyncio.to_thread(take)


async def _session(play: LockPlay) -> None:
    """Begin a session, take two locks under it, and end it."""
    async with play.a.aio.session(ttl_s=TTL_S) as session:
        async with play.owning(session.lock(play.name)):
            pass
        if play._late:  # what comes now stands in the way, under a lease that lives
            play.stage.call_soon_threadsafe(play.let_go.set)
            await asyncio.sleep(_SETTLED_S)
        play.told("A", await session.lock(play.name).acquire(wait_s=PATIENCE_S))


async def _join(play: LockPlay) -> None:
    """Join the session of B, who has the lock under it; take another lock under its lease, and leave."""
    async with (
        play.a.aio.session(lease_id=play.b_session.lease_id) as session,
        session.lock(f"{play.name}/another").holding(wait_s=PATIENCE_S),
    ):
        pass


async def _campaign(play: LockPlay) -> None:
    """Be elected, say something, and resign."""
    async with play.a.aio.election(play.name).campaigning("first") as leadership:
        play.told("A", leadership)
        await leadership.proclaim("second")
        await leadership.record("third")


async def _correct(play: LockPlay) -> None:
    """Be elected, and say something else after a word that was perhaps not heard."""
    async with play.a.aio.election(play.name).campaigning("first") as leadership:
        play.told("A", leadership)
        with contextlib.suppress(fencelock.LockUnavailable):
            await leadership.proclaim("second")
        await leadership.proclaim("third")
        await play.on_stage(play.arrive)
        seen = await play.a.aio.election(play.name).leader()
        if seen is not None and seen.key == leadership.key and seen.value != "third":
            play.violated(f"A has said third, and {seen.value} is heard")


async def _resign(play: LockPlay) -> None:
    """Be elected, and resign while another one stands."""
    async with play.a.aio.election(play.name).campaigning("first") as leadership:
        play.told("A", leadership)
        behind = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(play.stand(), play.stage))
        await asyncio.sleep(_SETTLED_S)
    await behind


async def _once(play: LockPlay) -> None:
    """Start a slot once."""
    await play.start_once(play.a, "A")


async def _lead(play: LockPlay) -> None:
    """Lead until what there is to do is done, in as many terms as that takes."""
    terms = 0

    @play.a.aio.leading(play.name, "A")
    async def term(leadership: Grant) -> None:
        nonlocal terms
        terms += 1
        play.told("A", leadership)
        for _ in range(_LOOKS):
            lost = leadership.lost
            await asyncio.sleep(TTL_S / _LOOKS)
            if lost:
                play.violated("A went on though its term was lost")

    try:
        await term()
    except LockError as error:
        if terms:
            play.violated(f"A stood only {terms} times: {error!r}")
        raise


async def _fall_back(play: LockPlay) -> None:
    """Take a lock twice, or go on without it while its server is away."""
    for _ in range(2):
        async with play.owning(play.lock, wait_s=PATIENCE_S):
            pass


async def _fence(play: LockPlay) -> None:
    """Take a lock, and write under a fence."""
    async with play.owning(play.lock) as grant:
        with contextlib.suppress(RedisError, OSError, FenceRefused):
            await play.write(play.url, grant, "A's")


def has(system: str, operation: str) -> bool:
    """Return whether a lock system has what an operation needs."""
    if operation == "session":
        return system in ("etcd", "etcd-txn")
    if operation == JOIN:
        return system in ("etcd", "etcd-txn")
    if operation == "correct":  # elections of etcd-txn are in queues of their own
        return system != "etcd-txn" and _elects(system)
    if operation in (FALL_BACK, FENCE):
        return system == "redis"
    return operation not in _ELECTED or _elects(system)


def _elects(system: str) -> bool:
    return backend_class(system).guarantees.elects


IN_A_THREAD: Final = "take in a thread"
JOIN: Final = "join a session"
ONCE: Final = "once"
FALL_BACK: Final = "fall back"
FENCE: Final = "fence"
_ELECTED: Final = ("campaign", "correct", "resign", ONCE, "lead")
_SAY_WHEN: Final = ("two wait", "give up", JOIN)  # may B give it back
BEHIND: Final = ("take behind", "two wait", "give up", JOIN)
OPERATIONS: Final[dict[str, Operation]] = {
    "take": _take,
    "take behind": _take_behind,
    "take over": _take_over,
    "two wait": _two_wait,
    "give up": _give_up,
    "re-enter": _re_enter,
    "hold": _hold,
    IN_A_THREAD: _in_a_thread,
    "session": _session,
    JOIN: _join,
    "campaign": _campaign,
    "correct": _correct,
    "resign": _resign,
    ONCE: _once,
    "lead": _lead,
    FALL_BACK: _fall_back,
    FENCE: _fence,
}
