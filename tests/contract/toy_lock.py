"""Build a minimal lock of your own: all processes of a machine share a file, one holder at a time.

A new lock can begin with a copy of this: a backend, a lock, and an attempt that is its own hold.
"""

import asyncio
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
from fencelock.backend import Guarantees, LockBackend
from fencelock.clock import now
from fencelock.connection import Attempt, Connection, Options, Terms
from fencelock.contender import Contender, describe, parse_owner
from fencelock.grant import Grant
from fencelock.lease import Lease
from fencelock.url import LockUrl
from fencelock.waiting import Wait

_PAUSE_S = 0.01  # between two attempts: a file does not notify anybody of a change


class ToyAttempt(Attempt["ToyConnection"]):
    """Writes itself into the file if nobody stands there, or somebody whose time is over. Not fair: all try again."""

    @override
    async def take(self, wait: Wait) -> Grant | float:
        asked_at, self.key = now(), uuid.uuid4().hex
        async with self.connection.table(wait.call_s(self.timeout_s)) as table:
            if self.name in table["held"]:
                return _PAUSE_S
            table["token"] += 1
            owner = describe(self.connection.terms.instance)
            table["held"][self.name] = {"key": self.key, "token": table["token"], "owner": owner, "until": self.until()}
        self.lease = Lease(self.name, self, self.ttl_s, asked_at=asked_at)
        self.renewer.keep(self.lease)
        return Grant(self.key, table["token"], f"toy:{socket.gethostname()}", self.lease)

    def until(self) -> float:
        """Return when a lease that is renewed now expires."""
        return time.time() + self.ttl_s

    async def renew(self, timeout_s: float) -> bool:
        """Return whether our line is still there; then for another TTL."""
        async with self.connection.table(timeout_s) as table:
            line = table["held"].get(self.name, {"key": None})
            line["until"] = self.until()
            return bool(line["key"] == self.key)

    async def end(self, timeout_s: float) -> None:
        """Take it out."""
        async with self.connection.table(timeout_s) as table:
            if table["held"].get(self.name, {"key": None})["key"] == self.key:
                del table["held"][self.name]


class ToyConnection(Connection):
    """All locks in one file."""

    def __init__(self, terms: Terms, file: Path) -> None:
        super().__init__(terms)
        self._file = file

    @override
    def attempt(self, name: str, ttl_s: float) -> ToyAttempt:
        return ToyAttempt(self, name, ttl_s)

    @override
    async def contenders(self, prefix: str) -> list[Contender]:
        async with self.table(self.timeout_s) as table:
            held = {name: line for name, line in table["held"].items() if name.startswith(prefix)}
        return [
            Contender(line["key"], line["token"], *parse_owner(line["owner"]), line["until"] - time.time(), holds=True)
            for line in held.values()
        ]

    @override
    async def queue(self, name: str) -> list[Contender]:
        return await self.contenders(name)

    @override
    async def ping(self, timeout_s: float) -> None:
        async with self.table(timeout_s):
            pass

    @asynccontextmanager
    async def table(self, timeout_s: float) -> AsyncIterator[dict[str, Any]]:
        """Yield the file's content while nobody else can read it, and write it back at the end."""
        deadline = time.monotonic() + timeout_s
        with self._file.open("r+") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise LockUnavailable(f"{self._file} is in use") from None
                    await asyncio.sleep(_PAUSE_S / 10)
            text = file.read()
            table = json.loads(text or '{"token": 0, "held": {}}')
            table["held"] = {name: line for name, line in table["held"].items() if line["until"] > time.time()}
            yield table
            file.seek(0)
            file.write(json.dumps(table).ljust(len(text)))  # in one go: a killed process leaves no half of it
            file.flush()
            fcntl.flock(file, fcntl.LOCK_UN)  # closing it is not enough: a forked child may have a copy


class ToyBackend(LockBackend):
    """The lock system as a process opens it: the file's name, and the promises of its locks."""

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
    def connect(self) -> Connection:
        return ToyConnection(self.terms, self._file)
