"""The servers of the locks and of the stock, and what only their owner can do: end a lease, look what is left."""

import asyncio
import base64
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from fencelock.redis.lock import OWNER
from lab.servers.etcd import EtcdMember
from lab.servers.mariadb import MariaDB
from lab.servers.postgres import Postgres
from lab.servers.process import Process
from lab.servers.valkey import Valkey, ask
from lab.servers.zookeeper import ZooKeeper
from lab.steps.protocols import Grpc, Jute, MySql, Pg, Resp, WireProtocol
from lab.steps.wire import Wire

ACTOR: Final = "the-actor"  # its name in the queues
_READ: Final[dict[str, tuple[str, ...]]] = {
    "string": ("GET",),
    "hash": ("HGETALL",),
    "stream": ("XRANGE", "-", "+"),
    "zset": ("ZRANGE", "0", "-1"),
}
_QUICK_ETCD: Final = ("--heartbeat-interval=50", "--election-timeout=500")


class System(ABC):
    """Servers of one kind. `protocol`: what they speak; `ways`: the proxies in front of each of them."""

    protocol: type[WireProtocol]
    ways = 1
    can_refuse = False  # whether it can be had to refuse all that it is asked to write
    can_forget = False  # whether its last write can be taken from it
    can_throw_out = False  # whether a contender has something there that can go without its lease
    outlives_its_loop = False  # whether the client's sockets stay open when their event loop is closed

    def __init__(self, name: str) -> None:
        self.name = name
        self.servers: list[Any] = []
        self._all = ExitStack()

    def start(self) -> None:
        """Start them."""
        for server in self.servers:
            self._all.enter_context(server)

    def stop(self) -> None:
        """End them."""
        self._all.close()

    def copy(self) -> "System":
        """Return other servers of this kind."""
        return type(self)(self.name)

    def refuse(self, refuses: bool) -> None:  # noqa: B027 - some can't
        """Have the servers refuse what they are asked to write, or no longer."""

    def remember(self) -> None:  # noqa: B027 - most can't forget
        """Note what they have on disk now."""

    def _forget(self) -> None:  # noqa: B027
        """Take from their disks what has come since."""

    def restart(self, *, forget: bool = False) -> None:
        """Kill them, as `kill -9` does, and start them again with what they have on disk."""
        for server in self.servers:
            server.kill()
        if forget:
            self._forget()
        for server in self.servers:
            server.start()

    @property
    def ports(self) -> list[int]:
        """The port of each server, as often as there are ways to it."""
        return [_port(server) for server in self.servers for _ in range(self.ways)]

    @abstractmethod
    def url(self, ports: Sequence[int]) -> str:
        """Return the URL with these ports."""

    async def tapped(self, wire: Wire, role: str) -> str:
        """Return the URL of a wire's proxies."""
        return self.url([await wire.tap(role, self.protocol, port) for port in self.ports])

    @property
    def direct(self) -> str:
        """The URL without a proxy."""
        return self.url(self.ports)

    async def end_leases(self, wire: Wire, name: str) -> bool:
        """End what the servers have given to the wire's actor, called `ACTOR`, behind its back.

        `name`: of the lock. Returns whether there was anything.
        """
        return False

    async def throw_out(self, wire: Wire, name: str) -> bool:
        """Delete what the wire's actor has of a lock, and leave its lease. Returns whether there was anything."""
        return False

    async def left(self, wire: Wire, name: str) -> list[str]:
        """Return what is on the servers of a lock whose owners are gone, and of the wire's actor."""
        return []

    async def all_of(self, sku: str) -> str:
        """Return all that is stored of an item, as one text; of a store."""
        raise NotImplementedError


def _port(server: Process) -> int:
    port: int = server.client_port if isinstance(server, EtcdMember) else server.port  # type: ignore[attr-defined]
    return port


