"""The control room: all instances report themselves, and obey an operator's commands. No sale depends on it.

Instances communicate only by notices in the store: each puts up a report of itself twice a second, and an operator's
commands are notices, too.
"""

import asyncio
import dataclasses
import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from app.dashboard.journal import GrantRecord, Journal
from app.dashboard.picture import (
    SILENT_S,
    InstanceReport,
    InstanceState,
    ItemHistory,
    PastGrant,
    Picture,
    Sample,
    last_events,
    past_grants,
)
from app.dashboard.watch import DashboardWatch
from app.errors import EXPECTED, UnknownItem
from app.forever import end, run_forever
from app.operator import Readiness
from app.orders import DEFAULT_SKU
from app.sale import Shop
from app.stock import Level, StockStore
from fencelock import Scope

_log = logging.getLogger(__name__)

_EVERY_S: Final = 0.5
_STALE_S: Final = 60.0  # an entry that has not changed for longer is removed
_KNOWN_WITHIN_S: Final = 3.0  # after this time it is known whether a report that was there at our start is alive
_COMMAND_S: Final = 10.0  # for so long a command stands on the board
_FRESH_S: Final = 3.0  # an older command is not obeyed; longer than the store's deadline
_SAMPLE_EVERY_S: Final = 2.0
_KEPT_S: Final = 120.0
_GRANTS_KEPT: Final = 4_000
_SKUS_KEPT: Final = 8  # the items that were viewed last have samples
_GRANTS_TOLD_S: Final = 2.5  # a look comes once a second, and reports are half a second old
_TOLD_WHOLE_S: Final = 2.5  # for so long after viewers have come, reports are complete
_GRANTS_TOLD: Final = 12  # at the least


@dataclass(frozen=True, slots=True)
class RoomTask:
    """A task for instances, by their names, with a number, such as the number of buyers to send."""

    what: str
    sku: str
    each: dict[str, FiniteFloat]
    at: float
    over_s: FiniteFloat = 0.0


_reports: Final = TypeAdapter(InstanceReport)
_commands: Final = TypeAdapter(RoomTask)
_REPORT: Final = "report/"
_COMMAND: Final = "command/"
_LOOK: Final = "look/"


@dataclass(slots=True)
class _Notice:
    """A text on the board, and when we first saw it, by the loop's clock."""

    text: str
    since: float


