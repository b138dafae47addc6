"""The judge: whether a history keeps the invariants. It is pure: it sees the history and nothing else.

Each check has a line in the verdict, with the invariant of the design that it stands for, and yields a sentence
for each violation. A history that passes all checks is one in which nothing was oversold, undersold or lost.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, ParamSpec

from lab.torture import (
    judge_cents,
    judge_drops,
    judge_events,
    judge_locks,
    judge_model,
    judge_money,
    judge_protocol,
    judge_readings,
    judge_service,
)
from lab.torture.history import UNKNOWN, History
from lab.torture.judge_money import Money

# Fields of what a run has recorded that no rule reads; a test keeps this list.
UNREAD: Final = frozenset[str]()
OF_THE_RUN: Final = "the run was a test of "  # how such a promise begins: it is not one of the program
STAND_S: Final = 15.0
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `looked_at` is its evidence: a check of nothing proves nothing.

    `rule`: its name, which is that of its function, after that of its module: `locks.exclusive`.
    """

    rule: str
    invariant: str
    promise: str
    looked_at: str
    violations: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """True if the promise was kept."""
        return not self.violations


def _check(
    invariant: str, promise: str, looked_at: str, rule: Callable[P, Iterator[str]], *about: P.args, **how: P.kwargs
) -> Finding:
    name = f"{rule.__module__.rpartition('.')[2].removeprefix('judge_')}.{rule.__name__}"
    return Finding(name, invariant, promise, looked_at, tuple(rule(*about, **how)))


def judge(history: History) -> list[Finding]:
    """Apply all checks to a run. Raises `ValueError` for one that did not come to its end.

    What breaks a rule of peace while the processor was elsewhere is excused, and counted.
    """
    strict = _judge(replace(history, lates=[]))
    if not history.lates:
        return strict
    return [
        replace(one, looked_at=f"{one.looked_at}, {more} excused, as the processor was elsewhere")
        if (more := len(all_of_it.violations) - len(one.violations))
        else one
        for one, all_of_it in zip(_judge(history), strict, strict=True)
    ]


def _judge(history: History) -> list[Finding]:
    if (end := history.end) is None:
        raise ValueError("the history has no end: the run was not finished, so there is nothing to judge")
    money = Money(history, end)
    struck = [fault for fault in history.faults if fault.struck]
    excused = [name for name in history.setup.known if any(fault.name == name for fault in struck)]
    grants, events = f"{len(history.beliefs)} grants", f"{len(end.journal)} events"
    but = f"{grants}, not after {', '.join(excused)}" if excused else grants
    long = f"{grants}, {judge_locks.long_holds(history)} longer than a TTL"
    within, asked = f"{history.setup.recovery_s:g} s", f"{len(history.asked)} requests"
    calm = f"{judge_service.peace_s(history):.0f} s of peace"
    longest = f"longest {max(judge_service.waits(history), default=0.0):.1f} s"
    faults, stands = f"{len(struck)} faults", f"{len(history.stands)} last stands"
    thefts, told = f"{len(history.thefts)} tried", f"{len(history.readings)} answers"
    return [
        *_of_orders(money),
        _check("I4", "nobody learns of an order by another's key", thefts, judge_money.keys_are_their_buyers, history),
        _check("I5", "two never believe that they own one lock", but, judge_locks.exclusive, history),
        _check("I5", "a grant's token is higher than the one before", grants, judge_locks.tokens_grow, history),
        _check("I6", "in peace nobody loses a lock", long, judge_locks.kept_in_peace, history),
        _check("I6", "nothing is left in the queue, and no lease", "the end", judge_locks.left_nothing, end),
        _check(
            "I7, I8", "tokens never decrease from event to event", events, judge_locks.orders_in_order, history, end
        ),
        _check(
            "I7", "an event has a grant, and a grant one owner", events, judge_locks.grants_have_one_owner, history, end
        ),
        _check("I7", "what the store said is a run of the model", asked, judge_protocol.keeps_its_rule, history),
        _check("I7", "in peace nobody is fenced off", calm, judge_service.not_fenced_in_peace, history),
        _check("I2", "all readers are told numbers that add up", told, judge_readings.are_right, history, end),
        _check("", "in peace no connection is cut", calm, judge_service.not_cut_in_peace, history),
        _check("", "in peace nobody waits for long", longest, judge_service.nobody_waits, history),
        _check("I7", "an instance notices a late or lost commit", faults, judge_service.harm_noticed, history),
        _check("", f"sales go on within {within} of a fault", faults, judge_service.goes_on, history),
        _check(
            "", f"in a last stand the rest goes on within {STAND_S:g} s", stands, judge_service.stands, history, STAND_S
        ),
        _check("", f"each sells again within {within}", faults, judge_service.each_sells_again, history),
        _check("", f"{OF_THE_RUN}all this", _struck(history), tested, money),
        *_of_drops(history),
        *(_of_money(money) if history.setup.flows else ()),
        *(_of_cents(history) if history.cents else ()),
    ]


