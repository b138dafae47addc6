"""A lock in a file of SQLite, for the processes of one machine: `connect("sqlite:///var/lib/jobs/locks.db")`.

A process that has used SQLite must not use it in a child that it forks, says SQLite; so neither may a user of this.
"""

import asyncio
import sqlite3
import time
from typing import Any, Self, Unpack

from fencelock import Contender, Grant, Guarantees, LockBackend, LockUnavailable, Scope, now
from fencelock.kit import Attempt, Connection, Lease, LockUrl, Options, Terms, Wait, describe, parse_owner

_PAUSE_S = 0.01
# AUTOINCREMENT: no number is given twice, so it is a token.
_TABLE = "CREATE TABLE IF NOT EXISTS locks (token INTEGER PRIMARY KEY AUTOINCREMENT, name UNIQUE, owner, until)"


class Row(Attempt["SqliteConnection"]):
    """A row says who has the lock, and until when by the machine's clock. It is its own hold."""

    async def take(self, wait: Wait) -> Grant | float:
        asked_at, here, timeout_s = now(), self.connection, wait.call_s(self.timeout_s)
        await here.run("DELETE FROM locks WHERE until < ?", time.time(), timeout_s=timeout_s)
        row = (self.name, describe(here.terms.instance), time.time() + self.ttl_s)
        sql = "INSERT OR IGNORE INTO locks (name, owner, until) VALUES (?, ?, ?)"
        done = await here.run(sql, *row, timeout_s=timeout_s)
        if not done.rowcount:
            return _PAUSE_S
        self.token = done.lastrowid or 0
        self.lease = Lease(self.name, self, self.ttl_s, asked_at=asked_at)
        self.renewer.keep(self.lease)
        return Grant(f"{self.name}/{self.token}", self.token, here.source, self.lease)

    async def renew(self, timeout_s: float) -> bool:
        row = (time.time() + self.ttl_s, self.token, time.time())
        sql = "UPDATE locks SET until = ? WHERE token = ? AND until > ?"
        return bool((await self.connection.run(sql, *row, timeout_s=timeout_s)).rowcount)

    async def end(self, timeout_s: float) -> None:
        await self.connection.run("DELETE FROM locks WHERE token = ?", self.token, timeout_s=timeout_s)


class SqliteConnection(Connection):
    """The database, as one event loop has it open."""

    def __init__(self, terms: Terms, file: str) -> None:
        super().__init__(terms)
        self.source = f"sqlite:{file}"
        self._db = sqlite3.connect(file, timeout=0, isolation_level=None)

    def attempt(self, name: str, ttl_s: float) -> Row:
        return Row(self, name, ttl_s)

    async def run(self, sql: str, *row: Any, timeout_s: float) -> sqlite3.Cursor:
        deadline = now() + timeout_s
        while True:
            try:
                self._db.execute(_TABLE)
                return self._db.execute(sql, row)
            except sqlite3.OperationalError as error:  # another process writes
                if now() > deadline:
                    raise LockUnavailable(f"SQLite: {error}") from error
            await asyncio.sleep(_PAUSE_S)

    async def contenders(self, prefix: str) -> list[Contender]:
        rows = await self.run("SELECT name, token, owner, until FROM locks", timeout_s=self.timeout_s)
        return [
            Contender(f"{name}/{token}", token, *parse_owner(owner), until - time.time(), holds=True)
            for name, token, owner, until in rows
            if f"{name}/".startswith(prefix) and until > time.time()
        ]

    async def disconnect(self) -> None:
        self._db.close()


class SqliteBackend(LockBackend):
    """The locks of a file. `guarantees` says what the contract holds them to."""

    name = "sqlite"
    guarantees = Guarantees(scope=Scope.MACHINE, fencing=True)

    def __init__(self, file: str, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self._file = file

    @classmethod
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        url.refuse_options()
        return cls(url.path, **options)

    def connect(self) -> Connection:
        return SqliteConnection(self.terms, self._file)
