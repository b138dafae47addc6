"""The auditor: the elected instance checks that no order is missing, and that numbers and orders agree."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from app.audit.ledger import Audit, Ledger
from app.audit.record import Record, read_record
from app.errors import EXPECTED, StockBehind, StockError, StockUnavailable, UnknownItem
from app.forever import end
from app.orders import Event
from app.stock import Level, StockStore
from app.stock.refusals import behind
from app.telemetry import logs
from app.telemetry.observer import Observer
from fencelock import LockLost, LockUnavailable

if TYPE_CHECKING:
    from fencelock import AsyncElection, AsyncLeadership

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

_PAGE: Final = 500  # orders: some milliseconds of the loop that serves the buyers, too
_REST: Final = 20  # times as long as it worked, while buyers wait here: it takes 5 % of an instance at most
_IDLE_REST: Final = 4  # buyers may wait elsewhere
_REST_MAX_S: Final = 2.0  # a pause of the whole process looks like work
_AFRESH: Final = 20  # rounds after which all orders are read again, not only the new ones
_PATIENCE: Final = 3  # failed rounds in a row, after which another instance may try
_AWAY_PAUSE_S: Final = 0.5
_WATCH_EVERY_S: Final = 1.0
_WATCHED_AT_ONCE: Final = 500  # items
_LOOKED_AT_ONCE: Final = 100  # items
_COMPARED_AT_ONCE: Final = 50  # orders of an item whose records are read
_SAY_EVERY_S: Final = 10.0
_VIOLATED_MAX: Final = 5000  # items that are named in a verdict
_MISSING_MAX: Final = 5000  # items named in a verdict, which must fit into etcd; beyond that all count as missing
_ALL: Final = "*"
_UNITS_MAX: Final = 1000
_FRESH: Final = 3  # intervals after which a verdict has expired


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """The auditor's findings; an item's are as of a moment between `at` (seconds since 1970) and the publication.

    `violations`: their number, by item, where there are any; the details are in the auditor's log, not for buyers.
    `missing`: the items of which orders are missing; these are not sold. `owed`: payments that are to be given back, or
    of a wrong amount.
    """

    auditor: str
    at: float
    items: int
    orders: int
    violations: dict[str, int]
    missing: tuple[str, ...] = ()
    owed: int = 0

    @property
    def consistent(self) -> bool:
        """True if every invariant held for every item."""
        return not self.violations

    @classmethod
    def parse(cls, text: str) -> "AuditVerdict | None":
        """Read what an auditor has proclaimed; None if that is no verdict (yet)."""
        try:
            fields: Any = json.loads(text)
            violations = {str(sku): int(number) for sku, number in fields["violations"].items()}
            auditor, at = str(fields["auditor"]), float(fields["at"])
            missing = tuple(map(str, fields["missing"]))
            items, orders, owed = (int(fields.get(name, 0)) for name in ("items", "orders", "owed"))
            return cls(auditor, at, items, orders, violations, missing, owed)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None


async def audit(level: Level, store: StockStore) -> Audit:
    """Check an item as of the moment when `level` was read, even while it is being sold.

    A new sale may begin behind that moment: then a second look finds nothing.
    """
    found = await _audited(level, store)
    return await _audited(await store.level(level.sku), store) if found.violations else found


async def _audited(level: Level, store: StockStore) -> Audit:
    ledger = Ledger()
    async for page in _pages(store, level, None):
        for event in page:
            ledger.add(event)
    return await _compared(ledger, level, store)


async def _compared(ledger: Ledger, level: Level, store: StockStore) -> Audit:
    """Compare, and read what the numbers can't tell: the records of money that went back, a hold without its end."""
    found = ledger.compare(level)
    for changed in ledger.payments.changed(_COMPARED_AT_ONCE):
        found.violations += ledger.payments.check(changed, await store.order(level.sku, changed))
    if (number := ledger.overlooked(level)) is not None:
        found.violations += ledger.check_hold(level, number, await store.order(level.sku, number))
    return found


