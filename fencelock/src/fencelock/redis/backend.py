"""The Redis backend: the locks and elections of one server."""

from typing import Self, Unpack, cast

from typing_extensions import override

from ..backend import Guarantees, LockBackend
from ..connection import Connection, Options
from ..url import LockUrl
from .client import RedisClient
from .election import RECORD, RedisBallot
from .lock import RedisConnection


class RedisBackend(LockBackend):
    """The locks of one server. Its locks are re-entrant, fenced by a counter, and not fair.

    `url`: `redis://`, `rediss://` or `unix://`, as redis-py has it. For the rest see `Options`.
    """

    name = "redis"
    guarantees = Guarantees(
        fencing=True,
        survives_silence=True,
        survives_restart=True,
        survives_cut=True,
        elects=True,
        forces_release=True,
    )

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        RedisClient.check(url)
        self._url = url

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        return cls(f"{url.scheme.partition('+')[0]}://{url.rest}", **options)

    @override
    def check_name(self, name: str) -> None:
        if name.endswith(RECORD):
            raise ValueError(f"a lock's name in Redis can't end with {RECORD}, where elections write down: {name!r}")

    @override
    def connect(self) -> Connection:
        return RedisConnection(self.terms, self._url)

    @override
    def ballot(self, name: str) -> RedisBallot:
        return RedisBallot(cast(RedisConnection, self.here()), name)
