"""The nemesis: the faults, and the one who chooses among them.

A fault is an async context manager: it breaks something as it is entered and mends it as it is left. It yields what it
has struck, or raises `Missed` when there was nothing to strike. `Kind` says how long it is left broken.
"""

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from app.errors import LockError
from app.locks import Contender
from app.stock.redis.client import Script
from app.torture.history import Fault
from app.torture.stage import Actor, Stage

_AIM_WITHIN_S: Final = 3.0
_RELEASE_S: Final = 0.15  # a release that was sent before its sender was stopped has arrived by then
_DELAY_S: Final = 0.1
_TRIES: Final = 100

_READ: Final = Script("prepare.lua").sha.encode()
_COMMITS: Final = {
    guard: Script(script).sha.encode()
    for guard, script in (("fence", "commit.lua"), ("compare", "commit.lua"), ("none", "bare.lua"))
}


class Missed(Exception):
    """There was nothing to strike, and why."""


@dataclass(frozen=True, slots=True)
class World:
    """What a fault may touch: the stage, and the lock's queue as it is. `guard`: what checks the commits."""

    stage: Stage
    dice: random.Random
    queue: Callable[[], Awaitable[list[Contender]]]
    guard: str

    @property
    def commit(self) -> bytes:
        """What a commit on its way to the store can be known by."""
        return _COMMITS[self.guard]

    def any_instance(self) -> Actor:
        """One of the instances."""
        return self.dice.choice(self.stage.instances)

    def instance_of(self, contender: Contender | None) -> Actor | None:
        """The instance whose contender that is."""
        name = contender.owner.get("instance") if contender else None
        return next((actor for actor in self.stage.instances if actor.name == name), None)

    async def holder(self) -> Actor:
        """The instance that owns the lock just now; any one when nobody does for a while."""
        return self.instance_of(await self.contender(holds=True)) or self.any_instance()

    async def contender(self, *, holds: bool) -> Contender | None:
        """Who owns the lock, or one who waits for it, as soon as there is one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AIM_WITHIN_S):
                while True:
                    with contextlib.suppress(LockError):
                        for one in await self.queue():
                            if one.holds == holds:
                                return one
                    await asyncio.sleep(0.002)
        return None


Strike = Callable[[World], AbstractAsyncContextManager[str]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    `place`: faults of one place don't go together. `ttls` and `seconds`: how long it lasts. `shared`: what it breaks is
    everybody's, so sales can go on only when it is over; else the others should go on at once.
    """

    strike: Strike
    what: str
    place: str
    ttls: float = 0.0
    seconds: float = 0.0
    shared: bool = False

    def lasts_s(self, ttl_s: float) -> float:
        """How long it is left broken."""
        return self.ttls * ttl_s + self.seconds


@asynccontextmanager
async def _pause_holder(world: World) -> AsyncIterator[str]:
    # The holder, caught in the act: an instance that was stopped outside of its grant is let go again.
    for _ in range(_TRIES):
        actor = world.instance_of(await world.contender(holds=True))
        if actor is None:
            continue
        actor.pause()
        try:
            first = await world.contender(holds=True)
            if first is not None and world.instance_of(first) is actor:
                await asyncio.sleep(_RELEASE_S)
                still = await world.contender(holds=True)
                if still is not None and still.key == first.key:
                    yield f"{actor.name}, the holder"
                    return
        finally:
            actor.resume()
        await asyncio.sleep(0.01)
    raise Missed("no holder could be caught")


@asynccontextmanager
async def _kill(world: World) -> AsyncIterator[str]:
    actor = await world.holder()
    await asyncio.to_thread(actor.kill)
    try:
        yield actor.name
    finally:
        await asyncio.to_thread(actor.start)


def _etcd(how: str) -> Strike:
    """Stop or kill etcd's leader."""

    @asynccontextmanager
    async def strike(world: World) -> AsyncIterator[str]:
        leader = await world.stage.leader()
        member = leader or world.dice.choice(world.stage.cluster.members)
        await asyncio.to_thread(member.pause if how == "pause" else member.kill)
        try:
            yield f"{member.name}{', the leader' if leader else ''}"
        finally:
            await asyncio.to_thread(member.resume if how == "pause" else member.start)

    return strike


@asynccontextmanager
async def _store_kill(world: World) -> AsyncIterator[str]:
    store = world.stage.store
    await asyncio.to_thread(store.kill)
    try:
        yield "the store"
    finally:
        await asyncio.to_thread(store.start)


