"""The Redis backend: the locks and elections of one server."""

import re
from dataclasses import replace
from typing import Final, Self, Unpack, cast

from typing_extensions import override

from ..backend import LASTING, LockBackend
from ..connection import Connection, Options
from ..url import LockUrl
from .client import RedisClient
from .election import RECORD, RedisBallot
from .lock import OWNER, TOKENS, WAITING, RedisConnection

_ONE_TAG: Final = re.compile(r"[^{}]*(\{[^{}]+\}[^{}]*)?", re.DOTALL)


class RedisBackend(LockBackend):
    """The locks of one server. Its locks are re-entrant, fenced by a counter, and not fair.

    `url`: `redis://`, `rediss://` or `unix://`, as redis-py has it, or `redis+sentinel://`, `redis+cluster://`, where a
    lock's keys share its slot, and each name has tokens of its own. For the rest see `Options`.
    """

    name = "redis"
    guarantees = replace(LASTING, forces_release=True)

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        RedisClient.check(url)
        self._url = url

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        return cls(f"{url.scheme}://{url.rest}", **options)

    @override
    def check_name(self, name: str) -> None:
        if name.endswith(RECORD):
            raise ValueError(f"a lock's name in Redis can't end with {RECORD}, where elections write down: {name!r}")
        if name.startswith((TOKENS, OWNER, WAITING)):
            raise ValueError(f"a lock's name in Redis can't begin as our own keys do: {name!r}")
        if "+cluster" in self._url.partition("://")[0] and not _ONE_TAG.fullmatch(name):
            raise ValueError(f"a lock's name in a Redis Cluster has no braces, or those of one {{tag}}: {name!r}")

    @override
    def connect(self) -> Connection:
        return RedisConnection(self.terms, self._url)

    @override
    def ballot(self, name: str) -> RedisBallot:
        return RedisBallot(cast(RedisConnection, self.here()), name)
