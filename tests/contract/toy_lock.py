"""Build a minimal lock of your own: all processes of a machine share a file, one holder at a time.

A new lock can begin with a copy of this: a backend, a lock, and an attempt that is its own hold.
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

_PAUSE_S = 0.01  # between two attempts: a file does not notify anybody of a change


class ToyLock(DistributedLock["ToyBackend"]):
    """A lock that is re-entrant, fenced, and not fair: all waiters poll."""

    @override
    def _attempt(self) -> "ToyAttempt":
        return ToyAttempt(self._backend, self.name, self.ttl_s)

    @override
    async def _queue(self) -> list[Contender]:
        return await self._backend.queues(self.name)


class ToyAttempt(Attempt["ToyBackend"]):
    """An attempt: write our line into the file if there is none, or an expired one."""

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
        """Return when a lease that is renewed now expires."""
        return time.time() + self.ttl_s


class ToyHold:
    """Our line in the file."""

    def __init__(self, attempt: ToyAttempt, key: str) -> None:
        self._attempt = attempt
        self._key = key

    async def renew(self, timeout_s: float) -> bool:
        """Renew the lease for another TTL; return whether it was still ours."""
        async with self._attempt.backend.table(timeout_s) as table:
            line = table["held"].get(self._attempt.name, {"key": None})
            line["until"] = self._attempt.until()
            return bool(line["key"] == self._key)

    async def end(self, timeout_s: float) -> None:
        """Remove our line."""
        async with self._attempt.backend.table(timeout_s) as table:
            if table["held"].get(self._attempt.name, {"key": None})["key"] == self._key:
                del table["held"][self._attempt.name]


class ToyBackend(LockBackend):
    """The backend of all locks in one file."""

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
        """Yield the contents of the file under an exclusive file lock, and write them back at the end."""
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
            file.write(json.dumps(table).ljust(len(text)))  # in one go: a killed process leaves no half-written file
            file.flush()
            fcntl.flock(file, fcntl.LOCK_UN)  # closing it is not enough: a forked child may have a copy
