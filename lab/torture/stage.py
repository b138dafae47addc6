"""The stage: the lock's servers, a durable store, the instances, and a proxy on each path between them."""

import asyncio
import base64
import contextlib
import http.client
import os
import re
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from app.settings import PREFIX, Settings
from app.stock.redis.keys import keys_of
from app.stock.registry import MYSQL, POSTGRES, REDIS
from lab.bank import url_of
from lab.servers import EtcdMember, LockServers, MariaDB, PgBouncer, Postgres, RedisCluster, SentinelSet, Valkey
from lab.servers.etcd import replace_member
from lab.servers.process import Process, free_port
from lab.torture import long_hold, shim
from lab.torture.cable import Cable
from lab.torture.proxy import Proxy

# Counters in /metrics for the work of the locks and the fence.
_COUNTER: Final = re.compile(r"^seckill_((?:fenced|grants|batches|lease|fallback)[^ ]*_total[^ ]*) ([0-9.e+]+)$", re.M)
# Marks of a read and of a commit on their way to the store, and of the answer for which the buyers wait.
_OF_SQL: Final = (b"SET source=", b" batch=")
_MARKS: Final = {REDIS: (b'"due_max":200,"source":', b'"lucky":'), MYSQL: _OF_SQL, POSTGRES: _OF_SQL}
SENTINEL: Final = "redis-sentinel"
CLUSTER: Final = "redis-cluster"
POOLED: Final = f"{POSTGRES}-pgbouncer"
STORES: Final = (REDIS, MYSQL, POSTGRES, SENTINEL, CLUSTER, POOLED)
StoreServer = Valkey | MariaDB | Postgres
REPLICAS: Final = 2  # in a Sentinel set
WEBHOOK_TIMEOUT_S: Final = 2.0


def system_of(store: str) -> str:
    """Return the system of a store in `STORES`, by its name in `app.stock.registry`."""
    return store.partition("-")[0]


def python_of(release: Path) -> Path:
    """Return the Python of a checkout."""
    return release / ".venv" / "bin" / "python"


class Actor(Process):
    """An instance of the service whose paths to the lock's servers and to the store can be cut separately.

    `to_store`: None if the store is several servers, which give their clients the addresses.
    """

    def __init__(
        self, name: str, stage: "TortureStage", variables: dict[str, str], bug: str, cable: Cable | None = None
    ) -> None:
        self.port, self.cable = free_port(), cable
        host, own_host = (cable.host, cable.address) if cable else ("127.0.0.1", "127.0.0.1")
        self.url = f"http://{own_host}:{self.port}"
        self.to_lock = [Proxy(port, host) for port in stage.locks.ports]
        server, store = stage.pooler or stage.store_server, stage.store_url
        self.to_store = Proxy(server.port, host) if server else None
        if server and self.to_store:
            store = store.replace(f"127.0.0.1:{server.port}/", f"{host}:{self.to_store.port}/")
        own = {
            "INSTANCE": name,
            "HOST": own_host,
            "PORT": str(self.port),
            "LOCK": stage.locks.url_by([path.port for path in self.to_lock], host),
            "STORE": store,
        }
        if "WEBHOOK_SECRET" in variables:
            own["WEBHOOK_URL"] = f"http://{host}:{stage.receiver_port}/{name}"
        if "PAYMENTS_SECRET" in variables:
            own["REFUNDS"] = url_of(host, stage.bank_port)
        # Without the user's settings for their own instances.
        env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        env |= {PREFIX + name: value for name, value in (variables | own).items()}
        self.controls = stage.folder / f"{name}.shim"
        env |= stage.shim.environment(self.controls)

        self.cwd = stage.release  # where `python -m` looks first

        def argv(directory: Path) -> Sequence[str]:
            inside = cable.prefix if cable else []
            python = str(python_of(self.cwd)) if self.cwd else sys.executable
            return [*inside, python, "-m", "lab.torture.instance", str(directory), *([bug] if bug else [])]

        super().__init__(name, argv, ready=lambda: self.answers("/healthz"), env=env, ready_within_s=30)

    def answers(self, path: str) -> bool:
        """Return whether the instance answers 200 to a GET."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, http.client.HTTPException):
            return False

    def counters(self) -> dict[str, int]:
        """Return the counters since its start; empty when the instance doesn't answer."""
        try:
            with urllib.request.urlopen(self.url + "/metrics", timeout=1) as answer:
                text = answer.read().decode()
        except (OSError, http.client.HTTPException):  # the connection was lost in mid-answer
            return {}
        return {name: int(float(value)) for name, value in _COUNTER.findall(text)}

    @property
    def outdated(self) -> bool:
        """True if the instance is of the earlier release."""
        return self.cwd is not None

    def upgrade(self) -> None:
        """Stop the instance in order, and start it as the present release."""
        self.terminate()
        self.cwd = None
        self.start()

    def be_quiet(self) -> None:
        """Begin no more long holds."""
        (self.directory / long_hold.QUIET).touch()

    def stop(self) -> None:
        """End the instance and its paths."""
        super().stop()
        for path in (*self.to_lock, *([self.to_store] if self.to_store else [])):
            path.close()


