"""All stock stores, by their system and guard; each is imported only when it is wanted."""

from typing import Any, Final

from app.errors import ConfigurationError
from app.stock.store import StockStore

REDIS: Final = "redis"
MYSQL: Final = "mysql"
POSTGRES: Final = "postgres"
SYSTEMS: Final = (REDIS, MYSQL, POSTGRES)
_SQL: Final = ("fence", "version", "timestamp")
_GUARDS: Final = {REDIS: ("fence", "compare", "none"), MYSQL: _SQL, POSTGRES: _SQL}
_SCHEMES: Final = {
    **dict.fromkeys(("redis", "rediss", "unix"), REDIS),
    **dict.fromkeys(("mysql", "mariadb"), MYSQL),
    **dict.fromkeys(("postgres", "postgresql"), POSTGRES),
}
_WHY_NOT: Final = {
    "version": "guard version needs a store in mysql or postgres",
    "timestamp": "guard timestamp needs a store in mysql or postgres",
    "compare": "guard compare is for redis alone: version compares better",
    "none": "guard none is for redis alone: the others write nothing unchecked",
}


def system_of(url: str) -> str:
    """The system that has the stock, one of `SYSTEMS`. Raises `ConfigurationError`, which does not quote the URL."""
    scheme = url.partition("://")[0].partition("+")[0]
    if "://" not in url or scheme not in _SCHEMES:
        raise ConfigurationError(
            "not a store's URL: say redis://host:6379/0, mysql://user:password@host:3306/database or "
            "postgres://user:password@host:5432/database"
        )
    return _SCHEMES[scheme]


def check_guard(system: str, guard: str) -> None:
    """Raise `ConfigurationError` if a store in that system has no such guard."""
    if guard not in _GUARDS[system]:
        raise ConfigurationError(_WHY_NOT[guard])


def connect(
    url: str,
    guard: str,
    *,
    wait_replicas: int = 0,
    instance: str = "python",
    refusal_ttl_s: float = 3600,
    **options: Any,
) -> StockStore:
    """The store that a URL names; it connects at its first call. Raises `ConfigurationError`.

    `options`: see `RedisStorage` and `SqlStorage`; the others are of `StockStore`.
    """
    system = system_of(url)
    check_guard(system, guard)
    if system == REDIS:
        from app.stock.redis.bare import BareStockStore
        from app.stock.redis.storage import RedisStorage

        options |= {"instance": instance, "refusal_ttl_s": refusal_ttl_s}
        kind = BareStockStore if guard == "none" else StockStore
        storage = RedisStorage(url, wait_replicas=wait_replicas, **options)
        return kind(storage, guard, instance=instance, refusal_ttl_s=refusal_ttl_s)
    if wait_replicas:
        raise ConfigurationError("to wait for replicas is for redis alone")
    from app.stock.sql.storage import SqlStorage

    own = SqlStorage(url, refusal_ttl_s=refusal_ttl_s, **options)
    return StockStore(own, guard, instance=instance, refusal_ttl_s=refusal_ttl_s)
