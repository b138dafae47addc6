"""All stock stores, by their system and guard; each is imported only when it is wanted."""

from importlib import import_module
from typing import Any, Final

from app.errors import ConfigurationError
from app.stock.store import StockStore

REDIS: Final = "redis"
MYSQL: Final = "mysql"
_CLASSES: Final = {
    (REDIS, "fence"): "redis.store:RedisStockStore",
    (REDIS, "compare"): "redis.store:ComparingStockStore",
    (REDIS, "none"): "redis.bare:BareStockStore",
    (MYSQL, "fence"): "mysql.guards:MySqlStockStore",
    (MYSQL, "version"): "mysql.guards:VersionedStockStore",
    (MYSQL, "timestamp"): "mysql.guards:TimestampedStockStore",
}
_SCHEMES: Final = {"redis": REDIS, "rediss": REDIS, "unix": REDIS, "mysql": MYSQL, "mariadb": MYSQL}
_WHY_NOT: Final = {
    (REDIS, "version"): "guard version needs a store in mysql",
    (REDIS, "timestamp"): "guard timestamp needs a store in mysql",
    (MYSQL, "compare"): "guard compare is not for mysql: version compares better",
    (MYSQL, "none"): "guard none is not for mysql: it writes nothing unchecked",
}


def system_of(url: str) -> str:
    """The system that has the stock, "redis" or "mysql". Raises `ConfigurationError`, which does not quote the URL."""
    scheme = url.partition("://")[0].partition("+")[0]
    if "://" not in url or scheme not in _SCHEMES:
        raise ConfigurationError(
            "not a store's URL: say redis://host:6379/0 or mysql://user:password@host:3306/database"
        )
    return _SCHEMES[scheme]


def check_guard(system: str, guard: str) -> None:
    """Raise `ConfigurationError` if a store in that system has no such guard."""
    if (system, guard) not in _CLASSES:
        raise ConfigurationError(_WHY_NOT[system, guard])


def connect(url: str, guard: str, *, wait_replicas: int = 0, **options: Any) -> StockStore:
    """The store that a URL names; it connects at its first call. Raises `ConfigurationError`.

    `options`: see `RedisStockStore` and `TransactionalStockStore`.
    """
    system = system_of(url)
    check_guard(system, guard)
    if system == REDIS:
        options["wait_replicas"] = wait_replicas
    elif wait_replicas:
        raise ConfigurationError("to wait for replicas is not for mysql")
    module, _, kind = _CLASSES[system, guard].partition(":")
    store: StockStore = getattr(import_module(f"app.stock.{module}"), kind)(url, **options)
    return store
