"""Network namespaces: hosts with addresses of their own on one machine, whose kernel drops packets without notice.

This takes Linux, root and iproute2.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from app.errors import SeckillError
from lab.servers.process import Process, Site

_TOOLS: Final = ("ip", "unshare", "nsenter")
_RANGE: Final = "198.18"  # for tests between networks (RFC 2544): no real host has it
_SLEEP: Final = "ip link set lo up && exec sleep 100000"


class NoNetwork(SeckillError):
    """No such network is possible here; the text says why."""


class Namespace:
    """A network of its own, which lives as long as a process is in it, and its cables with it."""

    def __init__(self, name: str) -> None:
        argv = ["unshare", "--net", "sh", "-c", _SLEEP]
        self._inside = Process(name, lambda _: argv, ready=self._is_separate)

    @property
    def pid(self) -> str:
        """Return the id of the process that keeps it."""
        return str(self._inside.pid)

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return the prefix of a command that is to run inside."""
        return ("nsenter", "--target", self.pid, "--net", "--")

    def start(self) -> None:
        """Create it. Raises `NoNetwork`, `ProcessFailed`."""
        missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
        if missing or os.geteuid() != 0:
            raise NoNetwork(f"it takes {', '.join(missing)}" if missing else "it takes root")
        self._inside.start()

    def stop(self) -> None:
        """Remove it."""
        self._inside.stop()

    def ip(self, command: str) -> None:
        """Run iproute2's `ip` inside. Raises `NoNetwork`."""
        _run(*self.prefix, "ip", *command.split())

    def _is_separate(self) -> bool:
        try:
            inside, ours = (Path(f"/proc/{one}/ns/net").readlink() for one in (self._inside.pid, "self"))
        except OSError:
            return False
        return inside != ours


def ip(command: str) -> None:
    """Run iproute2's `ip` in our own network. Raises `NoNetwork`."""
    _run("ip", *command.split())


def network_of(pid: int, number: int) -> str:
    """Return the first three parts of addresses, and the last one of a block of four, for a process's use."""
    block = pid * 16 + number
    return f"{_RANGE}.{block // 64 % 256}.{block % 64 * 4}"


class Hosts:
    """Hosts at one switch, with us. `address`: ours, as they see it; `sites`: theirs."""

    def __init__(self, names: Sequence[str]) -> None:
        block, first = network_of(os.getpid(), 0).rsplit(".", 1)
        self.address, *others = (f"{block}.{int(first) + 1 + number}" for number in range(len(names) + 1))
        self._addresses = dict(zip(names, others, strict=True))
        self._switch = Namespace("switch")
        self._hosts = {name: Namespace(name) for name in names}

    def site(self, name: str) -> Site:
        """Return the site at which to start a server on that host."""
        return Site(self._addresses[name], self._hosts[name].prefix)

    @contextmanager
    def started(self) -> Iterator["Hosts"]:
        """Keep them, and the switch. Raises `NoNetwork`, `ProcessFailed`."""
        ours = f"sk{os.getpid() % 10**9}"  # 15 characters at most
        with ExitStack() as running:
            for namespace in (self._switch, *self._hosts.values()):
                namespace.start()
                running.callback(namespace.stop)
            self._switch.ip("link add switch type bridge")
            self._switch.ip("link set switch up")
            ip(f"link add {ours} type veth peer name us netns {self._switch.pid}")
            ip(f"address add {self.address}/26 dev {ours}")
            ip(f"link set {ours} up")
            for name, host in self._hosts.items():
                host.ip(f"link add eth0 type veth peer name {name} netns {self._switch.pid}")
                host.ip(f"address add {self._addresses[name]}/26 dev eth0")
                host.ip("link set eth0 up")
            for port in ("us", *self._hosts):
                self._switch.ip(f"link set {port} up")
                self.connect(port)
            yield self

    def cut_off(self, name: str) -> None:
        """Drop all packets between a host and all others, without notice, from now on."""
        self._switch.ip(f"link set {name} nomaster")

    def connect(self, name: str) -> None:
        """Let packets through again."""
        self._switch.ip(f"link set {name} master switch")


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNetwork(f"{' '.join(argv[-6:])}: {done.stderr.strip()[-200:]}")
