"""The nemesis: the faults, and the selection among them.

A fault is an async context manager: it breaks something on entry and mends it on exit. It yields the name of its
target, or raises `Missed` when there was nothing to strike. `Kind` says how long it stays broken.
"""

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from app.stock import Level
from app.stock.redis.keys import keys_of
from app.stock.registry import REDIS
from app.wiring import Sale
from fencelock import Contender, LockError
from fencelock.backend import Guarantees
from lab.servers import RedisCluster, SentinelSet
from lab.torture import cable, shim
from lab.torture.history import Fault
from lab.torture.operator import Operator
from lab.torture.proxy import Proxy
from lab.torture.receiver import EventReceiver
from lab.torture.stage import CLUSTER, POOLED, SENTINEL, Actor, TortureStage

_AIM_WITHIN_S: Final = 3.0
_RELEASE_S: Final = 0.15  # a release that was sent before its sender was stopped has arrived by then
_DELAY_S: Final = 0.1
_SLOW_S: Final = 0.3
_TRIES: Final = 100
_PEACE: Final = 0.25
_ARRIVES_S: Final = 0.05
_OPERATOR_TTLS: Final = 10
_HOUR_S: Final = 3600
_SLOW_SYNC_MS: Final = 100


class Missed(Exception):
    """There was nothing to strike; the text says why."""


@dataclass(frozen=True, slots=True)
class World:
    """The parts that a fault may touch: the stage, the operator's view and actions, and the receiver of the events."""

    stage: TortureStage
    dice: random.Random
    sale: Sale
    operator: Operator
    ttl_s: float
    receiver: EventReceiver

    def any_instance(self) -> Actor:
        """Return one of the instances."""
        return self.dice.choice(self.stage.instances)

    def instance_of(self, contender: Contender | None) -> Actor | None:
        """Return the instance of a contender."""
        name = contender.owner.get("instance") if contender else None
        return next((actor for actor in self.stage.instances if actor.name == name), None)

    async def holder(self) -> Actor:
        """Return the instance that owns the lock just now; any instance if none does for a while."""
        return self.instance_of(await self.contender(holds=True)) or self.any_instance()

    async def contender(self, *, holds: bool) -> Contender | None:
        """Return the contender that owns the lock, or one that waits for it, as soon as there is one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AIM_WITHIN_S):
                while True:
                    with contextlib.suppress(LockError):
                        for one in await self.sale.readiness.contenders():
                            if one.holds == holds:
                                return one
                    await asyncio.sleep(0.002)
        return None

    async def sold(self) -> int:
        """Return the units sold of all items."""
        levels = (await self.sale.stock.levels(self.stage.skus)).values()
        return sum(level.lucky for level in levels if isinstance(level, Level))


Strike = Callable[[World], AbstractAsyncContextManager[str]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    `place`: faults of one place don't go together. `ttls` and `seconds`: its duration. `shared`: all instances need
    the broken part, so sales can resume only when it is over; otherwise the others should go on at once. `apart`: it
    goes with no other.
    """

    strike: Strike
    what: str
    place: str
    ttls: float = 0.0
    seconds: float = 0.0
    shared: bool = False
    apart: bool = False

    def lasts_s(self, ttl_s: float) -> float:
        """Return how long the fault lasts."""
        return self.ttls * ttl_s + self.seconds


@asynccontextmanager
async def _pause_holder(world: World) -> AsyncIterator[str]:
    # The holder must be caught in the act: an instance that was stopped outside its grant is resumed.
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


@asynccontextmanager
async def _kill_sender(world: World) -> AsyncIterator[str]:
    try:
        actor = await world.receiver.kill_sender(world.ttl_s + _AIM_WITHIN_S)
    except TimeoutError:
        raise Missed("no event has come") from None
    try:
        yield actor.name
    finally:
        await asyncio.to_thread(actor.start)


@asynccontextmanager
async def _restart(world: World) -> AsyncIterator[str]:
    for actor in world.stage.instances:
        await asyncio.to_thread(actor.terminate)
        await asyncio.to_thread(actor.start)
    yield "all instances, one after the other"


@asynccontextmanager
async def _upgrade(world: World) -> AsyncIterator[str]:
    outdated = [actor for actor in world.stage.instances if actor.outdated]
    if not outdated:
        raise Missed("all are of the present release")
    for actor in outdated:
        await asyncio.to_thread(actor.upgrade)
    yield "all instances, one after the other"


