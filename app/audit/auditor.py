"""The auditor: the elected instance checks that no order is missing, and that numbers and orders agree.

    each second       last order of each item: still there? ----> record in the lock system; `missing` in the verdict
    every `every_s`   journals --> ledger of each item --------> compared with units left, held and sold, and records
                                                                   |
    all instances <----------------- verdict, as the leader's value +

An item's state for the instances:

    sold --an order is missing--> halted --it is there again, or `accept-loss`--> sold

Trust: a verdict is proclaimed under the leadership, so an auditor that was overtaken is not heard. It counts for three
intervals after an instance has received it, by that instance's clock; then each instance trusts the orders that it has
itself seen. A violation is checked again before it is published, as a new sale may have begun between two reads.

Failures: after a death another instance is elected, reads the record, and adds everything up afresh. An auditor that
can't look three times in a row gives the office up. While the lock system is away no verdict is heard.
"""

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError
from typing_extensions import override

from app.audit.ledger import Audit, Ledger
from app.audit.record import AuditRecord, read_record
from app.errors import EXPECTED, StockBehind, StockError, StockUnavailable, UnknownItem
from app.forever import end, run_forever
from app.journals import EVERY_S, EntryMissing, Journals, in_pages, pages
from app.office import Office
from app.orders import OrderId
from app.stock import Level, StockStore
from app.stock.refusals import behind
from app.telemetry import logs
from app.telemetry.observer import Observer
from fencelock import LockLost

if TYPE_CHECKING:
    from fencelock import AsyncElection, AsyncLeadership

_log = logging.getLogger(__name__)

_AFRESH: Final = 20  # rounds after which all orders are read again, not only the new ones
_FEW: Final = 10  # idle items that are audited in a round; more if all would not have their turn in `_AFRESH` rounds
_PATIENCE: Final = 3  # failed rounds in a row, after which another instance may try
_AWAY_PAUSE_S: Final = 0.5
_COMPARED_AT_ONCE: Final = 50  # orders of an item whose records are read
_LOOKS: Final = 3  # at a basket that seems to be torn
_SAY_EVERY_S: Final = 10.0
_VIOLATED_MAX: Final = 5000  # items that are named in a verdict
_MISSING_MAX: Final = 5000  # items named in a verdict, which must fit into etcd; beyond that all count as missing
_ALL: Final = "*"
_UNITS_MAX: Final = 1000
_FRESH: Final = 3  # intervals after which a verdict has expired


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The auditor's findings of one round."""

    auditor: str  # the instance
    at: float  # when the round began, in seconds since 1970; each item was read a little later
    items: int
    orders: int
    violations: dict[str, int]  # their number by item, where there are any; the auditor's log has the details
    missing: tuple[str, ...] = ()  # items that lack orders; these are not sold
    owed: int = 0  # payments that are owed, or of a wrong amount

    @property
    def consistent(self) -> bool:
        """True if every invariant held for every item."""
        return not self.violations

    @classmethod
    def parse(cls, text: str) -> "AuditVerdict | None":
        """Read an auditor's proclamation; None if it is no verdict (yet)."""
        try:
            return _VERDICT.validate_json(text)
        except ValidationError:
            return None


_VERDICT: Final = TypeAdapter(AuditVerdict)


async def audit(level: Level, store: StockStore) -> Audit:
    """Check an item as of the moment when `level` was read, even while it is being sold.

    A new sale may begin behind that moment: then a second look finds nothing.
    """
    found = await _audited(level, store)
    return await _audited(await store.level(level.sku), store) if found.violations else found


async def _audited(level: Level, store: StockStore) -> Audit:
    ledger = Ledger()
    async for some in pages(store, level.sku, until=level.last_entry):
        for event in some:
            ledger.add(event)
    return await _compared(ledger, level, store)


async def _compared(ledger: Ledger, level: Level, store: StockStore) -> Audit:
    """Compare, and read the records that no numbers show: money that went back, and holds without an end."""
    found = ledger.compare(level)
    for changed in ledger.payments.changed(_COMPARED_AT_ONCE):
        found.violations += ledger.payments.check(changed, await store.order(level.sku, changed))
    for name in [ledger.baskets.pop() for _ in range(min(_COMPARED_AT_ONCE, len(ledger.baskets)))]:
        found.violations += await _apart(store, name)
    if (number := ledger.overlooked(level)) is not None:
        found.violations += ledger.check_hold(level, number, await store.order(level.sku, number))
    return found


async def _apart(store: StockStore, name: str) -> list[str]:
    """Check that each line of an order stands as the order does. Read again if not: it may change meanwhile."""
    found = list[str]()
    for _ in range(_LOOKS):
        found = [one async for one in _differing_lines(store, name)]
        if not found:
            break
    return found


