"""Start real servers for the tests, on free ports, and remove them afterwards."""

import json
import os
import random
import re
import secrets
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import psutil
import pymysql
import pytest

from app.errors import ConfigurationError
from lab.servers import EtcdCluster, EtcdMember, MariaDB, etcd_binary
from lab.servers.process import free_port
from lab.torture.cable import why_not

Server = TypeVar("Server")

# The shortest TTL that etcd grants is one and a half of its election time-outs; with this one, that is a second.
QUICK_ETCD = ("--heartbeat-interval=50", "--election-timeout=500")


@contextmanager
def etcd_far_away(directory: Path) -> Iterator[tuple[EtcdMember, list[str], Callable[[str, str], None]]]:
    """Start an etcd in its own network, with two addresses: yield the member, its two URLs, and `do`.

    `do("add", url)` silently drops packets from that address; `do("del", url)` ends that.
    """
    number, name = random.randrange(2**13), f"seckill-{secrets.token_hex(3)}"
    network = f"198.18.{number >> 5}.{number % 32 * 8 + 1}".rpartition(".")
    us, *them = (f"{network[0]}.{int(network[2]) + host}" for host in range(3))
    port, binary = free_port(), directory / "etcd"
    binary.write_text(f'#!/bin/sh\nexec ip netns exec {name} {etcd_binary()} "$@"\n')
    binary.chmod(0o755)
    ends = name[:8] + name[-6:], "far"  # an interface's name has 15 characters at most

    def ip(command: str) -> None:
        subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True)

    with ExitStack() as stack:
        try:
            ip(f"netns add {name}")
            stack.callback(ip, f"netns del {name}")
            ip(f"link add {ends[0]} type veth peer name {ends[1]} netns {name}")
            stack.callback(ip, f"link del {ends[0]}")  # deleting the network removes it only some time later
            ip(f"address add {us}/29 dev {ends[0]}")
            ip(f"link set {ends[0]} up")
            for address in them:
                ip(f"-n {name} address add {address}/29 dev {ends[1]}")
            for interface in ("lo", ends[1]):
                ip(f"-n {name} link set {interface} up")
        except (OSError, subprocess.CalledProcessError) as error:
            _lacking(f"no network namespace can be made here: {getattr(error, 'stderr', error)}")
        urls = [f"http://{address}:{port}" for address in them]
        member = EtcdMember(client_port=port, binary=binary, options=[f"--listen-client-urls={','.join(urls)}"])
        member.endpoint = urls[1]
        stack.enter_context(member)
        yield member, urls, lambda what, url: ip(f"-n {name} rule {what} from {urlsplit(url).hostname} blackhole")


def etcdctl(endpoint: str, *arguments: str) -> str:
    """Return the output of etcd's own client."""
    done = subprocess.run(
        [str(etcd_binary("etcdctl")), f"--endpoints={endpoint}", *arguments],
        env=os.environ | {"ETCDCTL_API": "3"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout


def leases(member: EtcdMember) -> list[str]:
    """Return the ids of all leases, in hex."""
    first, *ids = etcdctl(member.endpoint, "lease", "list").splitlines()
    assert first.startswith("found"), first
    return ids


def leases_in_use(member: EtcdMember) -> list[str]:
    """Return the ids of the leases that have keys, in hex: a process keeps some for its next lock."""
    found = []
    for lease in gateway(member, "lease/leases").get("leases", []):
        if gateway(member, "lease/timetolive", ID=lease["ID"], keys=True).get("keys"):
            found.append(f"{int(lease['ID']):x}")
    return found


def end_leases(member: EtcdMember) -> None:
    """End all leases: instances that other tests killed may have left some, even of an hour."""
    for lease in leases(member):
        with suppress(subprocess.CalledProcessError):  # it has ended meanwhile
            etcdctl(member.endpoint, "lease", "revoke", lease)


def gateway(member: EtcdMember, path: str, **fields: Any) -> Any:
    """Return the answer of etcd's JSON gateway; bytes are in base64, numbers are text."""
    request = urllib.request.Request(f"{member.endpoint}/v3/{path}", json.dumps(fields).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.loads(answer.read())


def watchers(member: EtcdMember) -> int:
    """Return the number of watches on this member."""
    with urllib.request.urlopen(f"{member.endpoint}/metrics", timeout=5) as answer:
        found = re.search(rb"^etcd_debugging_mvcc_watcher_total (\d+)$", answer.read(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def leader(cluster: EtcdCluster) -> int | None:
    """Return the leader's index among the members; None while there is no leader."""
    for number, member in enumerate(cluster.members):
        status = gateway(member, "maintenance/status")
        if status.get("leader") == status["header"]["member_id"]:
            return number
    return None


def optional_server(name: str, package: str) -> Path:
    """Find a server that users install themselves; else skip with a hint how to get it, and fail in CI."""
    # The binary in our own virtual environment is excluded: it is the embedded server.
    folders = [folder for folder in (*os.get_exec_path(), "/usr/sbin") if not Path(folder).is_relative_to(sys.prefix)]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        _lacking(f"{name} is not on PATH; on Debian: apt-get install {package}")
    return Path(found)


def optional_tool(name: str, how: str) -> Path:
    """Find a program in our own virtual environment or on PATH; else skip with a hint how to get it, and fail in CI."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.prefix, "bin")), *os.get_exec_path()]))
    if found is None:
        _lacking(f"{name} is neither in .venv nor on PATH; {how}")
    return Path(found)


def optional(server: Callable[[], Server]) -> Server:
    """Construct a server, or skip with the reason of `lab.servers`, and fail in CI."""
    try:
        return server()
    except ConfigurationError as missing:
        _lacking(str(missing))


def namespaces() -> None:
    """Skip where no network namespace can be made, with the reason, and fail in CI."""
    if reason := why_not():
        _lacking(f"no network namespace can be made here: {reason}")


def where_installed(program: Callable[[], Server]) -> Server:
    """Return another language's program, or skip with the requirement: the project itself needs no such language."""
    try:
        return program()
    except ConfigurationError as missing:
        pytest.skip(f"another language's program: {missing}")


def connected(server: MariaDB, **options: Any) -> Any:
    """Open a plain connection."""
    login = {name: getattr(server, name) for name in ("port", "user", "password", "database")}
    return pymysql.connect(host="127.0.0.1", ssl_disabled=True, **login, **options)


def connections(port: int) -> int:
    """Return how many connections this process has open to that port."""
    open_ones = psutil.Process().net_connections("tcp")
    return sum(bool(one.raddr) and one.raddr.port == port for one in open_ones)


def ask(server: MariaDB, *statements: str, args: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """Run SQL statements, the last one with the arguments, and return its rows."""
    *before, last = statements
    with closing(connected(server, autocommit=True)) as connection, connection.cursor() as cursor:
        for statement in before:
            cursor.execute(statement)
        cursor.execute(last, args or None)
        return tuple(cursor.fetchall())


def _lacking(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