def _lock_server(how: str) -> Strike:
    """Return a strike that stops or kills one of the lock's servers, the leader if there is one."""

    @asynccontextmanager
    async def strike(world: World) -> AsyncIterator[str]:
        server, name = await world.stage.lock_server()
        await asyncio.to_thread(server.pause if how == "pause" else server.kill)
        try:
            yield name
        finally:
            await asyncio.to_thread(server.resume if how == "pause" else server.start)

    return strike


@asynccontextmanager
async def _replace(world: World) -> AsyncIterator[str]:
    server, name = await world.stage.lock_server()
    await asyncio.to_thread(world.stage.replace_lock_server, server)
    yield name


@asynccontextmanager
async def _older(world: World) -> AsyncIterator[str]:
    await asyncio.to_thread(world.stage.back_up_locks)
    before = await world.sold()
    for _ in range(_TRIES):
        if await world.sold() > before:
            break
        await asyncio.sleep(world.ttl_s / 10)
    else:
        raise Missed("nothing was sold after the backup")
    await asyncio.sleep(world.ttl_s)  # the copy doesn't know of the tokens that are issued now
    await asyncio.to_thread(world.stage.set_locks_back)
    try:
        yield "all of its servers"
    finally:
        await asyncio.to_thread(world.stage.locks.start)
        # The contenders in the queue at the backup block it for a TTL. In the next one nobody is to sell.
        await asyncio.sleep(2 * world.ttl_s)
        # As docs/operations.md says: restart all, and unfence items that the store refuses.
        await asyncio.to_thread(world.stage.restart)
        async with asyncio.timeout(_OPERATOR_TTLS * world.ttl_s):
            for sku in world.stage.skus:
                if await _faults(world, sku):
                    await world.sale.stock.unfence(sku)


async def _faults(world: World, sku: str) -> list[str]:
    while True:
        # The contenders in the queue at the backup block it for a TTL.
        with contextlib.suppress(LockError):
            return await world.sale.readiness.faults(sku, wait_s=world.ttl_s)
        await asyncio.sleep(_ARRIVES_S)


def _store(how: str) -> Strike:
    """Return a strike that kills the store, cuts its power, or fills its disk, which ends it as well."""

    @asynccontextmanager
    async def strike(world: World) -> AsyncIterator[str]:
        stage, store = world.stage, world.stage.store_server
        if store is None or (how != "kill" and not stage.can_cut_power):
            raise Missed("there is no C compiler, or the store is not one Redis")
        if how == "full":
            shim.set_controls(stage.store_controls, full=1)
            await _until(lambda: not store.running)
            shim.set_controls(stage.store_controls)
        await (asyncio.to_thread(stage.cut_power, store) if how == "power" else asyncio.to_thread(store.kill))
        try:
            yield "the store"
        finally:
            await asyncio.to_thread(store.start)

    return strike


@asynccontextmanager
async def _pooler(world: World) -> AsyncIterator[str]:
    pooler = world.stage.pooler
    if pooler is None:
        raise Missed("there is no pooler in front of the store")
    await asyncio.to_thread(pooler.kill)
    try:
        yield "the pooler"
    finally:
        await asyncio.to_thread(pooler.start)


@asynccontextmanager
async def _failover(world: World) -> AsyncIterator[str]:
    store = world.stage.store
    if not isinstance(store, SentinelSet):
        raise Missed("the store has no replicas")
    dead = await asyncio.to_thread(store.fail_over)
    try:
        yield dead.name
    finally:
        await asyncio.to_thread(store.bring_back, dead)


@asynccontextmanager
async def _reshard(world: World) -> AsyncIterator[str]:
    store = world.stage.store
    if not isinstance(store, RedisCluster):
        raise Missed("the store is no Redis Cluster")
    sku = world.dice.choice(world.stage.skus)
    slot = store.slot_of(keys_of(sku).stock)
    home = store.owner_of(slot)
    away = world.dice.choice([node for node in store.nodes if node is not home])
    await asyncio.to_thread(store.move, slot, home, away)
    try:
        yield f"{sku}, from {home.name} to {away.name}"
    finally:
        await asyncio.to_thread(store.move, slot, away, home)