def _of_cents(history: History) -> Iterator[Finding]:
    paid, asked = (sum(one) for one in zip(*((each.payments, each.asked) for each in history.cents), strict=True))
    looked_at = f"{paid} payments, {asked} requests for refunds"
    for promise, rule in (
        ("each buyer has what is due", judge_cents.each_has_what_is_due),
        ("the provider's books and ours agree", judge_cents.books_agree),
        (f"{OF_THE_RUN}refunds", judge_cents.tested),
    ):
        yield _check("M4", promise, looked_at, rule, history)


def _of_drops(history: History) -> Iterator[Finding]:
    if history.setup.drops:
        looked_at = f"{len(history.bids)} requests, {len(history.sales)} new sales and removals"
        for promise, rule in (
            ("a new sale sells what it has, and no more", judge_drops.units_kept),
            ("a new sale has forgotten the one before", judge_drops.forgotten),
            ("a removed item is not there", judge_drops.removed),
            ("an event's name is no other event's, in no sale", judge_drops.events_named_once),
        ):
            yield _check("I1", promise, looked_at, rule, history)


def _of_orders(money: Money) -> list[Finding]:
    """Judge all orders: a purchase is one that has one event."""
    events, calls = f"{len(money.entries)} events", f"{len(money.told)} answers"
    looks = f"{len(money.history.looks)} looks, {len(money.history.restocks)} restocks"
    return [
        _check("I1, M1", "no unit is in two places, after each event", events, judge_money.units_in_one_place, money),
        _check("I1, I4", "what is seen is what the events say", looks, judge_money.seen_as_it_was, money),
        _check("I2, M1", "each order's events are a path to its end", events, judge_money.orders_live_once, money),
        _check("I2, M1", "how an order stands is what its events say", events, judge_money.records_agree, money),
        _check("I2, M2", "nobody has more than the limit", events, judge_money.limits_kept, money),
        _check("I3, M5", "first come, first served", calls, judge_money.first_come, money),
        _check("I4, M4", "what buyers and payers are told is true", calls, judge_money.answers_true, money),
        _check("I4, M4", "an order is shown as it stood", calls, judge_money.shown_as_it_stood, money),
        _check("I4", "who asks again hears the same; no answer was untrue", calls, judge_money.asked_again, money),
        _check("I4, M5", "nothing happens to an order unasked", events, judge_money.wanted, money),
        _check("", "answers are 200 or 503; in the end all are decided", calls, judge_money.decided, money),
    ]


