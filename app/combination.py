"""Lock, store and guard together: whether they fit, and which promises they can't keep."""

import re
from typing import Final

from app.errors import ConfigurationError
from app.locks import name_of
from app.settings import Guard, Settings
from app.stock import registry
from fencelock import Guarantees, Scope

_PORTS: Final = {
    **{"redis": 6379, "rediss": 6379, "mysql": 3306, "mariadb": 3306},
    **{"postgres": 5432, "postgresql": 5432},
}


def best_guard(promised: Guarantees, system: str) -> Guard:
    """The strongest guard that a lock with these guarantees, and a store in that system, allow."""
    if promised.fencing:
        return Guard.FENCE
    if system != registry.REDIS:
        return Guard.VERSION
    return Guard.NONE if promised.scope is Scope.NOBODY else Guard.COMPARE


def check(promised: Guarantees, settings: Settings) -> None:
    """Raise `ConfigurationError` if the guard can't check the grants of a lock with these guarantees.

    A fallback sells without a lock for a while, which each guard of the store allows.
    """
    if settings.lock_fallback:
        return
    best, guard = best_guard(promised, registry.system_of(settings.store.get_secret_value())), settings.guard
    tokenless = guard is Guard.FENCE and not promised.fencing
    alone = guard is Guard.COMPARE and promised.scope is Scope.NOBODY
    if tokenless or alone:
        name = name_of(settings.lock.get_secret_value())
        raise ConfigurationError(f"SECKILL_LOCK: the lock {name} needs SECKILL_GUARD={best}")


def warnings(promised: Guarantees, settings: Settings) -> list[str]:
    """The promises that this lock and this store together can't make, in sentences for the operator."""
    lock, store = settings.lock.get_secret_value(), settings.store.get_secret_value()
    found = []
    if not promised.elects:
        found.append(
            f"the lock {name_of(lock)} keeps no record of the last orders: if the store loses some while "
            "no instance runs, nobody notices (all locks that have elections keep one)"
        )
    if _servers(lock) & _servers(store):
        found.append("the lock and the store are on one server: what sets the one back sets both back")
    return found


def _servers(url: str) -> set[tuple[str, int]]:
    """The servers that a URL names, if their system can hold both locks and a stock."""
    scheme, _, rest = url.partition("://")
    system = scheme.partition("+")[0]
    if system not in _PORTS:
        return set()
    found = set()
    for server in re.split("[/?]", rest.rpartition("@")[2], maxsplit=1)[0].split(","):
        host, _, port = server.rpartition(":") if ":" in server else (server, "", "")
        found.add((host.replace("localhost", "127.0.0.1"), int(port) if port.isdigit() else _PORTS[system]))
    return found
