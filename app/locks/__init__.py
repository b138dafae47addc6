"""The service's own locks, beside fencelock's:

`none` locks nothing, and with the fallback a sale goes on without its lock.
"""

import fencelock

fencelock.register("none", "app.locks.none:NoBackend")


def name_of(url: str) -> str:
    """The short name of the lock that a URL names. Raises `fencelock.ConfigurationError`."""
    return fencelock.name_of(url.partition("://")[0])