class ControlRoom:
    """An instance's part in the control room: reports, obeys, and draws the picture. It lives on one event loop.

    `obeys`: its commands, which an extension teaches it; that also sets `pausing` and `paused_until`: that our next
    write will be held back, and until when one still is. `lease_ttl_s`: the TTL of the locks' leases; `lacks()`: the
    unavailable dependencies; `port`: where this instance listens.
    """

    def __init__(
        self,
        shop: Shop,
        readiness: Readiness,
        store: StockStore,
        journal: Journal,
        *,
        instance: str,
        lease_ttl_s: float,
        lacks: Callable[[], Awaitable[list[str]]],
        port: int = 0,
    ) -> None:
        self._shop = shop
        self._readiness = readiness
        self._store = store
        self._journal = journal
        self._instance = instance
        self.lease_ttl_s = lease_ttl_s
        self._lacks = lacks
        self._port = port
        self._lacking: list[str] = []
        self._watch = DashboardWatch(journal)
        self._samples: dict[str, deque[Sample]] = {DEFAULT_SKU: deque()}  # samples of the items that were viewed last
        self._past: dict[str, dict[tuple[str, int, float], PastGrant]] = {}  # by lock: the grants that were seen
        self._number = 0
        self._mode = readiness.mode
        self._board: dict[str, _Notice] = {}
        self._heard: set[str] | None = None  # commands on the board at the last look; None before the first look
        self._said: set[str] = set()  # commands of ours that are not on the board yet
        self._withdrawn: set[str] = set()  # commands that may be on the board although the store reported an error
        self._looked_at = -math.inf
        self._tasks: set[asyncio.Task[None]] = set()
        self.obeys: dict[str, Callable[[RoomTask, float], Coroutine[Any, Any, None]]] = {}  # by what is to be done
        self.pausing = 0
        self.paused_until = 0.0
        self._knows = asyncio.Event()  # tells which instances are alive
        self._knows_at = math.inf
        self._looked_since = math.inf

    def start(self) -> None:
        """Report, and listen to commands."""
        self._do(run_forever(self._exchange, every_s=_EVERY_S, log=_log, what="the control room"), "control room")
        self._do(run_forever(self._sample, every_s=_SAMPLE_EVERY_S, log=_log, what="its samples"), "samples")
        self._do(run_forever(self._look_inside, every_s=1.0, log=_log, what="its look inside"), "look inside")

    async def close(self) -> None:
        """End all tasks, and take our report down, if that is possible."""
        await end(*self._tasks)
        try:
            await self._store.notices({}, drop=[_REPORT + self._instance, _LOOK + self._instance])
        except EXPECTED as error:
            _log.debug("the report stays up: %s", error)

    # -- what an operator sees ---------------------------------------------------------------------------------------

    async def picture(self, sku: str, *, auditor: str | None = None) -> Picture:
        """The state of an item's sale. `auditor`: the name of the auditor.

        While nobody watches, reports are short: it takes a second until they have grants and events.
        """
        self._looked_at = asyncio.get_running_loop().time()
        level, queue = await asyncio.gather(self._shop.level(sku), self._readiness.queue(sku), return_exceptions=True)
        for answer in (level, queue):
            if isinstance(answer, BaseException) and not isinstance(answer, EXPECTED):
                raise answer
        if isinstance(level, Level) and sku not in self._samples:
            self._samples[sku] = deque()
            if len(self._samples) > _SKUS_KEPT:
                del self._samples[next(name for name in self._samples if name != DEFAULT_SKU)]
        now, lock = time.time(), self._shop.lock_name(sku)
        instances = self._instances()
        grants = past_grants(instances, lock)
        self._remember(lock, grants, now)
        self._watch.reach("store", None if isinstance(level, Level | UnknownItem) else str(level))
        self._watch.reach("lock", str(queue) if isinstance(queue, EXPECTED) else None)
        self._watch.hear(instances)
        self._watch.audit(auditor)
        if isinstance(queue, list) and self._readiness.lock_system[1].scope is Scope.EVERYBODY:
            self._watch.compare(lock, now, queue, instances, grants)
        return Picture(
            at=now,
            instance=self._instance,
            sku=sku,
            lock=lock,
            lock_system=self._readiness.lock_system[0],
            lock_guarantees=self._readiness.lock_system[1],
            rehearsal=bool(self.obeys),
            guarded=self._store.guarded,
            lease_ttl_s=self.lease_ttl_s,
            level=level if isinstance(level, Level) else None,
            missing=isinstance(level, UnknownItem),
            store_error=str(level) if isinstance(level, EXPECTED) else None,
            queue=queue if isinstance(queue, list) else [],
            lock_error=str(queue) if isinstance(queue, EXPECTED) else None,
            instances=instances,
            grants=grants,
            # With what has just been noted.
            events=last_events([*(one for one in instances if one.report.instance != self._instance), self._self()]),
        )

    def history(self, sku: str) -> ItemHistory:
        """The last two minutes as far as they are known, for a new viewer."""
        seen = self._past.get(self._shop.lock_name(sku), {})
        return ItemHistory(list(self._samples.get(sku, [])), sorted(seen.values(), key=lambda past: past.grant.at))

    def _instances(self) -> list[InstanceState]:
        now = asyncio.get_running_loop().time()
        states = {self._instance: self._self()}
        for name, notice in self._board.items():
            if name.startswith(_REPORT) and name != _REPORT + self._instance:
                try:
                    report = _reports.validate_json(notice.text)
                except ValidationError:
                    continue  # of another version
                report = dataclasses.replace(report, instance=name.removeprefix(_REPORT))
                states[report.instance] = InstanceState(report, now - notice.since)
        return [states[name] for name in sorted(states)]

    def _self(self) -> InstanceState:
        return InstanceState(self._report(), 0.0)

    def _remember_all(self) -> None:
        instances, now = self._instances(), time.time()
        for lock in {self._shop.lock_name(sku) for sku in self._samples}:
            self._remember(lock, past_grants(instances, lock, most=None), now)

    def _remember(self, lock: str, grants: list[PastGrant], now: float) -> None:
        seen = self._past.setdefault(lock, {})
        for past in reversed(grants):
            seen.setdefault((past.instance, past.grant.token, past.grant.at), past)
        for key, past in list(seen.items()):
            if past.grant.at > now - _KEPT_S and len(seen) <= _GRANTS_KEPT:
                break
            del seen[key]

    async def _sample(self) -> None:
        skus = list(self._samples)
        levels = await self._shop.levels(skus)
        now, served = time.time(), {state.report.instance: state.report.served for state in self._instances()}
        for sku, samples in self._samples.items():
            level = levels.get(sku)
            if isinstance(level, Level):
                samples.append(Sample(now, level.stock, level.lucky, served, level.held))
            while samples and samples[0].at < now - _KEPT_S:
                samples.popleft()

    async def _look_inside(self) -> None:
        if self._looked_lately():
            self._lacking = await self._lacks()

    # -- what an operator says ---------------------------------------------------------------------------------------

    async def obeying(self) -> list[str]:
        """The instances that obey commands, once we know which of them are dead."""
        with suppress(TimeoutError):  # if the store does not answer, the caller's own call will fail
            async with asyncio.timeout(_KNOWN_WITHIN_S):
                await self._knows.wait()
        return [one.report.instance for one in self._instances() if one.report.rehearsal and not one.silent]

    async def command(self, what: str, sku: str, each: dict[str, float], *, over_s: float = 0.0) -> None:
        """Have instances do something.

        Raises the store's errors; then the task is withdrawn, and an instance that reads it late does not obey.
        """
        command = RoomTask(what, sku, each, time.time(), over_s)
        name = _COMMAND + secrets.token_hex(8)
        self._said.add(name)
        try:
            await self._store.notices({name: _commands.dump_json(command).decode()})
        except EXPECTED:
            self._withdrawn.add(name)
            raise
        self._obey(command)

    # -- report and obey ---------------------------------------------------------------------------------------------

    async def _exchange(self) -> None:
        if self._readiness.mode != self._mode:
            self._mode = self._readiness.mode
            self._journal.note("mode", mode=self._mode)
        self._number += 1
        now = asyncio.get_running_loop().time()
        put = {_REPORT + self._instance: _reports.dump_json(self._report()).decode()}
        if now - self._looked_at < SILENT_S:
            put[_LOOK + self._instance] = str(self._number)
        withdrawn = set(self._withdrawn)
        old = [
            name
            for name, notice in self._board.items()
            if now - notice.since > (_COMMAND_S if name.startswith(_COMMAND) else _STALE_S)
        ]
        found = await self._store.notices(put, drop=[*old, *withdrawn])
        self._withdrawn -= withdrawn
        board = {}
        # A notice from before our start may be of a dead instance: it has two turns to change.
        if self._heard is None:
            self._knows_at = now + 2 * _EVERY_S
            since = self._knows_at - SILENT_S
        else:
            since = now
        for name, text in found.items():
            before = self._board.get(name)
            board[name] = before if before is not None and before.text == text else _Notice(text, since)
        self._board = board
        if now >= self._knows_at:
            self._knows.set()
        if self._looked_lately():
            self._remember_all()
        commands = {name: text for name, text in found.items() if name.startswith(_COMMAND)}
        # Commands from before our start are not for us.
        new = set() if self._heard is None else commands.keys() - self._heard - self._said
        self._heard = set(commands)
        self._said -= self._heard
        for name in new:
            try:
                command = _commands.validate_json(commands[name])
            except ValidationError:
                _log.debug("not a command: %s", name)
                continue
            if abs(late_s := time.time() - command.at) <= _FRESH_S:
                self._obey(command)
            else:  # the command was late, and withdrawn; or the store came back older
                _log.warning("a command came %.1f s late (or clocks are apart), and was not obeyed", late_s)

    def _report(self) -> InstanceReport:
        now, journal, looked_at = asyncio.get_running_loop().time(), self._journal, self._looked_lately()
        self._looked_since = min(self._looked_since, now) if looked_at else math.inf
        new = now - self._looked_since < _TOLD_WHOLE_S
        return InstanceReport(
            instance=self._instance,
            number=self._number,
            units=journal.units,
            served=journal.served,
            waiting=self._shop.buyers_waiting,
            mode=self._readiness.mode,
            held=journal.held,
            grants=self._grants(whole=new) if looked_at else [],
            events=list(journal.events) if looked_at else [],
            pausing=self.pausing > 0,
            paused_s=max(0.0, self.paused_until - now),
            lacks=self._lacking,
            port=self._port,
            rehearsal=bool(self.obeys),
        )

    def _grants(self, *, whole: bool) -> list[GrantRecord]:
        """The grants that we report: the last ones, or (`whole`) all of the last two minutes."""
        told_s = _KEPT_S if whole else _GRANTS_TOLD_S
        return self._journal.grants_since(time.time() - told_s, least=_GRANTS_TOLD)

    def _looked_lately(self) -> bool:
        looks = [notice.since for name, notice in self._board.items() if name.startswith(_LOOK)]
        return asyncio.get_running_loop().time() - max([self._looked_at, *looks]) < SILENT_S

    def _obey(self, command: RoomTask) -> None:
        number, act = command.each.get(self._instance), self.obeys.get(command.what)
        if number is not None and act is not None:  # else a command is of a rehearsal elsewhere: here it is unknown
            self._do(act(command, number), command.what)

    def _do(self, work: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
