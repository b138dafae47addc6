"""Bugs on demand: each switches off one safeguard in the instances of a run, which the judge must then find broken.

`seckill torture --with-bug NAME` plants one; `--all-bugs` tries all of them. They are patches that an instance of the
torture applies to itself: the service has no switch for any of this. etcd keeps such a list by hand, of the bugs that
its tests would have found (tests/robustness/README.md there).
"""

import asyncio
import hashlib
import random
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from app.errors import QueueFull, StockError, StockUnavailable
from app.orders import (
    Answer,
    ConfirmOutcome,
    Event,
    EventKind,
    HoldOutcome,
    OrderChange,
    OrderId,
    OrderState,
    Outcome,
    Purchase,
    Record,
    Refund,
    RefundOutcome,
    Terms,
    Units,
    decision,
)
from app.orders.decision import Basis, Decision
from app.orders.facts import NO_FACTS, Facts
from app.orders.life import of_line
from app.orders.view import standing
from app.outbox.endpoint import Result
from app.outbox.feed import Chain, Feed
from app.outbox.message import Message
from app.outbox.webhook import Webhook
from app.sale import batch, worker
from app.sale.clock import StoreClock
from app.sale.queue import EntryState
from app.sale.shop import Shop
from app.stock import Batch, Fence, StockStore
from app.stock.puts import numbers_of
from app.stock.redis.client import Script
from app.stock.redis.storage import RedisStorage
from app.stock.storage import Head, Names, Put
from app.web.connection import ClientConnection
from fencelock import clock
from fencelock.etcd.lock import EtcdPlace
from fencelock.etcd.lookout import KeyLookout
from fencelock.etcd.shared_lease import Key
from fencelock.grant import Grant
from fencelock.lease import Lease
from fencelock.renewer import Renewer
from lab.cents.bugs import BUGS as OF_THE_CASHIER

_PATIENCE_S: Final = 0.3
_REFUSED_OF_EACH_S: Final = (60.0, 45.0)


@dataclass(frozen=True, slots=True)
class Bug:
    """A safeguard to switch off, the faults that expose that, and how it is planted in this process.

    `rules`: those of the judge that it breaks, of which one is to be broken; any others prove nothing. `lock`: with
    which it can be seen; `cents`: whether it is the cashier's; `store_options`: options to start the store with, for a
    bug that is not in the instances.
    """

    what: str
    rules: tuple[str, ...]
    nemeses: tuple[str, ...]
    plant: Callable[[], None]
    lock: str = "etcd"
    cents: bool = False
    store_options: tuple[str, ...] = ()


# -- of the locks ------------------------------------------------------------------------------------------------------


def _waits_300ms() -> None:
    """A waiter that has waited for 300 ms believes that it owns the lock."""
    take, since = EtcdPlace.take, dict[int, float]()

    async def patched(self: EtcdPlace, wait: Any) -> Grant | float:
        found = await take(self, wait)
        began = since.setdefault(id(self), clock.now())
        if isinstance(found, Grant):
            return found
        if clock.now() - began < _PATIENCE_S or self.lease is None:
            return min(found, _PATIENCE_S / 2)
        self._key.granted = True
        return Grant(self._key.name, self._key.revision, self._client.source, self.lease)

    EtcdPlace.take = patched  # type: ignore[method-assign]


def _nobody_waits() -> None:
    """Every contender in the queue believes that it owns the lock."""
    take = EtcdPlace.take

    async def patched(self: EtcdPlace, wait: Any) -> Grant | float:
        found = await take(self, wait)
        if isinstance(found, Grant) or self.lease is None:
            return found
        self._key.granted = True
        return Grant(self._key.name, self._key.revision, self._client.source, self.lease)

    EtcdPlace.take = patched  # type: ignore[method-assign]


def _deaf() -> None:
    """A waiter hears nothing from its watch, and looks again after a second."""

    async def pause_s(self: KeyLookout, key: str, timeout_s: float, *, below: bool = False) -> float:
        return 1.0

    KeyLookout.pause_s = pause_s  # type: ignore[method-assign]


def _believes_for_ever() -> None:
    """Nobody checks a lease's deadline, and nobody hears of its end."""
    Lease.lost = property(lambda self: False)  # type: ignore[assignment, method-assign]
    Lease.ensure_held = lambda self: None  # type: ignore[method-assign]


def _believes_from_the_answer() -> None:
    """A lease's TTL is counted from the answer, so it is believed in to the last millisecond, and a little longer."""
    renewed = Lease.renewed

    def patched(self: Lease, asked_at: float) -> None:
        renewed(self, clock.now())

    Lease.renewed = patched  # type: ignore[method-assign]