async def _differing_lines(store: StockStore, name: str) -> AsyncIterator[str]:
    of = OrderId.parse_name(name)
    order = await store.order(of.sku, of.number) if of else None
    for line in order.record.lines if order is not None else ():
        there = await store.order(line.sku, line.number)
        if there is None:  # unless its item has begun another sale
            level = (await store.levels([line.sku]))[line.sku]
            if order is not None and isinstance(level, Level) and int(level.sale or 0) / 1000 <= order.sold_at:
                yield f"order {name} has a line of {line.sku}, which is not there"
        elif order is not None and (there.state, there.quantity) != (order.state, line.quantity):
            yield f"order {name} is {order.state}, and its line of {line.quantity} {line.sku} {there.state}"


async def audit_items(store: StockStore, skus: Sequence[str]) -> AsyncIterator[list[Audit]]:
    """Audit many items, in pages; items that are gone are left out. Raises `StockUnavailable`."""
    for some in in_pages(skus):
        page = []
        for sku, level in (await store.levels(some)).items():
            match level:
                case StockUnavailable():
                    raise level
                case UnknownItem():
                    continue
                case StockError():
                    page.append(Audit(sku, 0, 0, None, violations=[str(level)]))
                case _:
                    with contextlib.suppress(UnknownItem):
                        page.append(await audit(level, store))
        yield page


class Auditor(Office["AsyncLeadership", "_Auditing"]):
    """A candidate for the office, and the auditor once it is elected.

    `every_s`: seconds between two audits; the search for missing orders comes each second. `instance`: our name.
    """

    def __init__(
        self,
        election: "AsyncElection",
        journals: Journals,
        observer: Observer,
        *,
        instance: str,
        every_s: float,
    ) -> None:
        super().__init__("auditor", self._elect)
        self._election = election
        self.journals = journals
        self.observer = observer
        self.instance = instance
        self.every_s = every_s
        self._observing: asyncio.Task[None] | None = None
        self.verdict: AuditVerdict | None = None  # the last verdict of any instance
        self._learned = False  # the orders that it misses, so that we notice ourselves that they are gone
        self._heard_at = 0.0  # when the verdict was heard, by our monotonic clock, as the auditor's may differ

    @property
    def fresh_verdict(self) -> AuditVerdict | None:
        """The last verdict; None if it was heard more than three intervals ago."""
        return self.verdict if time.monotonic() - self._heard_at < _FRESH * self.every_s else None

    @property
    def violations(self) -> int:
        """The number of violations in the last audit of any instance."""
        return sum(self.verdict.violations.values()) if self.verdict else 0

    @property
    def owed(self) -> int:
        """The payments that the last audit found owed, or of a wrong amount."""
        return self.verdict.owed if self.verdict else 0

    @property
    def units(self) -> dict[str, tuple[int, ...]]:
        """Units left and sold of each item, orders in line, and offers to these that were taken and that have lapsed,
        at its last audit; empty for any but the auditor.

        A thousand items at most: each is five lines of `/metrics`.
        """
        work = self.work
        shown = islice(work.levels.items(), _UNITS_MAX) if work is not None else ()
        return {sku: (level.stock, level.lucky, level.waiting, *work.offers(sku)) for sku, level in shown if work}

    def halted(self, sku: str) -> StockError | None:
        """The reason why an item must not be sold: the auditor misses orders of it.

        Without a verdict, which would also say that they are there again, or given up, our own look decides.
        """
        missing = () if self._learned and self.fresh_verdict is None else self.told_missing
        return StockBehind(behind(sku)) if missing and (sku in missing or _ALL in missing) else None

    @property
    def told_missing(self) -> tuple[str, ...]:
        """The items of which orders are missing, as an auditor has found."""
        return self.verdict.missing if self.verdict else ()

    @override
    def start(self) -> None:
        """Stand for election, and listen to the instance that is elected."""
        observing = run_forever(self._observe, every_s=_AWAY_PAUSE_S, log=_log, what="listening to the auditor")
        self._observing = asyncio.get_running_loop().create_task(observing, name="auditor observes")
        super().start()

    @override
    async def close(self) -> None:
        try:
            await super().close()
        finally:
            if self._observing is not None:
                await end(self._observing)

    @override
    def begin(self, grant: "AsyncLeadership") -> "_Auditing":
        return _Auditing(self, grant)

    @asynccontextmanager
    async def _elect(self) -> AsyncIterator["AsyncLeadership"]:
        # Read it at once, for our own sales: an auditor that was killed keeps the office until its lease expires.
        await self.learn()
        async with self._election.campaigning(json.dumps({"auditor": self.instance})) as leadership:
            yield leadership

    async def learn(self) -> None:
        """Refuse the store if it lacks orders that auditors have seen. Raises `LockUnavailable`."""
        await read_record(self._election, self.journals.store)

    async def _observe(self) -> None:
        async for leader in self._election.observe():
            told = leader and AuditVerdict.parse(leader.value)
            if told and told != self.verdict:  # each round's is another one
                self._learned = self._learned and told.missing == self.told_missing
                self.verdict, self._heard_at = told, time.monotonic()
            if self.told_missing and not self._learned:
                await self.learn()
                self._learned = True


