"""The hosts and what runs on them: on each an etcd member, a Redis node and an instance, and HAProxy in front of all.

The first two have a Valkey, which are a primary and its replica, and all have a Sentinel. With a third Valkey the sale
would stop while any host is away: "sold" is answered when all replicas have it, as Sentinel may promote any of them.
"""

import os
import re
import secrets
import shutil
import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.errors import ConfigurationError
from app.settings import PREFIX, Settings, load
from app.wiring import Sale, open_sale
from lab.servers import EtcdCluster, SentinelSet, Valkey
from lab.servers.network import Hosts
from lab.servers.process import Process, Site, port_is_free

_PORT: Final = 8080  # of each instance, on its own address
_OPERATOR_PORT: Final = 8081
_CHECKED_WITHIN_S: Final = 2.0  # the balancer asks each second
_PURCHASES: Final = re.compile(r"(?m)^seckill_purchases_total\{.*\} ([0-9.e+]+)$")
_EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "haproxy.cfg"
_OPERATORS: Final = """
frontend operators
  bind 127.0.0.1:{port}
  default_backend rooms

backend rooms
  timeout server 75s # the live pages say something each 15 s
  balance first # pages, and what they ask for, are an instance's own
  option httpchk GET /healthz # the control room is there while nothing can be sold, too
  default-server check inter 1s fall 1 rise 2
"""


class HostInstance(Process):
    """An instance on a host, ready when it can sell."""

    def __init__(self, name: str, site: Site, variables: dict[str, str]) -> None:
        self.address = site.address
        argv = [*site.prefix, sys.executable, "-m", "app", "serve"]
        own = {"INSTANCE": name, "HOST": site.address, "PORT": str(_PORT), "OPERATOR_PORT": str(_OPERATOR_PORT)}
        env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        env |= {PREFIX + name: value for name, value in (variables | own).items()}
        super().__init__(name, lambda _: argv, ready=self.sells, env=env, ready_within_s=90)

    def sells(self) -> bool:
        """Return whether it says that it can sell."""
        try:
            with urllib.request.urlopen(f"http://{self.address}:{_OPERATOR_PORT}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def answered(self) -> int:
        """Return how many purchases it has answered since its start. Raises `OSError`."""
        with urllib.request.urlopen(f"http://{self.address}:{_OPERATOR_PORT}/metrics", timeout=2) as answer:
            return int(sum(float(value) for value in _PURCHASES.findall(answer.read().decode())))


class Balancer(Process):
    """HAProxy, as in examples/haproxy.cfg: for buyers on one port of loopback, and for operators on another."""

    def __init__(self, program: str, instances: list[HostInstance], port: int, operator_port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.operators_url = f"http://127.0.0.1:{operator_port}"
        servers = [(one.name, one.address) for one in instances]

        def argv(directory: Path) -> list[str]:
            # Without the limit of tries for each address: all buyers of this stage have one.
            example = re.sub(r"(?m)^  (server|http-request deny) .*\n", "", _EXAMPLE.read_text())
            example = example.replace("bind :80", f"bind 127.0.0.1:{port}")
            example = example.replace("maxconn 20000", "maxconn 5000")  # a shell may allow no more files
            lines = [f"  server {name} {at}:{_PORT} check port {_OPERATOR_PORT}" for name, at in servers]
            lines += [_OPERATORS.format(port=operator_port)]
            lines += [f"  server {name} {at}:{_OPERATOR_PORT}" for name, at in servers]
            config = directory / "haproxy.cfg"
            config.write_text(example.rstrip() + "\n" + "\n".join(lines) + "\n")
            return [program, "-db", "-f", str(config)]

        super().__init__("haproxy", argv, ready=self._answers)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class ClusterStage:
    """The running stage. `names`: of the hosts; `variables`: the instances' settings, without their prefix."""

    names: list[str]
    hosts: Hosts
    etcd: EtcdCluster
    store: SentinelSet
    instances: list[HostInstance]
    balancer: Balancer
    variables: dict[str, str]

    @property
    def settings(self) -> Settings:
        """Return the settings of a process beside the instances."""
        return load(**{name.lower(): value for name, value in {**self.variables, "INSTANCE": "stage"}.items()})

    def open_sale(self) -> AbstractAsyncContextManager[Sale]:
        """Open a sale of this process on the same servers: it sells nothing, but sets the stock and audits."""
        return open_sale(self.settings)

    def host_of(self, server: Valkey) -> str:
        """Return the name of the host on which that server is."""
        return next(name for name in self.names if self.hosts.site(name).address == server.address)


@contextmanager
def set_up(hosts_count: int, ports: tuple[int, int], ttl_s: int) -> Iterator[ClusterStage]:
    """Start everything, and end it, also when it was half started. SIGTERM meanwhile acts like Ctrl-C.

    Raises `ConfigurationError`, `NoNetwork` and `ProcessFailed`.
    """
    program = shutil.which("haproxy", path=os.pathsep.join((*os.get_exec_path(), "/usr/sbin")))
    if program is None:
        raise ConfigurationError("haproxy is not installed; on Debian: apt-get install haproxy")
    for port in ports:
        if not port_is_free(port):
            raise ConfigurationError(f"--ports: {port} is in use")
    names = [f"host-{number}" for number in range(1, hosts_count + 1)]
    hosts = Hosts(names)
    with ExitStack() as running:
        running.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, signal.default_int_handler))
        running.enter_context(hosts.started())
        sites = [hosts.site(name) for name in names]
        etcd = running.enter_context(EtcdCluster(sites=sites))
        store = running.enter_context(SentinelSet(replicas=1, sentinels=hosts_count, sites=sites))
        variables = {
            "LOCK": "etcd://" + ",".join(endpoint.partition("://")[2] for endpoint in etcd.endpoints),
            "STORE": store.url,
            "STORE_WAIT_REPLICAS": "1",
            "LOCK_TTL_S": str(ttl_s),
            "EXTENSION": "lab.rehearsal",
            "ADMIN_TOKEN": secrets.token_urlsafe(16),
            "PROXIES": hosts.address,
            "DRAIN_DELAY_S": str(_CHECKED_WITHIN_S),
        }
        instances = [HostInstance(name, hosts.site(name), variables) for name in names]
        for instance in instances:
            running.callback(instance.stop)
            instance.start(wait=False)
        for instance in instances:
            instance.wait_ready()
        balancer = running.enter_context(Balancer(program, instances, *ports))
        yield ClusterStage(names, hosts, etcd, store, instances, balancer, variables)
