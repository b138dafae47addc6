"""The auditor: one of the instances looks, while the sale runs, whether numbers and orders agree, and tells all."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol, TypeVar

from app.audit.ledger import Audit, Ledger
from app.errors import (
    LockCancelled,
    LockLost,
    LockUnavailable,
    SeckillError,
    StockBehind,
    StockError,
    StockUnavailable,
    UnknownItem,
)
from app.locks import Cancel, Election, Leadership
from app.stock import Level, Order, StockStore
from app.telemetry import logs

_log = logging.getLogger(__name__)

Result = TypeVar("Result")

_PAGE: Final = 500  # orders: some milliseconds of the loop that serves the buyers, too
_REST: Final = 20  # times as long as it worked, while buyers wait here: so it takes 5 % of an instance at most
_IDLE_REST: Final = 4  # buyers may wait elsewhere
_AFRESH: Final = 20  # rounds after which all orders are looked at again, not only the new ones
_PATIENCE: Final = 3  # failed rounds in a row, after which somebody else may have a try
_AWAY_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """What the auditor found. For each item it holds for a moment after `at` (seconds since 1970), before it was told.

    `violations`: of those items that have some, how many. What they are is in the auditor's log: it is not for buyers.
    """

    auditor: str
    at: float
    items: int
    orders: int
    violations: dict[str, int]

    @property
    def consistent(self) -> bool:
        """Whether every invariant held for every item."""
        return not self.violations

    @classmethod
    def parse(cls, text: str) -> "AuditVerdict | None":
        """What an auditor has proclaimed; None if it has found nothing out yet, or says something else."""
        try:
            fields: Any = json.loads(text)
            violations = {str(sku): int(number) for sku, number in fields["violations"].items()}
            auditor, at = str(fields["auditor"]), float(fields["at"])
            return cls(auditor, at, int(fields["items"]), int(fields["orders"]), violations)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None


class Stats(Protocol):
    """What an auditor reports, for metrics."""

    def watch_auditor(
        self,
        leads: Callable[[], bool],
        violations: Callable[[], int],
        units: Callable[[], Mapping[str, tuple[int, int]]],
    ) -> None:
        """Report, as it is at each scrape: whether this instance is the auditor, what the last audit found, and if it
        is the auditor the units left and sold of each item that it has seen.
        """

    def audited(self, result: str) -> None:
        """All items were looked at: "consistent", "violated", or "failed" when that could not be finished."""


async def audit(level: Level, store: StockStore) -> Audit:
    """Check an item as of the moment when `level` was read, even while it is being sold."""
    ledger = Ledger()
    async for page in _pages(store, level, None):
        for order in page:
            ledger.add(order)
    return ledger.compare(level)


async def _pages(store: StockStore, level: Level, after: Order | None) -> AsyncIterator[list[Order]]:
    while level.last_entry is not None:
        after_id = after.id if after else None
        page = await store.orders(level.sku, after=after_id, until=level.last_entry, limit=_PAGE)
        yield page
        if len(page) < _PAGE:
            return
        after = page[-1]


class Auditor:
    """A candidate for the office, and the auditor once it is elected. Lives on one event loop.

    `every_s`: between two rounds; `busy` says whether buyers wait, who go first; `instance`: who we are; `learn` holds
    the store to the orders that other instances have seen of some items.
    """

    def __init__(
        self,
        election: Election,
        store: StockStore,
        stats: Stats,
        *,
        instance: str,
        every_s: float,
        busy: Callable[[], bool],
        learn: Callable[[Sequence[str]], Awaitable[object]],
    ) -> None:
        self._election = election
        self._store = store
        self._stats = stats
        self._instance = instance
        self._every_s = every_s
        self._busy = busy
        self._learn = learn
        self._cancel = Cancel()
        self._ledgers: dict[str, Ledger] = {}
        self._levels: dict[str, Level] = {}
        self._rounds = self._failures = 0
        self._said: dict[str, int] = {}  # violations of an item that are in the log
        self._tasks: list[asyncio.Future[Any]] = []
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="seckill-auditor")
        self._leadership: Leadership | None = None
        self.verdict: AuditVerdict | None = None  # the last one, whichever instance found it
        stats.watch_auditor(lambda: self.leads, lambda: self.violations, lambda: self.units)

    @property
    def leads(self) -> bool:
        """Whether this instance is the auditor."""
        return self._leadership is not None and not self._leadership.lost

    @property
    def violations(self) -> int:
        """How many the last audit found, whichever instance made it."""
        return sum(self.verdict.violations.values()) if self.verdict else 0

    @property
    def units(self) -> dict[str, tuple[int, int]]:
        """Units left and sold of each item when it was last looked at; empty unless this instance is the auditor."""
        return {sku: (level.stock, level.lucky) for sku, level in self._levels.items()} if self.leads else {}

    def start(self) -> None:
        """Stand for election, and listen to whoever is elected."""
        loop = asyncio.get_running_loop()
        observing = loop.run_in_executor(self._threads, self._observe)
        self._tasks = [observing, loop.create_task(self._stand_for_ever(), name="auditor")]

    async def close(self) -> None:
        """Give the office up, if we have it."""
        self._cancel.set()
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown()

    def _observe(self) -> None:
        while not self._cancel.is_set():
            try:
                for leader in self._election.observe(cancel=self._cancel):
                    self.verdict = (leader and AuditVerdict.parse(leader.value)) or self.verdict
                return
            except Exception:
                _log.exception("listening to the auditor failed in a way that it must not")
                time.sleep(_AWAY_PAUSE_S)

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        running = asyncio.get_running_loop().run_in_executor(self._threads, function)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self._cancel.set()
            # What it has taken must be given back, by who cancels: we are being closed. What it raises nobody asks for.
            await asyncio.gather(running, return_exceptions=True)
            raise

    async def _stand_for_ever(self) -> None:
        while True:
            try:
                await self._stand()
            except LockUnavailable as error:
                _log.debug("no auditor can be elected: %s", error)
            except Exception:
                _log.exception("the auditor failed in a way that it must not")
            await asyncio.sleep(_AWAY_PAUSE_S)

    async def _stand(self) -> None:
        def campaign() -> None:
            self._leadership = self._election.campaign(json.dumps({"auditor": self._instance}), cancel=self._cancel)

        try:
            await self._in_thread(campaign)
            _log.info("this instance is the auditor")
            while self._failures < _PATIENCE:
                await self._round()
                await asyncio.sleep(self._every_s)
            _log.warning("this instance can't look and gives the office up")
        except LockLost as error:
            _log.info("this instance is the auditor no more: %s", error)
        finally:
            self._ledgers.clear()
            self._levels.clear()
            self._said.clear()
            self._rounds = self._failures = 0
            if self._leadership is not None:
                resigning = asyncio.get_running_loop().run_in_executor(self._threads, self._leadership.resign)
                self._leadership = None
                await asyncio.shield(resigning)

    async def _round(self) -> None:
        at = time.time()
        try:
            found = await self._look_at_all()
            verdict = AuditVerdict(self._instance, at, len(found), sum(one.orders for one in found), _count(found))
            await self._in_thread(lambda: self._proclaim(json.dumps(asdict(verdict), separators=(",", ":"))))
        except (LockLost, LockCancelled):
            raise
        except SeckillError as error:
            _log.log(logging.DEBUG if self._failures else logging.WARNING, "no audit: %s", error)
            self._failures += 1
            self._stats.audited("failed")
        else:
            self._failures = 0
            self._stats.audited("consistent" if verdict.consistent else "violated")

    def _proclaim(self, text: str) -> None:
        if self._leadership is not None:
            self._leadership.proclaim(text)

    async def _look_at_all(self) -> list[Audit]:
        began = time.monotonic()
        skus = await self._store.items()
        self._rounds += 1
        afresh = self._rounds % _AFRESH == 0  # an old order may have been changed since
        self._ledgers = {} if afresh else {sku: self._ledgers[sku] for sku in skus if sku in self._ledgers}
        self._levels = {sku: self._levels[sku] for sku in skus if sku in self._levels}
        # Before anything is read: what was seen by now must be there then.
        await self._learn(skus)
        await self._rest(began)
        found = []
        for sku in skus:
            try:
                one = await self._look_at(sku)
                if one.violations and sku not in self._said:
                    # Or a new sale has begun while we looked: then a second look, from the beginning, finds nothing.
                    self._ledgers.pop(sku, None)
                    one = await self._look_at(sku)
            except UnknownItem:
                continue  # deleted since
            except StockUnavailable:
                raise
            except StockError as error:
                self._levels.pop(sku, None)
                one = Audit(sku, 0, 0, None, violations=[str(error)])
            self._say(one)
            found.append(one)
        return found

    async def _look_at(self, sku: str) -> Audit:
        """Read what has come since the last look, and compare."""
        began = time.monotonic()
        ledger = self._ledgers.setdefault(sku, Ledger())
        if ledger.last is not None and await self._store.order(ledger.last.id) is None:
            ledger = self._ledgers[sku] = Ledger()  # a new sale
        level = self._levels[sku] = await self._store.level(sku)
        async for page in _pages(self._store, level, ledger.last):
            for order in page:
                ledger.add(order)
            await self._rest(began)
            began = time.monotonic()
        result = ledger.compare(level)
        match (await self._store.fences([sku]))[sku]:
            case StockBehind() as error:  # consistent in itself, and yet orders are missing
                result.violations.append(str(error))
            case StockError() as error:
                raise error
        await self._rest(began)
        return result

    async def _rest(self, began: float) -> None:
        worked_s = time.monotonic() - began
        await asyncio.sleep(worked_s * (_REST if self._busy() else _IDLE_REST))

    def _say(self, one: Audit) -> None:
        """What is wrong with an item, once, and again when more is."""
        before = self._said.pop(one.sku, 0)
        with logs.about(sku=one.sku):
            if len(one.violations) > before:
                for violation in one.violations:
                    _log.error("%s", violation)
            if before and not one.violations:
                _log.info("numbers and orders agree again")
        if one.violations:
            self._said[one.sku] = len(one.violations)


def _count(found: list[Audit]) -> dict[str, int]:
    return {one.sku: len(one.violations) for one in found if one.violations}
