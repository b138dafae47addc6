"""A grant: proof of owning a lock now."""

from .lease import Lease, Leased


class Grant(Leased):
    """Proof of owning the lock now.

    `key`: the grant's key, row or node on the lock's server. `token`: the fencing token, which grows from grant to
    grant of one lock (0: the lock gives none). `source`: the origin of the token (a lock system and its cluster);
    tokens of two sources can't be compared. `lease`: the lease that the key is bound to.

    Give token and source to the store with every write: between `ensure_held()` and the arrival of a write any amount
    of time can pass, and only the store can refuse a write that comes too late.
    """

    __slots__ = ("key", "source", "token")

    def __init__(self, key: str, token: int, source: str, lease: Lease) -> None:
        self.key = key
        self.token = token
        self.source = source
        super().__init__(lease)
        lease.granted = True

    def __repr__(self) -> str:
        return f"<Grant {self.key} token={self.token}{' LOST' if self.lost else ''}>"