async def audit_items(store: StockStore, skus: Sequence[str]) -> AsyncIterator[list[Audit]]:
    """Audit many items, in pages; items that are gone are left out. Raises `StockUnavailable`."""
    for first in range(0, len(skus), _LOOKED_AT_ONCE):
        page = []
        for sku, level in (await store.levels(skus[first : first + _LOOKED_AT_ONCE])).items():
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


async def _pages(store: StockStore, level: Level, after: str | None) -> AsyncIterator[list[Event]]:
    while level.last_entry is not None:
        page = await store.journal(level.sku, after=after, until=level.last_entry, limit=_PAGE)
        yield page
        if len(page) < _PAGE:
            return
        after = page[-1].entry


class Auditor:
    """A candidate for the office, and the auditor once it is elected. Lives on one event loop.

    `every_s`: seconds between two full audits; missing orders are looked for each second. `busy` says whether buyers,
    who go first, wait here; `instance`: our name.
    """

    def __init__(
        self,
        election: "AsyncElection",
        store: StockStore,
        observer: Observer,
        *,
        instance: str,
        every_s: float,
        busy: Callable[[], bool],
    ) -> None:
        self._election = election
        self._store = store
        self._observer = observer
        self._instance = instance
        self._every_s = every_s
        self._busy = busy
        self._ledgers: dict[str, Ledger] = {}
        self._levels: dict[str, Level] = {}
        self._rounds = self._failures = 0
        self._said: dict[str, int] = {}  # violations of an item that are in the log
        self._missing: tuple[str, ...] = ()
        self._tasks: list[asyncio.Future[Any]] = []
        self._leadership: AsyncLeadership | None = None
        self.verdict: AuditVerdict | None = None  # the last one, whichever instance found it
        self._learned = False  # the orders that it misses: we notice ourselves that these are gone
        self._heard_at = 0.0  # the verdict, by a clock of ours that nobody sets: the auditor's may be another

    @property
    def leads(self) -> bool:
        """True if this instance is the auditor."""
        return self._leadership is not None and not self._leadership.lost

    @property
    def fresh_verdict(self) -> AuditVerdict | None:
        """The last verdict; None if it was heard more than three intervals ago."""
        return self.verdict if time.monotonic() - self._heard_at < _FRESH * self._every_s else None

    @property
    def violations(self) -> int:
        """The number of violations that the last audit found, whichever instance made it."""
        return sum(self.verdict.violations.values()) if self.verdict else 0

    @property
    def owed(self) -> int:
        """The payments that are to be given back, or of a wrong amount, as the last audit found them."""
        return self.verdict.owed if self.verdict else 0

    @property
    def units(self) -> dict[str, tuple[int, int]]:
        """Units left and sold of each item at its last audit; empty unless this instance is the auditor.

        A thousand items at most: each is two lines of `/metrics`.
        """
        shown = islice(self._levels.items(), _UNITS_MAX if self.leads else 0)
        return {sku: (level.stock, level.lucky) for sku, level in shown}

    def halted(self, sku: str) -> StockError | None:
        """The reason why an item must not be sold: the auditor, whichever instance that is, misses orders of it.

        If none is heard any more, who would say that they are there again, or given up, our own look decides.
        """
        missing = () if self._learned and self.fresh_verdict is None else self._told_missing
        return StockBehind(behind(sku)) if missing and (sku in missing or _ALL in missing) else None

    @property
    def _told_missing(self) -> tuple[str, ...]:
        return self.verdict.missing if self.verdict else ()

    def start(self) -> None:
        """Stand for election, and listen to the instance that is elected."""
        loop = asyncio.get_running_loop()
        observing = loop.create_task(self._observe(), name="auditor observes")
        self._tasks = [observing, loop.create_task(self._stand_for_ever(), name="auditor")]

    async def close(self) -> None:
        """Give the office up, if we have it."""
        await end(*self._tasks)

    async def _observe(self) -> None:
        while True:
            try:
                async for leader in self._election.observe():
                    told = leader and AuditVerdict.parse(leader.value)
                    if told and told != self.verdict:  # each round's is another one
                        self._learned = self._learned and told.missing == self._told_missing
                        self.verdict, self._heard_at = told, time.monotonic()
                    if self._told_missing and not self._learned:
                        await read_record(self._election, self._store)
                        self._learned = True
                return
            except LockUnavailable as error:
                _log.debug("not learned which orders are missing: %s", error)
                await asyncio.sleep(_AWAY_PAUSE_S)
            except Exception:
                _log.exception("unexpected error in listening to the auditor")
                await asyncio.sleep(_AWAY_PAUSE_S)

    async def _stand_for_ever(self) -> None:
        while True:
            try:
                await self._stand()
            except LockUnavailable as error:
                _log.debug("no auditor can be elected: %s", error)
            except Exception:
                _log.exception("unexpected error in the auditor")
            await asyncio.sleep(_AWAY_PAUSE_S)

    async def _stand(self) -> None:
        watching: asyncio.Task[None] | None = None
        # Read it at once, for our own sales: an auditor that was killed keeps the office until its lease expires.
        await read_record(self._election, self._store)
        try:
            self._leadership = await self._election.campaign(json.dumps({"auditor": self._instance}))
            _log.info("this instance is the auditor")
            await read_record(self._election, self._store)
            self._missing = self._told_missing  # until our own first look
            watching = asyncio.create_task(self._watch(), name="auditor watches")
            while self._failures < _PATIENCE and not watching.done():
                await self._round()
                await asyncio.wait([watching], timeout=self._every_s)
            if not watching.done():
                _log.warning("this instance can't look and gives the office up")
        except LockLost as error:
            _log.info("this instance is the auditor no more: %s", error)
        finally:
            try:
                if watching is not None:
                    await end(watching)
            finally:
                self._ledgers.clear()
                self._levels.clear()
                self._said.clear()
                self._rounds = self._failures = 0
                self._missing = ()
                if self._leadership is not None:
                    leadership, self._leadership = self._leadership, None
                    await leadership.resign()

    # -- are orders missing? -----------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Check each second that no order has gone, and record the last ones."""
        assert self._leadership is not None  # noqa: S101 - for the type checker
        record = Record(self._leadership)
        while self.leads:
            try:
                await record.write(self._store.marks())  # first: others read there what is missed
                await self._look_for_missing()
            except LockLost:
                return
            except EXPECTED as error:
                _log.debug("not looked whether orders are missing: %s", error)
            except Exception:
                _log.exception("unexpected error in looking for missing orders")
            await asyncio.sleep(_WATCH_EVERY_S)

    async def _look_for_missing(self) -> None:
        skus = sorted(self._store.marks().keys() | self._levels.keys())
        missing = []
        for first in range(0, len(skus), _WATCHED_AT_ONCE):
            began = time.monotonic()
            found = await self._store.inspect(skus[first : first + _WATCHED_AT_ONCE])
            if len(skus) > _WATCHED_AT_ONCE:
                await self._rest(began)
            missing += [sku for sku, answer in found.items() if self._is_missing(sku, answer)]
        self._missing = tuple(missing) if len(missing) <= _MISSING_MAX else (_ALL,)
        # Compared with what was heard: an earlier attempt may have failed, or a round have proclaimed older findings.
        if self._missing != self._told_missing:
            before = self.verdict or AuditVerdict(self._instance, time.time(), 0, 0, {})
            await self._tell(replace(before, auditor=self._instance, missing=self._missing))

    def _is_missing(self, sku: str, answer: object) -> bool:
        # An item that could not be read keeps its state.
        return isinstance(answer, StockBehind) or (isinstance(answer, StockError) and sku in self._missing)

    async def _tell(self, verdict: AuditVerdict) -> None:
        text = json.dumps(asdict(verdict), separators=(",", ":"))
        if self._leadership is not None:
            await self._leadership.proclaim(text)

    # -- do numbers and orders agree? --------------------------------------------------------------------------------

    async def _round(self) -> None:
        at = time.time()
        try:
            found = await self._look_at_all()
            seen = found.items, found.orders, found.violations
            verdict = AuditVerdict(self._instance, at, *seen, self._missing, found.owed)
            await self._tell(verdict)
        except LockLost:
            raise
        except EXPECTED as error:
            _log.log(logging.DEBUG if self._failures else logging.WARNING, "no audit: %s", error)
            self._failures += 1
            self._observer.audited("failed")
        else:
            self._failures = 0
            self._observer.audited("consistent" if verdict.consistent else "violated")

    async def _look_at_all(self) -> "_Tally":
        """Audit all items in pages; an item of which nothing was sold since the last look costs a part of two calls."""
        began = said_at = time.monotonic()
        skus = await self._store.items()
        self._rounds += 1
        afresh = self._rounds % _AFRESH == 0  # an old order may have been changed since
        there = set(skus)
        self._ledgers = {} if afresh else {sku: one for sku, one in self._ledgers.items() if sku in there}
        self._levels = {sku: level for sku, level in self._levels.items() if sku in there}
        await self._rest(began)
        tally = _Tally()
        for first in range(0, len(skus), _LOOKED_AT_ONCE):
            for one in await self._look_at_page(skus[first : first + _LOOKED_AT_ONCE]):
                self._say(one)
                tally.add(one)
            if time.monotonic() - said_at > _SAY_EVERY_S:
                said_at = time.monotonic()
                _log.info("audit: looked at %d of %d items", min(first + _LOOKED_AT_ONCE, len(skus)), len(skus))
        return tally

    async def _look_at_page(self, skus: list[str]) -> list[Audit]:
        began = time.monotonic()
        levels = await self._store.levels(skus)
        await self._rest(began)
        found = {}
        for sku, level in levels.items():
            if isinstance(level, StockUnavailable):
                raise level
            if isinstance(level, UnknownItem):
                continue  # deleted since
            if isinstance(level, StockError):
                self._levels.pop(sku, None)
                found[sku] = Audit(sku, 0, 0, None, violations=[str(level)])
                continue
            try:
                found[sku] = await self._look_at(sku, level)
            except UnknownItem:
                continue
            except StockUnavailable:
                raise
            except StockError as error:
                found[sku] = Audit(sku, 0, 0, None, violations=[str(error)])
        began = time.monotonic()
        for sku, answer in (await self._store.inspect(list(found))).items():
            match answer:
                case StockUnavailable():
                    raise answer
                case StockError():  # such as missing orders, however consistent the rest is
                    if str(answer) not in found[sku].violations:
                        found[sku].violations.append(str(answer))
        await self._rest(began)
        return list(found.values())

    async def _look_at(self, sku: str, level: Level) -> Audit:
        """Read what has come since the last look, and compare."""
        self._levels[sku] = level
        one = await self._compare(sku, level)
        if one.violations and sku not in self._said:
            # A new sale may have begun meanwhile: then a second look, from the beginning, finds nothing.
            self._ledgers.pop(sku, None)
            level = self._levels[sku] = await self._store.level(sku)
            one = await self._compare(sku, level)
        return one

    async def _compare(self, sku: str, level: Level) -> Audit:
        ledger = self._ledgers.get(sku) or Ledger()
        last = ledger.last
        if level.last_entry != (last and last.entry):
            began = time.monotonic()
            if last is not None:
                order = await self._store.order(last.sku, last.order.number)
                if order is None or order.id != last.order:
                    ledger = Ledger()  # a new sale
            async for page in _pages(self._store, level, ledger.last.entry if ledger.last else None):
                for event in page:
                    ledger.add(event)
                await self._rest(began)
                began = time.monotonic()
            self._ledgers[sku] = ledger
        return await _compared(ledger, level, self._store)

    async def _rest(self, began: float) -> None:
        worked_s = time.monotonic() - began
        await asyncio.sleep(min(_REST_MAX_S, worked_s * (_REST if self._busy() else _IDLE_REST)))

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


class _Tally:
    """The findings of a round."""

    def __init__(self) -> None:
        self.items = self.orders = self.owed = 0
        self.violations: dict[str, int] = {}

    def add(self, one: Audit) -> None:
        self.items += 1
        self.orders += one.orders
        self.owed += one.owed
        if one.violations and len(self.violations) < _VIOLATED_MAX:
            self.violations[one.sku] = len(one.violations)
