"""MariaDB, or MySQL if only that is installed. There is no wheel of either."""

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from app.errors import ConfigurationError
from lab.servers.process import Process, ProcessFailed, free_port

# Servers are installed in folders that are not on everybody's PATH.
_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/opt/homebrew/bin")


def mariadb_binary() -> Path:
    """Return `mariadbd`, or else `mysqld`, from PATH or the usual folders for servers."""
    folders = os.pathsep.join((*os.get_exec_path(), *_FOLDERS))
    found = shutil.which("mariadbd", path=folders) or shutil.which("mysqld", path=folders)
    if found is None:
        raise ConfigurationError("MariaDB is missing; on Debian: apt-get install mariadb-server-core")
    return Path(found)


class MariaDB(Process):
    """A MariaDB or MySQL server with one user, who may do everything, and an empty database.

    Committed data survives a kill, and with `durable` a crash of the machine, too.
    """

    graceful = False
    user = "seckill"
    database = "seckill"

    def __init__(
        self, name: str = "mariadb", *, durable: bool = False, binary: Path | None = None, options: Sequence[str] = ()
    ) -> None:
        self.port = free_port()
        self.password = secrets.token_hex(16)
        self.url = f"mysql://{self.user}:{self.password}@127.0.0.1:{self.port}/{self.database}"
        self._binary = (binary or mariadb_binary()).resolve()
        self._options = options

        def argv(directory: Path) -> list[str]:
            init_file = directory / "init.sql"
            init_file.write_text(self._init_sql())
            return [
                *self._program(directory / "data"),
                *("--bind-address=127.0.0.1", f"--port={self.port}", "--skip-name-resolve"),
                # Relative to the data: a socket's path has at most 107 characters, a temporary folder's may have more.
                *("--socket=socket", f"--pid-file={directory / 'pid'}"),
                f"--init-file={init_file}",
                # Written at each commit; whether it is synced then is another matter.
                "--innodb-flush-log-at-trx-commit=1",
                *(() if durable else ("--innodb-flush-method=nosync",)),
                *("--character-set-server=utf8mb4", "--default-time-zone=+00:00"),
                *options,
            ]

        super().__init__(name, argv, ready=self._greets)

    def start(self, *, wait: bool = True) -> Self:
        """Start the server; the first start creates the system tables before."""
        try:
            self._install()
        except BaseException:
            self.stop()
            raise
        return super().start(wait=wait)

    def _program(self, data: Path) -> list[str]:
        """Return the options that the creation of the tables and the server must share."""
        return [
            str(self._binary),
            "--no-defaults",  # ignore the machine's settings in /etc/mysql
            f"--basedir={self._binary.parent.parent}",
            f"--datadir={data}",
            f"--tmpdir={self.directory}",  # in a shared one the next server to start would remove our tables
            *(["--user=root"] if os.geteuid() == 0 else []),  # otherwise it refuses to run as root
            *("--skip-log-bin", "--performance-schema=OFF", "--loose-mysqlx=OFF"),
            *("--innodb-buffer-pool-size=16M", "--loose-innodb-log-file-size=4M", "--innodb-autoextend-increment=1"),
        ]

    def _install(self) -> None:
        """Create the system tables, once: MySQL does it itself, MariaDB brings a script.

        `mariadb-install-db` would load help texts and more, and take a second longer.
        """
        data, unfinished = self.directory / "data", self.directory / "unfinished"
        if data.exists():
            return
        unfinished.mkdir(exist_ok=True)
        if b"MariaDB" in subprocess.run([self._binary, "--no-defaults", "--version"], capture_output=True).stdout:
            (unfinished / "mysql").mkdir(exist_ok=True)
            how, script = "--bootstrap", b"USE mysql;\n" + self._system_tables().read_bytes()
        else:
            how, script = "--initialize-insecure", b""
        with (self.directory / "output.log").open("ab") as log:
            done = subprocess.run([*self._program(unfinished), how], input=script, stdout=log, stderr=log)
        if done.returncode != 0:
            raise ProcessFailed(f"{self.name} could not create its system tables:\n{self.last_lines()}")
        unfinished.rename(data)

    def _system_tables(self) -> Path:
        share = self._binary.parent.parent / "share"
        for folder in ("mysql", "mariadb", "."):  # folders of Debian, Alpine, and a download
            for name in ("mysql_system_tables.sql", "mariadb_system_tables.sql"):  # before version 11, and since
                if (script := share / folder / name).exists():
                    return script
        raise ConfigurationError(f"{self._binary} has no mariadb_system_tables.sql in {share} or its mysql, mariadb")

    def _init_sql(self) -> str:
        """Return the statements that run at each start, before the first connection is served."""
        account = f"'{self.user}'@'127.0.0.1'"
        return (
            f"CREATE DATABASE IF NOT EXISTS {self.database};\n"
            f"CREATE USER IF NOT EXISTS {account} IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO {account} WITH GRANT OPTION;\n"
        )

    def _greets(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                # Length (3 bytes), number, and the protocol's version; a refusal has 255 in its place.
                return connection.recv(64)[4:5] == b"\x0a"
        except OSError:
            return False
