"""The fence: a store checks a lock's token.

A lock with a TTL can't stop a holder that was paused for longer: it wakes, believes in its grant, and writes. Only the
store can refuse that write. So each grant has a `token` that is greater than all before it, the store keeps the highest
token that it has seen, its *fence*, and refuses lower ones (M. Kleppmann, "How to do distributed locking", 2016; the
sequencers of Chubby, M. Burrows, 2006).

To look at writes only is not enough. A (7) reads and is paused; B (8) reads; A wakes and writes: nobody has *written*
with 8 yet, so 7 passes, and B overwrites A's value. Therefore each part here has two sides:

- the *read* raises the fence to our token, and reads;
- the *write* checks the fence again, in one atomic step with the write.

>>> with lock as grant:                           # doctest: +SKIP
...     value = fence.read(grant)
...     fence.write(grant, changed(value))

| where the data is | import | what it needs |
|---|---|---|
| Redis, Valkey | `RedisFence`, `AsyncRedisFence`; `FENCE_LUA`, `fencing` for scripts of one's own | redis-py |
| SQL | `SqlFence`, `fence_columns` | SQLAlchemy 2 |

Tokens are from 1 to 2**63 - 1. Another value raises `ValueError`, and so does 0, which a lock without tokens gives.
Equal tokens pass: a holder may write as often as it likes. That doesn't order its own writes, so await the answer of
one before you send the next. Tokens of two sources can't be compared: a fence is one source's. If the lock system is
replaced, `read(..., instead_of=the old source)` moves the fence, and then the old source is refused.

A fence must not forget. It has no expiry; a store that is restored from a backup or fails over to a late replica has
older fences.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .errors import FenceRefused
    from .granted import Fencing, Granted
    from .redis import FENCE_LUA, AsyncRedisFence, RedisFence, fencing
    from .sql import SqlFence, fence_columns

__all__ = [
    "FENCE_LUA",
    "AsyncRedisFence",
    "FenceRefused",
    "Fencing",
    "Granted",
    "RedisFence",
    "SqlFence",
    "fence_columns",
    "fencing",
]

# Imported only when they are wanted: redis-py and SQLAlchemy need not be there.
_MODULES: Final = {
    "FenceRefused": ".errors",
    "Fencing": ".granted",
    "Granted": ".granted",
    "FENCE_LUA": ".redis",
    "AsyncRedisFence": ".redis",
    "RedisFence": ".redis",
    "fencing": ".redis",
    "SqlFence": ".sql",
    "fence_columns": ".sql",
}


if not TYPE_CHECKING:  # which would believe in any name

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
