"""The last stand of a run: an instance hears nothing any more, a server of the lock is dead, and nobody mends it.

The faults of the nemesis end. Here the rest has to get on by itself: it sells, holds, confirms and delivers.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

from lab.torture.history import History, LastStand
from lab.torture.nemesis import World

STAND: Final = "stand"
_LOOKS_FOR_S: Final = 30.0  # twice as long as the judge lets it take
_LOOK_EACH_S: Final = 0.1
_SOLD: Final = "sold"
_OF_MONEY: Final = ("held", "confirmed", "delivered")


async def stand(world: World, history: History, clock: Callable[[], float]) -> LastStand:
    """Break what stays broken, and look until all was done by the others, or it took too long; then mend it."""
    actor, promised = world.any_instance(), (_SOLD, *(_OF_MONEY if history.setup.flows else ()))
    async with AsyncExitStack() as mending:
        member = await world.stage.follower()
        if member is not None:
            await asyncio.to_thread(member.kill)
            mending.push_async_callback(asyncio.to_thread, member.start)
        for path in (*actor.to_lock, *([actor.to_store] if actor.to_store else [])):
            mending.callback(path.reset)
            mending.callback(path.restore)
            path.swallow(new_ones=True)
        began_at, done = clock(), dict[str, float]()
        adding = asyncio.create_task(_add_units(world, history))  # it needs the lock, and so its time
        mending.push_async_callback(asyncio.wait, [adding])
        while len(done) < len(promised) and clock() < began_at + _LOOKS_FOR_S:
            await asyncio.sleep(_LOOK_EACH_S)
            done = _done(history, actor.name, began_at)
        gone = f"{actor.name}" + (f", {member.name}" if member is not None else "")
        return LastStand(gone, round(began_at, 4), round(clock(), 4), {name: done.get(name) for name in promised})


async def _add_units(world: World, history: History) -> None:
    for item in (*(flow.item for flow in history.setup.flows), *history.setup.items):
        await world.operator.add(item.sku, max(1, item.initial // 4))


def _done(history: History, silent: str, since: float) -> dict[str, float]:
    """Return when each thing was done first by one of the others, in seconds of the run."""
    found = dict[str, float]()
    for attempt in reversed(history.attempts):
        if attempt.sent_at >= since and attempt.outcome == _SOLD and attempt.instance != silent:
            found[_SOLD] = attempt.done_at
    for call in reversed(history.calls):
        if call.sent_at >= since and call.outcome in ("held", "confirmed") and call.instance != silent:
            found[call.outcome] = call.done_at
    for one in reversed(history.deliveries):
        if one.at >= since and one.status == 200 and one.instance != silent:
            found["delivered"] = one.done_at
    return found