class Redis(System):
    """A Valkey for locks; `count`: several of them, for redlock."""

    protocol = Resp
    can_refuse = can_forget = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        count = 3 if name == "redlock" else 1
        self.servers = [Valkey(f"valkey-steps-{number}", durable=True) for number in range(count)]
        self._sizes: dict[Path, int] = {}

    def remember(self) -> None:
        """See `System`."""
        self._sizes = {log: log.stat().st_size for one in self.servers for log in one.directory.rglob("*.incr.aof")}

    def refuse(self, refuses: bool) -> None:
        """See `System`: their memory is full."""
        for server in self.servers:
            ask(server.port, "CONFIG", "SET", "maxmemory", "1" if refuses else "0")

    def _forget(self) -> None:
        for log, size in self._sizes.items():
            with log.open("r+b") as file:
                file.truncate(size)

    def url(self, ports: Sequence[int]) -> str:
        """See `System`."""
        scheme = self.name.replace("-", "+", 1)
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"{scheme}://{hosts}" + ("" if self.name == "redlock" else "/0")

    async def end_leases(self, wire: Wire, name: str) -> bool:
        """See `System`."""
        had = 0
        for server in self.servers:
            if await asyncio.to_thread(self._is_actors, server.port, name):
                had += int(await asyncio.to_thread(ask, server.port, "DEL", name))
        return had > 0

    async def all_of(self, sku: str) -> str:
        """See `System`."""
        return await asyncio.to_thread(self._all_of, self.servers[0].port, sku)

    def _all_of(self, port: int, sku: str) -> str:
        found = []
        for key in ask(port, "KEYS", f"*{{{sku}}}*"):
            command, *rest = _READ[ask(port, "TYPE", key)]
            found.append(ask(port, command, key, *rest))
        return repr(found)

    def _is_actors(self, port: int, name: str) -> bool:
        owner = ask(port, "HGET", OWNER + name, "who") if self.name != "redlock" else ask(port, "GET", name)
        return ACTOR in (owner or "")

    async def left(self, wire: Wire, name: str) -> list[str]:
        """See `System`."""
        found = []
        for server in self.servers:
            found += await asyncio.to_thread(ask, server.port, "KEYS", f"*{name}*")
        return [key for key in found if not key.endswith("!record")]


class Etcd(System):
    """An etcd of one member, behind two addresses: what is not answered at one is asked at the other."""

    protocol = Grpc
    can_refuse = can_throw_out = True
    ways = 2
    outlives_its_loop = True  # gRPC has threads of its own

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.servers = [EtcdMember(options=_QUICK_ETCD)]

    def url(self, ports: Sequence[int]) -> str:
        """See `System`."""
        return f"{self.name.replace('-', '+', 1)}://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    def refuse(self, refuses: bool) -> None:
        """See `System`: its database is full."""
        action = "ACTIVATE" if refuses else "DEACTIVATE"
        self.servers[0].ask("maintenance/alarm", action=action, alarm="NOSPACE")

    async def end_leases(self, wire: Wire, name: str) -> bool:
        """See `System`."""
        had = False
        for lease in list(wire.given):
            with suppress(OSError):  # it is over
                await asyncio.to_thread(self.servers[0].ask, "lease/revoke", ID=str(lease))
                had = True
        return had

    async def throw_out(self, wire: Wire, name: str) -> bool:
        """See `System`."""
        keys = [kv["key"] for kv in await self._under(name) if int(kv.get("lease", 0)) in wire.given]
        for key in keys:
            await asyncio.to_thread(self.servers[0].ask, "kv/deleterange", key=key)
        return bool(keys)

    async def _under(self, name: str) -> list[dict[str, str]]:
        first, end = (base64.b64encode(f"{name}{one}".encode()).decode() for one in ("", "\x7f"))
        found = await asyncio.to_thread(self.servers[0].ask, "kv/range", key=first, range_end=end)
        kvs: list[dict[str, str]] = found.get("kvs", [])
        return kvs

    async def left(self, wire: Wire, name: str) -> list[str]:
        """See `System`."""
        server = self.servers[0]
        keys = [base64.b64decode(kv["key"]).decode() for kv in await self._under(name)]
        leases = set(await asyncio.to_thread(server.leases))
        mine = [f"lease {lease:x}" for lease in wire.given if f"{lease:x}" in leases]
        return [key for key in keys if not key.endswith("!record")] + mine