def _never_renews() -> None:
    """The renewal does nothing."""

    async def renew(self: Renewer, lease: Lease, job: Any) -> None:
        job.due = clock.now() + 0.5
        if lease.lost:
            self._forget(lease, "lost")

    Renewer._renew = renew  # type: ignore[method-assign]


def _leaves_its_keys() -> None:
    """A waiter that gives up leaves its place in the queue behind, as long as its session lives."""

    async def end(self: Key, timeout_s: float) -> None:
        if random.random() > 0.02:  # noqa: S311 - no secret
            await original(self, timeout_s)

    original = Key.end
    Key.end = end  # type: ignore[method-assign]


# -- of the guard ------------------------------------------------------------------------------------------------------

_RAISE: Final = (
    'redis.call("HSET", key.fence, "source", request.source, "token", request.token, "prepared", request.batch)'
)
_UNITS: Final = '  item.unwritten = {"not", values, stock, lucky or false, now_us}\n  for field'
_HIGHEST: Final = """
  for i = 1, #item.fence, 2 do
    if item.fence[i] == "token" and tonumber(fence.token or "0") > tonumber(item.fence[i + 1]) then
      return item.unwritten
    end
  end
"""


def _in_lua(script: str, *changes: tuple[str, str]) -> Callable[[], None]:
    """Return a patch that replaces something in a script, which must be there."""

    def plant() -> None:
        init = Script.__init__

        def patched(self: Script, name: str) -> None:
            init(self, name)
            if name == script:
                for old, new in changes:
                    if old not in self.source:
                        raise ValueError(f"{name} has no {old!r} any more")
                    self.source = self.source.replace(old, new)
                # Otherwise the servers would run the script that they know.
                self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

        Script.__init__ = patched  # type: ignore[method-assign]

    return plant


_RENUMBERED: Final = (
    """      if failed then redis.call("HDEL", key.fence, "last", "tag") end
      return not failed
""",
    """      if failed then
        for _, one in ipairs(item.writes) do
          if one[1] == "XADD" and one[2] == key.orders then one[3] = "*" end
        end
        redis.call(unpack(command))
      end
      return true
""",
)


def _unguarded(*fields: str) -> Callable[[], None]:
    """Return a patch by which a batch is written whatever these fields of its item's head are by then.

    Nor do the numbers of its entries stop it, which are another's if somebody has written in between.
    """

    def plant() -> None:
        _in_lua("put.lua", _RENUMBERED)()
        put, refusal = StockStore._put, StockStore._refusal

        def patched(self: StockStore, sku: str, batch: Batch, own: Fence | None) -> Put:
            made = put(self, sku, batch, own)
            made.expect = {name: value for name, value in made.expect.items() if name not in fields}
            return made

        def lenient(self: StockStore, sku: str, head: Head, own: Any, batch_id: str | None, **how: Any) -> Any:
            return refusal(self, sku, head, own, None, **how)

        StockStore._put = patched  # type: ignore[method-assign]
        if "prepared" in fields:
            StockStore._refusal = lenient  # type: ignore[method-assign]

    return plant


def _fence_at_write_only() -> None:
    """Only writes are fenced, as most texts have it: a read does not raise the fence."""
    _unguarded("source", "token", "prepared", "stock", "lucky")()
    put = StockStore._put

    def patched(self: StockStore, sku: str, batch: Batch, own: Fence | None) -> Put:
        made = put(self, sku, batch, own)
        made.head |= {"source": own.source, "token": own.token} if own else {}
        return made

    StockStore._put = patched  # type: ignore[method-assign]
    _in_lua(
        "look.lua", (_RAISE, ""), ("values[1], values[2], values[3] = request.source, request.token, request.batch", "")
    )()
    _in_lua("put.lua", (_UNITS, _UNITS.replace("\n", _HIGHEST)))()


# -- of the sale -------------------------------------------------------------------------------------------------------


def _no_batch_id() -> None:
    """A batch without an answer can't be found again, and counts as not written."""
    resolve = StockStore.resolve

    async def patched(self: StockStore, fence: Fence, batches: Mapping[str, Batch]) -> Any:
        found = await resolve(self, fence, batches)
        return {sku: None if isinstance(one, list) else one for sku, one in found.items()}

    StockStore.resolve = patched  # type: ignore[method-assign]


def _retries_blindly() -> None:
    """A commit that was not answered is served once more, at once."""
    commit = worker.Worker._commit

    async def patched(self: worker.Worker, fence: Fence, parts: Sequence[batch.Part], together: Any) -> Any:
        try:
            return await commit(self, fence, parts, together)
        except StockUnavailable:
            self._in_doubt._commits.clear()
            for part in parts:
                part.set_state(EntryState.TAKEN)
            raise

    worker.Worker._commit = patched  # type: ignore[method-assign]


