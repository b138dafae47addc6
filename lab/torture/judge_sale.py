"""The judge's demands on the sale: stock, orders and answers agree, whatever happened."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from lab.torture.history import UNKNOWN, Attempt, End, History, Item, Look, Restock, SoldOrder

SOLD: Final = "sold"
SOLD_OUT: Final = "sold_out"
LIMIT_REACHED: Final = "limit_reached"
OUTCOMES: Final = (SOLD, SOLD_OUT, LIMIT_REACHED)
# How long an instance may give buyers without a key an answer from memory (SECKILL_SOLD_OUT_TTL_MS).
MEMORY_S: Final = 1.0


class Evidence:
    """A history, sorted for the checks.

    `asked`: the attempts of each wish, in their order; `told`: the answered ones, of each wish that has any.
    """

    def __init__(self, history: History, end: End) -> None:
        self.history = history
        self.end = end
        self.asked: dict[str, list[Attempt]] = defaultdict(list)
        for attempt in sorted(history.attempts, key=lambda one: one.sent_at):
            self.asked[attempt.wish].append(attempt)
        self.told = {wish: found for wish, one in self.asked.items() if (found := [a for a in one if a.status == 200])}
        self.orders: dict[str, list[SoldOrder]] = defaultdict(list)
        for order in end.orders:
            self.orders[order.sku].append(order)
        self._restocks: dict[str, list[Restock]] = defaultdict(list)
        for restock in history.restocks:
            self._restocks[restock.sku].append(restock)

    def restocks(self, sku: str, since: float = 0.0, until: float = float("inf")) -> list[Restock]:
        """Return an item's restocks that may have taken place between two moments."""
        return [one for one in self._restocks[sku] if one.asked_at < until and one.done_at > since]

    def looks(self, sku: str) -> list[Look]:
        """Return the reads of an item."""
        return [look for look in self.history.looks if look.sku == sku]


def adds_up(evidence: Evidence) -> Iterator[str]:
    """In every read stock + lucky equals the units that existed until then; lucky never falls."""
    for item in evidence.history.setup.items:
        looks = evidence.looks(item.sku)
        for look in looks:
            yield from _adds_up(evidence, item, f"at {look.at:.2f} s", look)
        for before, after in pairwise(looks):
            if after.lucky < before.lucky:
                yield f"{item.sku} at {after.at:.2f} s: lucky fell from {before.lucky} to {after.lucky}"
    yield from evidence.end.unreadable
    late = float("inf")
    for left in evidence.end.left:
        item = next(one for one in evidence.history.setup.items if one.sku == left.sku)
        units = item.initial + sum(one.added for one in evidence.restocks(left.sku))
        if left.initial != units:
            yield f"{left.sku}: the store says that there have been {left.initial} units, but {units} were"
        yield from _adds_up(evidence, item, "at the end", Look(late, late, left.stock, left.lucky, left.sku))


def _adds_up(evidence: Evidence, item: Item, at: str, look: Look) -> Iterator[str]:
    restocks = evidence.restocks(item.sku)
    surely = item.initial + sum(one.added for one in restocks if one.done_at <= look.asked_at)
    # There are few at a time; each of them may have taken place or not.
    possible = {surely}
    for one in restocks:
        if one.done_at > look.asked_at and one.asked_at < look.at:
            possible |= {units + one.added for units in possible}
    if look.stock + look.lucky not in possible or look.stock < 0:
        units = " or ".join(map(str, sorted(possible)))
        found = f"stock {look.stock} + lucky {look.lucky} is {look.stock + look.lucky}"
        yield f"{item.sku} {at}: {found}, not {units}"


def seen_after_told(evidence: Evidence) -> Iterator[str]:
    """No read shows fewer units sold than buyers had been told before it."""
    for item in evidence.history.setup.items:
        moments = sorted(
            (answers[0].done_at, answers[0].quantity)
            for answers in evidence.told.values()
            if answers[0].outcome == SOLD and answers[0].sku == item.sku
        )
        said, so_far = 0, 0
        for look in sorted(evidence.looks(item.sku), key=lambda one: one.asked_at):
            while so_far < len(moments) and moments[so_far][0] <= look.asked_at:
                said += moments[so_far][1]
                so_far += 1
            if look.lucky < said:
                yield (
                    f"{item.sku} at {look.at:.2f} s: lucky is {look.lucky}, and buyers of {said} units were told that "
                    "they have them"
                )


