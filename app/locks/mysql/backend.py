"""What both MySQL locks have in common: the tables, one counter for all tokens, and texts kept beside the locks."""

import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from app.common.mysql import MySqlClient, Sessions
from app.errors import LockUnavailable
from app.locks.backend import LockBackend
from app.locks.lock import Contender
from app.locks.renewer import Renewer

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
    # A row while somebody owns the lock.
    f"CREATE TABLE IF NOT EXISTS seckill_locks ({_NAME}, {_OWNER}, expires_at DATETIME(6) NOT NULL) {_INNODB}",
    # A row for ever; what is in it is written by the owner's transaction, which never commits.
    f"CREATE TABLE IF NOT EXISTS seckill_lock_rows ({_NAME}, {_OWNER}, session BIGINT UNSIGNED) {_INNODB}",
    "CREATE TABLE IF NOT EXISTS seckill_lock_tokens (id TINYINT NOT NULL PRIMARY KEY, "
    f"source CHAR(16) CHARACTER SET ascii NOT NULL, token BIGINT UNSIGNED NOT NULL) {_INNODB}",
    f"CREATE TABLE IF NOT EXISTS seckill_lock_marks ({_NAME}, text MEDIUMBLOB NOT NULL, "
    f"writer CHAR(32) CHARACTER SET ascii NOT NULL) {_INNODB}",
)
_AT_ONCE: Final = 100  # names in a statement


class Tokens:
    """One counter for all locks of a database, so that tokens of different locks can be compared.

    Incremented by a transaction of its own, never in the one that takes a lock: whoever is paused in the middle of that
    would stop everybody's grants. A lock therefore counts *after* it got hold of its row, and looks *afterwards*
    whether it still had it: so tokens of a lock grow in the order of its grants.
    """

    def __init__(self, client: MySqlClient) -> None:
        self._client = client
        self._source: str | None = None

    def next(self, timeout_s: float) -> tuple[str, int]:
        """The counter's source and the next token."""
        while True:
            source = self._source or self.newest(timeout_s)[0]
            answer = self._client.run(
                # The source in the condition: the table may have been made anew behind our back.
                "UPDATE seckill_lock_tokens SET token = LAST_INSERT_ID(token + 1) WHERE id = 1 AND source = %s",
                (source.removeprefix("mysql:"),),
                timeout_s=timeout_s,
            )
            if answer.matched:
                self._source = source
                return source, answer.last_id
            self._source = None

    def newest(self, timeout_s: float) -> tuple[str, int]:
        """The counter's source and the last token. A restored dump has the source that it had, and fewer tokens."""
        while True:
            answer = self._client.run("SELECT source, token FROM seckill_lock_tokens WHERE id = 1", timeout_s=timeout_s)
            if answer.rows:
                source, token = answer.rows[0]
                return f"mysql:{source}", int(token)
            self._client.run(
                "INSERT IGNORE INTO seckill_lock_tokens VALUES (1, %s, 0)", (secrets.token_hex(8),), timeout_s=timeout_s
            )


class Outage:
    """How long a waiter bears with a server that is away: a TTL, once it has had an answer."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._answered = False
        self._since: float | None = None

    def over(self) -> None:
        """The server answered."""
        self._answered, self._since = True, None

    def bear(self, error: LockUnavailable) -> None:
        """Raise the error if there is no reason to go on."""
        self._since = self._since or time.monotonic()
        if not self._answered or time.monotonic() - self._since > self._ttl_s:
            raise error


class MySqlBackend(LockBackend):
    """Sessions to one database and one renewal thread, for all locks of a process.

    `url`: mysql://user:password@host:3306/database, `?ssl_ca=` for TLS; `ttl_s`: what a dead holder costs at most;
    `timeout_s`: deadline of a call; `instance`: who we are, the host's name by default; `told`: hears of renewals (see
    `Renewer`). The tables are created when they are missing.
    """

    def __init__(
        self,
        url: str,
        *,
        ttl_s: float = 5.0,
        renew_ratio: float = 1 / 3,
        instance: str | None = None,
        timeout_s: float = 2.0,
        told: Callable[[str], None] = lambda event: None,
    ) -> None:
        super().__init__(Renewer(ratio=renew_ratio, told=told))
        self._client = MySqlClient(url, timeout_s=timeout_s, unavailable=LockUnavailable, schema=SCHEMA)
        self._tokens = Tokens(self._client)
        self._ttl_s = ttl_s
        self._instance = instance or socket.gethostname()

    def ping(self, timeout_s: float) -> None:
        """Raise `LockUnavailable` unless the database answers."""
        self._client.run("SELECT 1", timeout_s=timeout_s)

    def newest(self, name: str, timeout_s: float) -> tuple[str, int]:
        """This database's counter, whichever the lock."""
        return self._tokens.newest(timeout_s)

    def remember(self, marks: Mapping[str, str], *, instead_of: Mapping[str, str]) -> set[str]:
        """Keep texts as rows. Up to two statements for a hundred names, and one more when some are not kept."""
        kept: set[str] = set()
        writer = secrets.token_hex(16)
        for names in _some(sorted(marks)):
            written = 0
            if new := [name for name in names if name not in instead_of]:
                values = ", ".join(["(%s, %s, %s)"] * len(new))
                args = [value for name in new for value in (key(name), marks[name].encode(), writer)]
                written += self._client.run(f"INSERT IGNORE INTO seckill_lock_marks VALUES {values}", args).matched  # noqa: S608
            if old := [name for name in names if name in instead_of]:
                cases = " ".join(["WHEN %s THEN %s"] * len(old))
                pairs = ", ".join(["(%s, %s)"] * len(old))
                written += self._client.run(
                    f"UPDATE seckill_lock_marks SET text = CASE name {cases} END, writer = %s "  # noqa: S608
                    f"WHERE name IN ({_places(old)}) AND (name, text) IN ({pairs})",
                    [
                        *(value for name in old for value in (key(name), marks[name].encode())),
                        writer,
                        *map(key, old),
                        *(value for name in old for value in (key(name), instead_of[name].encode())),
                    ],
                ).matched
            if written == len(names):
                kept.update(names)
            elif written:
                where = f"name IN ({_places(names)}) AND writer = %s"
                rows = self._client.run(
                    f"SELECT name FROM seckill_lock_marks WHERE {where}",  # noqa: S608
                    [*map(key, names), writer],
                ).rows
                kept.update(row[0].decode() for row in rows)
        return kept

    def recall(self, names: Sequence[str]) -> dict[str, str]:
        """What is kept under these names; one statement for a hundred."""
        found: dict[str, str] = {}
        for some in _some(names):
            rows = self._client.run(
                f"SELECT name, text FROM seckill_lock_marks WHERE name IN ({_places(some)})",  # noqa: S608
                [key(name) for name in some],
            ).rows
            found |= {name.decode(): text.decode() for name, text in rows}
        return found

    def close(self) -> None:
        """Close the connections and stop renewing. Those who wait are told first."""
        self._client.close()
        self.renewer.close()


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


def holders(client: MySqlClient, select: str, args: Sequence[Any], sessions: Sessions | None = None) -> list[Contender]:
    """Contenders of a query for `OWNER_COLUMNS` and the seconds that are left."""
    found = client.run(select, args, sessions=sessions)
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


def _some(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(names), _AT_ONCE):
        yield names[at : at + _AT_ONCE]


def _places(names: Sequence[str]) -> str:
    return ", ".join(["%s"] * len(names))
