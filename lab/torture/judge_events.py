"""The judge's demands on the events that the shop is sent: all entries of the journals, unchanged and in order."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from lab.torture.history import Delivery, Entry, FinalState, History
from lab.torture.judge_service import peace
from lab.torture.standing import announced, standings

_WRONG_CLOCK: Final = "instance-clock"  # its signatures are of another hour
_ROUNDED_S: Final = 0.001  # a moment in an event
_TOO_LATE_S: Final = 3.0  # beyond the fault: they were on their way


def all_delivered(history: History, end: FinalState) -> Iterator[str]:
    """Each event of the journals was taken at least once, as the journal has it, and nothing else ever came."""
    journal = [one for one in end.journal if one.sku not in history.drops]
    written = _written(journal)
    taken = {one.id for one in history.deliveries if one.status == 200}
    for name, (order, number, kind, *_) in written.items():
        if name not in taken:
            yield f"event {name}, number {number} of {order} ({kind}), was never taken"
    bodies: dict[str, str] = {}
    should = _told(history, journal)
    moments = {f"{one.sku}~{one.entry}": one.at for one in journal}
    for one in history.deliveries:
        if one.wrong:
            if not _clock_was_wrong(history, one):
                yield f"event {one.id} at {one.at:.2f} s can't be believed: {one.wrong}"
            continue
        told = (one.order, one.number, one.event, one.quantity, one.buyer, one.payment)
        if one.id not in written:
            yield f"event {one.id} at {one.at:.2f} s, {one.event} of {one.order}, is in no journal"
        elif told != written[one.id]:
            yield f"event {one.id} at {one.at:.2f} s says {told}, and the journal {written[one.id]}"
        elif wrong := _otherwise(one, should.get(one.id, one.facts)):
            yield f"event {one.id} at {one.at:.2f} s says {wrong}, and it should say {should[one.id]}"
        elif one.id in moments and abs(one.happened_at - moments[one.id]) > _ROUNDED_S:
            yield f"event {one.id} says that it happened at {one.happened_at}, which was at {moments[one.id]}"
        if bodies.setdefault(one.id, one.body) != one.body:
            yield f"event {one.id} has come with another body at {one.at:.2f} s"


def in_order(history: History) -> Iterator[str]:
    """No event comes before the one before it, of the same order, was taken."""
    taken_at: dict[tuple[str, int], float] = {}
    for one in sorted(history.deliveries, key=lambda delivery: delivery.done_at):
        if one.status == 200:
            taken_at.setdefault((one.order, one.number), one.done_at)
    for one in history.deliveries:
        if not one.wrong and one.number > 1 and taken_at.get((one.order, one.number - 1), float("inf")) > one.at:
            yield f"{one.order}: {one.event}, its event {one.number}, came at {one.at:.2f} s, before the one before it"


def one_sends(history: History) -> Iterator[str]:
    """While nothing is broken the events of an item come from one instance."""
    for begin, end in peace(history):
        senders: dict[str, str] = {}
        for one in sorted(history.deliveries, key=lambda delivery: delivery.at):
            sku = one.order.partition("~")[0]
            calm = begin <= one.at and one.done_at <= end and not one.wrong
            if calm and senders.setdefault(sku, one.instance) != one.instance:
                yield f"event {one.id} came from {one.instance} at {one.at:.2f} s, and not from {senders[sku]}"


def ways(history: History) -> dict[str, int]:
    """Count the deliveries, by their outcome."""
    tries: dict[str, int] = defaultdict(int)
    for one in history.deliveries:
        tries[one.id] += 1
    taken = sum(one.status == 200 for one in history.deliveries)
    return {
        "events taken": taken,
        "events not answered": sum(not one.status for one in history.deliveries),
        "events refused": sum(one.status not in (0, 200) for one in history.deliveries),
        "events sent again": sum(number > 1 for number in tries.values()),
    }


def _written(journal: Sequence[Entry]) -> dict[str, tuple[Any, ...]]:
    """Return the contents that the events must have, by id."""
    return {
        f"{one.sku}~{one.entry}": (
            one.order,
            one.number,
            one.kind,
            one.quantity,
            one.buyer,
            one.facts.get("payment_ref"),
        )
        for one in journal
        if "part_of" not in one.facts  # a line follows its order, of which the shop is told
    }


def _told(history: History, journal: Sequence[Entry]) -> dict[str, dict[str, Any]]:
    """Return all that the events must say of what happened, by id; earlier releases have said less."""
    if "upgrade" in history.setup.nemeses:
        return {}
    found: dict[str, dict[str, Any]] = {}
    of = defaultdict[str, list[Entry]](list)
    for one in journal:
        of[one.order].append(one)
    for entries in of.values():
        for one, stood in zip(entries, standings(entries), strict=True):
            found[f"{one.sku}~{one.entry}"] = announced(one, stood)
    return found


def _otherwise(one: Delivery, should: dict[str, Any]) -> dict[str, Any]:
    return {name: one.facts.get(name) for name in one.facts | should if one.facts.get(name) != should.get(name)}


def _clock_was_wrong(history: History, one: Delivery) -> bool:
    return "timestamp" in one.wrong and any(
        fault.struck
        and _WRONG_CLOCK in fault.name + fault.target
        and fault.began_at <= one.at <= fault.ended_at + _TOO_LATE_S
        for fault in history.faults
    )
