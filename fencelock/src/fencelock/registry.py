"""All lock backends, by their short names. They are imported only when they are wanted, as some need an extra."""

from importlib import import_module
from typing import Final, Unpack

from .backend import LockBackend
from .connection import Options
from .errors import ConfigurationError
from .url import LockUrl

# A new lock is its module and a line here. The name is the scheme of its URL with "-" for "+".
CLASSES: Final[dict[str, str]] = {
    "etcd": ".etcd.backend:EtcdBackend",
    "etcd-txn": ".etcd.txn:EtcdTxnBackend",
    "redis": ".redis.backend:RedisBackend",
    "redis-fair": ".redis.fair:RedisFairBackend",
    "redlock": ".redis.redlock:RedlockBackend",
    "zookeeper": ".zookeeper.lock:ZooKeeperBackend",
    "postgres": ".postgres.backend:PostgresBackend",
    "mysql-row": ".mysql.row:MySqlRowBackend",
    "mysql-for-update": ".mysql.for_update:MySqlForUpdateBackend",
    "local": ".local:LocalBackend",
    "none": ".none:NoBackend",
}
# Opened by its URL as the others are, and for tests only: no page or demo lists it.
_FOR_TESTS: Final = {"memory": ".testing:MemoryLocks"}
# The names of the packages that the locks' clients come in.
_ETCD: Final = "cslab-etcd3 grpcio"
_REDIS: Final = "'redis[hiredis]'"
_MYSQL: Final = "'sqlalchemy[asyncio]' asyncmy cryptography"
_CLIENTS: Final = {"etcd3": _ETCD, "grpc": _ETCD, "redis": _REDIS, "hiredis": _REDIS, "kazoo": "kazoo pure-sasl"} | {
    "sqlalchemy": _MYSQL,
    "asyncmy": _MYSQL,
    "psycopg": "'psycopg[binary]'",
}
# Other ways to reach the same server: over TLS, through a socket file.
_ALSO: Final = {
    "etcds": "etcd",
    "rediss": "redis",
    "unix": "redis",
    "redlocks": "redlock",
    "zookeepers": "zookeeper",
} | {"postgresql": "postgres"}


def name_of(scheme: str) -> str:
    """Return the short name of the lock with this URL scheme or short name. Raises `ConfigurationError`."""
    base, plus, kind = scheme.partition("+")
    name = _ALSO.get(base, base) + plus.replace("+", "-") + kind
    if name not in CLASSES and name not in _FOR_TESTS:
        raise ConfigurationError(f"there is no lock {scheme!r}; there are {', '.join(map(scheme_of, CLASSES))}")
    return name


def scheme_of(name: str) -> str:
    """Return the URL scheme of a short name: "etcd+txn" for "etcd-txn"."""
    return name.replace("-", "+", 1)


def backend_class(name: str) -> type[LockBackend]:
    """Return a backend's class by short name or scheme. Raises `ConfigurationError`, also if its client is missing."""
    module, _, kind = (CLASSES | _FOR_TESTS)[name_of(name)].partition(":")
    try:
        found: type[LockBackend] = getattr(import_module(module, __package__), kind)
    except ModuleNotFoundError as error:
        client = (error.name or "").partition(".")[0]
        if client not in _CLIENTS:
            raise
        raise ConfigurationError(f"the lock {name} needs {client}: pip install {_CLIENTS[client]}") from None
    return found


def connect(url: str, **options: Unpack[Options]) -> LockBackend:
    """Open the lock system that a URL names; the connection is made at first use.

    `etcd://a:2379,b:2379`, `etcd+txn://`, `redis://host:6379/0`, `redis+fair://`, `redlock://a,b,c`,
    `zookeeper://a:2181,b:2181/folder`, `postgres://user:password@host/database`,
    `mysql+row://user:password@host/database`, `mysql+for-update://`, `local://`; docs/locks.md has them all. The
    options, which are keywords:

    - `ttl_s`: TTL of a lease in seconds (5): what a dead holder costs at most.
    - `renew_ratio`: a lease is renewed each time this part of its TTL has passed (1/3).
    - `timeout_s`: deadline of a call in seconds (2).
    - `instance`: who we are in the queue (the host's name).
    - `hook`: a `Hook`, which is told what happens.
    - `instrument`: "prometheus", "opentelemetry", "structlog", or several of them, which are told, too.
    - `raise_on_lost_release`: False: a release of a lock that was lost is logged, and raises no `LockLost` (True).

    Raises `ConfigurationError` for a URL or an option that is wrong, or not known.
    """
    parsed = LockUrl.parse(url)
    for unknown in options.keys() - Options.__annotations__.keys():
        raise ConfigurationError(f"there is no option {unknown!r}; there are {', '.join(Options.__annotations__)}")
    return backend_class(parsed.scheme).from_url(parsed, **options)