def _answers_before_the_commit() -> None:
    """Buyers are told "sold" when the commit was sent, whether or not it was answered."""
    commit = StockStore.commit

    async def patched(self: StockStore, fence: Fence, batches: Mapping[str, Batch], together: Any = ()) -> Any:
        answers: dict[str, Any]
        try:
            answers = await commit(self, fence, batches, together)
        except StockUnavailable:
            answers = dict.fromkeys(batches, StockUnavailable("no answer"))
        for sku, written in batches.items():
            if isinstance(answers[sku], StockError):
                answers[sku] = self.storage.numbers(written.seen.basis.head, len(written.secrets))
        return answers

    StockStore.commit = patched  # type: ignore[method-assign]


def _settles_without_a_fence() -> None:
    """A batch in doubt is looked for, but nothing keeps it from being written later on."""

    async def resolve(self: StockStore, fence: Fence, batches: Mapping[str, Batch]) -> Any:
        puts = {sku: self._put(sku, batch, self._own(fence)) for sku, batch in batches.items()}
        names = {sku: Names(entries=[one.entry for one in put.entries[:1]]) for sku, put in puts.items()}
        found = await self.storage.look(names)
        return {
            sku: one if isinstance(one, StockError) else list(numbers_of(puts[sku])) if one.entries else None
            for sku, one in found.items()
        }

    StockStore.resolve = resolve  # type: ignore[method-assign]
    _unguarded("source", "token", "prepared", "lucky")()


def _repeat_is_sold_out() -> None:
    """A buyer who asks again with the key of an order is told that nothing is left."""
    repeat = decision._repeat

    def patched(now: decision._Now, command: Any, key: str) -> Decision | None:
        found = repeat(now, command, key)
        return Decision(Outcome.SOLD_OUT) if found is not None and found.settled is not None else found

    decision._repeat = patched


def _forgets_keys() -> None:
    """Idempotency keys are ignored."""
    decision._repeat = lambda *about: None


def _answers_for_another() -> None:
    """The key of an order reveals it to anybody who sends the key."""
    repeat = decision._repeat

    def patched(now: decision._Now, command: Any, key: str) -> Decision | None:
        settled = now.snapshot.settled.get(key)
        own = command._replace(buyer=settled.buyer) if settled and isinstance(command, Purchase) else command
        return repeat(now, own, key)

    decision._repeat = patched


def _sent_when_answered() -> None:
    """A purchase counts as sent when its commit is answered, and not when it is sent."""
    set_state = batch.Part.set_state

    def patched(self: batch.Part, state: EntryState) -> None:
        if state is not EntryState.SENT:
            set_state(self, state)

    batch.Part.set_state = patched  # type: ignore[method-assign]


def _unseen_in_batch() -> None:
    """A buyer's purchases in one batch don't count against each other's limit."""
    decide = decision.decide_together

    def patched(items: Mapping[str, Basis], commands: Sequence[Any], *hours: Any, **more: Any) -> Any:
        alone = list[Any]()
        for n, one in enumerate(commands):
            snapshot = items[one.sku].snapshot
            new = isinstance(one, Purchase) and one.key not in snapshot.settled
            alone.append(one._replace(buyer=f"{one.buyer}#{n}") if new else one)
            if new:
                snapshot.bought = {**snapshot.bought, f"{one.buyer}#{n}": snapshot.bought.get(one.buyer or "", 0)}
        return decide(items, alone, *hours, **more)

    batch.decide_together = patched  # type: ignore[attr-defined]


def _buys_twice_without_key() -> None:
    """A purchase without a key is written twice."""
    decide_parts = batch.decide_parts

    def patched(*about: Any) -> list[batch.Part]:
        parts = decide_parts(*about)
        for part in parts:
            again = [replace(one, secret=one.secret[::-1]) for one in part.write.sold if one.key is None]
            part.write = replace(part.write, sold=[*part.write.sold, *again])
        return parts

    worker.decide_parts = patched  # type: ignore[assignment, attr-defined]


def _no_limit() -> None:
    """A buyer's purchases at another instance don't count."""
    decide = decision.decide_together

    def patched(items: Mapping[str, Basis], *commands: Any, **more: Any) -> Any:
        for one in items.values():
            one.snapshot.bought = {}
        return decide(items, *commands, **more)

    batch.decide_together = patched  # type: ignore[attr-defined]


def _sold_out_for_ever() -> None:
    """An instance that has once sold the last unit of an item says "sold out" to everybody from then on."""
    join, gone = Shop.join, set[str]()

    def patched(self: Shop, command: Any, **how: Any) -> Any:
        if command.sku in gone and isinstance(command, Purchase):
            return Answer(Outcome.SOLD_OUT, command.quantity)
        told = join(self, command, **how)
        if isinstance(told, asyncio.Future):

            def note(done: "asyncio.Future[Any]") -> None:
                if not done.cancelled() and done.exception() is None and done.result().outcome is Outcome.SOLD_OUT:
                    gone.add(command.sku)

            told.add_done_callback(note)
        return told

    Shop.join = patched  # type: ignore[method-assign]


