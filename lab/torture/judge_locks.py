"""The judge's demands on the locks, each by its own promises."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from lab.torture.history import Belief, Entry, Fault, FinalState, History
from lab.torture.judge_service import peace

# After these faults a grant may be believed in beside another, until it is noticed (a waiter may be the owner by then).
_TAKE_AWAY: Final = frozenset({"holder-key", "waiter-key"})
# Kills of a server, for a lock that doesn't promise to survive them; then the same for silent servers, and for
# connections that were cut.
_RESTARTS: Final = {"lock-kill", "lock-older"}
_SILENCES: Final = {"lock-pause"}
_CUTS: Final = {"lock-reset", "lock-silent"}
OFFICES: Final = "/!"  # in the names of their locks, which are held to the end
# The lock's servers have forgotten all grants after the backup, and issue the same tokens again.
_OLDER: Final = "lock-older"


def exclusive(history: History) -> Iterator[str]:
    """No two instances believe at the same time that they own a lock."""
    promises = history.setup.promises
    if "everybody" not in promises:
        return
    broken = _TAKE_AWAY | set(history.setup.known)
    broken |= set() if "survives_restart" in promises else _RESTARTS
    broken |= set() if "survives_silence" in promises else _SILENCES
    broken |= set() if "survives_cut" in promises else _CUTS
    excuses = [fault for fault in history.faults if _names(fault) & broken]
    for lock, beliefs in _by_lock(history).items():
        last: Belief | None = None
        for one in sorted(beliefs, key=lambda belief: (belief.since, belief.until)):
            excused = last is not None and (
                _excused(excuses, last)
                or _forgotten(history, last, one)
                or _taken_before_it_knew(history, last)
                or _taken_before_it_knew(history, one)
            )
            if last is not None and one.since < last.until and not excused:
                both_s = min(one.until, last.until) - one.since
                yield (
                    f"{lock}: {one.instance} owned it from {one.since:.3f} s (token {one.token}) while {last.instance} "
                    f"(token {last.token}) believed that it did until {last.until:.3f} s: {both_s:.3f} s of both"
                )
            if last is None or one.until > last.until:
                last = one


def _names(fault: Fault) -> set[str]:
    # The target of several faults at once names them.
    return {fault.name} | {part.strip().split(",")[0] for part in fault.target.split(";")}


def _excused(faults: Iterable[Fault], belief: Belief) -> bool:
    return any(fault.struck and fault.began_at <= belief.until and fault.ended_at >= belief.since for fault in faults)


def _set_back(history: History) -> list[Fault]:
    return [fault for fault in history.faults if fault.struck and _OLDER in _names(fault)]


def _forgotten(history: History, before: Belief, after: Belief) -> bool:
    # A holder whose grant the servers have forgotten notices at its deadline.
    return any(
        before.since <= fault.hit_at <= after.since and before.until <= fault.hit_at + history.setup.ttl_s
        for fault in _set_back(history)
    )


def _taken_before_it_knew(history: History, grant: Belief) -> bool:
    # The holder's key was deleted before it heard of the grant: on a busy machine its loop was late.
    # Others had the lock meanwhile; the fence refuses its writes.
    return any(
        fault.struck and _names(fault) & _TAKE_AWAY and grant.since - grant.waited_s <= fault.hit_at <= grant.since
        for fault in history.faults
    )


def tokens_grow(history: History) -> Iterator[str]:
    """Each grant of a lock has a higher token than the one before."""
    if "fencing" not in history.setup.promises:
        return
    for lock, beliefs in _by_lock(history).items():
        for before, after in pairwise(sorted(beliefs, key=lambda one: one.since)):
            anew = any(before.since <= fault.hit_at <= after.since for fault in _set_back(history))
            excused = anew or _taken_before_it_knew(history, after)
            if after.token <= before.token and after.since > before.until and not excused:
                yield f"{lock}: token {after.token} of {after.instance} came after {before.token} of {before.instance}"


def kept_in_peace(history: History) -> Iterator[str]:
    """Nobody loses a grant while nothing is broken, however long it is held; each is given back, or its owner dies."""
    calm = peace(history)
    for one in history.beliefs:
        if one.lost and any(begin <= one.since and one.until <= end for begin, end in calm):
            held_s = one.until - one.since
            yield f"{one.instance} lost {one.lock} at {one.until:.1f} s, {held_s:.1f} s after its grant, in peace"
        killed = any(fault.struck and fault.ended_at >= one.since for fault in history.faults)
        if not one.ended and not killed and not one.lock.partition(OFFICES)[1]:
            yield f"{one.instance} never gave {one.lock} back, of which it had a grant at {one.since:.1f} s"


def long_holds(history: History) -> int:
    """Count the grants that were held for longer than a TTL, and not lost."""
    return sum(one.until - one.since > history.setup.ttl_s for one in history.beliefs if not one.lost)


def _by_lock(history: History) -> dict[str, list[Belief]]:
    found: dict[str, list[Belief]] = defaultdict(list)
    for belief in history.beliefs:
        found[belief.lock].append(belief)
    return found


def orders_in_order(history: History, end: FinalState) -> Iterator[str]:
    """Tokens never decrease from entry to entry of an item, until it is unfenced: once each time there is cause."""
    causes = len(_set_back(history))
    written: dict[str, list[Entry]] = defaultdict(list)
    for one in end.journal:
        written[one.sku].append(one)
    for sku, entries in written.items():
        for before, after in pairwise(entries):
            if (after.epoch, after.token) < (before.epoch, before.token):
                yield f"{after.kind} of {after.order} was written with token {after.token} after {before.token}"
        epoch = max(one.epoch for one in entries)
        if epoch > causes:
            yield f"{sku}: tokens have begun anew {epoch} times, and the lock came back older {causes} times"


def grants_have_one_owner(history: History, end: FinalState) -> Iterator[str]:
    """Every entry was written under a grant, and no grant was used by two instances."""
    owners: dict[int, set[str]] = defaultdict(set)
    grants: dict[str, int] = {}
    fenced = history.setup.guard == "fence"
    once = 1 + len(_set_back(history))  # each time the lock comes back older it may issue a token once more
    granted = {(belief.token, belief.instance) for belief in history.beliefs}
    for order in end.journal if fenced else ():
        if order.token <= 0:
            yield f"{order.kind} of {order.order} was written without a grant"
        others = owners[order.token] - {order.instance}
        owners[order.token].add(order.instance)
        in_turn = len(others) < once and all((order.token, one) in granted for one in owners[order.token])
        if others and not in_turn:
            names = " and by ".join([*sorted(others), order.instance])
            yield f"the grant with token {order.token} was used by {names}"
        token = grants.setdefault(order.batch, order.token)
        if token != order.token:
            yield f"batch {order.batch} was written under the grants {token} and {order.token}"


def left_nothing(end: FinalState) -> Iterator[str]:
    """Nothing is left in the lock's queue, and no lease."""
    for key in end.queue:
        yield f"{key} is still in the queue"
    for lease in end.leases:
        yield f"lease {lease} is still there"
