"""Every lock backend by its name. Imported only when it is wanted: some need a client that is not installed."""

from importlib import import_module
from typing import Final

from app.locks.backend import LockBackend

_CLASSES: Final = {
    "etcd": "etcd.backend:EtcdBackend",
    "etcd-txn": "etcd.txn:EtcdTxnBackend",
    "redis": "redis.lock:RedisBackend",
    "redis-fair": "redis.fair:RedisFairBackend",
    "redlock": "redis.redlock:RedlockBackend",
    "zookeeper": "zookeeper.lock:ZooKeeperBackend",
    "mysql-row": "mysql.row:MySqlRowBackend",
    "mysql-for-update": "mysql.for_update:MySqlForUpdateBackend",
    "local": "local:LocalBackend",
    "none": "none:NoBackend",
}
NAMES: Final = tuple(_CLASSES)


def backend_class(name: str) -> type[LockBackend]:
    """The backend of that name."""
    module, _, kind = _CLASSES[name].partition(":")
    found: type[LockBackend] = getattr(import_module(f"app.locks.{module}"), kind)
    return found
