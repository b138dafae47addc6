"""The judge's demands on the service: sales resume soon after a fault, and nobody waits in peace."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from lab.torture.history import Fault, History, HttpCall

_HELD_UP_TTLS: Final = 1.0  # a buyer waits for no longer than this while nothing is broken,
_OVERTAKEN_TTLS: Final = 3.0  # or than this where the lock promises no order: one may lose race after race
# Each of these faults must have made some instance miss an answer, or be refused.
_HARM_COMMITS: Final = {"pause", "late-commit", "lost-commit", "lost-answer"}
# The errors of httpx for a connection that was cut, and not for a buyer's own patience.
_CUT: Final = {"ConnectError", "ReadError", "WriteError", "RemoteProtocolError", "CloseError"}


def _trouble(history: History) -> list[tuple[float, float]]:
    """Return the periods in which something was broken, or the processor elsewhere, and all had to recover."""
    faults = [(fault.began_at, fault.ended_at) for fault in history.faults]
    lates = [(late.since, late.until) for late in history.lates]
    return [(begin, end + history.setup.recovery_s) for begin, end in sorted(faults + lates)]


def peace(history: History) -> list[tuple[float, float]]:
    """Return the periods between those."""
    found, since = list[tuple[float, float]](), 0.0
    for begin, end in [*_trouble(history), (float("inf"), 0.0)]:
        if since < begin:
            found.append((since, begin))
        since = max(since, end)
    return found


def peace_s(history: History) -> float:
    """Return the total length of these periods, up to the last answer."""
    last = max((attempt.done_at for attempt in history.attempts), default=0.0)
    return sum(max(0.0, min(end, last) - begin) for begin, end in peace(history))


def not_fenced_in_peace(history: History) -> Iterator[str]:
    """Nobody is fenced off while nothing is broken: the lock excludes by itself, and the fence is for faults."""
    calm = peace(history)
    for one in history.counts:
        if one.name.startswith("fenced") and any(begin <= one.since and one.at <= end for begin, end in calm):
            yield f"{one.instance} was fenced off {one.count} times at {one.at:.1f} s, when nothing was broken"


def not_cut_in_peace(history: History) -> Iterator[str]:
    """No connection is cut while nothing is broken."""
    calm = peace(history)
    for one in history.attempts:
        if one.error in _CUT and any(begin <= one.sent_at and one.done_at <= end for begin, end in calm):
            yield f"{one.buyer} had no answer from {one.instance} at {one.done_at:.1f} s, in peace: {one.error}"


def waits(history: History) -> list[float]:
    """Return how long each buyer waited for the first answer, in seconds, except in trouble."""
    trouble, wishes, found = _trouble(history), defaultdict[str, list[HttpCall]](list), list[float]()
    for one in sorted(history.attempts, key=lambda one: one.sent_at):
        wishes[one.wish].append(one)
    for attempts in wishes.values():
        begin = attempts[0].sent_at
        end = next((one.done_at for one in attempts if one.status == 200), attempts[-1].done_at)
        found.append(end - begin - _overlap_s(begin, end, trouble))
    return found


def _overlap_s(begin: float, end: float, spans: list[tuple[float, float]]) -> float:
    covered, until = 0.0, begin
    for first, last in spans:  # in the order of their starts
        covered += max(0.0, min(end, last) - max(until, first))
        until = max(until, min(end, last))
    return covered


def nobody_waits(history: History) -> Iterator[str]:
    """No buyer waits long while nothing is broken."""
    setup = history.setup
    longest_s = setup.ttl_s * (_HELD_UP_TTLS if "fair" in setup.promises else _OVERTAKEN_TTLS)
    for wait_s in waits(history):
        if wait_s > longest_s:
            yield f"a buyer waited {wait_s:.1f} s while nothing was broken"


def harm_noticed(history: History) -> Iterator[str]:
    """An instance whose commit came late, or was lost, is refused or looks what became of it."""
    harmed = [fault for fault in history.faults if fault.struck and fault.name in _HARM_COMMITS]
    noticed = [one for one in history.counts if one.name.startswith(("fenced", "batches_resolved"))]
    if harmed and not noticed and history.setup.guard == "fence":
        yield f"{len(harmed)} commits came late or were lost, and no instance has noticed"


def goes_on(history: History) -> Iterator[str]:
    """No stretch without a decided purchase of an item is longer than it may be.

    Each item counts by itself: a stuck lock stops the items that it guards, and no others.
    """
    watched_until = max((fault.watched_until for fault in history.faults), default=0.0)  # buyers came until then
    asked_at: dict[str, float] = {}
    for one in history.attempts:
        asked_at[one.sku] = min(one.sent_at, asked_at.get(one.sku, one.sent_at))
    decided_at = _decisions(history)
    for sku, first in asked_at.items():
        moments = [first, *decided_at[sku]]
        if moments[-1] < watched_until:
            moments.append(watched_until)
        for before, after in pairwise(moments):
            if history.faults and before > watched_until:
                break  # the rest is sold item by item
            broken = [fault for fault in history.faults if fault.began_at < after and fault.free_from > before]
            excused = sum(min(after, fault.free_from) - max(before, fault.began_at) for fault in broken)
            if after - before - excused > history.setup.recovery_s:
                blamed = [fault for fault in history.faults if fault.began_at < after][-1:]
                names = "".join(f", after {fault.name} ({fault.target})" for fault in blamed)
                yield f"at {before:.1f} s: no sale of {sku} for {after - before:.1f} s{names}"


def _decisions(history: History) -> dict[str, list[float]]:
    # For each item, first answers only: repeated ones come even where nothing can be sold.
    first: dict[str, tuple[str, float]] = {}
    for one in history.attempts:
        if one.status == 200:
            _, at = first.get(one.wish, (one.sku, one.done_at))
            first[one.wish] = one.sku, min(one.done_at, at)
    found: dict[str, list[float]] = defaultdict(list)
    for sku, at in sorted(first.values(), key=lambda one: one[1]):
        found[sku].append(at)
    return found


def stands(history: History, within_s: float) -> Iterator[str]:
    """What is gone for good stops the rest for a moment only."""
    for one in history.stands:
        for what, at in one.done.items():
            if at is None:
                yield f"{what}: never, in {one.ended_at - one.began_at:.0f} s without {one.gone}"
            elif at > one.began_at + within_s:
                yield f"{what}: {at - one.began_at:.1f} s after {one.gone} was gone"


def recovery_s(history: History, fault: Fault) -> float:
    """Return the longest time without a decided purchase of an item, from when it could go on to the watch's end."""
    longest_s = 0.0
    for decisions in _decisions(history).values():
        moments = [at for at in decisions if fault.free_from <= at <= fault.watched_until]
        around = pairwise([fault.free_from, *moments, fault.watched_until])
        longest_s = max(longest_s, *(after - before for before, after in around))
    return longest_s


def each_sells_again(history: History) -> Iterator[str]:
    """Each instance sells again soon after a fault."""
    names = sorted({attempt.instance for attempt in history.attempts})
    limit_s = history.setup.recovery_s
    for fault in history.faults:
        for name in names:
            asked = [one for one in history.attempts if one.instance == name and one.sent_at >= fault.ended_at]
            in_time = [one for one in asked if one.sent_at <= fault.watched_until - limit_s]
            served = min((one.done_at for one in asked if one.status == 200), default=float("inf"))
            if in_time and served > fault.watched_until:
                yield f"{name} sold nothing from the end of {fault.name} at {fault.ended_at:.1f} s on"