def _controlled(whose: str, **controls: int) -> Strike:
    """Return a strike that sets a wall clock, or slows a disk down."""

    @asynccontextmanager
    async def strike(world: World) -> AsyncIterator[str]:
        stage = world.stage
        if not stage.shim.available or (whose == "store" and not stage.can_cut_power):
            raise Missed("there is no C compiler, or the store is not Redis")
        actor = world.any_instance()
        file = stage.store_controls if whose == "store" else actor.controls
        shim.set_controls(file, **controls)
        try:
            yield "the store" if whose == "store" else actor.name
        finally:
            shim.set_controls(file)

    return strike


async def _until(holds: Callable[[], bool], within_s: float = _AIM_WITHIN_S) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not holds():  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise Missed("nothing came of it") from None


def _on_path(to: str, how: str) -> Strike:
    """Return a strike that stalls, silences, delays or resets an instance's path to the lock's servers or the store."""

    @asynccontextmanager
    async def strike(world: World) -> AsyncIterator[str]:
        actor = await world.holder()
        paths = actor.to_lock if to == "lock" else [_to_store(actor)]
        if how == "cut":
            # As often happens: slow first, so that counting a lease from the answer is wrong by that much.
            for path in paths:
                path.answer_delay_s = _SLOW_S
            await asyncio.sleep(world.ttl_s / 2)
        for path in paths:
            match how:
                case "cut":
                    path.stall()
                case "silent":
                    path.swallow(new_ones=True)
                case "delay":
                    path.delay_s = _DELAY_S
                case "reset":
                    path.reset()
        try:
            yield f"{actor.name} to the {to}{'s' * (to == 'lock')}"
        finally:
            for path in paths:
                path.restore()
                if how in ("reset", "silent"):
                    path.reset()

    return strike


def _to_store(actor: Actor) -> Proxy:
    if actor.to_store is None:
        raise Missed("the store is several servers")
    return actor.to_store


@asynccontextmanager
async def _cable(world: World) -> AsyncIterator[str]:
    actor = await world.holder()
    own = actor.cable
    if own is None:
        raise Missed("the instances are on loopback")
    await asyncio.to_thread(own.pull)
    try:
        yield f"{actor.name}'s"
    finally:
        await asyncio.to_thread(own.connect)


def _late(what: str, *, pause: bool) -> Strike:
    """Return a strike that holds a read or a commit to the store, and may stop its sender until others have sold."""

    @asynccontextmanager
    async def strike(world: World) -> AsyncIterator[str]:
        actor = world.any_instance()
        path = _to_store(actor)
        path.stall_at(world.stage.commit_mark if what == "commit" else world.stage.read_mark)
        try:
            if not await asyncio.to_thread(path.struck.wait, _AIM_WITHIN_S):
                raise Missed(f"no {what} of {actor.name} to be seen")
            if pause:
                actor.pause()
            yield f"a {what} of {actor.name}"
        finally:
            path.restore()  # messages that were on their way arrive first
            if pause:
                await asyncio.sleep(0.05)
                actor.resume()

    return strike


def _lost(what: str) -> Strike:
    """Return a strike that loses a commit, or the answer to one, together with the connections to the store."""

    @asynccontextmanager
    async def strike(world: World) -> AsyncIterator[str]:
        actor = world.any_instance()
        path = _to_store(actor)
        (path.lose_answer_to if what == "answer" else path.lose_request)(world.stage.commit_mark)
        try:
            if not await asyncio.to_thread(path.struck.wait, _AIM_WITHIN_S):
                raise Missed(f"no commit of {actor.name} to be seen")
            yield f"{actor.name}'s {'answer to a commit' if what == 'answer' else 'commit'}"
        finally:
            path.restore()

    return strike


@asynccontextmanager
async def _late_restocked(world: World) -> AsyncIterator[str]:
    # When the commit comes the stock is as it was read: by the stock alone nobody can tell that it is late.
    actor = world.any_instance()
    path = _to_store(actor)
    try:
        for _ in range(_TRIES):
            path.hold_at(world.stage.commit_mark)
            if not await asyncio.to_thread(path.struck.wait, _AIM_WITHIN_S):
                raise Missed(f"no commit of {actor.name} to be seen")
            before = await world.operator.levels()
            if items := before.keys() & world.stage.items_of(path.struck_by):
                break
            path.restore()  # only of items that are not restocked
        else:
            raise Missed(f"no commit of {actor.name} to be seen")
        await asyncio.sleep(world.ttl_s)  # its sender gives up, notices, and sells again
        for sku in items:
            await world.operator.set_to(sku, before[sku], path.restore)
        yield f"a commit of {actor.name}, on a connection of its own"
    finally:
        path.restore()


