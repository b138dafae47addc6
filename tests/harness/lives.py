"""Every life that an order can have, as the decision makes it: all commands in all states, several steps deep."""

from collections.abc import Iterator
from functools import cache
from itertools import count, product

from app.orders import (
    OPEN,
    Cancel,
    Command,
    Confirm,
    EventKind,
    Expire,
    Extend,
    GivenBack,
    Hold,
    Incident,
    OrderChange,
    OrderState,
    Outcome,
    Purchase,
    Record,
    Refund,
    RequestRefund,
    Snapshot,
)
from app.orders import decide as decided
from app.orders.decision import Windows

PRICE = 500
_DEPTH = 4
_WINDOWS = Windows(price=PRICE, currency="EUR")


def begun() -> Iterator[tuple[Command, Record]]:
    """Yield the commands that begin an order, and the order."""
    hold = Hold(2, buyer="ann", request_id="r", proven=True)
    for command in (Purchase(2, buyer="ann", request_id="r"), hold, hold._replace(wait=True)):
        windows, there = _WINDOWS if isinstance(command, Hold) else Windows(), Snapshot(9, 0, now_ms=1_000)
        if isinstance(command, Hold) and command.wait:
            there = Snapshot(0, 0, held=9, now_ms=1_000)
        [decision] = decided(there, [command], windows=windows).decisions
        assert decision.begins is not None
        yield command, decision.begins._replace(number="1-0", secret="s")


@cache
def changes() -> list[tuple[Command, OrderChange]]:
    """Return each change that a command makes of an order, in each state that it can be in."""
    seen: list[tuple[Command, OrderChange]] = []
    to_do, known = [record for _, record in begun()], set[object]()
    for _ in range(_DEPTH):
        after: dict[object, Record] = {}
        for record in to_do:
            for command, stock in product(_commands(record), (0, 9)):
                if found := _changed(record, command, stock):
                    seen += [(command, change) for change in found]
                    last = found[-1].after._replace(events=1)
                    after.setdefault(_shape(last), last)
        to_do = [record for shape, record in after.items() if shape not in known]
        known |= after.keys()
    return seen


def _shape(record: Record) -> object:
    """Return what lives have in common that go on alike: without amounts and names, a fourth of them is left."""
    payments = ((one.ref, *sorted(refund.state for refund in one.refunds)) for one in record.payments)
    return record.state, record.quantity, len(record.notices), *sorted(payments)


def _changed(record: Record, command: Command, stock: int) -> list[OrderChange]:
    waits = record.state is OrderState.WAITING and isinstance(command, Expire)
    due = [record.number] if isinstance(command, Expire) and not waits else []
    payments = dict.fromkeys((one.ref for one in record.payments), record.number)
    snapshot = Snapshot(stock, 1, now_ms=2_000, records={record.number: record}, payments=payments, due=due)
    if waits:
        snapshot.waiting, snapshot.line = 1, [record.number]
    taken = {one.name for payment in record.payments for one in payment.refunds}
    names = (name for name in map("r{}".format, count()) if name not in taken)  # lives that are alike are one
    closed = Outcome.ENDED if waits and not stock else None
    return decided(snapshot, [command], windows=_WINDOWS, now_closed=closed, fresh=names.__next__).changes


def _commands(record: Record) -> Iterator[Command]:
    order = ("default", record.number, record.secret)
    for ref, amount, currency in (
        ("right", PRICE * record.quantity, "EUR"),
        ("second", PRICE * record.quantity, "EUR"),
        ("wrong", 1, None),
        ("odd", 1, "USD"),
    ):
        yield Confirm(*order, ref, amount, currency)
        yield Refund(*order, restock=False, payment_ref=ref)
    yield Refund(*order, restock=True, by="ann")
    yield Refund(*order, restock=True, later=True)
    yield Refund(*order, restock=True, units=1, message="u")
    if record.state is OrderState.CONFIRMED and not record.notices:
        yield Refund(*order, restock=False, payment_ref="right", amount=2, message="l", later=True)
        yield GivenBack(*order, "right", "payment provider", so_far=3, at=1.0)
    for payment in record.payments[:1]:
        yield GivenBack(*order, payment.ref, "payment provider", 1, refund_id="re_1")
    for payment, one in record.refunds:
        yield RequestRefund(*order, one.name, "the cashier")
        yield Incident(*order, EventKind.REFUND_FAILED, payment.ref, name=one.name, why="no money", by="the cashier")
    if record.payment_ref is not None:
        for kind in (EventKind.DISPUTED, EventKind.DISPUTE_WON, EventKind.DISPUTE_LOST):
            for disputed in (1, None):
                yield Incident(*order, kind, record.payment_ref, disputed, refund_id="d")
    if record.state in OPEN:
        yield Cancel(*order, units=1, message="c")
        yield Confirm(*order, "taxed", PRICE * record.quantity + 1, "EUR", None, PRICE * record.quantity, 1.5)
    if record.state is OrderState.EXPIRED:
        yield Confirm(*order, "right", PRICE * record.quantity, "EUR", None, None, 1.5)
    yield Extend(*order)
    yield Cancel(*order)
    yield Cancel(*order, by="ann")
    yield Expire("default")