def orders_agree(evidence: Evidence) -> Iterator[str]:
    """Lucky is the sum of the orders; nothing was sold that did not exist; a key has one order."""
    end = evidence.end
    for left in end.left:
        units = sum(order.quantity for order in evidence.orders[left.sku])
        if units != left.lucky:
            yield f"{left.sku}: the orders add up to {units}, lucky is {left.lucky}"
        item = next(one for one in evidence.history.setup.items if one.sku == left.sku)
        existed = item.initial + sum(one.added for one in evidence.restocks(left.sku))
        if units > existed:
            yield f"{left.sku}: {units - existed} units were sold that did not exist"
    for name, count in Counter(order.id for order in end.orders).items():
        if count > 1:
            yield f"order {name} is there {count} times"
    for (sku, key), count in Counter((order.sku, order.key) for order in end.orders).items():
        if key is not None and count > 1:
            yield f"key {key} has {count} orders of {sku}"


def in_time(evidence: Evidence) -> Iterator[str]:
    """The order in which the store has an item's sales explains when they were asked for, told and seen.

    The looks have their places between the sales. Nothing may have been over before something that comes earlier began,
    and each sale is of units that were there by the time when it was told.
    """
    for item in evidence.history.setup.items:
        looks = sorted(evidence.looks(item.sku), key=lambda one: (one.lucky, one.asked_at))
        asked = {one[0].key or one[0].buyer: one for one in evidence.asked.values() if one[0].sku == item.sku}
        happened: list[tuple[float, float, str]] = []  # began, was over, and what it was
        sold = seen = 0
        for order in evidence.orders[item.sku]:
            while seen < len(looks) and looks[seen].lucky <= sold:
                happened.append((looks[seen].asked_at, looks[seen].at, f"the look that saw {looks[seen].lucky} sold"))
                seen += 1
            sold += order.quantity
            attempts = asked.get(order.key or order.buyer or "", [])
            told = min((one.done_at for one in attempts if one.order == order.id), default=float("inf"))
            happened.append((min((one.sent_at for one in attempts), default=0.0), told, f"order {order.id}"))
            units = item.initial + sum(one.added for one in evidence.restocks(item.sku, until=told))
            if sold > units:
                yield f"{item.sku}: with order {order.id} {sold} were sold by {told:.2f} s, and {units} had been there"
        happened += [(look.asked_at, look.at, f"the look that saw {look.lucky} sold") for look in looks[seen:]]
        began_s, earlier = 0.0, ""
        for began, over, what in happened:
            began_s, earlier = max((began_s, earlier), (began, what))
            if over < began_s:
                yield f"{item.sku}: {what} was over at {over:.2f} s, before {earlier} began at {began_s:.2f} s"


def nothing_unsold(evidence: Evidence) -> Iterator[str]:
    """Nobody was refused units that were there all the time."""
    for item in evidence.history.setup.items:
        left = next((one for one in evidence.end.left if one.sku == item.sku), None)
        if left is None:
            continue
        looks = sorted(evidence.looks(item.sku), key=lambda one: one.asked_at)
        at_the_end = Look(float("inf"), float("inf"), left.stock, left.lucky, item.sku)
        moments = [look.asked_at for look in looks]
        refused = [
            answer
            for answers in evidence.told.values()
            for answer in answers
            if answer.outcome == SOLD_OUT and answer.sku == item.sku and not answer.replayed
        ]
        for answer in refused:
            then = bisect_left(moments, answer.done_at)
            for later in [*looks[then : then + 1], at_the_end]:
                # Without restocks the stock only falls: units left later were there when the buyer was refused.
                since = answer.sent_at if answer.key is not None else answer.sent_at - MEMORY_S
                added = sum(one.added for one in evidence.restocks(item.sku, since, later.at))
                if answer.quantity <= later.stock - added:
                    when = "at the end" if later is at_the_end else f"at {later.at:.2f} s"
                    yield (
                        f"{answer.buyer} was refused {answer.quantity} of {item.sku} at {answer.done_at:.2f} s, and "
                        f"{when} {later.stock} are left"
                    )
                    break
        if not refused and left.stock > 0 and not item.limit:
            yield f"{left.stock} of {item.sku} are left, and nobody was refused: too little demand to judge by"


def answers_kept(evidence: Evidence) -> Iterator[str]:
    """A buyer who was told "sold" has that order, for good; nobody else has one."""
    by_wish: dict[tuple[str, str], list[SoldOrder]] = defaultdict(list)
    for order in evidence.end.orders:
        by_wish[order.sku, order.key or order.buyer or ""].append(order)
    for wish, attempts in evidence.asked.items():
        first = attempts[0]
        found = by_wish[first.sku, first.key or first.buyer]
        answers = evidence.told.get(wish, [])
        # An attempt that its buyer has given up may still wait in an instance.
        asked_until = float("inf") if _given_up(attempts) else attempts[-1].done_at
        for answer in answers:
            about = f"{answer.buyer} ({'key ' + answer.key if answer.key else 'no key'})"
            if answer.outcome != SOLD:
                restocked = evidence.restocks(answer.sku, answer.sent_at, asked_until)
                if found and not (answer.outcome == SOLD_OUT and restocked):
                    yield f"{about} was told {answer.outcome!r} and has order {found[0].id}"
            elif not any(order.id == answer.order and order.quantity == answer.quantity for order in found):
                yield f"{about} was told that it has order {answer.order}, which is not there"
        if first.key is None:
            told_sold = sum(answer.outcome == SOLD for answer in answers)
            unknown = sum(attempt.status == 0 or attempt.error == UNKNOWN for attempt in attempts)
            if len(found) > told_sold + unknown:
                yield f"{first.buyer} (no key) has {len(found)} orders, after {told_sold} answers and {unknown} without"


