"""The watches on one etcd member, on one stream.

etcd3's own watcher has three bugs: a late answer is matched to the wrong watch; creations queue without a time-out;
after a half-close, a cancellation blocks for ever. This one only ever says "something happened to your key, look
again".
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
from etcd3 import etcdrpc

from ..errors import LockUnavailable
from ..waiting import Wake

_log = logging.getLogger(__name__)
_DELETIONS: Final = [etcdrpc.WatchCreateRequest.FilterType.Value("NOPUT")]
# Watches kept for later. When the same processes queue again and again, each has the same key ahead of it every time,
# and can use its watch again.
_IDLE_MAX: Final = 8


class Watch:
    """A watch on a key. `alive`: deletions of the key are reported; once it is False it stays so.

    `made_at`: when etcd confirmed it, by `time.monotonic`.
    """

    __slots__ = ("alive", "answered", "id", "key", "made_at", "stream", "unwanted", "wake")

    def __init__(self, stream: "WatchStream", key: str, wake: Callable[[], None]) -> None:
        self.stream = stream
        self.key = key
        self.wake = wake
        self.made_at = 0.0
        self.id: int | None = None
        self.alive = False
        self.unwanted = False
        self.answered = Wake()


class WatchStream:
    """A stream of watches; never reused after an error."""

    def __init__(self, stub: Any, metadata: Any) -> None:
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._unanswered: deque[Watch] = deque()  # etcd answers in the order of the requests
        self._watches: dict[int, Watch] = {}
        self._idle: dict[str, Watch] = {}  # by key; the one that was used last comes last
        self.broken = False
        self._call = stub.Watch(self._sent(), metadata=metadata)
        self._reader = asyncio.get_running_loop().create_task(self._read())
        self._reader.add_done_callback(lambda _: self._end())  # one that was cancelled before it began has no `finally`

    async def _sent(self) -> AsyncIterator[Any]:
        while (request := await self._requests.get()) is not None:
            yield request

    def kept(self, key: str, wake: Callable[[], None]) -> Watch | None:
        """Return a kept watch on a key's deletion, if there is one that has reported nothing since its last use."""
        watch = self._idle.pop(key, None)
        if watch is not None:
            watch.wake = wake
        return watch

    async def add(self, key: str, wake: Callable[[], None], timeout_s: float, *, end: bytes | None = None) -> Watch:
        """Watch a key for its deletion from now on. Raises `LockUnavailable` if etcd does not confirm it in time.

        With an `end`, watch all keys from `key` to before `end`, for anything that happens to them.

        The watch begins with the next revision, not with a past one: etcd puts a watch from the past into a group that
        it visits every 100 ms, and a deletion that follows closely would be reported that late.
        """
        watch = Watch(self, key if end is None else "", wake)
        create = (
            etcdrpc.WatchCreateRequest(key=key.encode(), filters=_DELETIONS)
            if end is None
            else etcdrpc.WatchCreateRequest(key=key.encode(), range_end=end)
        )
        if not self.broken:
            self._unanswered.append(watch)
            self._requests.put_nowait(etcdrpc.WatchRequest(create_request=create))
            watch.alive = True
            try:
                answered = await watch.answered.wait(timeout_s)
            except BaseException:
                self.remove(watch)
                raise
            if not answered:
                self.remove(watch)
                raise LockUnavailable("etcd does not confirm a watch")
        if not watch.alive:
            raise LockUnavailable("etcd ended the stream of watches")
        return watch

    def keep(self, watch: Watch) -> None:
        """Keep a watch that nobody waits for any more, for the next waiter on the same key."""
        if not watch.alive or not watch.key or watch.key in self._idle:
            self.remove(watch)
            return
        watch.wake = lambda: self.remove(watch)  # once it has reported something, it is of no more use
        self._idle[watch.key] = watch
        if len(self._idle) > _IDLE_MAX:
            self.remove(next(iter(self._idle.values())))

    def remove(self, watch: Watch) -> None:
        """Watch no longer."""
        if self._idle.get(watch.key) is watch:
            del self._idle[watch.key]
        watch.alive = False
        watch.unwanted = True
        if watch.id is not None and self._watches.pop(watch.id, None) is not None:
            self._cancel(watch.id)

    def close(self) -> None:
        """End the stream, and wake its watchers."""
        self._call.cancel()
        self._end()

    async def _read(self) -> None:
        try:
            async for response in self._call:
                self._take(response)
        except (grpc.RpcError, asyncio.CancelledError) as error:  # the latter is gRPC's word for a closed channel
            _log.debug("a stream of watches ended: %s", error)
        finally:
            self._end()

    def _end(self) -> None:
        if self.broken:
            return
        self.broken = True
        self._requests.put_nowait(None)
        orphans = [*self._watches.values(), *self._unanswered]
        self._watches.clear()
        self._unanswered.clear()
        self._idle.clear()
        for watch in orphans:
            watch.alive = False
            watch.answered.set()
            watch.wake()

    def _take(self, response: Any) -> None:
        if response.created:
            if self._unanswered:
                self._confirmed(self._unanswered.popleft(), response)
            return
        found = self._watches.get(response.watch_id)
        if found is not None:
            if response.canceled:
                found.alive = False
                del self._watches[response.watch_id]
            found.wake()

    def _confirmed(self, watch: Watch, response: Any) -> None:
        if response.canceled:
            # Refused: no permission, or a token that has expired, which no later watch will get past either.
            watch.alive = False
            self._call.cancel()
        elif watch.unwanted:
            self._cancel(response.watch_id)
        else:
            watch.id = response.watch_id
            watch.made_at = time.monotonic()
            self._watches[response.watch_id] = watch
        watch.answered.set()

    def _cancel(self, watch_id: int) -> None:
        if not self.broken:
            self._requests.put_nowait(
                etcdrpc.WatchRequest(cancel_request=etcdrpc.WatchCancelRequest(watch_id=watch_id))
            )
