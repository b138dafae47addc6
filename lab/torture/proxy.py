"""A TCP proxy between a client and a server: cuts, stalls, delays, resets or swallows it, or loses single messages."""

import contextlib
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Final, Self

from lab.servers.process import free_port

# On close: no lingering, a reset instead of an orderly end.
_RESET: Final = struct.pack("ii", 1, 0)


class _Connection:
    """A client's connection and ours to the server; closed when both forwarding threads have ended."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.doomed = False  # the next answer is lost
        self.swallowed = False  # incoming data is acknowledged and dropped
        self.held: threading.Event | None = None  # incoming data is passed on when that is set
        self._passing = 2
        self.over = False  # incoming data is dropped from now on
        self._resets = False
        self._mutex = threading.Lock()

    def end(self, *, reset: bool = False) -> None:
        """Wake the forwarding threads, which a close alone does not. After a reset they close without a goodbye."""
        self.over, self._resets = True, reset
        for side in (self.client, self.server):
            with contextlib.suppress(OSError):
                if reset:
                    side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                side.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)

    def passed(self) -> bool:
        """Note the end of one of the threads, and return whether it was the last one, and all is closed."""
        if not self._resets and not self.swallowed:  # otherwise neither side hears that the other one has closed
            self.end()
        with self._mutex:
            self._passing -= 1
            last = self._passing == 0
        if last:
            self.client.close()
            self.server.close()
        return last


class Proxy:
    """Listens on `port` of an address of ours and passes bytes to and from `target` (a port on loopback)."""

    def __init__(self, target: int, host: str = "127.0.0.1") -> None:
        self.port = free_port()
        self._target = target
        self._listener = socket.create_server((host, self.port))
        self._connections: set[_Connection] = set()
        self._mutex = threading.Lock()
        self._refusing = False
        self._swallowing = False
        self._stray = b""
        self._marker: tuple[bytes, ...] = ()
        self._what = ""
        self.struck = threading.Event()
        self.delay_s = 0.0  # each request is passed on at least that much later
        self.answer_delay_s = 0.0  # each answer, too
        self.struck_by = b""  # the bytes that contained the marker
        self._flowing = threading.Event()
        self._flowing.set()
        self._let_go = threading.Event()  # set to let held data go
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    # -- the whole path ----------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Close every connection and refuse new ones, until `restore`."""
        self._refusing = True
        self._end_all()

    def stall(self) -> None:
        """Pass nothing on, until `restore`: a partition. Connections stay open, and sent data arrives late."""
        self._flowing.clear()

    def swallow(self, *, new_ones: bool = False) -> None:
        """Acknowledge data on existing connections, and never answer. `new_ones`: on new ones, too, until `restore`."""
        with self._mutex:
            self._swallowing = new_ones
            for connection in self._connections:
                connection.swallowed = True

    def answer_with(self, stray: bytes) -> None:
        """Send these bytes to every client that connects, and hang up, until `restore`."""
        self._stray = stray

    def reset(self) -> None:
        """Reset every connection; new ones are accepted."""
        self._end_all(reset=True)

    def restore(self) -> None:
        """Let everything through again, at once."""
        self._refusing = False
        self._swallowing = False
        self._stray = b""
        self._marker = ()
        self.delay_s = self.answer_delay_s = 0.0
        self._flowing.set()
        self._let_go.set()

    # -- one message, which contains all markers: `struck` is set when it has happened ---------------------------------

    def stall_at(self, *marker: bytes) -> None:
        """Stall the path when the next such request comes: it arrives after `restore`."""
        self._aim("stall", *marker)

    def hold_at(self, *marker: bytes) -> None:
        """Hold only the connection on which the next such request comes, until `restore`."""
        self._let_go = threading.Event()
        self._aim("hold", *marker)

    def swallow_at(self, *marker: bytes) -> None:
        """Swallow the connection on which the next such request comes, from that request on."""
        self._aim("swallow", *marker)

    def lose_request(self, *marker: bytes) -> None:
        """Cut the path instead of letting the next such request reach the server."""
        self._aim("request", *marker)

    def lose_answer_to(self, *marker: bytes) -> None:
        """Let the next such request reach the server, and cut the path instead of its answer."""
        self._aim("answer", *marker)

    def _aim(self, what: str, *marker: bytes) -> None:
        self.struck.clear()
        self._what = what
        self._marker = marker

    def close(self) -> None:
        """Close every connection and stop listening."""
        self._refusing = True
        self._flowing.set()
        self._let_go.set()
        with contextlib.suppress(OSError):  # it is closed already, as its instance did not start again
            self._listener.shutdown(socket.SHUT_RDWR)  # a close alone doesn't wake the thread that accepts
        self._listener.close()
        self._end_all()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                client.close()
                continue
            if self._stray:
                with client, contextlib.suppress(OSError):
                    client.sendall(self._stray)
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            connection = _Connection(client, server)
            with self._mutex:
                connection.swallowed = self._swallowing
                self._connections.add(connection)
            for upstream in (True, False):
                threading.Thread(
                    target=self._pass_on, args=(connection, upstream), name="proxy-path", daemon=True
                ).start()
            # The path may have changed meanwhile. A doomed connection still waits for its answer.
            if (self._refusing or self._stray) and not connection.doomed:
                connection.end()

    def _pass_on(self, connection: _Connection, upstream: bool) -> None:
        source, sink = connection.client, connection.server
        if not upstream:
            source, sink = sink, source
        with contextlib.suppress(OSError):
            # Data after the end may still be read, on Linux.
            while (data := source.recv(65536)) and not connection.over:
                if upstream and self._marker and all(part in data for part in self._marker):
                    self._strike(connection, data)
                if connection.doomed and (not upstream or self._what == "request"):
                    self._end_all()
                    self.struck.set()
                    break
                if delay_s := self.delay_s if upstream else self.answer_delay_s:
                    time.sleep(delay_s)
                self._flowing.wait()
                if upstream and connection.held is not None:
                    connection.held.wait()
                if not connection.swallowed:
                    sink.sendall(data)
        if connection.passed():
            with self._mutex:
                self._connections.discard(connection)

    def _strike(self, connection: _Connection, data: bytes) -> None:
        self._marker, self.struck_by = (), data
        if self._what == "stall":
            self._flowing.clear()
            self.struck.set()
        elif self._what == "hold":
            connection.held = self._let_go
            self.struck.set()
        elif self._what == "swallow":
            connection.swallowed = True
            self.struck.set()
        else:
            connection.doomed = True
            self._refusing = True

    def _end_all(self, *, reset: bool = False) -> None:
        with self._mutex:
            connections = list(self._connections)
        for connection in connections:
            connection.end(reset=reset)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