class _Auditing:
    """The auditor's work while it leads. `levels`: the level of each item at its last audit."""

    def __init__(self, auditor: Auditor, leadership: "AsyncLeadership") -> None:
        self._auditor = auditor
        self._leadership = leadership
        self._journals, self._store = auditor.journals, auditor.journals.store
        self.levels: dict[str, Level] = {}
        self._found: dict[str, Audit] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._begun: dict[str, int] = {}  # the round in which an item's ledger was made
        self._due: set[str] = set()  # items that have moved since their last audit
        self._rounds = self._failures = 0
        self._said: dict[str, int] = {}  # violations of an item that are in the log
        self._missing = auditor.told_missing  # until our own first look

    async def run(self) -> None:
        """Audit, until we can't look."""
        await self._auditor.learn()
        watching = asyncio.create_task(self._watch(), name="auditor watches")
        try:
            with self._journals.followed() as follower:
                while self._failures < _PATIENCE and not watching.done():
                    self._due |= await follower.moved(0)
                    await self._round()
                    await asyncio.wait([watching], timeout=self._auditor.every_s)
            if not watching.done():
                _log.warning("this instance can't look and gives the office up")
        finally:
            await end(watching)

    def offers(self, sku: str) -> tuple[int, int]:
        """The offers to orders in line that were taken, and that have lapsed."""
        ledger = self._ledgers.get(sku)
        return (ledger.lives.taken, ledger.lives.lapsed) if ledger is not None else (0, 0)

    # -- are orders missing? -----------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Check each second that no order has gone, and record the last ones."""
        record, seen, suspects = AuditRecord(self._leadership), dict[str, str](), set[str]()
        with self._journals.followed() as follower:
            while not self._leadership.lost:
                suspects |= await follower.moved(0)
                try:
                    marks = self._store.marks()
                    await record.write(marks)  # first: others read the missing orders there
                    # Of the others the last entry is there, says the follower.
                    seen = {} if _ALL in self._missing else seen
                    suspects.update(self._missing, (sku for sku, mark in marks.items() if seen.get(sku) != mark))
                    seen, suspects = marks, await self._look_for_missing(suspects)
                except LockLost:
                    return
                except EXPECTED as error:
                    _log.debug("not looked whether orders are missing: %s", error)
                except Exception:
                    _log.exception("unexpected error in looking for missing orders")
                await asyncio.sleep(EVERY_S)

    async def _look_for_missing(self, suspects: set[str]) -> set[str]:
        """Look whether these items lack orders; return the items that could not be read."""
        missing, unread = set(self._missing) - suspects, set[str]()
        for some in in_pages(sorted(suspects - {_ALL})):
            began = time.monotonic()
            found = await self._store.inspect(some)
            if len(suspects) > len(some):
                await self._journals.pace.rest_since(began)
            odd = {sku: answer for sku, answer in found.items() if isinstance(answer, StockError)}
            unread |= {sku for sku, answer in odd.items() if isinstance(answer, StockUnavailable)}
            # An item that could not be read keeps its state.
            missing |= {sku for sku, one in odd.items() if isinstance(one, StockBehind) or sku in self._missing}
        self._missing = tuple(sorted(missing)) if len(missing) <= _MISSING_MAX else (_ALL,)
        # Compared with what was heard: an earlier attempt may have failed, or a round have proclaimed older findings.
        if self._missing != self._auditor.told_missing:
            before = self._auditor.verdict or AuditVerdict(self._auditor.instance, time.time(), 0, 0, {})
            await self._tell(replace(before, auditor=self._auditor.instance, missing=self._missing))
        return unread

    async def _tell(self, verdict: AuditVerdict) -> None:
        await self._leadership.proclaim(_VERDICT.dump_json(verdict).decode())

    # -- do numbers and orders agree? --------------------------------------------------------------------------------

    async def _round(self) -> None:
        at = time.time()
        try:
            await self._look()
            found = self._found.values()
            violations = {one.sku: len(one.violations) for one in found if one.violations}
            sums = len(found), sum(one.orders for one in found), dict(islice(violations.items(), _VIOLATED_MAX))
            owed = sum(one.owed for one in found)
            verdict = AuditVerdict(self._auditor.instance, at, *sums, self._missing, owed)
            await self._tell(verdict)
        except LockLost:
            raise
        except EXPECTED as error:
            _log.log(logging.DEBUG if self._failures else logging.WARNING, "no audit: %s", error)
            self._failures += 1
            self._auditor.observer.audited("failed")
        else:
            self._failures = 0
            self._auditor.observer.audited("consistent" if verdict.consistent else "violated")

    async def _look(self) -> None:
        """Audit the items that have moved, the violated ones, and a few of the others in turn."""
        there = set(await self._journals.items())
        self._rounds += 1
        for kept in (self._ledgers, self.levels, self._found, self._begun):
            for sku in kept.keys() - there:
                del kept[sku]
        odd = {sku for sku, one in self._found.items() if one.violations}
        few = islice(self._found, max(_FEW, math.ceil(len(there) / _AFRESH)))  # the items that were audited longest ago
        anew = there & {*odd, *few, *self._missing}
        skus = sorted(there & self._due | there - self._found.keys() | anew)
        looked_at, said_at = 0, time.monotonic()
        for some in in_pages(skus):
            await self._look_at_page(some, anew)
            self._due.difference_update(some)
            looked_at += len(some)
            if time.monotonic() - said_at > _SAY_EVERY_S:
                said_at = time.monotonic()
                _log.info("audit: looked at %d of %d items", looked_at, len(skus))
        self._due &= there

    async def _look_at_page(self, skus: list[str], anew: set[str]) -> None:
        began = time.monotonic()
        known = {sku: level for sku in skus if sku not in anew and (level := self._journals.levels.get(sku))}
        levels = known | dict(await self._journals.now([sku for sku in skus if sku not in known]))
        await self._journals.pace.rest_since(began)
        found = {}
        for sku, level in levels.items():
            try:
                if isinstance(level, StockError):
                    self.levels.pop(sku, None)
                    raise level
                found[sku] = await self._look_at(sku, level)
            except UnknownItem:
                self._found.pop(sku, None)  # deleted since
            except StockUnavailable:
                raise
            except StockError as error:
                found[sku] = Audit(sku, 0, 0, None, violations=[str(error)])
        began = time.monotonic()
        for sku, answer in (await self._store.inspect([sku for sku in found if sku not in known])).items():
            match answer:
                case StockUnavailable():
                    raise answer
                case StockError():  # such as missing orders, however consistent the rest is
                    if str(answer) not in found[sku].violations:
                        found[sku].violations.append(str(answer))
        await self._journals.pace.rest_since(began)
        for sku, one in found.items():
            self._say(one)
            self._found.pop(sku, None)
            self._found[sku] = one  # behind the others

    async def _look_at(self, sku: str, level: Level) -> Audit:
        """Read the entries since the last look, and compare."""
        self.levels[sku] = level
        one = await self._compare(sku, level)
        if one.violations and sku not in self._said:
            # A new sale may have begun meanwhile: then a second look, from the beginning, finds nothing.
            self._ledgers.pop(sku, None)
            level = self.levels[sku] = await self._store.level(sku)
            one = await self._compare(sku, level)
        return one

    async def _compare(self, sku: str, level: Level) -> Audit:
        ledger = self._ledgers.get(sku)
        if ledger is None or self._rounds - self._begun[sku] >= _AFRESH:  # an old order may have been changed since
            ledger, self._begun[sku] = Ledger(), self._rounds
        last = ledger.last.entry if ledger.last else ""
        if (level.last_entry or "") != last:
            try:
                async for some in pages(self._store, sku, last, until=level.last_entry, pace=self._journals.pace):
                    for event in some:
                        ledger.add(event)
            except EntryMissing:  # a new sale
                self._ledgers.pop(sku, None)
                return await self._compare(sku, level)
        self._ledgers[sku] = ledger
        return await _compared(ledger, level, self._store)

    def _say(self, one: Audit) -> None:
        """Log the violations of an item, once, and again when there are more."""
        before = self._said.pop(one.sku, 0)
        with logs.about(sku=one.sku):
            if len(one.violations) > before:
                for violation in one.violations:
                    _log.error("%s", violation)
            if before and not one.violations:
                _log.info("numbers and orders agree again")
        if one.violations:
            self._said[one.sku] = len(one.violations)
