"""A Redis Cluster of three primaries, whose slots can be moved while clients use them."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final, Self

from lab.servers.process import ProcessFailed, free_port, until
from lab.servers.valkey import Valkey

_SLOTS: Final = 16384
_MOVED_WITHIN_MS: Final = 5000


class RedisCluster:
    """Three nodes, each with a third of the slots; each write is on disk before it is answered. `env`: of the first."""

    def __init__(self, *, env: Mapping[str, str] | None = None) -> None:
        self._stack = ExitStack()
        self._buses = [free_port() for _ in range(3)]
        self.nodes = [
            Valkey(
                f"node-{at}", durable=True, options=["--cluster-enabled", "yes", "--cluster-port", str(bus)], env=of_it
            )
            for at, (bus, of_it) in enumerate(zip(self._buses, (env, None, None), strict=True))
        ]
        self.url = f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            for node in self.nodes:
                starting.enter_context(node)
            self._form()
            self._stack = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _form(self) -> None:
        count = len(self.nodes)
        for number, node in enumerate(self.nodes):
            first, end = (_SLOTS * one // count for one in (number, number + 1))
            node.ask("CLUSTER", "ADDSLOTSRANGE", str(first), str(end - 1))
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))  # before they meet; else two may have the same
        for node, bus in zip(self.nodes[1:], self._buses[1:], strict=True):
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", str(node.port), str(bus))
        until(
            lambda: all("cluster_state:ok" in node.ask("CLUSTER", "INFO").split() for node in self.nodes),
            "the nodes have formed a cluster",
        )

    def slot_of(self, key: str) -> int:
        """Return the slot of a key."""
        return int(self.nodes[0].ask("CLUSTER", "KEYSLOT", key))

    def owner_of(self, slot: int) -> Valkey:
        """Return the node that has a slot."""
        for first, last, (_, port, *_), *_ in self.nodes[0].ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise ProcessFailed(f"no node has slot {slot}")

    def move(self, slot: int, source: Valkey, target: Valkey) -> None:
        """Move a slot and its keys, one after the other, as `--cluster reshard` does. Raises `OSError`."""
        at, of_source, of_target = str(slot), source.ask("CLUSTER", "MYID"), target.ask("CLUSTER", "MYID")
        target.ask("CLUSTER", "SETSLOT", at, "IMPORTING", of_source)
        source.ask("CLUSTER", "SETSLOT", at, "MIGRATING", of_target)
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", at, "1"):
            source.ask("MIGRATE", "127.0.0.1", str(target.port), keys[0], "0", str(_MOVED_WITHIN_MS))
        # The target first: while no node has the slot its keys can't be found.
        others = [node for node in self.nodes if node not in (source, target)]
        for node in (target, source, *others):
            node.ask("CLUSTER", "SETSLOT", at, "NODE", of_target)
