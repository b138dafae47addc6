"""A TCP proxy between a client and a server, which can cut the path, or let requests through and lose their answers."""

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self

from app.process import free_port


class Proxy:
    """Listens on `port` and passes bytes to and from `target` (a port on loopback)."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._mutex = threading.Lock()
        self._refusing = False
        self._losing_after: bytes | None = None
        self._losing_request = False
        self.lost = threading.Event()
        self.delay_s = 0.0  # each request is passed on that much later
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Close every connection and refuse new ones, until `restore`."""
        self._refusing = True
        self._close_all()

    def restore(self) -> None:
        """Let everything through again."""
        self._refusing = False
        self._losing_after = None

    def lose_request(self, marker: bytes) -> None:
        """Cut all paths instead of letting the next request that contains `marker` reach the server."""
        self.lose_answer_to(marker)
        self._losing_request = True

    def lose_answer_to(self, marker: bytes) -> None:
        """Let the next request that contains `marker` reach the server, and cut all paths instead of its answer.

        They stay cut until `restore`. `lost` is set when it has happened.
        """
        self.lost.clear()
        self._losing_after = marker
        self._losing_request = False

    def close(self) -> None:
        self._refusing = True
        self._listener.shutdown(socket.SHUT_RDWR)  # a close alone doesn't wake the thread that accepts
        self._listener.close()
        self._close_all()
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
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            with self._mutex:
                self._pairs.append((client, server))
            doomed = threading.Event()
            for source, sink, upstream in ((client, server, True), (server, client, False)):
                threading.Thread(
                    target=self._pump, args=(source, sink, upstream, doomed), name="proxy-pump", daemon=True
                ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, upstream: bool, doomed: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if upstream and self._losing_after is not None and self._losing_after in data:
                    doomed.set()
                    self._refusing = True
                    if self._losing_request:
                        self._lose()
                        return
                elif not upstream and doomed.is_set():
                    self._lose()
                    return
                if upstream and self.delay_s:
                    time.sleep(self.delay_s)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _lose(self) -> None:
        self._losing_after = None
        self._close_all()
        self.lost.set()

    def _close_all(self) -> None:
        with self._mutex:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