class Zk(System):
    """A ZooKeeper."""

    protocol = Jute
    can_throw_out = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.servers = [ZooKeeper(durable=True)]

    def url(self, ports: Sequence[int]) -> str:
        """See `System`."""
        return f"zookeeper://127.0.0.1:{ports[0]}"

    async def end_leases(self, wire: Wire, name: str) -> bool:
        """See `System`."""
        for session in list(wire.given):
            await asyncio.to_thread(self._close, session)
        return bool(wire.given)

    def _close(self, session: tuple[int, bytes]) -> None:
        from kazoo.client import KazooClient

        client = KazooClient(self.servers[0].hosts, client_id=session, timeout=2)
        try:
            client.start(5)
        finally:
            client.stop()
            client.close()

    async def throw_out(self, wire: Wire, name: str) -> bool:
        """See `System`."""
        sessions = {session for session, _ in wire.given}
        return bool(await asyncio.to_thread(self._contenders, name, sessions))

    async def left(self, wire: Wire, name: str) -> list[str]:
        """See `System`."""
        return await asyncio.to_thread(self._contenders, name, set())

    def _contenders(self, name: str, thrown_out: set[int]) -> list[str]:
        """Return the nodes in a lock's queue; or delete, and return, those of these sessions."""
        from kazoo.client import KazooClient
        from kazoo.exceptions import NoNodeError

        client = KazooClient(self.servers[0].hosts)
        client.start(5)
        try:
            found = [one for one in client.get_children(name) if "lock-" in one]
            if thrown_out:
                found = [one for one in found if client.get(f"{name}/{one}")[1].ephemeralOwner in thrown_out]
                for one in found:
                    client.delete(f"{name}/{one}")
            return found
        except NoNodeError:
            return []
        finally:
            client.stop()
            client.close()


