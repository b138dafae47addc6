"""A lock of one's own, as small as it can be: all processes of a machine share a file, one at a time.

Whoever writes a lock can begin with a copy of this: a backend, a lock, and an attempt that is its own hold.
"""

import fcntl
import json
import socket
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from typing_extensions import Unpack, override

from fencelock import LockUnavailable
from fencelock.attempt import Attempt
from fencelock.backend import Guarantees, LockBackend
from fencelock.clock import now
from fencelock.common import Options
from fencelock.contender import Contender, describe, parse_owner
from fencelock.grant import Grant
from fencelock.lease import Lease
from fencelock.lock import DistributedLock
from fencelock.steps import Pause
from fencelock.url import LockUrl
from fencelock.waiting import Wait

_PAUSE_S = 0.01  # between two looks: a file tells nobody that it has changed


class ToyLock(DistributedLock["ToyBackend"]):
    """Re-entrant, fenced, and not fair: all who wait try again and again."""

    @override
    def _attempt(self) -> "ToyAttempt":
        return ToyAttempt(self._backend, self.name, self.ttl_s)

    @override
    async def _queue(self) -> list[Contender]:
        return await self._backend.queues(self.name)


class ToyAttempt(Attempt["ToyBackend"]):
    """Writes itself into the file if nobody stands there, or somebody whose time is over."""

    @override
    async def take(self, wait: Wait) -> Grant | float:
        asked_at, key = now(), uuid.uuid4().hex
        async with self.backend.table(wait.call_s(self.backend.timeout_s)) as table:
            if self.name in table["held"]:
                return _PAUSE_S
            table["token"] += 1
            owner = describe(self.backend.instance)
            table["held"][self.name] = {"key": key, "token": table["token"], "owner": owner, "until": self.until()}
        hold = ToyHold(self, key)
        self.lease = Lease(self.name, hold, self.ttl_s, asked_at=asked_at)
        self.renewer.keep(self.lease)
        return Grant(key, table["token"], f"toy:{socket.gethostname()}", self.lease)

    def until(self) -> float:
        """When a lease that is renewed now is over."""
        return time.time() + self.ttl_s


class ToyHold:
    """Our line in the file."""

    def __init__(self, attempt: ToyAttempt, key: str) -> None:
        self._attempt = attempt
        self._key = key

    async def renew(self, timeout_s: float) -> bool:
        """Whether it is still there; then for another TTL."""
        async with self._attempt.backend.table(timeout_s) as table:
            line = table["held"].get(self._attempt.name, {"key": None})
            line["until"] = self._attempt.until()
            return bool(line["key"] == self._key)

    async def end(self, timeout_s: float) -> None:
        """Take it out."""
        async with self._attempt.backend.table(timeout_s) as table:
            if table["held"].get(self._attempt.name, {"key": None})["key"] == self._key:
                del table["held"][self._attempt.name]


class ToyBackend(LockBackend):
    """All locks in one file."""

    name = "toy"
    guarantees = Guarantees(fencing=True, survives_silence=True)

    def __init__(self, file: str, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self._file = Path(file)
        self._file.touch()

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        url.refuse_options()
        return cls(url.path, **options)

    @override
    def lock(self, name: str, *, ttl_s: float | None = None) -> ToyLock:
        return ToyLock(self, name, ttl_s)

    @override
    async def queues(self, prefix: str) -> list[Contender]:
        async with self.table(self.timeout_s) as table:
            held = {name: line for name, line in table["held"].items() if name.startswith(prefix)}
        return [
            Contender(line["key"], line["token"], *parse_owner(line["owner"]), line["until"] - time.time(), holds=True)
            for line in held.values()
        ]

    @override
    async def pinged(self, timeout_s: float) -> None:
        async with self.table(timeout_s):
            pass

    @asynccontextmanager
    async def table(self, timeout_s: float) -> AsyncIterator[dict[str, Any]]:
        """What is in the file, while nobody else can read it; it is written back at the end."""
        deadline = time.monotonic() + timeout_s
        with self._file.open("r+") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise LockUnavailable(f"{self._file} is in use") from None
                    await Pause(_PAUSE_S / 10)
            text = file.read()
            table = json.loads(text or '{"token": 0, "held": {}}')
            table["held"] = {name: line for name, line in table["held"].items() if line["until"] > time.time()}
            yield table
            file.seek(0)
            file.write(json.dumps(table).ljust(len(text)))  # in one go: whoever is killed leaves no half of it
            file.flush()
            fcntl.flock(file, fcntl.LOCK_UN)  # closing it is not enough: a forked child may have a copy
