"""All lock backends, by their short names. They are imported only when they are wanted, as some need an extra."""

import re
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final, Unpack

from .backend import LockBackend
from .connection import Options
from .errors import ConfigurationError
from .url import LockUrl

GROUP: Final = "fencelock.locks"  # the group of entry points by which distributions from outside name their locks
# A new lock is its module and a line here. The name is the scheme of its URL with "-" for "+".
CLASSES: Final[dict[str, str | type[LockBackend]]] = {
    "etcd": ".etcd.backend:EtcdBackend",
    "etcd-txn": ".etcd.txn:EtcdTxnBackend",
    "redis": ".redis.backend:RedisBackend",
    "redis-fair": ".redis.fair:RedisFairBackend",
    "redlock": ".redis.redlock:RedlockBackend",
    "zookeeper": ".zookeeper.lock:ZooKeeperBackend",
    "postgres": ".postgres.backend:PostgresBackend",
    "mysql-row": ".mysql.row:MySqlRowBackend",
    "mysql-for-update": ".mysql.for_update:MySqlForUpdateBackend",
    "file": ".file:FileBackend",
    "local": ".local:LocalBackend",
}
# Opened by its URL as the others are, and for tests only: no page or demo lists it.
_FOR_TESTS: Final[dict[str, str | type[LockBackend]]] = {"memory": ".testing:MemoryLocks"}
# The names of the packages that the locks' clients come in.
_ETCD: Final = "cslab-etcd3 grpcio"
_REDIS: Final = "'redis[hiredis]'"
_MYSQL: Final = "'sqlalchemy[asyncio]' asyncmy cryptography"
_CLIENTS: Final = {"etcd3": _ETCD, "grpc": _ETCD, "redis": _REDIS, "hiredis": _REDIS, "kazoo": "kazoo pure-sasl"} | {
    "sqlalchemy": _MYSQL,
    "asyncmy": _MYSQL,
    "psycopg": "'psycopg[binary]'",
}
# Other ways to reach the same server: over TLS, through a socket file; and the schemes of a DATABASE_URL.
_ALSO: Final = {
    "etcds": "etcd",
    "rediss": "redis",
    "unix": "redis",
    "redlocks": "redlock",
    "zookeepers": "zookeeper",
} | {
    "postgresql": "postgres",
    "mariadb": "mysql",
}
_WAYS: Final = {
    "redis": ("sentinel", "cluster"),
    "postgres": ("psycopg", "psycopg2", "psycopg_async", "asyncpg", "pg8000"),
    "mysql": ("pymysql", "mysqldb", "aiomysql", "asyncmy", "mysqlconnector", "mariadbconnector"),
}


def register(scheme: str, backend: str | type[LockBackend]) -> None:
    """Make a lock from outside known to `connect` by the scheme of its URLs, such as "consul" or "consul+queue".

    `backend`: its class, or "module:Class", which is then imported at first use. A distribution can name it by an entry
    point in the group `fencelock.locks` instead, and nobody has to call this. Raises `ConfigurationError` for a scheme
    that is none, or is another lock's.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(\+[a-z0-9-]+)?", scheme):
        raise ConfigurationError(f"not the scheme of a lock's URL: {scheme!r}")
    name = scheme.replace("+", "-")
    if scheme.partition("+")[0] in _ALSO | _FOR_TESTS or CLASSES.setdefault(name, backend) != backend:
        raise ConfigurationError(f"there is another lock {scheme!r}")


@cache
def _register_installed() -> None:
    for one in entry_points(group=GROUP):
        register(one.name, one.value)


def name_of(scheme: str) -> str:
    """Return the short name of the lock with this URL scheme or short name. Raises `ConfigurationError`."""
    base, *kinds = scheme.split("+")
    base = _ALSO.get(base, base)
    name = "-".join([base, *(kind for kind in kinds if kind not in _WAYS.get(base, ()))])
    name = "mysql-row" if name == "mysql" else name
    if name not in CLASSES | _FOR_TESTS:
        _register_installed()
    if name not in CLASSES | _FOR_TESTS:
        hint = "; for one machine there is file:///folder" if base == "sqlite" else ""
        raise ConfigurationError(f"there is no lock {scheme!r}; there are {', '.join(map(scheme_of, CLASSES))}{hint}")
    return name


def scheme_of(name: str) -> str:
    """Return the URL scheme of a short name: "etcd+txn" for "etcd-txn"."""
    return name.replace("-", "+", 1)


def backend_class(name: str) -> type[LockBackend]:
    """Return a backend's class by short name or scheme. Raises `ConfigurationError`, also if its client is missing."""
    name = name_of(name)
    known = _FOR_TESTS.get(name) or CLASSES[name]
    if not isinstance(known, str):
        return known
    module, _, kind = known.partition(":")
    try:
        found: type[LockBackend] = getattr(import_module(module, __package__), kind)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _CLIENTS and module.startswith("."):
            raise
        how = f": pip install {_CLIENTS[missing]}" if missing in _CLIENTS else ", which is not installed"
        extra = f" (fencelock's extra [{module[1:].partition('.')[0]}])" if module.startswith(".") else ""
        raise ConfigurationError(f"the lock {name} needs {missing}{extra}{how}") from None
    return found


def connect(url: str, **options: Unpack[Options]) -> LockBackend:
    """Open the lock system that a URL names; the connection is made at first use.

    `etcd://a:2379,b:2379`, `etcd+txn://`, `redis://host:6379/0`, `redis+fair://`, `redis+sentinel://a,b/master`,
    `redis+cluster://a,b`, `redlock://a,b,c`, `zookeeper://a:2181,b:2181/folder`, `postgres://user:password@host/shop`,
    `mysql+row://user:password@host/shop`, `mysql+for-update://`, `file:///folder`, `local://`; docs/locks.md has
    all of them, and `register` adds others. The options, which are keywords:

    - `ttl_s`: TTL of a lease in seconds (5); for so long a dead holder blocks the others.
    - `renew_ratio`: a lease is renewed each time this part of its TTL has passed (1/3).
    - `timeout_s`: deadline of a call in seconds (2).
    - `instance`: who we are in the queue (the host's name).
    - `hook`: a `Hook`, which hears of grants, releases, losses and renewals.
    - `instrument`: "prometheus", "opentelemetry", "structlog", or several of them.
    - `raise_on_lost_release`: False: a release of a lock that was lost is logged, and raises no `LockLost` (True).

    Raises `ConfigurationError` for a URL or an option that is wrong, or not known.
    """
    parsed = LockUrl.parse(url)
    for unknown in options.keys() - Options.__annotations__.keys():
        raise ConfigurationError(f"there is no option {unknown!r}; there are {', '.join(Options.__annotations__)}")
    return backend_class(parsed.scheme).from_url(parsed, **options)
