"""The limits of a connection before and after a request: time and bytes for a head, time to read an answer."""

import asyncio
import fcntl
import sys
import termios
from typing import Final

from uvicorn.server import ServerState

HEAD_MAX_BYTES: Final = 16_384
BEYOND_MAX: Final = 50  # connections beyond the limit, that health checks may be among
_UNSENT_BYTES: Final = getattr(termios, "TIOCOUTQ", None)  # of a socket on Linux and macOS
_INT: Final = bytes(4)


class Places(ServerState):
    """uvicorn's state of a server, with the connections beyond the limit, the oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.beyond: dict[asyncio.Protocol, None] = {}

    @property
    def taken(self) -> int:
        """How many connections have a place."""
        return len(self.connections) - len(self.beyond)


class ConnectionLimits:
    """The timers of one connection. They start with the connection: a silent client counts as a slow one."""

    def __init__(self, transport: asyncio.Transport, now: float) -> None:
        self._transport = transport
        connected = transport.get_extra_info("socket")
        self._descriptor: int | None = connected.fileno() if connected is not None else None
        self._head_since: float | None = now  # bytes of a head, or the first ones, are awaited
        self._idle_since: float | None = None  # an answer was the last thing that happened
        self._unsent_bytes = 0
        self._stuck_since: float | None = None
        self._asked = False  # since the last look

    def bytes_come(self, now: float) -> None:
        """Note that a head begins, or goes on; an empty line is a beginning, too."""
        if self._head_since is None:
            self._head_since = now
        self._idle_since = None

    def head_is_complete(self) -> None:
        """Stop the timer of the head: from here on the application limits the time."""
        self._head_since = None
        self._asked = True

    def answered(self, now: float) -> None:
        """Start the timer of an idle connection."""
        self._idle_since = now

    def head_is_late(self, now: float, timeout_s: float) -> bool:
        """Return whether a head has been on its way for longer than that."""
        return self._head_since is not None and now - self._head_since > timeout_s

    def is_unused(self, now: float, timeout_s: float) -> bool:
        """Return whether nothing has come for longer than that since the last answer."""
        if self._head_since is None and self._idle_since is None:
            self._idle_since = now  # the answer was another protocol's
        return self._idle_since is not None and now - self._idle_since > timeout_s

    def is_stuck(self, now: float, timeout_s: float) -> bool:
        """Return whether the client has read nothing of the answers for longer than that.

        A client that keeps asking may stay at the same backlog; only growth counts then.
        """
        unsent = self._unread()
        if not unsent or unsent < self._unsent_bytes or (self._asked and unsent == self._unsent_bytes):
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        self._unsent_bytes, self._asked = unsent, False
        return self._stuck_since is not None and now - self._stuck_since > timeout_s

    def _unread(self) -> int:
        """The bytes that the client has not acknowledged, in our buffer and in the kernel's."""
        unsent = self._transport.get_write_buffer_size()
        if self._descriptor is None or _UNSENT_BYTES is None or self._transport.is_closing():
            return unsent
        in_kernel = fcntl.ioctl(self._descriptor, _UNSENT_BYTES, _INT)
        return unsent + int.from_bytes(in_kernel, sys.byteorder)
