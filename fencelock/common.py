"""What the locks of a backend share of it: its terms, what renews them, and its end."""

import asyncio
import math
import socket
from typing import Final, TypedDict, Unpack

from .errors import LockUnavailable
from .grant import Grant
from .hook import Hook
from .per_loop import PerLoop
from .renewer import LoopRenewer, ThreadRenewer
from .waiting import Shutdown

_CALLS_MAX: Final = 64  # of tasks that want a lock, on one loop


class Options(TypedDict, total=False):
    """The options of all backends.

    `ttl_s`: TTL of a lease in seconds (5): what a dead holder costs at most. `renew_ratio`: a lease is renewed each
    time this fraction of its TTL has passed (1/3). `timeout_s`: deadline of a call in seconds (2). `instance`: our name
    in the queue (the host's). `hook`: it hears what happens.
    """

    ttl_s: float
    renew_ratio: float
    timeout_s: float
    instance: str
    hook: Hook


class Common:
    """A backend, as far as any lock needs to know it.

    `name`: of the lock system, for people; `renewer`: the thread that keeps the leases of all its threads' locks;
    `loop_renewers`: what does so for tasks, on their loop; `hook`: told what happens.
    """

    name: str

    def __init__(self, **options: Unpack[Options]) -> None:
        self.ttl_s = options.get("ttl_s", 5.0)
        self.timeout_s = options.get("timeout_s", 2.0)
        self.instance = options.get("instance") or socket.gethostname()
        self.hook = options.get("hook") or Hook()
        ratio, on_event = options.get("renew_ratio", 1 / 3), self.hook.renewal
        self.renewer = ThreadRenewer(ratio=ratio, on_event=on_event)
        self.loop_renewers = PerLoop(lambda loop: LoopRenewer(loop, ratio=ratio, on_event=on_event))
        self.turns = PerLoop(lambda _: asyncio.Semaphore(_CALLS_MAX))
        self.shutdown = Shutdown()

    def checked_ttl(self, ttl_s: float | None) -> float:
        """The TTL of a lock's leases in seconds. Raises `ValueError`."""
        if ttl_s is None:
            return self.ttl_s
        if not 0 < ttl_s < math.inf:
            raise ValueError(f"a lock's ttl_s must be more than 0, not {ttl_s}")
        return float(ttl_s)

    def tell_of(self, name: str, grant: Grant, waited_s: float) -> None:
        """Have the hook hear of a grant, and of its loss."""
        hook = self.hook
        hook.granted(name, grant.token, waited_s)
        if type(hook).lost is not Hook.lost:
            grant.on_lost(lambda: hook.lost(name, grant.token, grant.lease.reason))

    def ensure_open(self) -> None:
        """Raise `LockUnavailable` once it is being closed."""
        if self.shutdown.begun:
            raise LockUnavailable(f"the connection to {self.name} is closed")
