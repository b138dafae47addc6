"""The servers that a lock needs, and how many calls they have served, so that locks can be compared."""

import re
import socket
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Self

from fencelock import portal
from lab.servers.etcd import EtcdCluster, EtcdMember
from lab.servers.mariadb import MariaDB
from lab.servers.postgres import Postgres
from lab.servers.process import Process
from lab.servers.valkey import Valkey
from lab.servers.zookeeper import ZooKeeper

_REDIS_CALLS = "eval|evalsha|psubscribe|set"  # commands of the locks, which none of their scripts calls


class LockServers:
    """The servers of a lock by its name, started together. A lock in Redis gets a server apart from the stock's.

    `etcd_members`: size of the cluster, if the lock is in etcd; `ports`: where the servers listen.
    """

    def __init__(self, lock: str, *, etcd_members: int = 1) -> None:
        self._all = ExitStack()
        self.processes: list[Process] = []
        self.ports: list[int] = []
        self._folder: TemporaryDirectory[str] | None = None
        self._scheme, self._login, self._path = lock.replace("-", "+", 1), "", ""
        match lock.partition("-")[0]:
            case "etcd":
                etcds = EtcdCluster(etcd_members).members
                self.processes, self.ports = [*etcds], [etcd.client_port for etcd in etcds]
            case "redis":
                redis = Valkey("valkey-locks", durable=True)
                self.processes, self.ports, self._path = [redis], [redis.port], "/0"
            case "redlock":
                independent = [Valkey(f"valkey-locks-{number}", durable=True) for number in (1, 2, 3)]
                self.processes, self.ports = [*independent], [server.port for server in independent]
            case "zookeeper":
                zookeeper = ZooKeeper()
                self.processes, self.ports = [zookeeper], [zookeeper.port]
            case "postgres":
                postgres = Postgres(durable=True)
                self.processes, self.ports = [postgres], [postgres.port]
                self._login, self._path = f"{postgres.user}:{postgres.password}@", f"/{postgres.database}"
            case "mysql":
                mariadb = MariaDB(durable=True)
                self.processes, self.ports = [mariadb], [mariadb.port]
                self._login, self._path = f"{mariadb.user}:{mariadb.password}@", f"/{mariadb.database}"
            case "file":
                self._folder = TemporaryDirectory(prefix="seckill-locks-")
                self._path = self._folder.name

    @property
    def url(self) -> str:
        """Return the URL of the lock."""
        return self.url_by(self.ports)

    def url_by(self, ports: Sequence[int], host: str = "127.0.0.1") -> str:
        """Return the same URL with other ports, such as those of proxies in front of the servers."""
        return f"{self._scheme}://{self._login}{','.join(f'{host}:{port}' for port in ports)}{self._path}"

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            starting.callback(self._stop)
            self.start()
            self._all = starting.pop_all()
        return self

    def start(self) -> None:
        """Start all of them: the first time, or again after `kill`, from their files."""
        for server in self.processes:
            server.start(wait=False)  # an etcd member is ready only when there is a quorum
        for server in self.processes:
            server.wait_ready()

    def kill(self) -> None:
        """Kill all of them with SIGKILL; their files stay."""
        for server in self.processes:
            server.kill()

    def _stop(self) -> None:
        for server in self.processes:  # the servers of this moment
            server.stop()
        if self._folder is not None:
            self._folder.cleanup()

    def __exit__(self, *_: object) -> None:
        self._all.close()

    def calls(self) -> int:
        """Return how many calls the servers have served so far, by their own counts."""
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
                # Not the total, which includes calls by scripts.
                return sum(map(int, re.findall(rf"^cmdstat_(?:{_REDIS_CALLS}):calls=(\d+)", answer.read(), re.M)))
    if isinstance(server, ZooKeeper):
        return _number(r"zk_packets_received\s+(\d+)", server.ask("mntr"))
    if isinstance(server, MariaDB):
        return portal.run(_questions(server.url))
    if isinstance(server, Postgres):
        return _transactions(server)
    return 0


def _transactions(server: Postgres) -> int:
    import psycopg

    with psycopg.connect(server.url, autocommit=True) as connection:
        found = connection.execute("SELECT sum(xact_commit)::bigint FROM pg_stat_database").fetchone()
    return int(found[0]) if found else 0


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


async def _questions(url: str) -> int:
    from fencelock.errors import LockUnavailable
    from fencelock.mysql import MySqlClient

    client = MySqlClient(url, timeout_s=5, unavailable=LockUnavailable)
    try:
        return int((await client.ask("SHOW GLOBAL STATUS LIKE 'Questions'")).rows[0][1])
    finally:
        await client.close()