class TortureStage:
    """Everything that a run needs, started and ended together.

    `lock`: its short name; `store`: one of `STORES`, with `store_options` if it is one server; `cabled`: whether each
    instance is in a network of its own; `release`: the checkout of an earlier one, as which the instances begin.
    """

    def __init__(
        self,
        lock: str,
        store: str,
        instances: int,
        variables: dict[str, str],
        *,
        bug: str = "",
        store_options: Sequence[str] = (),
        cabled: bool = False,
        release: Path | None = None,
    ) -> None:
        self._cabled = cabled
        self.release = release
        self._files = tempfile.TemporaryDirectory(prefix="seckill-torture-")
        self.folder = Path(self._files.name)
        self.shim = shim.Shim(self.folder)
        self.locks = LockServers(lock, etcd_members=3)
        self.store_controls = self.folder / "store.shim"
        env = os.environ | self.shim.environment(self.store_controls)
        self.store: StoreServer | SentinelSet | RedisCluster
        self.pooler: PgBouncer | None = None  # between the instances and the store
        if store == MYSQL:
            self.store = MariaDB(durable=True, options=store_options)
        elif system_of(store) == POSTGRES:
            self.store = Postgres(durable=True, options=store_options)
            self.pooler = PgBouncer(self.store) if store == POOLED else None
        elif store == SENTINEL:
            self.store = SentinelSet(replicas=REPLICAS)
        elif store == CLUSTER:
            self.store = RedisCluster()
        else:
            self.store = Valkey(durable=True, options=store_options, env=env)
        self.read_mark, self.commit_mark = _MARKS[system_of(store)]
        self.skus: tuple[str, ...] = ()  # the items on sale
        self.receiver_port, self.bank_port = free_port(), free_port()
        self._count = instances
        self._variables = variables
        self._bug = bug
        self._servers = ExitStack()
        self.instances: list[Actor] = []

    def start(self, say: Callable[[str], None]) -> Self:
        """Start the servers, then the instances, until all are ready; `stop` ends them, also after a failed start."""
        self._servers.enter_context(self._files)
        say("Starting the lock's servers and the store")
        self._servers.enter_context(self.locks)
        self._servers.enter_context(self.store)
        if self.pooler is not None:
            self._servers.enter_context(self.pooler)
        say(f"Starting {self._count} instances")
        for number in range(1, self._count + 1):
            cable = self._cable(number) if self._cabled else None
            actor = Actor(f"instance-{number}", self, self._variables, self._bug, cable)
            self._servers.callback(actor.stop)
            self.instances.append(actor)
            actor.start(wait=False)
        for actor in self.instances:
            actor.wait_ready()
        return self

    def _cable(self, number: int) -> Cable:
        cable = Cable(number)
        cable.plug_in()
        self._servers.callback(cable.unplug)
        return cable

    def stop(self) -> None:
        """End everything and remove its data."""
        self._servers.close()

    @property
    def hosts(self) -> set[str]:
        """Return the addresses by which the instances reach us."""
        return {actor.cable.host if actor.cable else "127.0.0.1" for actor in self.instances}

    @property
    def store_url(self) -> str:
        """Return the URL of the store, or of the pooler in front of it."""
        return self.store.url if self.pooler is None else self.pooler.url

    @property
    def store_server(self) -> StoreServer | None:
        """Return the store, if it is one server."""
        return self.store if isinstance(self.store, StoreServer) else None

    @property
    def can_cut_power(self) -> bool:
        """True if a power cut can take the unsynced data from the store."""
        return self.shim.available and isinstance(self.store, Valkey)

    def cut_power(self, store: StoreServer) -> None:
        """Kill the store, and drop its unsynced data."""
        store.kill()
        if self.can_cut_power:
            shim.lose_unsynced(store.directory)

    def items_of(self, commit: bytes) -> dict[str, bytes]:
        """Return the items of a commit on its way to Redis, each with a mark that its other commits have, too."""
        marks = {sku: keys_of(sku).fence.encode() for sku in self.skus}
        return {sku: mark for sku, mark in marks.items() if mark in commit}

    @property
    def _members(self) -> list[EtcdMember]:
        return [member for member in self.locks.processes if isinstance(member, EtcdMember)]

    async def lock_server(self) -> tuple[Process, str]:
        """Return one of the lock's servers, the leader if there is one, and its name."""
        for member in self._members:
            with contextlib.suppress(OSError):
                if await asyncio.to_thread(member.leads):
                    return member, f"{member.name}, the leader"
        server = self.locks.processes[0]
        return server, server.name

    async def follower(self) -> EtcdMember | None:
        """Return a member of etcd that the others can do without, if there is one."""
        members = self._members
        leader, _ = await self.lock_server()
        return next((one for one in members if one is not leader), None) if len(members) > 2 else None

    def replace_lock_server(self, server: Process) -> None:
        """Replace that member of etcd by a new one without data."""
        members = self._members
        replace_member(members, members.index(server))  # type: ignore[arg-type]
        self.locks.processes[:] = members

    def back_up_locks(self) -> None:
        """Kill the lock's servers, copy their files, and start them again."""
        self.locks.kill()
        for server in self.locks.processes:
            copy = self._copy_of(server)
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(server.directory, copy, ignore=shutil.ignore_patterns("socket"))  # sockets can't be copied
        self.locks.start()

    def set_locks_back(self) -> None:
        """Kill the lock's servers, and replace their files by those of the backup."""
        self.locks.kill()
        for server in self.locks.processes:
            shutil.rmtree(server.directory)
            shutil.move(self._copy_of(server), server.directory)

    def _copy_of(self, server: Process) -> Path:
        return self.folder / f"{server.name}.backup"

    def restart(self) -> None:
        """Stop all instances in order, and start them again, all at once."""
        for do in (Actor.terminate, Actor.start):
            with ThreadPoolExecutor(len(self.instances)) as hands:
                list(hands.map(do, self.instances))

    async def delete(self, key: str) -> bool:
        """Delete a key in etcd, through any member, and return whether it was there."""
        for member in self._members:
            with contextlib.suppress(OSError):
                return await asyncio.to_thread(member.delete, key)
        return False

    async def leases(self) -> list[str]:
        """Return the leases in etcd, except of candidates for an office. Raises `OSError` if no member answers."""
        if not self._members:
            return []
        for member in self._members[:-1]:
            with contextlib.suppress(OSError):
                return await asyncio.to_thread(_leases, member)
        return await asyncio.to_thread(_leases, self._members[-1])


def _leases(member: EtcdMember) -> list[str]:
    prefix = f"{Settings.model_fields['lock_prefix'].default}/"
    first, end = (base64.b64encode(f"{prefix}{one}".encode()).decode() for one in '!"')  # '"' comes after "!"
    kvs = member.ask("kv/range", key=first, range_end=end).get("kvs", [])
    kept = {f"{int(kv['lease']):x}" for kv in kvs if "lease" in kv}
    return [lease for lease in member.leases() if lease not in kept]
