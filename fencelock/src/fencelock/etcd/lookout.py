"""Waits for the end of a key in etcd: by a watch, and by looking where a watch may be late or silent."""

import time
from collections.abc import Iterator
from typing import Final

from ..errors import LockUnavailable
from ..waiting import Waiters, Wake
from .client import EtcdClient, KeyWatch

# A deletion that races with the creation of its watch may be reported 100 ms late. So look again after 3, 6, 12, ... ms
# until this much time has passed since the watch was made; after that its events are prompt.
_WATCH_IS_PROMPT_S: Final = 0.2
_FIRST_LOOK_S: Final = 0.003
# Then look this often, as no watch reports that our own key was deleted by hand, or that a member froze with our watch.
_LOOK_AGAIN_S: Final = 1.0
_WITHOUT_WATCH_S: Final = 0.1


class KeyLookout:
    """A watch on one key at a time, which sets `wake`, and the times of the looks besides it."""

    def __init__(self, client: EtcdClient, wake: Wake, waiters: Waiters) -> None:
        self._client = client
        self._waiters = waiters
        self._wake = wake
        self._key = ""
        self._watch: KeyWatch | None = None
        self._pauses: Iterator[float] = iter(())

    async def pause_s(self, key: str, timeout_s: float, *, below: bool = False) -> float:
        """Return for how many seconds to sleep before the next look at `key`, unless its watch wakes us.

        That is 0 if the watch was made just now, within `timeout_s`: look, as it misses everything before. (A kept
        watch existed when `key` was seen, and would have reported its end.) A watch only makes it quicker: without one
        we look more often. `below`: watch all changes of keys with this prefix.
        """
        if self._watch is not None and self._key == key and self._watch.will_tell():
            return next(self._pauses)
        self.close()
        try:
            self._watch = await self._client.watch(key, self._wake.set, timeout_s, below=below)
        except LockUnavailable:
            return _WITHOUT_WATCH_S
        self._key, self._pauses = key, self._looks(self._watch.made_at)
        return next(self._pauses) if self._watch.kept else 0.0

    def close(self) -> None:
        """Watch no longer."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _looks(self, made_at: float) -> Iterator[float]:
        pause_s = _FIRST_LOOK_S * self._waiters.crowd
        while True:
            prompt = time.monotonic() - made_at > _WATCH_IS_PROMPT_S
            yield _LOOK_AGAIN_S * self._waiters.crowd if prompt else pause_s
            pause_s *= 2