def asked_again(evidence: Evidence) -> Iterator[str]:
    """A buyer who asks again hears the same, and no answer was untrue."""
    for attempts in evidence.asked.values():
        first: Attempt | None = None
        maybe = False  # whether something may have been sold to it by now, as far as its answers say
        for one in attempts:
            if one.status == 200:
                about = f"key {one.key} of {one.sku}"
                if one.replayed and not maybe:
                    yield f"{about} hears again what it was never told: each answer before was that nothing was sold"
                if first is not None:
                    renewed = first.outcome == SOLD_OUT and evidence.restocks(one.sku, first.sent_at, one.done_at)
                    if first.outcome == SOLD and not one.replayed:
                        yield f"{about} was told {first.outcome} and then {one.outcome} as if it had not asked before"
                    if (one.outcome, one.order) != (first.outcome, first.order) and not renewed:
                        yield f"{about} was told {first.outcome} {first.order}, and then {one.outcome} {one.order}"
                if first is None or first.outcome == SOLD_OUT:
                    first = one
            maybe = maybe or one.status in (0, 200) or one.error == UNKNOWN


def keys_are_their_buyers(history: History) -> Iterator[str]:
    """The key of an order reveals it to its buyer only."""
    for theft in history.thefts:
        if theft.status not in (0, 503) and not (theft.status == 422 and "key-reused" in (theft.said or "")):
            yield (
                f"another buyer sent key {theft.key} of {theft.sku} to {theft.instance} at {theft.at:.2f} s, and was "
                f"answered {theft.status} {theft.said}"
            )


def wanted(evidence: Evidence) -> Iterator[str]:
    """No order exists without a request."""
    by_key = {(one[0].sku, one[0].key or one[0].buyer): one for one in evidence.asked.values()}
    for order in evidence.end.orders:
        attempts = by_key.get((order.sku, order.key or order.buyer or ""))
        if not attempts:
            yield f"order {order.id} (key {order.key}): nobody asked for it"
            continue
        wish = attempts[0]
        if (order.quantity, order.buyer) != (wish.quantity, wish.buyer):
            yield f"order {order.id} is {order.quantity} for {order.buyer}, not {wish.quantity} for {wish.buyer}"
        if order.instance not in {attempt.instance for attempt in attempts}:
            yield f"order {order.id} was written by {order.instance}, which was never asked"


def limits_kept(evidence: Evidence) -> Iterator[str]:
    """Nobody has more than the limit, and a buyer whose limit is said to be reached has as much."""
    limits = {item.sku: item.limit for item in evidence.history.setup.items if item.limit}
    units: Counter[tuple[str, str]] = Counter()
    for order in evidence.end.orders:
        units[order.sku, order.buyer or ""] += order.quantity
    for (sku, buyer), count in units.items():
        if sku in limits and count > limits[sku]:
            yield f"{buyer} has {count} of {sku}, of which one may have {limits[sku]}"
    for answers in evidence.told.values():
        for answer in answers:
            if answer.outcome == LIMIT_REACHED:
                limit, has = limits.get(answer.sku, 0), units[answer.sku, answer.buyer]
                if has + answer.quantity <= limit or not limit:
                    yield f"{answer.buyer} was refused {answer.quantity} of {answer.sku} for the limit, and has {has}"


def decided(evidence: Evidence) -> Iterator[str]:
    """Answers are 200, or 503 with Retry-After; in the end all who can ask again have a decision."""
    for attempts in evidence.asked.values():
        for one in attempts:
            by = f"from {one.instance} at {one.done_at:.2f} s"
            if one.status == 503 and one.retry_after is None:
                yield f"{one.buyer}: a 503 without Retry-After {by}"
            elif one.status not in (0, 200, 503):
                yield f"{one.buyer}: status {one.status} {by}"
            elif one.status == 200 and (one.outcome not in OUTCOMES or one.granted != one.quantity):
                yield f"{one.buyer} asked for {one.quantity} and was told {one.outcome!r} of {one.granted} {by}"
        if not any(one.status == 200 for one in attempts) and (attempts[0].key is not None or not _given_up(attempts)):
            yield f"{attempts[0].buyer} was never decided"


def _given_up(attempts: Iterable[Attempt]) -> bool:
    return any(one.status == 0 or one.error == UNKNOWN for one in attempts)