class MySqlLocks(System):
    """A MariaDB for locks."""

    protocol = MySql

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.servers = [MariaDB(durable=True)]

    def url(self, ports: Sequence[int]) -> str:
        """See `System`."""
        server = self.servers[0]
        login = f"{server.user}:{server.password}@127.0.0.1:{ports[0]}/{server.database}"
        return f"{self.name.replace('-', '+', 1)}://{login}"

    async def end_leases(self, wire: Wire, name: str) -> bool:
        """See `System`."""
        return await asyncio.to_thread(self._end, name)

    def _end(self, name: str) -> bool:
        dirty = "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"
        if self.name == "mysql-row":
            found = self.ask(dirty, "SELECT host FROM fencelock_locks WHERE name = %s", name)
            if not any(ACTOR in str(who) for (who,) in found):
                return False
            past = "expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND"
            self.ask(f"UPDATE fencelock_locks SET {past} WHERE name = %s", name)  # noqa: S608
            return True
        had = False
        for session, who in self.ask(dirty, "SELECT session, host FROM fencelock_rows WHERE name = %s", name):
            if session is not None and ACTOR in str(who):
                with suppress(Exception):
                    self.ask(f"KILL {session}")
                    had = True
        return had

    async def left(self, wire: Wire, name: str) -> list[str]:
        """See `System`."""
        return await asyncio.to_thread(self._left, name)

    def _left(self, name: str) -> list[str]:
        table, held = (
            ("fencelock_locks", "expires_at > UTC_TIMESTAMP(6)")
            if self.name == "mysql-row"
            else ("fencelock_rows", "holder IS NOT NULL")
        )
        dirty = "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"
        rows = self.ask(dirty, f"SELECT name FROM {table} WHERE name = %s AND {held}", name)  # noqa: S608
        return [str(row) for (row,) in rows]

    def ask(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements; the last one may be followed by its argument."""
        import pymysql

        server = self.servers[0]
        with (
            pymysql.connect(
                host="127.0.0.1",
                port=server.port,
                user=server.user,
                password=server.password,
                database=server.database,
                autocommit=True,
            ) as connection,
            connection.cursor() as cursor,
        ):
            *texts, last = statements
            arguments: tuple[str, ...] = ()
            if "%s" in (texts[-1] if texts else ""):
                arguments = (last,)
            else:
                texts.append(last)
            for text in texts:
                try:
                    cursor.execute(text, arguments if "%s" in text else ())
                except pymysql.err.ProgrammingError as missing:
                    if missing.args[0] != 1146:  # the table is not made yet
                        raise
                    return []
            return list(cursor.fetchall())


class PostgresLocks(System):
    """A PostgreSQL for locks."""

    protocol = Pg

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.servers = [Postgres(durable=True)]

    def url(self, ports: Sequence[int]) -> str:
        """See `System`."""
        url: str = self.servers[0].url_by(ports[0])
        return url

    async def end_leases(self, wire: Wire, name: str) -> bool:
        """See `System`."""
        past = "UPDATE fencelock_contenders SET expires_at = clock_timestamp() - interval '1 s'"
        mine = "WHERE name = %s AND owner LIKE %s AND expires_at > clock_timestamp() RETURNING 1"
        return bool(await asyncio.to_thread(self._ask, f"{past} {mine}", name.encode(), f"%{ACTOR}%"))

    async def left(self, wire: Wire, name: str) -> list[str]:
        """See `System`."""
        sql = "SELECT owner FROM fencelock_contenders WHERE name = %s AND expires_at > clock_timestamp()"
        return [str(owner) for (owner,) in await asyncio.to_thread(self._ask, sql, name.encode())]

    def _ask(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.servers[0].url, autocommit=True) as connection:
            return connection.execute(sql.encode(), arguments).fetchall()


def lock_system(name: str) -> System:
    """Return the servers of a lock."""
    if name.startswith("etcd"):
        return Etcd(name)
    if name == "zookeeper":
        return Zk(name)
    if name == "postgres":
        return PostgresLocks(name)
    if name.startswith("mysql"):
        return MySqlLocks(name)
    return Redis(name)


_TABLES: Final = "SELECT table_name FROM information_schema.columns WHERE column_name = 'sku' ORDER BY table_name"


class _Stock(System):
    """A server that has the stock, and no locks."""

    async def end_leases(self, wire: Wire, name: str) -> bool:
        """See `System`."""
        return False

    async def left(self, wire: Wire, name: str) -> list[str]:
        """See `System`."""
        return []

    async def all_of(self, sku: str) -> str:
        """See `System`."""
        return await asyncio.to_thread(self._all_of, sku)

    @abstractmethod
    def _all_of(self, sku: str) -> str: ...


class MySqlStock(_Stock, MySqlLocks):
    """A MariaDB for the stock."""

    def _all_of(self, sku: str) -> str:
        return repr([self.ask(f"SELECT * FROM {table} WHERE sku = %s", sku) for (table,) in self.ask(_TABLES)])  # noqa: S608


class PostgresStock(_Stock, PostgresLocks):
    """A PostgreSQL for the stock. Its rows have no order of their own."""

    def _all_of(self, sku: str) -> str:
        rows = "SELECT * FROM {} WHERE sku = %s"
        return repr([sorted(map(repr, self._ask(rows.format(name), sku))) for (name,) in self._ask(_TABLES)])


STOCKS: Final[dict[str, type[System]]] = {"mysql": MySqlStock, "postgres": PostgresStock}
