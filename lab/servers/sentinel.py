"""A Sentinel set: a primary, its replicas, and the Sentinels that monitor them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from lab.servers.process import HERE, Process, Site, free_port, until
from lab.servers.valkey import Valkey, ask, valkey_binary

_NAME: Final = "shop"


class SentinelSet:
    """A set with the name "shop". Its servers have each write on disk before they answer.

    `binary`: a valkey-server or redis-server, which can also run as a Sentinel; `path`: maps the primary's port to the
    one by which a replica reaches it; `down_after_ms`: how long a server is silent before it counts as dead;
    `sites`: of the Sentinels; the first ones have the servers, too.
    """

    def __init__(
        self,
        *,
        replicas: int = 2,
        sentinels: int = 3,
        binary: Path | None = None,
        path: Callable[[int], int] = lambda port: port,
        down_after_ms: int = 1000,
        sites: Sequence[Site] = (),
    ) -> None:
        self._sites = list(sites) or [HERE] * max(sentinels, replicas + 1)
        self._stack = ExitStack()
        self._binary = binary or valkey_binary()
        self._quorum = sentinels // 2 + 1
        self._down_after_ms = down_after_ms
        first, *others = self._sites
        self.primary = self._server("primary", first)  # at the start
        self._ways = [path(self.primary.port) for _ in range(replicas)]
        self.replicas = [
            self._server(f"replica-{number}", site, "--replicaof", first.address, str(way))
            for number, (way, site) in enumerate(zip(self._ways, others, strict=False))
        ]
        self._sentinels = [(free_port(), site) for site in self._sites[:sentinels]]
        ways = ",".join(f"{site.address}:{port}" for port, site in self._sentinels)
        self.url = f"redis+sentinel://{ways}/{_NAME}/0"

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            for server in (self.primary, *self.replicas):
                starting.enter_context(server)
            until(lambda: all(map(_follows, self.replicas, self._ways)), "the replicas are in sync")
            for port, site in self._sentinels:
                starting.enter_context(self._sentinel(port, site))
            self._stack = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def fail_over(self) -> Valkey:
        """Kill the current primary, wait until the others follow the next one, and return the dead server."""
        dead = self.primary_now()
        dead.kill()
        until(lambda: self.primary_now() is not dead and self.all_follow(but=dead), "another one is the primary")
        return dead

    def bring_back(self, dead: Valkey) -> None:
        """Start a dead server as a replica, and wait until all replicas have caught up with the primary."""
        dead.start()
        # Sentinel would do that, too, some ten seconds later.
        dead.ask("REPLICAOF", dead.address, str(self.primary_now().port))
        until(self.all_follow, "the replicas are in sync")

    def primary_now(self) -> Valkey:
        """Return the server that is the primary, as the last Sentinel has it. Raises `OSError`."""
        port, site = self._sentinels[-1]
        of_primary = int(ask(port, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", _NAME, address=site.address)[1])
        return next(server for server in (self.primary, *self.replicas) if server.port == of_primary)

    def all_follow(self, *, but: Valkey | None = None) -> bool:
        """Return whether all servers, or all but one, are in sync with the primary. Raises `OSError`."""
        primary = self.primary_now()
        others = [server for server in (self.primary, *self.replicas) if server not in (primary, but)]
        return all(_follows(server, primary.port) for server in others)

    def _server(self, name: str, site: Site, *options: str) -> Valkey:
        # Without a password a server off loopback is open to everybody who reaches its address.
        own = ["--repl-diskless-sync-delay", "0", "--protected-mode", "no", *options]
        return Valkey(name, durable=True, binary=self._binary, options=own, site=site)

    def _sentinel(self, port: int, site: Site) -> Process:
        def argv(folder: Path) -> list[str]:
            config = folder / "sentinel.conf"
            config.write_text(
                f"port {port}\nbind {site.address}\nprotected-mode no\ndir {folder}\n"
                f"sentinel monitor {_NAME} {self.primary.address} {self.primary.port} {self._quorum}\n"
                f"sentinel down-after-milliseconds {_NAME} {self._down_after_ms}\n"
                f"sentinel failover-timeout {_NAME} {4 * self._down_after_ms}\n"
            )
            return [*site.prefix, str(self._binary), str(config), "--sentinel"]

        def knows_all() -> bool:
            try:
                replicas = ask(port, "SENTINEL", "REPLICAS", _NAME, address=site.address)
                others = ask(port, "SENTINEL", "SENTINELS", _NAME, address=site.address)
            except OSError:
                return False
            last = port == self._sentinels[-1][0]  # before it starts nobody can know all of them
            return len(replicas) == len(self.replicas) and (not last or len(others) >= len(self._sentinels) - 1)

        sentinel = Process(f"sentinel-{port}", argv, ready=knows_all)
        sentinel.graceful = False
        return sentinel


def _follows(replica: Valkey, port: int) -> bool:
    try:
        said = replica.ask("INFO", "replication").split()
    except OSError:
        return False
    return f"master_port:{port}" in said and "master_link_status:up" in said
