"""A second use of the locks, beside the sale: they are held for longer than a TTL, so that renewal is needed.

Grants of the sale last milliseconds; a renewal that does nothing would never be noticed there. In each instance one
thread, and one task on a loop of its own, take turns with those of the other instances.
"""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from app.settings import Settings
from fencelock import connect
from fencelock.errors import LockError

PREFIX: Final = "/seckill-torture/long/"
HOLD_TTLS: Final = 2.5
QUIET: Final = "quiet"  # a file in the instance's folder: no new holds
_LOOK_S: Final = 0.02
_AWAY_S: Final = 0.2


def begin(settings: Settings, folder: Path) -> Callable[[float], None]:
    """Hold locks in the background, until the file `quiet` exists; return a function that pauses their renewal."""
    url, ttl_s, timeout_s = settings.lock.get_secret_value(), settings.lock_ttl_s, settings.lock_timeout_ms / 1000
    backend = connect(url, ttl_s=ttl_s, timeout_s=timeout_s, instance=settings.instance_name)
    wait_s, hold_s, quiet = 6 * ttl_s, HOLD_TTLS * ttl_s, folder / QUIET

    def in_thread() -> None:
        lock = backend.lock(f"{PREFIX}threads")
        while not quiet.exists():
            with contextlib.suppress(LockError), lock.holding(wait_s=wait_s) as grant:
                end = time.monotonic() + hold_s
                while time.monotonic() < end and not (grant.lost or quiet.exists()):
                    time.sleep(_LOOK_S)
            time.sleep(random.uniform(0, _AWAY_S))  # noqa: S311 - no secret

    async def on_loop() -> None:
        lock = backend.aio.lock(f"{PREFIX}tasks")
        while not quiet.exists():
            with contextlib.suppress(LockError):
                async with lock.holding(wait_s=wait_s) as grant:
                    end = time.monotonic() + hold_s
                    while time.monotonic() < end and not (grant.lost or quiet.exists()):  # noqa: ASYNC110 - a file
                        await asyncio.sleep(_LOOK_S)
            await asyncio.sleep(random.uniform(0, _AWAY_S))  # noqa: S311 - no secret
        await backend.leave_loop()

    threading.Thread(target=in_thread, name="long-hold", daemon=True).start()
    threading.Thread(target=lambda: asyncio.run(on_loop()), name="long-hold-loop", daemon=True).start()
    return backend._pause_renewal
