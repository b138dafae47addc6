"""Operations of a lock, and what must hold after each: one owner, growing tokens, and nothing that stays behind."""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import fencelock
from fencelock import AsyncLock, Grant, LockBackend, LockError
from fencelock.redis import lock as redis_lock
from fencelock.registry import backend_class
from lab.steps.play import AS_ANSWERED, CANCELLED, PATIENCE_S, TAKEN, TIMEOUT_S, TTL_S, Play
from lab.steps.systems import ACTOR

_LOOK_EVERY_S: Final = 0.05
_TOLD_S: Final = 0.7
_FIRST_S: Final = 1.0  # in which the first one waits, unless it was cancelled before that
_WOKEN_S: Final = 0.7  # B has renewed by then, so that a waiter who is not woken sleeps for longer
_GIVEN_BACK_S: Final = 0.7 * TTL_S  # a lock that is not given back runs out later than that
_DIRECT_S: Final = 5.0  # of a call without a wire
_SETTLED_S: Final = 0.3  # in which a late message has reached its server


@dataclass(slots=True)
class Held:
    """A grant, as its owner believes in it. `ended`: it has begun to give it back."""

    whose: str
    grant: Grant
    ended: bool = False
    excused_at: float | None = None

    @property
    def believed(self) -> bool:
        """Whether its owner believes that it owns the lock."""
        return not self.ended and not self.grant.lost


Operation = Callable[["LockPlay"], Awaitable[None]]