@asynccontextmanager
async def _late_between(world: World) -> AsyncIterator[str]:
    # The next owner has read, and not yet written: only the token that was seen at the read can stop the late commit.
    actor = world.any_instance()
    path = _to_store(actor)
    others = [_to_store(one) for one in world.stage.instances if one is not actor]
    path.hold_at(world.stage.commit_mark)
    try:
        if not await asyncio.to_thread(path.struck.wait, _AIM_WITHIN_S):
            raise Missed(f"no commit of {actor.name} to be seen")
        actor.pause()
        items = world.stage.items_of(path.struck_by)
        for other in others:
            other.hold_at(world.stage.commit_mark, *list(items.values())[:1])
        await _until(lambda: any(other.struck.is_set() for other in others), world.ttl_s + _AIM_WITHIN_S)
        path.restore()
        await asyncio.sleep(_ARRIVES_S)
        yield f"a commit of {actor.name}"
    finally:
        for one in (path, *others):
            one.restore()
        actor.resume()


@asynccontextmanager
async def _renewal(world: World) -> AsyncIterator[str]:
    # A lease is needed for longer than its TTL only behind a holder that is stuck.
    async with _late("commit", pause=True)(world) as held:
        waiter = world.instance_of(await world.contender(holds=False))
        if waiter is None:
            raise Missed("nobody waits")
        waiter.signal(signal.SIGUSR1)  # see lab.torture.instance; it mends by itself
        yield f"{waiter.name}'s renewal, behind {held}"


@asynccontextmanager
async def _hang(world: World) -> AsyncIterator[str]:
    # Its commit is held, so it has the lock; then its loop stands still, while its threads renew the leases they can.
    async with _late("commit", pause=False)(world) as held:
        actor = next(one for one in world.stage.instances if held.endswith(one.name))
        actor.signal(signal.SIGUSR2)  # see lab.torture.instance; it mends by itself
        yield f"{actor.name}'s event loop, with {held} under way"


