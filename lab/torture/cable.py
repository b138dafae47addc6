"""A network for one instance: a namespace with one cable to the rest, which can be pulled out.

The kernel then drops packets without notice: unlike a proxy it acknowledges nothing. Where no namespace is possible
instances are on loopback, and the fault misses.
"""

import os

from app.errors import SeckillError
from lab.servers.network import Namespace, NoNetwork, ip, network_of


class Cable:
    """The namespace and the cable. `host`: address of our end; `address`: that of the other end, inside."""

    def __init__(self, number: int) -> None:
        self._name = f"sk{os.getpid() % 10**6}x{number}"  # 15 characters at most
        block, first = network_of(os.getpid(), number).rsplit(".", 1)
        self.host, self.address = (f"{block}.{int(first) + end}" for end in (1, 2))
        self._inside = Namespace(f"cable-{number}")

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return the prefix of a command that is to run inside."""
        return self._inside.prefix

    def plug_in(self) -> None:
        """Create the namespace and the cable. Raises `NoNetwork`."""
        try:
            self._inside.start()
            outer, inner = f"{self._name}a", f"{self._name}b"
            ip(f"link add {outer} type veth peer name {inner} netns {self._inside.pid}")
            ip(f"addr add {self.host}/30 dev {outer}")
            ip(f"link set {outer} up")
            self._inside.ip(f"addr add {self.address}/30 dev {inner}")
            self.connect()
        except SeckillError as error:
            self.unplug()
            raise NoNetwork(str(error)) from error

    def pull(self) -> None:
        """Drop all packets, in both directions, from now on."""
        self._inside.ip(f"link set {self._name}b down")

    def connect(self) -> None:
        """Let packets through again."""
        self._inside.ip(f"link set {self._name}b up")

    def unplug(self) -> None:
        """Remove the cable."""
        self._inside.stop()


def why_not() -> str:
    """Return why there can be no cables here; empty if there can."""
    cable = Cable(15)
    try:
        cable.plug_in()
    except NoNetwork as reason:
        return str(reason)
    cable.unplug()
    return ""
