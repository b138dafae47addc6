"""PostgreSQL as a lock system."""

from dataclasses import replace
from typing import Self, Unpack, cast

from typing_extensions import override

from ..backend import LASTING, LockBackend
from ..connection import Connection, Options
from ..url import LockUrl
from .client import PostgresClient
from .election import PostgresBallot
from .lock import PostgresConnection
from .names import key


class PostgresBackend(LockBackend):
    """The locks of one database: fair, and fenced by a sequence.

    `url`: `postgres://user:password@host:5432/database`, with the options of libpq; for the rest see `Options`. The
    tables are made when they are missing.
    """

    name = "postgres"
    guarantees = replace(LASTING, fair=True, shows_queue=True, forces_release=True)

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        PostgresClient.check(url)
        self._url = url

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        return cls(f"postgresql://{url.rest}", **options)

    @override
    def check_name(self, name: str) -> None:
        key(name)

    @override
    def connect(self) -> Connection:
        return PostgresConnection(self.terms, self._url)

    @override
    def ballot(self, name: str) -> PostgresBallot:
        return PostgresBallot(cast(PostgresConnection, self.here()), name)
