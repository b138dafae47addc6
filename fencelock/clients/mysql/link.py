"""A connection's socket as the kernel has it: to be cut at any moment by any thread."""

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

# A host that is gone without a word is noticed by the kernel after 5 + 3 x 5 s, however long an answer may take.
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_FILES: Final = "/dev/fd"


async def open_socket(host: str, port: int) -> socket.socket:
    """A connection to the first address of a host that takes it. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    try:  # a number needs no look-up, for which the loop would take a thread
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, address) in enumerate(addresses, 1):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError) or number == len(addresses):
                raise
        else:
            return sock
    raise OSError(f"{host} has no address")


class Link:
    """Of one of the driver's connections, whose transport is the driver's own business.

    `number`: of the open file; None where it isn't known (a server behind a proxy that ends TCP, over TLS; Windows).
    """

    def __init__(self, driver: Any, number: int | None) -> None:
        self.driver = driver
        self.loop = asyncio.get_running_loop()
        self._number = number
        self._ends: object = None
        self._ends = self._seen_ends()
        copy = self._copy()
        if copy is not None:
            with copy:
                copy.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in _KEEPALIVE.items():
                    if hasattr(socket, name):
                        copy.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def _seen_ends(self) -> object:
        copy = _copy(self._number)
        if copy is None:
            return None
        with copy:
            return _ends(copy)

    def _copy(self) -> socket.socket | None:
        """Another descriptor of the socket, if the number is still the one of this connection."""
        copy = None if self._ends is None else _copy(self._number)
        if copy is not None and _ends(copy) != self._ends:
            copy.close()
            return None
        return copy

    @property
    def over(self) -> bool:
        """Whether nobody can use it any more."""
        return not self.driver.connected or self.loop.is_closed()

    def cut(self) -> None:
        """End it in both directions, at once: whoever waits for an answer sees the end instead. Any thread may."""
        copy = self._copy()
        if copy is None:
            with suppress(RuntimeError):  # its loop is closed
                self.loop.call_soon_threadsafe(self.driver.close)
            return
        with copy, suppress(OSError):
            copy.shutdown(socket.SHUT_RDWR)


def find(ours: int, theirs: int) -> int | None:
    """The number of the open connection between these ports."""
    with suppress(OSError):
        for file in Path(_FILES).iterdir():
            copy = _copy(int(file.name))
            if copy is not None:
                with copy:
                    ends = _ends(copy)
                if ends is not None and (ends[0][1], ends[1][1]) == (ours, theirs):
                    return int(file.name)
    return None


def _copy(number: int | None) -> socket.socket | None:
    if number is None:
        return None
    try:
        copy = os.dup(number)
    except OSError:
        return None
    try:
        return socket.socket(fileno=copy)
    except OSError:  # no socket
        os.close(copy)
        return None


def _ends(sock: socket.socket) -> Any:
    """Both ends' addresses; None if it is no connection of the internet's, or none any more."""
    try:
        ours, theirs = sock.getsockname(), sock.getpeername()
    except OSError:
        return None
    return (ours, theirs) if isinstance(ours, tuple) and isinstance(theirs, tuple) else None