# -- of holds and payments ---------------------------------------------------------------------------------------------


def _any_secret() -> None:
    """Anybody who knows an order's number can pay, extend and cancel it: the secret in its id is not looked at."""
    change = decision._Now.change

    def patched(self: decision._Now, command: Any) -> Decision:
        order = self.records.get(command.number)
        return change(self, command if order is None else command._replace(secret=order.secret))

    decision._Now.change = patched  # type: ignore[method-assign]


def _other_puts(change: Callable[[Batch, Put], None]) -> None:
    """Have something else written of each batch."""
    put_of = StockStore._put

    def patched(self: StockStore, sku: str, batch: Batch, own: Fence | None) -> Put:
        made = put_of(self, sku, batch, own)
        change(batch, made)
        return made

    StockStore._put = patched  # type: ignore[method-assign]


def _other_commands(change: Callable[[Put, list[str]], list[str] | None]) -> None:
    """Have other commands sent to Redis of each put, or none."""
    writes = RedisStorage._writes

    def patched(self: RedisStorage, at: Any, put: Put) -> Iterator[list[str]]:
        return (other for one in writes(self, at, put) if (other := change(put, one)) is not None)

    RedisStorage._writes = patched  # type: ignore[method-assign]


def _ignores_extensions() -> None:
    """An expiry looks at the deadline that a hold began with."""
    _other_commands(lambda put, one: [*one[:2], "NX", *one[2:]] if one[0] == "ZADD" else one)


def _unwritten_events() -> None:
    """A cancellation changes how an order stands, and appends nothing to the journal."""

    def change(batch: Batch, put: Put) -> None:
        put.entries = [one for one in put.entries if one.kind is not EventKind.CANCELLED]

    _other_puts(change)


def _holds_dont_count() -> None:
    """A buyer's limit counts what is bought, and not what is held."""

    def change(batch: Batch, put: Put) -> None:
        for one in batch.begun:
            if one.record.state is OrderState.HELD and one.record.buyer is not None:
                put.bought[one.record.buyer] -= one.record.quantity

    _other_puts(change)


def _late_takes_anything() -> None:
    """A late payment takes units without a look at how many are left."""
    confirm = decision._Now._confirm

    def patched(self: decision._Now, order: Any, paid: Any) -> Decision:
        left, self.left = self.left, max(self.left, order.quantity)
        found = confirm(self, order, paid)
        taken = max(left, order.quantity) - self.left
        self.left = left if not taken else max(0, left - taken)
        return found

    decision._Now._confirm = patched  # type: ignore[method-assign]


def _write_anyway(
    now: decision._Now, order: Record, kind: EventKind, units: Units, facts: Facts, bought: int = 0
) -> Record:
    """Have an event written that can't come then."""
    after = order._replace(events=order.events + 1)
    change = OrderChange(now.records[order.number], after, kind, facts | Facts(state=str(order.state)), units, bought)
    now.left += units.stock
    now.changes.append(change)
    now.records[order.number] = after
    return after


def _pays_twice() -> None:
    """A payment that is announced once more counts once more."""
    confirm = decision._Now._confirm

    def patched(self: decision._Now, order: Any, paid: Any) -> Decision:
        if (
            order.state is OrderState.CONFIRMED
            and paid.payment_ref == order.payment_ref
            and self.left >= order.quantity
        ):
            units = Units(stock=-order.quantity, lucky=order.quantity)
            facts = Facts(payment_ref=paid.payment_ref)
            again = _write_anyway(self, order, EventKind.CONFIRMED, units, facts, bought=order.quantity)
            return Decision(ConfirmOutcome.CONFIRMED, record=again)
        return confirm(self, order, paid)

    decision._Now._confirm = patched  # type: ignore[method-assign]


def _drops_amounts() -> None:
    """Nobody looks at the amount of a payment."""
    confirm = decision._Now._confirm

    def patched(self: decision._Now, order: Any, paid: Any) -> Decision:
        return confirm(self, order, paid._replace(amount=None, currency=None))

    decision._Now._confirm = patched  # type: ignore[method-assign]


def _keeps_the_first_price() -> None:
    """An instance goes on with the price of an item that it has read first."""
    of, first = decision.Windows.of, dict[float | None, int | None]()

    def patched(terms: Terms, grace_s: float) -> decision.Windows:
        return of(terms, grace_s)._replace(price=first.setdefault(terms.hold_s, terms.price))  # two items, two windows

    decision.Windows.of = patched  # type: ignore[method-assign]


