"""The kit for a lock of one's own, used with `LockBackend`, `Guarantees`, `Grant` and `Contender`.

A lock is three classes, all of them plain asyncio. An `Attempt` tries once (`take`), and mostly is its own `Hold`,
which `renew` keeps alive and `end` gives back. A `Connection` belongs to one event loop: it makes attempts, shows the
queues and has the client. A `LockBackend` has the lock's guarantees, reads its URL (`from_url`) and makes connections.
Re-entrancy, owners, waiting, outages, renewal, clean-up and the face for threads are in the base classes.
"""

from .backoff import Backoff
from .connection import Attempt, Connection, Options, PlaceLost, Terms
from .contender import describe, parse_owner
from .election import Ballot, Lookout
from .fork import in_child
from .hook import told
from .lease import Hold, Lease
from .portal import loop as loop_of_threads
from .url import LockUrl
from .waiting import Wait, Waiters, Wake, insisted, settled

__all__ = [
    "Attempt",
    "Backoff",
    "Ballot",
    "Connection",
    "Hold",
    "Lease",
    "LockUrl",
    "Lookout",
    "Options",
    "PlaceLost",
    "Terms",
    "Wait",
    "Waiters",
    "Wake",
    "describe",
    "in_child",
    "insisted",
    "loop_of_threads",
    "parse_owner",
    "settled",
    "told",
]
