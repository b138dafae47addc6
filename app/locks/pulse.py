"""An event loop's pulse: whether the loop on which a grant is held still turns."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self
from weakref import WeakKeyDictionary

_EVERY_S: Final = 0.25
STOPPED_S: Final = 1.0  # without a beat for longer: the loop stands still


class Pulse:
    """Beats while its loop turns and somebody feels it. A thread of its own goes on although the loop is blocked."""

    def __init__(self) -> None:
        self._feeling = 0
        self._timer: asyncio.TimerHandle | None = None
        self._beat_at = time.monotonic()

    @property
    def stopped(self) -> bool:
        """Whether the loop has stood still for more than a second while somebody feels its pulse. For any thread."""
        return self._feeling > 0 and time.monotonic() - self._beat_at > STOPPED_S

    @contextmanager
    def felt(self) -> Iterator[Self]:
        """In this block it beats. To be entered on the loop."""
        self._beat_at = time.monotonic()
        self._feeling += 1
        if self._timer is None:
            self._beat()
        try:
            yield self
        finally:
            self._feeling -= 1

    def _beat(self) -> None:
        self._beat_at = time.monotonic()
        # (A loop that is not kept here is forgotten with its pulse.)
        self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self._beat) if self._feeling else None


_pulses: WeakKeyDictionary[asyncio.AbstractEventLoop, Pulse] = WeakKeyDictionary()


def pulse_of_loop() -> Pulse:
    """The pulse of the running loop."""
    loop = asyncio.get_running_loop()
    return _pulses.get(loop) or _pulses.setdefault(loop, Pulse())
