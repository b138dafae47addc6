"""The judge: does a history keep the invariants? Pure: it sees the history and nothing else.

Each check has a line in the verdict, with the invariant of the design that it stands for, and answers with sentences,
one for each violation. A history that no check refuses is one in which nothing was oversold, undersold or lost.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from app.torture.history import Attempt, End, Fault, History, Look, SoldOrder

_UNKNOWN: Final = "urn:seckill:outcome-unknown"
# Whatever else these strike, some instance must have missed an answer, or been refused.
_HARM_COMMITS: Final = {"pause", "late-commit", "lost-commit", "lost-answer"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. `looked_at` says what it had to judge by: a check of nothing proves nothing."""

    invariant: str
    promise: str
    looked_at: str
    violations: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether the promise was kept."""
        return not self.violations


def judge(history: History) -> list[Finding]:
    """All checks of a run. Raises `ValueError` for one that did not come to its end."""
    end = history.end
    if end is None:
        raise ValueError("the history has no end: the run was not finished, so there is nothing to judge")
    asked = _by_key(history)
    told = {key: found for key, one in asked.items() if (found := [a for a in one if a.status == 200])}
    counts = Counter("sold" if one[0].outcome == "sold" else "refused" for one in told.values())
    orders = f"{len(end.orders)} orders"
    answers = f"{len(history.attempts)} requests"
    purchases = f"{counts['sold']} sold, {counts['refused']} refused"
    looks = f"{len(history.looks)} looks"
    within = f"{history.setup.recovery_s:g} s"
    struck = [fault for fault in history.faults if fault.struck]

    def finding(invariant: str, promise: str, looked_at: str, violations: Iterator[str]) -> Finding:
        return Finding(invariant, promise, looked_at, tuple(violations))

    return [
        finding("I1", "stock + lucky never changes", looks, _sum(history, end)),
        finding("I1, I4", "what is seen is not behind what was said", looks, _seen(history, told)),
        finding("I2", "lucky is what the orders add up to; a key has one order", orders, _orders(history, end)),
        finding("I3", "nothing is left unsold to those who wanted it", purchases, _unsold(history, end, told)),
        finding("I4", 'who was told "sold" has that order, for good; nobody else has', purchases, _kept(end, told)),
        finding("I4", "a buyer who asks again hears the same, and no answer was untrue", answers, _repeated(asked)),
        finding("I4", "no order without a request", orders, _wanted(end, asked)),
        finding("I5, I8", "tokens never decrease: served in the order of the queue", orders, _tokens(end)),
        finding("I7", "every order was written under a grant, and a grant is one instance's", orders, _grants(end)),
        finding("I7", "nobody was fenced off while nothing was broken", _counted(history), _peace(history)),
        finding("I6", "nothing is left in etcd's queue, and no lease", "the end", _left(end)),
        finding("", "answers are 200, or 503 with Retry-After; in the end all are decided", answers, _answers(asked)),
        finding("", f"sales go on within {within} of a fault", f"{len(struck)} faults", _recovery(history)),
        finding("", f"each instance sells again within {within}", f"{len(struck)} faults", _instances(history)),
        finding("", "the faults were a test of all this", _faults(history), _tested(history, told)),
    ]


def _by_key(history: History) -> dict[str, list[Attempt]]:
    """The attempts of each key, in their order."""
    asked: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in sorted(history.attempts, key=lambda one: one.sent_at):
        asked[attempt.key].append(attempt)
    return asked


def _sum(history: History, end: End) -> Iterator[str]:
    initial = history.setup.initial
    if end.initial != initial:
        yield f"the store says that {end.initial} units were there at the start, but {initial} were"
    seen = [(f"at {look.at:.2f} s", look.stock, look.lucky) for look in history.looks]
    for at, stock, lucky in [*seen, ("at the end", end.stock, end.lucky)]:
        if stock + lucky != initial or stock < 0:
            yield f"{at}: stock {stock} + lucky {lucky} is {stock + lucky}, not {initial}"
    for before, after in pairwise(history.looks):
        if after.lucky < before.lucky:
            yield f"at {after.at:.2f} s: lucky fell from {before.lucky} to {after.lucky}"


def _seen(history: History, told: dict[str, list[Attempt]]) -> Iterator[str]:
    # Sorted by when it was said; `sold` is what was said to be sold until then.
    moments = sorted(
        (answers[0].done_at, answers[0].quantity) for answers in told.values() if answers[0].outcome == "sold"
    )
    said, so_far = 0, 0
    for look in sorted(history.looks, key=lambda one: one.asked_at):
        while so_far < len(moments) and moments[so_far][0] <= look.asked_at:
            said += moments[so_far][1]
            so_far += 1
        if look.lucky < said:
            yield f"at {look.at:.2f} s: lucky is {look.lucky}, and buyers of {said} units were told that they have them"


def _orders(history: History, end: End) -> Iterator[str]:
    units = sum(order.quantity for order in end.orders)
    if units != end.lucky:
        yield f"the orders add up to {units}, lucky is {end.lucky}"
    if units > history.setup.initial:
        yield f"{units - history.setup.initial} units were sold that did not exist"
    for name, count in Counter(order.id for order in end.orders).items():
        if count > 1:
            yield f"order {name} is there {count} times"
    for key, count in Counter(order.key for order in end.orders).items():
        if key is not None and count > 1:
            yield f"key {key} has {count} orders"


def _unsold(history: History, end: End, told: dict[str, list[Attempt]]) -> Iterator[str]:
    # The stock only falls: what is there when somebody looks later was there when they were refused.
    looks = sorted(history.looks, key=lambda one: one.asked_at)
    at_the_end = Look(float("inf"), float("inf"), end.stock, end.lucky)
    moments = [look.asked_at for look in looks]
    refused = [answer for answers in told.values() for answer in answers if answer.outcome == "sold_out"]
    for answer in refused:
        then = bisect_left(moments, answer.done_at)
        for later in [*looks[then : then + 1], at_the_end]:
            if answer.quantity <= later.stock:
                when = "at the end" if later is at_the_end else f"at {later.at:.2f} s"
                yield f"key {answer.key} was refused {answer.quantity} units, and {when} {later.stock} are left"
                break
    if not refused and end.stock > 0:
        yield f"{end.stock} units are left, and nobody was refused: there was not enough demand to judge by"


def _kept(end: End, told: dict[str, list[Attempt]]) -> Iterator[str]:
    orders: dict[str | None, list[SoldOrder]] = defaultdict(list)
    for order in end.orders:
        orders[order.key].append(order)
    for key, answers in told.items():
        for answer in answers:
            found = orders[key]
            if answer.outcome != "sold":
                if found:
                    yield f"key {key} was told {answer.outcome!r} and has order {found[0].id}"
            elif not any(order.id == answer.order and order.quantity == answer.quantity for order in found):
                yield f"key {key} was told that it has order {answer.order}, which is not there"


def _repeated(asked: dict[str, list[Attempt]]) -> Iterator[str]:
    for key, attempts in asked.items():
        first: Attempt | None = None
        maybe = False  # whether something may have been sold to it by now, as far as it was told
        for one in attempts:
            if one.status == 200:
                if one.replayed and not maybe:
                    yield f"key {key} hears again what it was never told: each answer before was that nothing was sold"
                if first is not None and not one.replayed:
                    yield f"key {key} was told {first.outcome} and then {one.outcome} as if it had not asked before"
                if first is not None and (one.outcome, one.order) != (first.outcome, first.order):
                    yield f"key {key} was told {first.outcome} {first.order}, and then {one.outcome} {one.order}"
                first = first or one
            maybe = maybe or one.status in (0, 200) or one.error == _UNKNOWN


def _wanted(end: End, asked: dict[str, list[Attempt]]) -> Iterator[str]:
    for order in end.orders:
        attempts = asked.get(order.key or "")
        if not attempts:
            yield f"order {order.id} (key {order.key}): nobody asked for it"
            continue
        wish = attempts[0]
        if (order.quantity, order.buyer) != (wish.quantity, wish.buyer):
            yield f"order {order.id} is {order.quantity} for {order.buyer}, not {wish.quantity} for {wish.buyer}"
        if order.instance not in {attempt.instance for attempt in attempts}:
            yield f"order {order.id} was written by {order.instance}, which was never asked"


def _tokens(end: End) -> Iterator[str]:
    for before, after in pairwise(end.orders):
        if after.token < before.token:
            yield f"order {after.id} was written with token {after.token} after {before.token}"


def _grants(end: End) -> Iterator[str]:
    owners: dict[int, str] = {}
    grants: dict[str, int] = {}
    for order in end.orders:
        if order.token <= 0:
            yield f"order {order.id} was written without a grant"
        owner = owners.setdefault(order.token, order.instance)
        if owner != order.instance:
            yield f"the grant with token {order.token} was used by {owner} and by {order.instance}"
        token = grants.setdefault(order.batch, order.token)
        if token != order.token:
            yield f"batch {order.batch} was written under the grants {token} and {order.token}"


def _counted(history: History) -> str:
    return f"{_sum_of(history, 'fenced')} fenced off, {_sum_of(history, 'grants')} grants lost"


def _sum_of(history: History, prefix: str) -> int:
    return sum(one.count for one in history.counts if one.name.startswith(prefix))


def _peace(history: History) -> Iterator[str]:
    ends = [0.0, *(fault.ended_at + history.setup.recovery_s for fault in history.faults)]
    begins = [*(fault.began_at for fault in history.faults), float("inf")]
    for one in history.counts:
        if not one.name.startswith("fenced"):
            continue
        if any(begin <= one.since and one.at <= end for begin, end in zip(ends, begins, strict=True)):
            yield f"{one.instance} was fenced off {one.count} times at {one.at:.1f} s, when nothing was broken"


def _left(end: End) -> Iterator[str]:
    for key in end.queue:
        yield f"{key} is still in the queue"
    for lease in end.leases:
        yield f"lease {lease} is still there"


def _answers(asked: dict[str, list[Attempt]]) -> Iterator[str]:
    for key, attempts in asked.items():
        for one in attempts:
            by = f"from {one.instance} at {one.done_at:.2f} s"
            if one.status == 503 and one.retry_after is None:
                yield f"key {key}: a 503 without Retry-After {by}"
            elif one.status not in (0, 200, 503):
                yield f"key {key}: status {one.status} {by}"
            elif one.status == 200 and (one.outcome not in ("sold", "sold_out") or one.granted != one.quantity):
                yield f"key {key} asked for {one.quantity} and was told {one.outcome!r} of {one.granted} {by}"
        if not any(one.status == 200 for one in attempts):
            yield f"key {key} was never decided"


def _recovery(history: History) -> Iterator[str]:
    watched_until = max((fault.watched_until for fault in history.faults), default=0.0)  # and buyers came until then
    decisions = _decisions(history)
    if decisions and decisions[-1] < watched_until:
        decisions.append(watched_until)
    for before, after in pairwise(decisions):
        broken = [fault for fault in history.faults if fault.began_at < after and fault.free_from > before]
        excused = sum(min(after, fault.free_from) - max(before, fault.began_at) for fault in broken)
        if after - before - excused > history.setup.recovery_s:
            blamed = [fault for fault in history.faults if fault.began_at < after][-1:]
            names = "".join(f", after {fault.name} ({fault.target})" for fault in blamed)
            yield f"at {before:.1f} s: no sale for {after - before:.1f} s{names}"


def _decisions(history: History) -> list[float]:
    return sorted(attempt.done_at for attempt in history.attempts if attempt.status == 200)


def recovery_s(history: History, fault: Fault) -> float:
    """The longest time without a decided purchase, from when the sale could go on until the fault's watch is over."""
    moments = [at for at in _decisions(history) if fault.free_from <= at <= fault.watched_until]
    return max(after - before for before, after in pairwise([fault.free_from, *moments, fault.watched_until]))