def _on_path(to: str, how: str) -> Strike:
    """Stall, delay or reset the path between one instance and etcd, or the store."""

    @asynccontextmanager
    async def strike(world: World) -> AsyncIterator[str]:
        actor = await world.holder()
        paths = actor.to_etcd if to == "etcd" else [actor.to_store]
        for path in paths:
            match how:
                case "cut":
                    path.stall()
                case "delay":
                    path.delay_s = _DELAY_S
                case "reset":
                    path.reset()
        try:
            yield f"{actor.name} to {to}"
        finally:
            for path in paths:
                path.restore()
                if how == "reset":
                    path.reset()

    return strike


def _late(what: str, *, pause: bool) -> Strike:
    """Hold a read or a commit on its way to the store; its sender, too, can be stopped until others have sold."""

    @asynccontextmanager
    async def strike(world: World) -> AsyncIterator[str]:
        actor = world.any_instance()
        path = actor.to_store
        path.stall_at(world.commit if what == "commit" else _READ)
        try:
            if not await asyncio.to_thread(path.struck.wait, _AIM_WITHIN_S):
                raise Missed(f"no {what} of {actor.name} to be seen")
            if pause:
                actor.pause()
            yield f"a {what} of {actor.name}"
        finally:
            path.restore()  # what was on its way arrives first
            if pause:
                await asyncio.sleep(0.05)
                actor.resume()

    return strike


def _lost(what: str) -> Strike:
    """Lose a commit, or the answer to one, together with the connections to the store."""

    @asynccontextmanager
    async def strike(world: World) -> AsyncIterator[str]:
        actor = world.any_instance()
        path = actor.to_store
        (path.lose_answer_to if what == "answer" else path.lose_request)(world.commit)
        try:
            if not await asyncio.to_thread(path.struck.wait, _AIM_WITHIN_S):
                raise Missed(f"no commit of {actor.name} to be seen")
            yield f"{actor.name}'s {'answer to a commit' if what == 'answer' else 'commit'}"
        finally:
            path.restore()

    return strike


@asynccontextmanager
async def _renewal(world: World) -> AsyncIterator[str]:
    # A lease is needed for longer than its TTL only behind a holder who doesn't move.
    async with _late("commit", pause=True)(world) as held:
        waiter = world.instance_of(await world.contender(holds=False))
        if waiter is None:
            raise Missed("nobody waits")
        waiter.signal(signal.SIGUSR1)  # see app.torture.instance; it mends by itself
        yield f"{waiter.name}'s renewal thread, behind {held}"


@asynccontextmanager
async def _hang(world: World) -> AsyncIterator[str]:
    # Its commit is held, so it has the lock; then its loop stands still, while its threads renew what they may.
    async with _late("commit", pause=False)(world) as held:
        actor = next(one for one in world.stage.instances if held.endswith(one.name))
        actor.signal(signal.SIGUSR2)  # see app.torture.instance; it mends by itself
        yield f"{actor.name}'s event loop, with {held} under way"


def _key_of(which: str) -> Strike:
    """Delete a contender's key, as an operator who is mistaken might."""

    @asynccontextmanager
    async def strike(world: World) -> AsyncIterator[str]:
        for _ in range(_TRIES):
            one = await world.contender(holds=which == "holder")
            if one is None:
                raise Missed(f"no {which} to be seen")
            if await world.stage.delete(one.key):
                break
        else:
            raise Missed(f"no {which} was there long enough")
        yield f"{one.owner.get('instance')}, a {which}"

    return strike