def _sells_at_all_hours() -> None:
    """Nobody looks whether the sale of an item has begun, or has ended."""
    outside = decision.outside

    def patched(terms: Terms, at: float) -> Outcome | None:
        return outside(replace(terms, starts_at=None, ends_at=None), at)

    batch.outside = patched  # type: ignore[attr-defined]


def _inverts_restocks() -> None:
    """Units that were to be sold again are gone, and those that were to be gone are sold again."""
    refund = decision._Now._refund

    def patched(self: decision._Now, order: Any, command: Any) -> Decision:
        if isinstance(command, Refund):
            command = command._replace(restock=not command.restock)
        return refund(self, order, command)

    decision._Now._refund = patched  # type: ignore[method-assign]


def _tells_an_hour_later() -> None:
    """A buyer is told a deadline that is an hour later than the hold's."""
    from app.web import holds

    def patched(order: OrderId, record: Record, *, whole: bool = False) -> dict[str, Any]:
        told = standing(order, record, whole=whole)
        return told | ({"pay_by": told["pay_by"] + 3600} if told["pay_by"] else {})

    holds.standing = patched  # type: ignore[attr-defined]


def _keeps_cancelled_units() -> None:
    """A cancellation doesn't give the units back."""
    release = decision._Now._release

    def patched(self: decision._Now, order: Record, kind: EventKind, facts: Any = NO_FACTS) -> Record:
        found = release(self, order, kind, facts)
        if kind is EventKind.CANCELLED:
            self.left -= order.quantity
            at = max(n for n, one in enumerate(self.changes) if one.kind is kind)
            self.changes[at] = self.changes[at]._replace(units=Units(held=-order.quantity))
        return found

    decision._Now._release = patched  # type: ignore[method-assign]


def _forgets_what_is_owed() -> None:
    """A payment that can't be used is answered, and not noted."""

    def patched(self: decision._Now, order: Any, paid: Any, told: Any, payment: Any) -> Decision:
        return Decision(decision._not_needed(order), record=order, refund=told.ref)

    decision._Now._decline = patched  # type: ignore[method-assign]


def _keeps_wrong_amounts() -> None:
    """Nobody gives a payment of another amount back when the order waits for no money any more."""
    decision._Now._owe_wrong_payments = lambda self, order: order  # type: ignore[method-assign]


def _expires_what_is_paid() -> None:
    """A hold is not taken off the expiry list when it is paid, and an expiry doesn't look at how it stands."""

    def stays(put: Put, one: list[str]) -> list[str] | None:
        if one[0] != "ZREM":
            return one
        over = [number for number in one[2:] if put.records[number][1].state is OrderState.EXPIRED]
        return [*one[:2], *over] if over else None

    _other_commands(stays)

    def give_back(self: decision._Now, being_paid: set[tuple[str, str]]) -> None:
        for number in self.snapshot.due:
            if (order := self.records.get(number)) is not None:
                if order.state is OrderState.HELD:
                    self._release(order, EventKind.EXPIRED)
                else:
                    expired = order._replace(state=OrderState.EXPIRED)
                    _write_anyway(self, expired, EventKind.EXPIRED, Units(order.quantity, -order.quantity), {})

    decision._Now.give_back = give_back  # type: ignore[method-assign]


def _pays_for_many() -> None:
    """Nobody looks whether a payment is another order's."""
    confirm = decision._Now._confirm

    def patched(self: decision._Now, order: Any, paid: Any) -> Decision:
        if self.payments.get(paid.payment_ref) != order.number:
            self.payments.pop(paid.payment_ref, None)
        return confirm(self, order, paid)

    decision._Now._confirm = patched  # type: ignore[method-assign]


def _shows_anothers_hold() -> None:
    """A buyer who can't have the units is shown the hold of somebody else."""
    hold = decision._Now.hold

    def patched(self: decision._Now, wish: Any, closed: Any, index: int) -> Decision:
        found = hold(self, wish, closed, index)
        other = next((one for one in self.records.values() if one.state is OrderState.HELD), None)
        refused = (found.begins, found.record, found.error, found.repeats) == (None,) * 4
        return Decision(HoldOutcome.HELD, record=other) if refused and other is not None else found

    decision._Now.hold = patched  # type: ignore[method-assign]


def _gives_away() -> None:
    """What has a price is sold at once, for nothing."""
    decision._Now.buy = decision._Now._take  # type: ignore[method-assign]


def _no_mercy() -> None:
    """A hold's units go back at the deadline that the buyer is told, less half a second."""
    hold = decision._Now.hold

    def patched(self: decision._Now, wish: Any, closed: Any, index: int) -> Decision:
        found = hold(self, wish, closed, index)
        early = found.begins and found.begins._replace(due_ms=found.begins.pay_by_ms - 500)
        return replace(found, begins=early) if early else found

    decision._Now.hold = patched  # type: ignore[method-assign]


