"""What both MySQL locks have in common: the tables, and one counter for all tokens."""

import contextlib
import secrets
from collections.abc import Sequence
from typing import Any, Final, Self, Unpack

from typing_extensions import override

from ..backend import LockBackend
from ..clients.mysql import DUPLICATE, GROUP, Lent, MySqlClient, Refused, Sessions, group_of
from ..common import Options
from ..contender import Contender
from ..errors import LockUnavailable
from ..url import LockUrl

# VARBINARY: in every collation that both MariaDB and MySQL have, names that differ in trailing blanks are equal.
_NAME: Final = "name VARBINARY(1020) NOT NULL PRIMARY KEY"
_NAME_BYTES: Final = 1020  # 255 characters of utf8mb4
_OWNER: Final = (
    "holder CHAR(32) CHARACTER SET ascii, token BIGINT UNSIGNED, "
    "host VARCHAR(255), process BIGINT, thread VARCHAR(255), since DATETIME(6)"
)
_OWNER_CHARACTERS: Final = 255
_INNODB: Final = "ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4"
SCHEMA: Final = (
    # A row while the lock is owned.
    f"CREATE TABLE fencelock_locks ({_NAME}, {_OWNER}, expires_at DATETIME(6) NOT NULL) {_INNODB}",
    # A row for ever; what is in it is written by the owner's transaction, which never commits.
    f"CREATE TABLE fencelock_rows ({_NAME}, {_OWNER}, session BIGINT UNSIGNED) {_INNODB}",
    "CREATE TABLE fencelock_tokens (id TINYINT NOT NULL PRIMARY KEY, "
    f"source CHAR(16) CHARACTER SET ascii NOT NULL, token BIGINT UNSIGNED NOT NULL) {_INNODB}",
)


class Tokens:
    """One counter for all locks of a database, so that tokens of different locks can be compared.

    Incremented by a transaction of its own, never in the one that takes a lock: whoever is paused in the middle of that
    would stop everybody's grants. A lock therefore counts *after* it got hold of its row, and looks *afterwards*
    whether it still had it: so tokens of a lock grow in the order of its grants.
    """

    def __init__(self, client: MySqlClient) -> None:
        self._client = client
        self._source: str | None = None

    async def next(self, timeout_s: float, lent: Lent | None = None) -> tuple[str, int]:
        """The counter's source and the next token."""
        while True:
            source = self._source = self._source or await self._known_source(timeout_s)
            answer = await self._client.ask(
                # The source in the condition: the table may have been made anew behind our back.
                "UPDATE fencelock_tokens SET token = LAST_INSERT_ID(token + 1) WHERE id = 1 AND source = %s",
                (source,),
                timeout_s=timeout_s,
                sessions=lent,
            )
            if answer.matched:
                return f"mysql:{source}", answer.last_id
            self._source = None

    async def _known_source(self, timeout_s: float) -> str:
        """What tells this counter from others, drawn once; a restored dump still has it, and fewer tokens."""
        await ensure_alone(self._client, timeout_s)
        while True:
            answer = await self._client.ask("SELECT source FROM fencelock_tokens WHERE id = 1", timeout_s=timeout_s)
            if answer.rows:
                return str(answer.rows[0][0])
            with contextlib.suppress(Refused):  # another one has just drawn it
                insert = "INSERT INTO fencelock_tokens VALUES (1, %s, 0)"
                await self._client.ask(insert, (secrets.token_hex(8),), timeout_s=timeout_s, tell=(DUPLICATE,))


async def ensure_alone(client: MySqlClient, timeout_s: float) -> None:
    """Raise `LockUnavailable` for a server of a group: locks of rows keep nobody apart who asks another member."""
    if group := group_of((await client.ask(GROUP, timeout_s=timeout_s)).rows):
        raise LockUnavailable(
            f"the lock's server is a member of a cluster ({group}): two members may grant a lock at once; use a server "
            "of its own, or a primary with replicas"
        )


class MySqlBackend(LockBackend):
    """Sessions to one database and one renewal thread, for all locks of a process.

    `url`: mysql://user:password@host:3306/database, `?ssl_ca=` for TLS; for the rest see `Options`. The tables are
    created when they are missing.
    """

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self.client = MySqlClient(url, timeout_s=self.timeout_s, unavailable=LockUnavailable, schema=SCHEMA)
        self.tokens = Tokens(self.client)

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        return cls(f"mysql://{url.rest}", **options)

    @override
    async def pinged(self, timeout_s: float) -> None:
        await ensure_alone(self.client, timeout_s)

    @override
    def _disconnect(self) -> None:
        self.client.close()

    @override
    async def _disconnect_loop(self) -> None:
        await self.client.leave_loop()


def key(name: str) -> bytes:
    """A name as the tables have it."""
    encoded = name.encode()
    if len(encoded) > _NAME_BYTES:
        raise ValueError(f"a name for MySQL has at most {_NAME_BYTES} bytes: {name[:40]!r}...")
    return encoded


def short(text: object) -> str:
    """As much of it as a column for people takes."""
    return str(text)[:_OWNER_CHARACTERS]


# Seconds from and to moments of the server's clock, in UTC: local time jumps twice a year, or by a session's setting.
NOW: Final = "UTC_TIMESTAMP(6)"
OWNER_COLUMNS: Final = (
    "name, holder, token, host, process, thread, "
    "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', since) / 1000000, "
    f"TIMESTAMPDIFF(MICROSECOND, since, {NOW}) / 1000000"
)


async def holders(
    client: MySqlClient, select: str, args: Sequence[Any], sessions: Sessions | None = None
) -> list[Contender]:
    """Contenders of a query for `OWNER_COLUMNS` and the seconds that are left."""
    found = await client.ask(select, args, sessions=sessions)
    return [
        Contender(
            key=f"{name.decode()}/{holder}",
            token=int(token),
            owner={"instance": host, "pid": process, "thread": thread, "since": float(since)},
            waited_s=max(0.0, float(waited_s)),
            ttl_left_s=None if left_s is None else max(0.0, float(left_s)),
            holds=True,
        )
        for name, holder, token, host, process, thread, since, waited_s, left_s in found.rows
    ]


def under(prefix: str) -> tuple[bytes, bytes]:
    """The range of names that begin so: no UTF-8 has a byte of 255."""
    return prefix.encode(), prefix.encode() + b"\xff"