KINDS: Final[dict[str, Kind]] = {
    "pause": Kind(
        _late("commit", pause=True),
        "SIGSTOP the holder between its last check and its write, beyond its TTL",
        "path",
        1,
        1.5,
    ),
    "pause-read": Kind(_late("read", pause=True), "... between its grant and its read", "path", 1, 1.5),
    "pause-holder": Kind(_pause_holder, "... anywhere while it owns the lock", "instance", 1, 1.5),
    "kill": Kind(_kill, "kill -9 an instance, and start it again", "instance", 0, 1.0),
    "late-commit": Kind(
        _late("commit", pause=False), "a commit is under way until its sender has long given up", "path", 1, 1.5
    ),
    "lost-commit": Kind(_lost("request"), "a commit and its connection are lost", "path", 0, 0.5),
    "lost-answer": Kind(_lost("answer"), "the answer to a commit is lost, and nobody can be asked", "path", 1, 1.5),
    "etcd-pause": Kind(_etcd("pause"), "SIGSTOP etcd's leader, beyond a TTL", "etcd", 1.0, 1.0),
    "etcd-kill": Kind(_etcd("kill"), "kill -9 etcd's leader, and start it again", "etcd", 0, 2.0),
    "store-kill": Kind(_store_kill, "kill -9 the store, and start it from its file", "store", 0, 0.5, shared=True),
    "etcd-cut": Kind(_on_path("etcd", "cut"), "an instance can't reach etcd, beyond its TTL", "etcd path", 1.0, 1.5),
    "etcd-delay": Kind(_on_path("etcd", "delay"), "... every message is 100 ms late", "etcd path", 0, 3.0),
    "etcd-reset": Kind(_on_path("etcd", "reset"), "... its connections are reset, twice", "etcd path", 0, 0.5),
    "store-cut": Kind(_on_path("store", "cut"), "an instance can't reach the store, beyond its TTL", "path", 1.0, 1.5),
    "store-delay": Kind(_on_path("store", "delay"), "... every message is 100 ms late", "path", 0, 3.0),
    "store-reset": Kind(_on_path("store", "reset"), "... its connections are reset, twice", "path", 0, 0.5),
    "renewal": Kind(
        _renewal, "stop the renewal thread of one who waits for a holder that stands still", "path", 1.0, 1.5
    ),
    "hang": Kind(_hang, "the holder's event loop stands still, and its threads go on", "path", 3.0),
    "holder-key": Kind(_key_of("holder"), "delete the holder's key in etcd", "keys"),
    "waiter-key": Kind(_key_of("waiter"), "delete a waiter's key in etcd", "keys"),
}
SEVERAL: Final = "several"
NAMES: Final = (*KINDS, SEVERAL)


class Nemesis:
    """Strikes again and again, with `calm_s` of peace after each fault, in which the recovery can be seen.

    Every name is used once before any is used again, in an order that the dice give.
    """

    def __init__(
        self, world: World, names: tuple[str, ...], dice: random.Random, *, ttl_s: float, calm_s: float
    ) -> None:
        self._world = world
        self._names = names
        self._dice = dice
        self._ttl_s = ttl_s
        self._calm_s = calm_s
        self._bag: list[str] = []

    async def run(self, clock: Callable[[], float], until: float, told: Callable[[Fault], None]) -> None:
        """Strike until `until`; what was struck is mended when this returns. `told` hears of each fault at its end."""
        await asyncio.sleep(1.0)
        while clock() < until:
            told(await self._strike(clock))

    async def _strike(self, clock: Callable[[], float]) -> Fault:
        name, kinds = self._draw()
        began_at = clock()
        struck: list[str] = []
        missed: list[str] = []
        async with AsyncExitStack() as mending:
            for one in kinds:
                try:
                    target = await mending.enter_async_context(KINDS[one].strike(self._world))
                except Missed as reason:
                    missed.append(f"missed, {reason}" if one == name else f"{one} missed, {reason}")
                else:
                    struck.append(target if one == name else f"{one}, {target}")
            hit_at = clock()
            if struck:
                await asyncio.sleep(max(KINDS[one].lasts_s(self._ttl_s) for one in kinds))
        ended_at = clock()
        await asyncio.sleep(self._calm_s)
        # Where etcd or the store is struck besides, an instance's fault can't be got over at once.
        # And where there is only one instance there is nobody to go on.
        alone = len(self._world.stage.instances) > 1 and not any(
            KINDS[one].shared or (len(kinds) > 1 and KINDS[one].place == "etcd") for one in kinds
        )
        return Fault(
            name,
            "; ".join(struck + missed),
            bool(struck),
            round(began_at, 3),
            round(ended_at, 3),
            free_from=round(hit_at if alone else ended_at, 3),
            watched_until=round(clock(), 3),
        )

    def _draw(self) -> tuple[str, list[str]]:
        if not self._bag:
            self._bag = list(self._names)
            self._dice.shuffle(self._bag)
        name = self._bag.pop()
        if name != SEVERAL:
            return name, [name]
        # From different places: to pause what was killed is no new fault.
        others = [one for one in self._names if one != SEVERAL] or list(KINDS)
        by_place = {KINDS[one].place: one for one in self._dice.sample(others, len(others))}
        some = list(by_place.values())
        kinds = self._dice.sample(some, min(len(some), self._dice.choice((2, 3))))
        # etcd and the store last: the other faults find their target with their help.
        return name, sorted(kinds, key=lambda one: KINDS[one].place in ("etcd", "store"))