def _key_of(which: str) -> Strike:
    """Return a strike that deletes a contender's key, as a mistaken operator might."""

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
    # -- of an instance
    "pause": Kind(
        _late("commit", pause=True),
        "the holder stands still between its last check and its write, for longer than its TTL",
        "path",
        1,
        1.5,
    ),
    "pause-read": Kind(
        _late("read", pause=True), "the holder stands still between its grant and its read", "path", 1, 1.5
    ),
    "pause-holder": Kind(_pause_holder, "the holder stands still anywhere while it owns the lock", "instance", 1, 1.5),
    "kill": Kind(_kill, "an instance is killed, and started again", "instance", 0, 1.0),
    "kill-sender": Kind(
        _kill_sender,
        "the instance that sends the events is killed when some are taken and not answered, and started again",
        "instance",
        0,
        1.0,
    ),
    "restart": Kind(_restart, "all instances are ended in order, one after the other, and started again", "instance"),
    "upgrade": Kind(
        _upgrade,
        "all instances, which are of an earlier release, are ended one after the other and started as this one",
        "instance",
    ),
    "hang": Kind(_hang, "the holder's event loop stands still, and its threads go on", "path", 3.0),
    "renewal": Kind(_renewal, "the renewal stops of one who waits for a holder that stands still", "path", 1.0, 1.5),
    "instance-clock": Kind(
        _controlled("instance", off_s=_HOUR_S), "the wall clock of an instance is an hour ahead", "clock", 0, 3.0
    ),
    # -- of a message
    "late-commit": Kind(
        _late("commit", pause=False), "a commit is under way until its sender has long given up", "path", 1, 1.5
    ),
    "late-restocked": Kind(
        _late_restocked, "a commit comes late, when an operator has restored the stock that it had read", "path", 0, 0.5
    ),
    "late-between": Kind(
        _late_between, "a commit comes late, when the next owner has read and not yet written", "path", 0, 0.0
    ),
    "lost-reply": Kind(_lost("answer"), "the answer to a commit and its connection are lost", "path", 0, 0.5),
    "lost-commit": Kind(_lost("request"), "a commit and its connection are lost", "path", 0, 0.5),
    "lost-answer": Kind(_lost("answer"), "the answer to a commit is lost, and nobody can be asked", "path", 1, 1.5),
    # -- of a path
    "cable": Kind(_cable, "an instance's cable is pulled out: packets are dropped, both ways", "path", 1.0, 1.5),
    "lock-cut": Kind(
        _on_path("lock", "cut"),
        "an instance can't reach the lock's servers: answers are late first, then nothing passes for a TTL",
        "lock path",
        1.0,
        1.5,
    ),
    "lock-silent": Kind(
        _on_path("lock", "silent"),
        "the lock's servers acknowledge all that an instance sends, and answer nothing",
        "lock path",
        1.0,
        1.5,
    ),
    "lock-delay": Kind(
        _on_path("lock", "delay"), "each message to the lock's servers is 100 ms late", "lock path", 0, 3.0
    ),
    "lock-reset": Kind(
        _on_path("lock", "reset"), "the connections to the lock's servers are reset, twice", "lock path", 0, 0.5
    ),
    "store-cut": Kind(
        _on_path("store", "cut"),
        "nothing passes between an instance and the store for longer than a TTL",
        "path",
        1.0,
        1.5,
    ),
    "store-silent": Kind(
        _on_path("store", "silent"),
        "the store acknowledges all that an instance sends, and answers nothing",
        "path",
        1.0,
        1.5,
    ),
    "store-delay": Kind(_on_path("store", "delay"), "each message to the store is 100 ms late", "path", 0, 3.0),
    "store-reset": Kind(_on_path("store", "reset"), "the connections to the store are reset, twice", "path", 0, 0.5),
    # -- of a lock's server
    "lock-pause": Kind(
        _lock_server("pause"),
        "one of the lock's servers (etcd's leader) stands still for longer than a TTL",
        "lock",
        1.0,
        1.0,
    ),
    "lock-kill": Kind(
        _lock_server("kill"), "one of the lock's servers is killed, and started again from its files", "lock", 0, 2.0
    ),
    "lock-replace": Kind(_replace, "a member of etcd, the leader, is replaced by a new one without data", "lock"),
    "lock-older": Kind(
        _older,
        "the lock's servers come back older than they were: from a copy of their files that was made earlier",
        "lock",
        shared=True,
        apart=True,
    ),
    # -- of the store
    "store-kill": Kind(
        _store("kill"), "the store is killed, and started again from its file", "store", 0, 0.5, shared=True
    ),
    "store-power": Kind(
        _store("power"),
        "the power of the store is cut: what it has written and not synced is gone",
        "store",
        0,
        0.5,
        shared=True,
    ),
    "store-full": Kind(_store("full"), "the store's disk is full, for a moment", "store", 0, 0.5, shared=True),
    "store-slow": Kind(
        _controlled("store", sync_ms=_SLOW_SYNC_MS),
        "each sync of the store's disk takes 100 ms",
        "store",
        0,
        3.0,
        shared=True,
    ),
    "store-clock": Kind(
        _controlled("store", off_s=_HOUR_S),
        "the wall clock of the store is an hour ahead, and then right again",
        "clock",
        0,
        3.0,
    ),
    "store-failover": Kind(
        _failover, "the primary is killed; Sentinel promotes a replica", "store", 0, 0.5, shared=True
    ),
    "pooler-kill": Kind(
        _pooler, "the pooler in front of the store is killed, and started again", "store", 0, 0.5, shared=True
    ),
    "store-reshard": Kind(_reshard, "slots of an item move to another node in mid-sale, and back", "store", 0, 1.0),
    # -- of what the lock has on its servers
    "holder-key": Kind(_key_of("holder"), "the holder's key is deleted in etcd", "keys"),
    "waiter-key": Kind(_key_of("waiter"), "a waiter's key is deleted in etcd", "keys"),
}
_TOGETHER: Final = [name for name, kind in KINDS.items() if not kind.apart]
SEVERAL: Final = "several"
CABLE: Final = "cable"
NAMES: Final = (*KINDS, SEVERAL)