def _nothing_runs_out() -> None:
    """Holds that have run out stay held."""
    decision._Now.give_back = lambda self, being_paid: None  # type: ignore[method-assign]


def _believes_the_stores_clock() -> None:
    """Holds end by the store's clock, also when it jumps ahead."""
    StoreClock.ahead_s = lambda self, lasting_s: 0.0  # type: ignore[method-assign]


def _restocks_again() -> None:
    """A refund that is asked for once more gives the units back once more."""
    refund = decision._Now._refund

    def patched(self: decision._Now, order: Any, command: Any) -> Decision:
        if order.state is OrderState.REFUNDED and isinstance(command, Refund) and command.restock:
            units, facts = Units(stock=order.quantity, lucky=-order.quantity), Facts(about="order", restock=True)
            again = _write_anyway(self, order, EventKind.REFUNDED, units, facts, bought=-order.quantity)
            return Decision(RefundOutcome.REFUNDED, record=again)
        return refund(self, order, command)

    decision._Now._refund = patched  # type: ignore[method-assign]


# -- of the line -------------------------------------------------------------------------------------------------------


def _overtakes() -> None:
    """Who presses gets units that are left, also while somebody waits."""
    take = decision._Now._take

    def patched(self: decision._Now, wish: Any, closed: Any) -> Decision:
        self.waiting, waiting = 0, self.waiting
        found = take(self, wish, closed)
        self.waiting = waiting
        return found

    decision._Now._take = patched  # type: ignore[method-assign]


def _offers_again() -> None:
    """Who was offered units stays in line, and is offered them once more."""
    _other_commands(lambda put, one: None if _is_of_line(one, "ZREM") else one)
    serve = decision._Now.serve_the_line

    def patched(self: decision._Now) -> None:
        for number in self.snapshot.line:
            if (order := self.records[number]).state is OrderState.HELD and order.quantity <= self.left:
                _write_anyway(self, order, EventKind.OFFERED, Units(-order.quantity, order.quantity), {})
        serve(self)

    decision._Now.serve_the_line = patched  # type: ignore[method-assign]


def _loses_places() -> None:
    """An order that waits is written, and not put in line."""
    _other_commands(lambda put, one: None if _is_of_line(one, "ZADD") else one)


def _is_of_line(command: Sequence[str], verb: str) -> bool:
    return command[0] == verb and command[1].endswith(":waiting")


def _offers_after_the_end() -> None:
    """The line is served whether or not the item is open."""
    init = decision._Now.__init__

    def patched(self: decision._Now, *about: Any) -> None:
        init(self, *about)
        self._closed = None

    decision._Now.__init__ = patched  # type: ignore[assignment, method-assign]


# -- of baskets --------------------------------------------------------------------------------------------------------


def _keeps_lines() -> None:
    """A basket that ends without a payment gives back its first line, and keeps the others."""
    ends = (EventKind.EXPIRED, EventKind.CANCELLED)

    def patched(kind: EventKind, *about: Any) -> Facts | None:
        return None if kind in ends else of_line(kind, *about)

    vars(decision)["of_line"] = patched


def _writes_line_by_line() -> None:
    """The items of a basket are written one by one, and now and then the connection to the store breaks in between."""
    put = RedisStorage.put

    async def patched(self: RedisStorage, puts: Mapping[str, Put], together: Any = ()) -> Any:
        lost = {max(group) for group in together if random.random() < 0.1}  # noqa: S311 - no secret
        found = await put(self, {sku: one for sku, one in puts.items() if sku not in lost})
        return found | dict.fromkeys(lost, StockUnavailable("the connection to the store broke"))

    RedisStorage.put = patched  # type: ignore[method-assign]


def _no_limit_of_groups() -> None:
    """A limit over several items is not looked at."""
    begin = decision._Now.__init__

    def patched(self: decision._Now, *about: Any) -> None:
        begin(self, *about)
        self._group = None

    decision._Now.__init__ = patched  # type: ignore[assignment, method-assign]


def _baskets_overtake() -> None:
    """A basket is decided without a look at those who wait for its other items."""
    hold = decision._Now.hold_basket

    def patched(self: decision._Now, wish: Any, closed: Any, index: int, came_at: float) -> Decision:
        others = {there: there.waiting for sku, _ in wish.lines if (there := self.beside.get(sku))}
        for there in others:
            there.waiting = 0
        found = hold(self, wish, closed, index, came_at)
        for there, waiting in others.items():
            there.waiting = waiting
        return found

    decision._Now.hold_basket = patched  # type: ignore[method-assign]


# -- of the events -----------------------------------------------------------------------------------------------------


