"""An election in ZooKeeper, in Curator's queue: as with its `LeaderSelector`, the data of a node is what it says."""

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from ..connection import Attempt, Connection
from ..election import Ballot, Leader
from ..grant import Grant
from ..waiting import Wait
from .client import ZooKeeperClient, sequence
from .session import Missing


class ZooKeeperBallot(Ballot):
    """An election in ZooKeeper. `place`: makes a place in the queue, with the candidate's proclamation."""

    def __init__(
        self, connection: Connection, client: ZooKeeperClient, name: str, place: Callable[[bytes], Attempt[Any]]
    ) -> None:
        super().__init__(connection, name)
        self._client = client
        self._place = place
        self._record = f"{name}/~record"  # behind all candidates in Curator's order, and no candidate in ours

    @override
    async def stand(self, value: str, wait: Wait) -> Grant:
        return await self._place(value.encode()).until_granted(wait)

    @override
    async def say(self, grant: Grant, value: str) -> bool:
        return await self._write(grant, grant.key, value)

    @override
    async def record(self, grant: Grant, value: str) -> bool:
        return await self._write(grant, self._record, value)

    async def _write(self, grant: Grant, path: str, value: str) -> bool:
        timeout_s = self.connection.timeout_s
        session = await self._client.session(timeout_s)
        while True:
            # Over the version that is there now: a call that we gave up, and that comes later, changes nothing.
            own, there = await session.get(timeout_s, grant.key, path, synced=True)
            if isinstance(own, Missing) or own[1].czxid != grant.token:
                return False
            version = None if isinstance(there, Missing) else there[1].version
            if await session.write(grant.key, path, value.encode(), version, timeout_s):
                return True

    @override
    async def recorded(self) -> str | None:
        timeout_s = self.connection.timeout_s
        (node,) = await (await self._client.session(timeout_s)).get(timeout_s, self._record, synced=True)
        return None if isinstance(node, Missing) else node[0].decode(errors="replace")

    @override
    async def leader(self, timeout_s: float | None) -> Leader | None:
        await self._client.ping(self.connection.timeout_s if timeout_s is None else timeout_s)  # now it is up to date
        nodes = await self._client.under(f"{self.name}/", deep=False)
        first = min(nodes, key=lambda node: (sequence(node.path) or 0, node.czxid), default=None)
        return first and Leader(first.path, first.data.decode(errors="replace"), first.czxid, first.mzxid)
