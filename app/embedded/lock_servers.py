"""The servers that a lock needs, and how many calls they have served: to compare locks by running them."""

import re
import socket
import urllib.request
from contextlib import ExitStack
from typing import Self

from app.embedded.etcd import EtcdMember
from app.embedded.mariadb import MariaDB
from app.embedded.process import Process
from app.embedded.valkey import Valkey
from app.embedded.zookeeper import ZooKeeper

_REDIS_CALLS = "eval|evalsha|psubscribe|set"  # those of the locks; none of their scripts calls one of these


class LockServers:
    """Those of the lock of that name, started together. A lock of Redis gets one apart from the stock's.

    `url`: of the lock.
    """

    def __init__(self, lock: str) -> None:
        self._all = ExitStack()
        self.processes: list[Process] = []
        scheme, address = lock.replace("-", "+", 1), ""
        match lock.partition("-")[0]:
            case "etcd":
                etcd = EtcdMember()
                self.processes, address = [etcd], etcd.endpoint.partition("://")[2]
            case "redis":
                redis = Valkey("valkey-locks", durable=True)
                self.processes, address = [redis], redis.url.partition("://")[2]
            case "redlock":
                independent = [Valkey(f"valkey-locks-{number}", durable=True) for number in (1, 2, 3)]
                self.processes = [*independent]
                address = ",".join(f"127.0.0.1:{server.port}" for server in independent)
            case "zookeeper":
                zookeeper = ZooKeeper()
                self.processes, address = [zookeeper], zookeeper.hosts
            case "mysql":
                mariadb = MariaDB()
                self.processes, address = [mariadb], mariadb.url.partition("://")[2]
        self.url = f"{scheme}://{address}"

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            for server in self.processes:
                starting.enter_context(server)
            self._all = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._all.close()

    def calls(self) -> int:
        """How many calls they have served so far, by the servers' own counts."""
        return sum(map(_calls, self.processes))


def _calls(server: Process) -> int:
    if isinstance(server, EtcdMember):
        with urllib.request.urlopen(f"{server.endpoint}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return sum(int(float(count)) for count in re.findall(r"^grpc_server_started_total\S* (\S+)$", text, re.M))
    if isinstance(server, Valkey):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            connection.sendall(b"INFO commandstats\r\nQUIT\r\n")
            with connection.makefile() as answer:
                # Not the total: it counts what a script calls, too.
                return sum(map(int, re.findall(rf"^cmdstat_(?:{_REDIS_CALLS}):calls=(\d+)", answer.read(), re.M)))
    if isinstance(server, ZooKeeper):
        return _number(r"zk_packets_received\s+(\d+)", server.ask("mntr"))
    if isinstance(server, MariaDB):
        from app.locks.errors import LockUnavailable
        from app.locks.mysql.client import MySqlClient

        client = MySqlClient(server.url, timeout_s=5, unavailable=LockUnavailable)
        try:
            return int(client.run("SHOW GLOBAL STATUS LIKE 'Questions'").rows[0][1])
        finally:
            client.close()
    return 0


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0