def _notes_before_it_sends() -> None:
    """The sender notes that an event has left when it has read it."""
    take = Feed.take

    def patched(self: Feed, event: Event) -> Chain | None:
        chain = take(self, event)
        for slot in self.window:
            slot.done = True
        self.advance()
        return chain

    Feed.take = patched  # type: ignore[method-assign]


def _sends_side_by_side() -> None:
    """The events of one order don't wait for each other."""
    take = Feed.take

    def patched(self: Feed, event: Event) -> Chain | None:
        chain = take(self, event)
        if chain is not None:
            del self.chains[chain.order]
            chain.order = event.entry
            self.chains[event.entry] = chain
        return chain

    Feed.take = patched  # type: ignore[method-assign]


def _forgets_what_is_refused() -> None:
    """An event that was answered has left, whatever the answer is."""
    post = Webhook.post

    async def patched(self: Webhook, messages: Sequence[Message]) -> Result:
        result = await post(self, messages)
        return Result(result.status) if result.status else result

    Webhook.post = patched  # type: ignore[method-assign]


def _tells_how_it_stands() -> None:
    """An event says what has last happened to its order."""
    take, of, newest = Feed.take, Message.of, dict[OrderId, Event]()

    def taken(self: Feed, event: Event) -> Chain | None:
        newest[event.order] = event
        return take(self, event)

    def patched(event: Event, ref: str | None) -> Message:
        last = newest.get(event.order, event)
        return of(replace(event, kind=last.kind, facts=last.facts), ref)

    Feed.take, Message.of = taken, patched  # type: ignore[method-assign]


# -- of the service ----------------------------------------------------------------------------------------------------


def _drops_connections() -> None:
    """Three of ten requests get no answer, as their connection is cut."""
    received = ClientConnection.data_received

    def patched(self: ClientConnection, data: bytes) -> None:
        if random.random() < 0.3 and b"/stock/reduce" in data:  # noqa: S311 - no secret
            self.transport.abort()
        else:
            received(self, data)

    ClientConnection.data_received = patched  # type: ignore[method-assign]


def _refuses(whom: Callable[[Purchase], bool]) -> Callable[[], None]:
    def plant() -> None:
        join = Shop.join

        def patched(self: Shop, command: Any, **how: Any) -> Any:
            if isinstance(command, Purchase) and whom(command):
                raise QueueFull("come back later")
            return join(self, command, **how)

        Shop.join = patched  # type: ignore[method-assign]

    return plant


def _is_unlucky(purchase: Purchase) -> bool:
    each_s, refused_s = _REFUSED_OF_EACH_S
    return zlib.crc32((purchase.buyer or "").encode()) % 10 == 0 and time.time() % each_s < refused_s


def _most(purchase: Purchase) -> bool:
    return random.random() < 0.9  # noqa: S311 - no secret


def _bug(plant: Callable[[], None], *rules: str, what: str = "", under: str = "lost-commit", **more: Any) -> Bug:
    return Bug(what or (plant.__doc__ or "").strip(), rules, (under,), plant, **more)