class LockPlay(Play):
    """A run of an operation of a lock: A, the actor, goes through the wire, and B and C don't."""

    allowed = (LockError,)

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
        self._ended = False  # the actor's lease, behind its back
        async with self.b.aio.lock(self.name).holding():
            pass  # the servers know the scripts, and have the tables
        if self.case.operation in BEHIND:
            await self._take_b(PATIENCE_S)

    def _connect(self, url: str, whose: str) -> LockBackend:
        timeout_s = TIMEOUT_S if whose == ACTOR else _DIRECT_S
        return fencelock.connect(url, ttl_s=TTL_S, timeout_s=timeout_s, instance=whose)

    def told(self, whose: str, grant: Grant) -> Held:
        """Note a grant, and hold it against those that are believed in."""
        held = Held(whose, grant, excused_at=math.inf if whose == "A" and self._ended else None)
        with self._mutex:
            for other in self.helds:
                if other.believed and other.excused_at is None and held.excused_at is None:
                    self.violated(
                        f"TWO OWNERS: {whose} has token {grant.token}, {other.whose} believes in {other.grant.token}"
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
            held = self.told(whose, grant)
            try:
                yield grant
            finally:
                # Its lease was ended behind its back: it is told at its next renewal.
                since = held.excused_at
                if since is not None and time.monotonic() - since > TTL_S / 3 + _TOLD_S and not grant.lost:
                    self.violated("A was not told that it had lost the lock")
                held.ended = True

    async def open(self) -> None:
        """See `Play`."""
        self.a = self._connect(self.url, ACTOR)
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
                await self._release_b()

    async def _release_b(self) -> None:
        if self.b_held is not None:
            held, self.b_held = self.b_held, None
            held.ended = True
            self.released_at = time.monotonic()
            await self._b_lock.release(owner="B")

    async def end_leases(self) -> None:
        """See `Play`. What follows from it its owner learns only at the next renewal."""
        if await self.system.end_leases(self.wire, self.name):
            self._excuse()

    def _excuse(self, those: str = "A") -> None:
        self._ended = True
        for held in self.helds:
            if held.whose in those and held.excused_at is None:
                held.excused_at = time.monotonic()

    async def between(self, what: str) -> None:
        """See `Play`."""
        if what == TAKEN and self.b_held is None:
            await self._take_b(TTL_S + PATIENCE_S)
        elif what == "try":
            with contextlib.suppress(LockError):
                async with self.owning(self.b.aio.lock(self.name), "B", wait_s=0, owner="between"):
                    pass
        elif what == "force":
            with contextlib.suppress(LockError):
                if await self.b.aio.force_release(self.name):
                    self._excuse("AB")

    async def _take_b(self, within_s: float) -> None:
        self._b_lock = self.b.aio.lock(self.name)
        self.b_held = self.told("B", await self._b_lock.acquire(wait_s=within_s, owner="B"))

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
        self.let_go.set()
        if self._late:
            await asyncio.sleep(_SETTLED_S)
        with contextlib.suppress(LockError):  # B has it
            async with self.owning(self.b.aio.lock(self.name), "C", wait_s=0, owner="C"):
                pass
        with contextlib.suppress(LockError):
            await self._release_b()
        if self.alive:
            await self._a_again()
        try:
            async with self.owning(self.b.aio.lock(self.name), "C", wait_s=PATIENCE_S, owner="C"):
                pass
        except LockError as error:
            self.violated(f"a third one doesn't get it: {error!r}")
        await self.b.aio.close()
        if self.alive:
            await self.close_actor()
        await self.nothing_is_left(self.system)

    async def _set_up_again(self) -> None:
        self.system = self.systems["lock"]
        self._mutex = threading.Lock()
        self.helds, self.b_held, self._ended = [], None, False
        self.b = self._connect(self.system.direct, "B")

    def remember(self) -> Any:
        """See `Play`."""
        return self.tokens

    def recall(self, known: Any) -> None:
        """See `Play`."""
        self.tokens = known

    @property
    def _late(self) -> bool:
        return any(fault in ("late", "after the lease") for _, fault in self._strikes)

    async def _a_again(self) -> None:
        """The actor's own client is as good as before."""

        async def again() -> None:
            async with self.owning(self.a.aio.lock(self.name), wait_s=PATIENCE_S):
                pass

        # The first try finds connections that are cut, which is said, and nothing more.
        last: BaseException | None = None
        for _ in range(3):
            try:
                await self.on_actor(again, 2 * PATIENCE_S)
                return
            except LockError as error:
                last = error
            except TimeoutError:
                self.violated("A's client hangs")
                return
        self.violated(f"A's client doesn't get it any more: {last!r}")

    def forget(self) -> None:
        """See `Play`."""
        self.helds = []
        del self.lock


# -- the operations ----------------------------------------------------------------------------------------------------


async def _take(play: LockPlay) -> None:
    """Take a free lock and give it back."""
    async with play.owning(play.lock):
        pass


async def _take_behind(play: LockPlay) -> None:
    """Take a lock that somebody else has, and give it back."""
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
            held = play.told("A", grant)
            held.ended = True

    await asyncio.to_thread(take)


async def _session(play: LockPlay) -> None:
    """Begin a session, take two locks under it, and end it."""
    async with play.a.aio.session(ttl_s=TTL_S) as session:
        async with play.owning(session.lock(play.name)):
            pass
        async with play.owning(session.lock(play.name)):
            pass


async def _campaign(play: LockPlay) -> None:
    """Be elected, say something, and resign."""
    async with play.a.aio.election(play.name).campaigning("first") as leadership:
        held = play.told("A", leadership)
        try:
            await leadership.proclaim("second")
            await leadership.record("third")
        finally:
            held.ended = True


def has(system: str, operation: str) -> bool:
    """Return whether a lock system has what an operation needs."""
    if operation == "session":
        return system in ("etcd", "etcd-txn")
    return operation != "campaign" or backend_class(system).guarantees.elects


IN_A_THREAD: Final = "take in a thread"
_SAY_WHEN: Final = ("two wait", "give up")  # may B give it back
BEHIND: Final = ("take behind", "two wait", "give up")
OPERATIONS: Final[dict[str, Operation]] = {
    "take": _take,
    "take behind": _take_behind,
    "two wait": _two_wait,
    "give up": _give_up,
    "re-enter": _re_enter,
    "hold": _hold,
    IN_A_THREAD: _in_a_thread,
    "session": _session,
    "campaign": _campaign,
}
