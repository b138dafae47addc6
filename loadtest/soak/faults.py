"""A short fault a minute: an instance, etcd or the store, in turn. The only check here is that each of them ends."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lab.demo.stage import Stage
from lab.servers.process import Process

_BEYOND_TTL_S: Final = 2.0  # an instance stands still for so much longer than its leases last
_AWAY_S: Final = 1.0  # a server, between its end and its start
_SILENT_S: Final = 4.0  # etcd: longer than the deadline of a call, shorter than a TTL


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that struck; seconds since the beginning."""

    what: str
    began_s: float
    ended_s: float


async def strike(
    stage: Stage, ttl_s: float, every_s: float, clock: Callable[[], float], noted: Callable[[Fault], None]
) -> None:
    """Let one fault strike after the other, until cancelled."""
    etcd, store = stage.locks.processes[0], stage.store
    stills: list[tuple[str, Process]] = [
        (f"instance-{at} stands still", one) for at, one in enumerate(stage.instances, 1)
    ]
    # An etcd that stands still is a path on which nothing arrives: connections stay open and nobody answers.
    restarts = [("etcd is killed and started", etcd), ("the store is killed and started", store)]
    for turn in itertools.count(1):
        await asyncio.sleep(max(0.0, turn * every_s - every_s / 2 - clock()))
        began_s = clock()
        match (turn - 1) % 5:
            case 0 | 2 as place:
                what, process = stills[place // 2 % len(stills)]
                await _stand_still(process, ttl_s + _BEYOND_TTL_S)
            case 1 | 4 as place:
                what, process = restarts[place // 4]
                await _restart(process)
            case _:
                what = "etcd does not answer"
                await _stand_still(etcd, _SILENT_S)
        noted(Fault(what, began_s, clock()))


async def _stand_still(process: Process, for_s: float) -> None:
    await asyncio.to_thread(process.pause)
    try:
        await asyncio.sleep(for_s)
    finally:
        process.resume()


async def _restart(process: Process) -> None:
    process.kill()
    await asyncio.sleep(_AWAY_S)
    await asyncio.to_thread(process.start)
