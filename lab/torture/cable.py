"""A network for one instance: a namespace with one cable to the rest, which can be pulled out.

The kernel then drops packets without notice: unlike a proxy it acknowledges nothing. This takes Linux, root
and iproute2; elsewhere instances are on loopback, and the fault misses.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from app.errors import SeckillError
from lab.servers.process import Process

_TOOLS: Final = ("ip", "unshare", "nsenter")
_NETWORK: Final = "198.18"  # for tests between networks (RFC 2544): no real host has it
_SLEEP: Final = "ip link set lo up && exec sleep 100000"


class NoCable(SeckillError):
    """No such network is possible here; the text says why."""


class Cable:
    """The namespace and the cable. `host`: address of our end; `address`: that of the other end, inside."""

    def __init__(self, number: int) -> None:
        self._name = f"sk{os.getpid() % 10**6}x{number}"  # 15 characters at most
        block = os.getpid() * 16 + number
        network = f"{_NETWORK}.{block // 64 % 256}.{block % 64 * 4}"
        first = int(network.rpartition(".")[2])
        self.host, self.address = (f"{network.rpartition('.')[0]}.{first + end}" for end in (1, 2))
        # The namespace lives as long as a process is in it, and the cable with it.
        argv = ["unshare", "--net", "sh", "-c", _SLEEP]
        self._inside = Process(f"cable-{number}", lambda _: argv, ready=self._is_separate)

    @property
    def prefix(self) -> list[str]:
        """Return the command that goes before the one that shall run inside."""
        return ["nsenter", "--target", str(self._inside.pid), "--net", "--"]

    def plug_in(self) -> None:
        """Create the namespace and the cable. Raises `NoCable`."""
        missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
        if missing or os.geteuid() != 0:
            raise NoCable(f"it takes {', '.join(missing)}" if missing else "it takes root")
        try:
            self._inside.start()
            outer, inner, pid = f"{self._name}a", f"{self._name}b", str(self._inside.pid)
            _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", pid)
            _run("ip", "addr", "add", f"{self.host}/30", "dev", outer)
            _run("ip", "link", "set", outer, "up")
            _run(*self.prefix, "ip", "addr", "add", f"{self.address}/30", "dev", inner)
            self.connect()
        except SeckillError as error:
            self.unplug()
            raise NoCable(str(error)) from error

    def pull(self) -> None:
        """Drop all packets, in both directions, from now on."""
        _run(*self.prefix, "ip", "link", "set", f"{self._name}b", "down")

    def connect(self) -> None:
        """Let packets through again."""
        _run(*self.prefix, "ip", "link", "set", f"{self._name}b", "up")

    def unplug(self) -> None:
        """Remove the cable."""
        self._inside.stop()

    def _is_separate(self) -> bool:
        try:
            inside, ours = (Path(f"/proc/{one}/ns/net").readlink() for one in (self._inside.pid, "self"))
        except OSError:
            return False
        return inside != ours


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoCable(f"{' '.join(argv[:4])}: {done.stderr.strip()[-200:]}")


def why_not() -> str:
    """Return why there can be no cables here; empty if there can."""
    cable = Cable(15)
    try:
        cable.plug_in()
    except NoCable as reason:
        return str(reason)
    cable.unplug()
    return ""