def names_for(
    lock: str, store: str, guard: str, promised: Guarantees, *, sends: bool, upgraded: bool = False
) -> tuple[str, ...]:
    """Return the names of the possible faults for such a sale on this machine.

    `sends`: whether it sends events; `upgraded`: from an earlier release.
    """
    never = {CABLE} if cable.why_not() else set()
    if not sends:
        never |= {"kill-sender"}
    if not upgraded:
        never |= {"upgrade"}
    if lock == "none":
        never |= {name for name, kind in KINDS.items() if kind.place in ("lock", "lock path")}
    if lock != "etcd":
        never |= {"holder-key", "waiter-key"}
    if not lock.startswith("etcd"):
        never |= {"lock-replace"}
    if not promised.shows_queue:
        never |= {"renewal"}  # the fault needs a waiter
    if guard != "fence":
        never |= {"pause-read", "late-restocked", "late-between"}
    if store != REDIS:
        never |= {"store-power", "store-full", "store-slow", "store-clock", "late-restocked", "late-between"}
    if store in (SENTINEL, CLUSTER):  # their clients get the addresses from them, and bypass our proxies
        never |= {name for name, kind in KINDS.items() if kind.place == "path"} | {"store-kill"}
    if store != SENTINEL:
        never |= {"store-failover"}
    if store != POOLED:
        never |= {"pooler-kill"}
    if store != CLUSTER:
        never |= {"store-reshard"}
    return tuple(name for name in NAMES if name not in never)


def that_fit(
    names: tuple[str, ...], duration_s: float, ttl_s: float, calm_s: float, dice: random.Random
) -> tuple[str, ...]:
    """Return as many of the faults as a run has time for, at least one; if not all fit, the dice choose."""
    left_s, chosen = 2 * duration_s - max(calm_s, duration_s * _PEACE), set[str]()  # a run may take twice its time
    for name in dice.sample(names, len(names)):
        takes_s = calm_s + (2 * ttl_s if name == SEVERAL else KINDS[name].lasts_s(ttl_s))
        if not chosen or takes_s <= left_s:
            chosen.add(name)
            left_s -= takes_s
    return tuple(name for name in names if name in chosen)


class Nemesis:
    """Strikes again and again, with `calm_s` of peace after each fault, in which the recovery can be seen.

    Every fault is used once before any is used again, in an order that the dice choose.
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
        """Strike until `until`, and until each fault has struck, but not for longer than twice that.

        Before the first one and after the last one there is peace for a quarter of `until`: some bugs show only then.
        `told` is called with each fault at its end.
        """
        peace_s = max(self._calm_s, until * _PEACE)
        await asyncio.sleep(peace_s)
        missing = set(self._names)
        while clock() < until or (missing and clock() < 2 * until):
            fault = await self._strike(clock)
            if fault.struck:
                missing.discard(fault.name)
            elif fault.name in missing:
                self._bag.insert(0, fault.name)  # again, when the others have had their turn
            told(fault)
        await asyncio.sleep(peace_s - self._calm_s)

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
        # If the lock's servers or the store are struck as well, an instance's fault can't be overcome at once.
        # If there is only one instance, no other can go on.
        alone = len(self._world.stage.instances) > 1 and not any(
            KINDS[one].shared or (len(kinds) > 1 and KINDS[one].place == "lock") for one in kinds
        )
        return Fault(
            name,
            "; ".join(struck + missed),
            bool(struck),
            round(began_at, 3),
            round(ended_at, 3),
            free_from=round(hit_at if alone else ended_at, 3),
            watched_until=round(clock(), 3),
            hit_at=round(hit_at, 3),
        )

    def _draw(self) -> tuple[str, list[str]]:
        if not self._bag:
            self._bag = list(self._names)
            self._dice.shuffle(self._bag)
        name = self._bag.pop()
        if name != SEVERAL:
            return name, [name]
        # From different places: to pause a killed process is no new fault.
        others = [one for one in self._names if one != SEVERAL and not KINDS[one].apart] or _TOGETHER
        by_place = {KINDS[one].place: one for one in self._dice.sample(others, len(others))}
        some = list(by_place.values())
        kinds = self._dice.sample(some, min(len(some), self._dice.choice((2, 3))))
        # The servers last: the other faults need their help to find their target.
        return name, sorted(kinds, key=lambda one: KINDS[one].place in ("lock", "store"))
