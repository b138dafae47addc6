"""The fence in Redis or Valkey: a Lua function for scripts of one's own, and a value behind a fence, ready made.

A fence is a hash with the fields `token` and `source`: the highest token that was seen, and whose number that is.
A script runs alone on the server, so check and write are one step. The fence is raised by reads, too: see the package.

Lua counts in doubles, which are exact up to 2**53 only. So tokens are kept and compared as decimal text, the longer one
being the higher one: right for all of 1 to 2**63 - 1.

All calls go to the primary. The fence is as durable as the server: without `appendfsync always`, after a failover to a
late replica, or under a `maxmemory-policy` other than `noeviction`, it may be lower than it was, or gone.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import ResponseError

from .errors import FenceRefused
from .granted import Fencing, Granted, checked

if TYPE_CHECKING:
    from redis import Redis, RedisCluster
    from redis.asyncio import Redis as AsyncRedis
    from redis.asyncio import RedisCluster as AsyncRedisCluster

FENCE_LUA: Final = """\
-- Raise the fence in the hash `key` to our token. Answers nothing if it may pass, else an error to return.
-- `instead_of`: a source whose place ours takes, if any.
local function fence_check(key, token, source, instead_of)
  if not string.match(token, "^[1-9]%d*$") or #token > 19 or not source or source == "" then
    return redis.error_reply("FENCETOKEN a fence needs a token from 1 to 2^63 - 1, and its source")
  end
  local seen, whose = unpack(redis.call("HMGET", key, "token", "source"))
  local higher = seen and (#seen > #token or (#seen == #token and seen > token))
  if seen and (whose == source and higher or whose ~= source and whose ~= instead_of) then
    return redis.error_reply("FENCEREFUSED " .. seen .. " " .. (whose or ""))
  end
  redis.call("HSET", key, "token", token, "source", source)
end
"""
"""Put this before a script of yours (below its `#!lua` line, if it has one), and call it before the first write.

```python
TAKE = client.register_script(FENCE_LUA + '''
    local refused = fence_check(KEYS[1], ARGV[1], ARGV[2])
    if refused then return refused end
    return redis.call("DECRBY", KEYS[2], ARGV[3])
''')
with fencing(grant) as (token, source):
    left = TAKE(keys=["{phone}:fence", "{phone}:units"], args=[token, source, 1])
```

The script that reads must call it, too. In a Cluster all keys of a script must be in one slot: give the fence and what
it protects the same hash tag, such as `{phone}`.
"""

_READ: Final = (
    FENCE_LUA
    + """
return fence_check(KEYS[1], ARGV[1], ARGV[2], ARGV[3]) or redis.call("HGET", KEYS[1], "value")
"""
)
_WRITE: Final = (
    FENCE_LUA
    + """
local refused = fence_check(KEYS[1], ARGV[1], ARGV[2])
if refused then return refused end
if ARGV[3] then redis.call("HSET", KEYS[1], "value", ARGV[3]) else redis.call("HDEL", KEYS[1], "value") end
"""
)
_REFUSED: Final = re.compile(r"FENCEREFUSED (\d+) (.*)")


@contextmanager
def fencing(grant: Granted) -> Iterator[Fencing]:
    """Yield the token and the source for a script with `FENCE_LUA`, whose refusal is raised as `FenceRefused`.

    Raises `ValueError` for a grant without a token. The block may `await`.
    """
    ours = checked(grant)
    try:
        yield ours
    except ResponseError as error:
        refusal = _REFUSED.match(str(error))
        if refusal is None:
            raise
        raise FenceRefused(ours.token, ours.source, int(refusal[1]), refusal[2]) from None


class RedisFence:
    """A value in Redis that only the latest holder can write.

    `client`: redis-py's, of one server or a Cluster, with its own deadlines and errors. `key`: a hash, which has the
    fence and, in its field `value`, the value: so they can't come apart, and are in one slot of a Cluster.

    >>> fence = RedisFence(client, "balance")         # doctest: +SKIP
    >>> with locks.lock("/balance") as grant:         # doctest: +SKIP
    ...     balance = int(fence.read(grant) or 0)
    ...     fence.write(grant, str(balance + 5))

    Both methods raise `FenceRefused`, `ValueError` for a grant without a token, and redis-py's errors: after one of
    those a write may or may not have been applied. If redis-py repeats a call whose answer was lost, `FenceRefused`
    is about the last try.
    """

    def __init__(self, client: "Redis | RedisCluster", key: str | bytes) -> None:
        self._key = key
        self._read: Any = client.register_script(_READ)
        self._write: Any = client.register_script(_WRITE)

    def read(self, grant: Granted, *, instead_of: str | None = None) -> bytes | str | None:
        """Raise the fence to the grant's token, and read: bytes, or str from a client that decodes; None: no value.

        `instead_of`: the source whose tokens the fence may have had up to now; it is the grant's source's from then on.
        """
        with fencing(grant) as ours:
            value: bytes | str | None = self._read(keys=[self._key], args=[*ours, instead_of or ""])
        return value

    def write(self, grant: Granted, value: bytes | str | None) -> None:
        """Write, unless the fence has seen a higher token. None deletes the value; the fence stays."""
        with fencing(grant) as ours:
            self._write(keys=[self._key], args=[*ours, *_given(value)])


class AsyncRedisFence:
    """`RedisFence` for the clients in `redis.asyncio`."""

    def __init__(self, client: "AsyncRedis | AsyncRedisCluster", key: str | bytes) -> None:
        self._key = key
        self._read: Any = client.register_script(_READ)
        self._write: Any = client.register_script(_WRITE)

    async def read(self, grant: Granted, *, instead_of: str | None = None) -> bytes | str | None:
        """Raise the fence, and read: see `RedisFence.read`."""
        with fencing(grant) as ours:
            value: bytes | str | None = await self._read(keys=[self._key], args=[*ours, instead_of or ""])
        return value

    async def write(self, grant: Granted, value: bytes | str | None) -> None:
        """Write under the fence: see `RedisFence.write`."""
        with fencing(grant) as ours:
            await self._write(keys=[self._key], args=[*ours, *_given(value)])


def _given(value: bytes | str | None) -> list[bytes | str]:
    return [] if value is None else [value]
