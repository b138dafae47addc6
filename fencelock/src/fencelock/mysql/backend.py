"""The common parts of both MySQL locks: the tables, and one counter for all tokens."""

import contextlib
import secrets
from collections.abc import Sequence
from typing import Any, Final, Self, Unpack, cast

from typing_extensions import override

from ..backend import LockBackend
from ..connection import Connection, Options, Terms
from ..contender import Contender
from ..errors import LockUnavailable
from ..url import LockUrl
from .client import DUPLICATE, GROUP, Lent, MySqlClient, Sessions, group_of
from .election import MySqlBallot
from .session import SqlRefused

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
    # A row that stays for ever; the owner's transaction writes its columns, and never commits.
    f"CREATE TABLE fencelock_rows ({_NAME}, {_OWNER}, session BIGINT UNSIGNED) {_INNODB}",
    # A row that stays for each election: see `MySqlBallot`.
    f"CREATE TABLE fencelock_elections ({_NAME}, token BIGINT UNSIGNED NOT NULL, said LONGTEXT NOT NULL, "
    f"revision BIGINT UNSIGNED NOT NULL, record LONGTEXT, recorded_at BIGINT UNSIGNED NOT NULL DEFAULT 0) {_INNODB}",
    "CREATE TABLE fencelock_tokens (id TINYINT NOT NULL PRIMARY KEY, "
    f"source CHAR(16) CHARACTER SET ascii NOT NULL, token BIGINT UNSIGNED NOT NULL) {_INNODB}",
)


class Tokens:
    """The one counter for all locks of a database, so that tokens of different locks can be compared.

    It is incremented in a transaction of its own, never in the one that takes a lock: a process paused in the middle of
    that would stop everybody's grants. A lock therefore counts *after* it got its row, and checks *afterwards* that it
    still has it: so a lock's tokens grow in the order of its grants.
    """

    def __init__(self, client: MySqlClient) -> None:
        self._client = client
        self._source: str | None = None

    async def next(self, timeout_s: float, lent: Lent | None = None) -> tuple[str, int]:
        """Return the counter's source and the next token."""
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
        """Return this counter's id, drawn once if there is none; a restored dump has the same id, and lower tokens."""
        await ensure_alone(self._client, timeout_s)
        while True:
            answer = await self._client.ask("SELECT source FROM fencelock_tokens WHERE id = 1", timeout_s=timeout_s)
            if answer.rows:
                return str(answer.rows[0][0])
            with contextlib.suppress(SqlRefused):  # another contender has just taken that number
                insert = "INSERT INTO fencelock_tokens VALUES (1, %s, 0)"
                await self._client.ask(insert, (secrets.token_hex(8),), timeout_s=timeout_s, tell=(DUPLICATE,))


async def ensure_alone(client: MySqlClient, timeout_s: float) -> None:
    """Raise `LockUnavailable` for a server of a group: row locks don't exclude clients of another member."""
    if group := group_of((await client.ask(GROUP, timeout_s=timeout_s)).rows):
        raise LockUnavailable(
            f"the lock's server is a member of a cluster ({group}): two members may grant a lock at once; use a server "
            "of its own, or a primary with replicas"
        )


class MySqlConnection(Connection):
    """A client of one database."""

    show: str  # a query for `OWNER_COLUMNS` and the seconds that are left, up to its last condition
    lookers: Sessions | None = None  # sessions to read the queue, if the usual ones can't be used

    def __init__(self, terms: Terms, url: str) -> None:
        super().__init__(terms)
        self.client = MySqlClient(url, timeout_s=self.timeout_s, unavailable=LockUnavailable, schema=SCHEMA)
        self.tokens = Tokens(self.client)

    @override
    async def contenders(self, prefix: str) -> list[Contender]:
        # The range of names that begin so: no UTF-8 has a byte of 255.
        under = prefix.encode(), prefix.encode() + b"\xff"
        return await self._holders(f"{self.show} name >= %s AND name < %s ORDER BY name", under)

    @override
    async def queue(self, name: str) -> list[Contender]:
        """Return the holder; MySQL doesn't show its queue."""
        return await self._holders(f"{self.show} name = %s", (key(name),))

    async def _holders(self, select: str, args: Sequence[Any]) -> list[Contender]:
        found = await self.client.ask(select, args, sessions=self.lookers)
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

    @override
    async def ping(self, timeout_s: float) -> None:
        await ensure_alone(self.client, timeout_s)

    @override
    async def disconnect(self) -> None:
        await self.client.close()


class MySqlBackend(LockBackend):
    """The locks of one database.

    `url`: mysql://user:password@host:3306/database, `?ssl_ca=` for TLS; for the rest see `Options`. The tables are
    created when they are missing.
    """

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        MySqlClient.check(url)
        self._url = url

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        return cls(f"mysql://{url.rest}", **options)

    @override
    def check_name(self, name: str) -> None:
        key(name)

    @override
    def ballot(self, name: str) -> MySqlBallot:
        here = cast(MySqlConnection, self.here())
        return MySqlBallot(here, here.client, name, key(name), here.tokens.next)


def key(name: str) -> bytes:
    """Encode a name as the tables have it. Raises `ValueError` if it is too long."""
    encoded = name.encode()
    if len(encoded) > _NAME_BYTES:
        raise ValueError(f"a name for MySQL has at most {_NAME_BYTES} bytes: {name[:40]!r}...")
    return encoded


def short(text: object) -> str:
    """Cut a text to the length of a descriptive column."""
    return str(text)[:_OWNER_CHARACTERS]


# The server's clock is read in UTC: local time jumps twice a year, or with a session's setting.
NOW: Final = "UTC_TIMESTAMP(6)"
OWNER_COLUMNS: Final = (
    "name, holder, token, host, process, thread, "
    "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', since) / 1000000, "
    f"TIMESTAMPDIFF(MICROSECOND, since, {NOW}) / 1000000"
)
