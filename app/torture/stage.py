"""The stage: three etcd members, a durable store, the instances, and a proxy on each path between them."""

import asyncio
import base64
import contextlib
import http.client
import os
import re
import sys
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, Self

from app.embedded import EtcdCluster, EtcdMember, Valkey
from app.embedded.process import Process, free_port
from app.settings import PREFIX, Settings
from app.torture.proxy import Proxy

# Those of /metrics that tell what the locks and the fence had to do.
_COUNTER: Final = re.compile(r"^seckill_((?:fenced|grants|batches|lease)[^ ]*_total[^ ]*) ([0-9.e+]+)$", re.MULTILINE)


class Actor(Process):
    """An instance of the service whose paths to etcd and to the store can be cut, each by itself."""

    def __init__(self, name: str, cluster: EtcdCluster, store: Valkey, variables: dict[str, str]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.to_etcd = [Proxy(member.client_port) for member in cluster.members]
        self.to_store = Proxy(store.port)
        own = {
            "INSTANCE": name,
            "PORT": str(self.port),
            "LOCK": "etcd://" + ",".join(f"127.0.0.1:{path.port}" for path in self.to_etcd),
            "STORE": f"redis://127.0.0.1:{self.to_store.port}/0",
        }
        # Not what the user has set for their own instances.
        env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        env |= {PREFIX + name: value for name, value in (variables | own).items()}
        argv = [sys.executable, "-m", "app.torture.instance"]
        super().__init__(name, lambda _: argv, ready=lambda: self.answers("/healthz"), env=env, ready_within_s=30)

    def answers(self, path: str) -> bool:
        """Whether it answers 200 to a GET."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, http.client.HTTPException):
            return False

    def counters(self) -> dict[str, int]:
        """What it has counted since it was started; empty when it doesn't answer."""
        try:
            with urllib.request.urlopen(self.url + "/metrics", timeout=1) as answer:
                text = answer.read().decode()
        except (OSError, http.client.HTTPException):  # cut off in mid-answer
            return {}
        return {name: int(float(value)) for name, value in _COUNTER.findall(text)}

    def stop(self) -> None:
        """End it and its paths."""
        super().stop()
        for path in (*self.to_etcd, self.to_store):
            path.close()


class Stage:
    """Everything that a run needs, started and ended together."""

    def __init__(self, instances: int, variables: dict[str, str]) -> None:
        self.cluster = EtcdCluster(3)
        self.store = Valkey(durable=True)
        self._count = instances
        self._variables = variables
        self._servers = ExitStack()
        self.instances: list[Actor] = []

    @property
    def lock_url(self) -> str:
        """The lock's, past the proxies."""
        return "etcd://" + ",".join(f"127.0.0.1:{member.client_port}" for member in self.cluster.members)

    def start(self, say: Callable[[str], None]) -> Self:
        """Start the servers, then the instances, until all of them are ready; `stop` ends them, also half of them."""
        say("Starting three etcd members and the store")
        self._servers.enter_context(self.cluster)
        self._servers.enter_context(self.store)
        say(f"Starting {self._count} instances")
        for number in range(1, self._count + 1):
            actor = Actor(f"instance-{number}", self.cluster, self.store, self._variables)
            self._servers.callback(actor.stop)
            self.instances.append(actor)
            actor.start(wait=False)
        for actor in self.instances:
            actor.wait_ready()
        return self

    def stop(self) -> None:
        """End all of it and remove its data."""
        self._servers.close()

    async def leader(self) -> EtcdMember | None:
        """The member that leads etcd, as far as one can see."""
        for member in self.cluster.members:
            with contextlib.suppress(OSError):
                if await asyncio.to_thread(member.leads):
                    return member
        return None

    async def delete(self, key: str) -> bool:
        """Delete a key in etcd, through any member; whether it was there."""
        for member in self.cluster.members:
            with contextlib.suppress(OSError):
                return await asyncio.to_thread(member.delete, key)
        return False

    async def leases(self) -> list[str]:
        """The leases that etcd has, but for those of the auditors-to-be; raises `OSError` if no member answers."""
        for member in self.cluster.members[:-1]:
            with contextlib.suppress(OSError):
                return await asyncio.to_thread(_leases, member)
        return await asyncio.to_thread(_leases, self.cluster.members[-1])


def _leases(member: EtcdMember) -> list[str]:
    prefix = f"{Settings.model_fields['lock_prefix'].default}/!auditor"
    first, end = (base64.b64encode(f"{prefix}{one}".encode()).decode() for one in "/0")  # "0" comes after "/"
    kept = {f"{int(kv['lease']):x}" for kv in member.ask("kv/range", key=first, range_end=end).get("kvs", [])}
    return [lease for lease in member.leases() if lease not in kept]
