"""The service's own locks, beside those of fencelock: one that locks nothing, and one that the sale can do without."""

import fencelock

fencelock.register("none", "app.locks.none:NoBackend")


def name_of(url: str) -> str:
    """The short name of the lock that a URL names. Raises `fencelock.ConfigurationError`."""
    return fencelock.name_of(url.partition("://")[0])