def _instances(history: History) -> Iterator[str]:
    names = sorted({attempt.instance for attempt in history.attempts})
    limit_s = history.setup.recovery_s
    for fault in history.faults:
        for name in names:
            asked = [one for one in history.attempts if one.instance == name and one.sent_at >= fault.ended_at]
            in_time = [one for one in asked if one.sent_at <= fault.watched_until - limit_s]
            served = min((one.done_at for one in asked if one.status == 200), default=float("inf"))
            if in_time and served > fault.watched_until:
                yield f"{name} sold nothing from the end of {fault.name} at {fault.ended_at:.1f} s on"


def _faults(history: History) -> str:
    struck = Counter(fault.name for fault in history.faults if fault.struck)
    never = [name for name in history.setup.nemeses if not struck[name]]
    resolved = _sum_of(history, "batches_resolved")
    but = f" (not {', '.join(never)})" if never else ""
    return f"{len(struck)} kinds struck{but}, {resolved} answers lost"


def _tested(history: History, told: dict[str, list[Attempt]]) -> Iterator[str]:
    if not any(fault.struck for fault in history.faults):
        yield "no fault has struck anything"
    if not history.looks:
        yield "nobody looked at the stock"
    if not any(answers[0].outcome == "sold" for answers in told.values()):
        yield "nothing was sold"
    harmed = [fault for fault in history.faults if fault.struck and fault.name in _HARM_COMMITS]
    noticed = [one for one in history.counts if one.name.startswith(("fenced", "batches_resolved"))]
    if harmed and not noticed and history.setup.guard == "fence":
        yield f"{len(harmed)} commits came late or were lost, and no instance has noticed"