def _of_money(money: Money) -> list[Finding]:
    """Judge what only an order has that is held and paid."""
    history, end = money.history, money.end
    events, calls = f"{len(money.entries)} events", f"{len(money.told)} answers"
    looks, payments = f"{len(history.looks)} looks", f"{len(money.places)} payments"
    told, prices = f"{len(history.deliveries)} deliveries", f"{len(history.prices)} prices"
    closed = f"{len(history.pauses)} pauses"
    return [
        _check("M1", "all lines of a basket go one way", events, judge_money.lines_stand_together, money),
        _check("M1 to M4", "the journal is a run of the model", events, judge_model.is_a_run, history),
        _check("M3", "no hold expires before its end", events, judge_money.nobody_is_cut_short, money),
        _check("M3", "everybody has the time that they were told", told, judge_money.everybody_has_their_time, money),
        _check("M3", "every hold ends", looks, judge_money.every_hold_ends, money),
        _check("M4", "amounts and refunds are what was said", calls, judge_money.facts_told, money),
        _check("M4", "nobody is charged without a unit or a refund", payments, judge_money.payments_kept, money),
        _check("M5", "nobody is overtaken who waits in line", events, judge_money.nobody_is_overtaken, money),
        _check("M5", "in a pause, or outside of the hours, nothing begins", closed, judge_money.pauses_kept, money),
        _check("M4", "a hold is at a price that was in force", prices, judge_money.prices_kept, money),
        _check("M6", "the shop is told each event, and nothing else", told, judge_events.all_delivered, history, end),
        _check("M6", "an order's events come in order", told, judge_events.in_order, history),
        _check("M6", "in peace an item's events come from one sender", told, judge_events.one_sends, history),
        _check("", f"{OF_THE_RUN}holds", payments, judge_money.tested, money),
    ]


def branches(history: History) -> dict[str, int]:
    """Count how often each rare path through the program was taken; of a path with 0 this run proves nothing."""
    counted: Counter[str] = Counter()
    for one in history.counts:
        counted[one.name] += one.count
    attempts = history.attempts
    # The sender of events has its lock at the end.
    lost = sum((one.lost or not one.ended) and judge_locks.OFFICES not in one.lock for one in history.beliefs)
    of_money = judge_money.ways(Money(history, history.end)) if history.end else {}
    return {
        "taken over": lost,
        "refused by the fence": sum(n for name, n in counted.items() if name.startswith("fenced")),
        "in doubt, committed": counted['batches_resolved_total{result="committed"}'],
        "in doubt, not committed": counted['batches_resolved_total{result="not_committed"}'],
        "expired in the queue": sum(one.error == "urn:seckill:not-decided" for one in attempts),
        "outcome unknown": sum(one.error == UNKNOWN for one in attempts),
        "sold out": sum(one.outcome == judge_money.SOLD_OUT for one in attempts),
        "limit reached": sum(one.outcome == judge_money.LIMIT_REACHED for one in attempts),
        "told again": sum(one.replayed for one in attempts),
        **of_money,
    }


def _struck(history: History) -> str:
    struck = {fault.name for fault in history.faults if fault.struck}
    return f"{len(struck)} kind{'s' if len(struck) != 1 else ''} of fault"


def tested(money: Money) -> Iterator[str]:
    """Each fault that was asked for has struck, and each kind of buyer has come."""
    history = money.history
    struck = {fault.name for fault in history.faults if fault.struck}
    for name in history.setup.nemeses:
        if name not in struck:
            why = next((fault.target for fault in history.faults if fault.name == name), "the run was over before")
            yield f"{name} was asked for and has never struck: {why}"
    if not history.looks:
        yield "nobody looked at the stock"
    if not any(one.outcome == judge_money.SOLD for one in money.told):
        yield "nothing was sold"
    if all(sum(one.status == 200 for one in calls) < 2 for calls in money.purchases.values()):
        yield "nobody asked again"
    refused = {one.sku for one in money.told if one.outcome == judge_money.SOLD_OUT}
    for item in history.setup.items:
        left = sum(one.stock for one in money.end.left if one.sku == item.sku)
        if left > 0 and not item.limit and item.sku not in refused:
            yield f"{left} of {item.sku} are left, and nobody was refused: too little demand to judge by"
    if not judge_locks.long_holds(history) and "everybody" in history.setup.promises:
        yield "no lock was held for longer than a TTL"