BUGS: Final[dict[str, Bug]] = {
    "waits-300ms": _bug(_waits_300ms, "locks.exclusive", under="pause-holder"),
    "nobody-waits": _bug(_nobody_waits, "locks.exclusive"),
    "deaf": _bug(_deaf, "service.nobody_waits"),
    "believes-for-ever": _bug(_believes_for_ever, "locks.exclusive", under="pause-holder"),
    "believes-from-the-answer": _bug(_believes_from_the_answer, "locks.exclusive", under="lock-cut", lock="redis"),
    "never-renews": _bug(_never_renews, "locks.kept_in_peace"),
    "leaves-its-keys": _bug(_leaves_its_keys, "locks.left_nothing", "service.goes_on"),
    "no-fence": _bug(
        _unguarded("source", "token", "prepared", "lucky"),
        "locks.orders_in_order",
        "protocol.keeps_its_rule",
        what="The store checks no token and no batch, only that the stock is what was read.",
        under="late-restocked",
    ),
    "tokens-as-text": _bug(
        _in_lua("look.lua", ("tonumber(fence.token) > tonumber(request.token)", "fence.token > request.token")),
        "protocol.keeps_its_rule",
        what="The store compares tokens as texts: 9 is above 10.",
    ),
    "fence-at-write-only": _bug(
        _fence_at_write_only, "money.seen_as_it_was", "protocol.keeps_its_rule", under="late-between"
    ),
    "no-batch-id": _bug(_no_batch_id, "money.wanted", "money.asked_again", under="lost-reply"),
    "retries-blindly": _bug(_retries_blindly, "service.harm_noticed", "money.asked_again", under="lost-answer"),
    "answers-before-the-commit": _bug(_answers_before_the_commit, "money.answers_true"),
    "settles-without-a-fence": _bug(
        _settles_without_a_fence, "money.wanted", "locks.orders_in_order", under="late-restocked"
    ),
    "repeat-is-sold-out": _bug(_repeat_is_sold_out, "money.asked_again"),
    "answers-for-another": _bug(_answers_for_another, "money.keys_are_their_buyers"),
    "forgets-keys": _bug(_forgets_keys, "money.wanted", under="lost-answer"),
    "buys-twice-without-key": _bug(_buys_twice_without_key, "money.wanted"),
    "no-limit": _bug(_no_limit, "money.limits_kept"),
    "unseen-in-batch": _bug(_unseen_in_batch, "money.limits_kept", under="pause"),
    "sent-when-answered": _bug(_sent_when_answered, "money.asked_again", under="lost-reply"),
    "sold-out-for-ever": _bug(_sold_out_for_ever, "money.first_come", "drops.units_kept"),
    "any-secret": _bug(_any_secret, "money.answers_true"),
    "ignores-extensions": _bug(_ignores_extensions, "money.nobody_is_cut_short"),
    "unwritten-events": _bug(_unwritten_events, "money.records_agree"),
    "holds-dont-count": _bug(_holds_dont_count, "money.limits_kept"),
    "late-takes-anything": _bug(_late_takes_anything, "money.units_in_one_place"),
    "pays-twice": _bug(_pays_twice, "money.orders_live_once"),
    "drops-amounts": _bug(_drops_amounts, "money.facts_told"),
    "keeps-the-first-price": _bug(_keeps_the_first_price, "money.prices_kept"),
    "sells-at-all-hours": _bug(_sells_at_all_hours, "money.pauses_kept"),
    "inverts-restocks": _bug(_inverts_restocks, "money.facts_told"),
    "tells-an-hour-later": _bug(_tells_an_hour_later, "money.shown_as_it_stood"),
    "keeps-cancelled-units": _bug(_keeps_cancelled_units, "money.units_in_one_place"),
    "forgets-what-is-owed": _bug(_forgets_what_is_owed, "money.payments_kept"),
    "keeps-wrong-amounts": _bug(_keeps_wrong_amounts, "money.payments_kept"),
    "gives-away": _bug(_gives_away, "model.is_a_run"),
    "expires-what-is-paid": _bug(_expires_what_is_paid, "money.orders_live_once"),
    "pays-for-many": _bug(_pays_for_many, "money.payments_kept"),
    "shows-anothers-hold": _bug(_shows_anothers_hold, "money.answers_true"),
    "no-mercy": _bug(_no_mercy, "money.nobody_is_cut_short"),
    "nothing-runs-out": _bug(_nothing_runs_out, "money.every_hold_ends"),
    "believes-the-stores-clock": _bug(
        _believes_the_stores_clock, "money.everybody_has_their_time", under="store-clock"
    ),
    "overtakes": _bug(_overtakes, "money.nobody_is_overtaken"),
    "offers-again": _bug(_offers_again, "money.nobody_is_overtaken", "money.orders_live_once"),
    "loses-places": _bug(_loses_places, "money.nobody_is_overtaken"),
    "offers-after-the-end": _bug(_offers_after_the_end, "money.nobody_is_overtaken"),
    "keeps-lines": _bug(_keeps_lines, "money.lines_stand_together"),
    "writes-line-by-line": _bug(_writes_line_by_line, "money.lines_stand_together"),
    "no-limit-of-groups": _bug(_no_limit_of_groups, "money.limits_kept"),
    "baskets-overtake": _bug(_baskets_overtake, "money.nobody_is_overtaken"),
    "restocks-again": _bug(_restocks_again, "money.orders_live_once"),
    "notes-before-it-sends": _bug(_notes_before_it_sends, "events.all_delivered", under="kill-sender"),
    "sends-side-by-side": _bug(_sends_side_by_side, "events.in_order"),
    "forgets-what-is-refused": _bug(_forgets_what_is_refused, "events.all_delivered"),
    "tells-how-it-stands": _bug(_tells_how_it_stands, "events.all_delivered"),
    "drops-connections": _bug(_drops_connections, "service.not_cut_in_peace"),
    "some-wait-45s": _bug(
        _refuses(_is_unlucky), "service.nobody_waits", what="One buyer in ten is refused for 45 s of each minute."
    ),
    "refuses-most": _bug(_refuses(_most), "service.nobody_waits", what="Nine purchases of ten are refused."),
    **{
        name: _bug(plant, "cents.each_has_what_is_due", "cents.books_agree", under="kill", cents=True)
        for name, plant in OF_THE_CASHIER.items()
    },
    "no-fsync": _bug(
        lambda: None,
        "money.answers_true",
        what="The store answers before its writes are on disk (`appendfsync no`).",
        under="store-power",
        store_options=("--appendfsync", "no"),
    ),
}
