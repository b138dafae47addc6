"""The control room: what all instances say of themselves, and what an operator has them do. No sale rests on it.

Instances know nothing of each other but what they put up in the store: each a report of itself, twice a second, and
whichever an operator speaks to, the operator's commands.
"""

import asyncio
import dataclasses
import logging
import math
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from app.dashboard.journal import Journal
from app.dashboard.picture import InstanceState, Picture, Report, last_events, past_grants
from app.dashboard.stalling import StallingStore
from app.errors import SeckillError, UnknownItem
from app.forever import run_forever
from app.sale import Admin, Purchase, Shop
from app.stock import Level

_log = logging.getLogger(__name__)

_EVERY_S: Final = 0.5
_SILENT_S: Final = 3.0  # an instance that was silent for longer is not counted on
_STALE_S: Final = 60.0  # an entry that has not changed for longer is removed
_COMMAND_S: Final = 10.0  # how long a command is up
_FRESH_S: Final = 3.0  # a command that is older is not obeyed; longer than the store's deadline
_SLICE: Final = 100  # buyers of a rush who come without a pause for others
_TOGETHER_S: Final = 1.0  # until a rush begins, so that all instances have heard of it
_STALL_WITHIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Command:
    """Tasks for the instances, by their names: a number of buyers to send (`rush`), or seconds to pause (`pause`)."""

    what: str
    sku: str
    each: dict[str, FiniteFloat]
    at: float
    over_s: FiniteFloat = 0.0


_reports: Final = TypeAdapter(Report)
_commands: Final = TypeAdapter(Command)
_REPORT: Final = "report/"
_COMMAND: Final = "command/"
_LOOK: Final = "look/"


@dataclass(slots=True)
class _Notice:
    """A text on the board, and when it was new to us, by the loop's clock."""

    text: str
    since: float


class ControlRoom:
    """An instance's part in it: reports, obeys, and draws the picture. Lives on one event loop.

    `lease_ttl_s`: of the locks' leases.
    """

    def __init__(
        self,
        shop: Shop,
        admin: Admin,
        journal: Journal,
        stalling: StallingStore,
        *,
        instance: str,
        lease_ttl_s: float,
    ) -> None:
        self._shop = shop
        self._admin = admin
        self._journal = journal
        self._stalling = stalling
        self._instance = instance
        self.lease_ttl_s = lease_ttl_s
        self._number = 0
        self._mode = admin.mode
        self._board: dict[str, _Notice] = {}
        self._heard: set[str] | None = None  # commands that were up at the last look; None before the first one
        self._said: set[str] = set()  # commands of ours that were not up yet
        self._withdrawn: set[str] = set()  # those that may be up although we were told that they are not
        self._looked_at = -math.inf
        self._tasks: set[asyncio.Task[None]] = set()
        self._pausing = 0
        self._paused_until = 0.0

    def start(self) -> None:
        """Report, and listen to commands."""
        self._do(run_forever(self._exchange, every_s=_EVERY_S, log=_log, what="the control room"), "control room")

    async def close(self) -> None:
        """End what was begun, and take our report down, so far as that can be done."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self._admin.notices({}, drop=[_REPORT + self._instance, _LOOK + self._instance])
        except SeckillError as error:
            _log.debug("the report stays up: %s", error)

    # -- what an operator sees ---------------------------------------------------------------------------------------

    async def picture(self, sku: str) -> Picture:
        """How the sale of an item stands.

        While nobody looks, instances report only what is short: it takes them a second to tell of grants and events.
        """
        self._looked_at = asyncio.get_running_loop().time()
        level, queue = await asyncio.gather(self._shop.level(sku), self._admin.queue(sku), return_exceptions=True)
        for answer in (level, queue):
            if isinstance(answer, BaseException) and not isinstance(answer, SeckillError):
                raise answer
        now, lock = asyncio.get_running_loop().time(), self._shop.lock_name(sku)
        states = {self._instance: InstanceState(self._report(), 0.0)}
        for name, notice in self._board.items():
            if name.startswith(_REPORT) and name != _REPORT + self._instance:
                try:
                    report = _reports.validate_json(notice.text)
                except ValidationError:
                    continue  # of another version
                report = dataclasses.replace(report, instance=name.removeprefix(_REPORT))
                states[report.instance] = InstanceState(report, now - notice.since)
        instances = [states[name] for name in sorted(states)]
        return Picture(
            at=time.time(),
            instance=self._instance,
            sku=sku,
            lock=lock,
            lock_system=self._admin.lock_system[0],
            lock_guarantees=self._admin.lock_system[1],
            guarded=self._admin.guarded,
            lease_ttl_s=self.lease_ttl_s,
            level=level if isinstance(level, Level) else None,
            missing=isinstance(level, UnknownItem),
            store_error=str(level) if isinstance(level, SeckillError) else None,
            queue=queue if isinstance(queue, list) else [],
            lock_error=str(queue) if isinstance(queue, SeckillError) else None,
            instances=instances,
            grants=past_grants(instances, lock),
            events=last_events(instances),
        )

    # -- what an operator says ---------------------------------------------------------------------------------------

    async def rush(self, sku: str, buyers: int, *, over_s: float = 0.0) -> list[str]:
        """Have buyers come, spread evenly over all instances and over `over_s` seconds; the names of the instances.

        Raises what the store raises; then the task is withdrawn, and an instance that reads it late does not obey.
        """
        names = self._present()
        share, more = divmod(buyers, len(names))
        each: dict[str, float] = {name: share + (place < more) for place, name in enumerate(names)}
        each = {name: number for name, number in each.items() if number}
        await self._command(Command("rush", sku, each, time.time(), over_s))
        return list(each)

    async def pause(self, sku: str, for_s: float) -> str:
        """Have the holder of an item's lock hold its next write back, or this instance if nobody has it; its name.

        Its leases are not renewed meanwhile: like a process that stands still at the worst moment.
        """
        queue = await self._admin.queue(sku)
        holder = next((str(one.owner.get("instance")) for one in queue if one.holds), self._instance)
        name = holder if holder in self._present() else self._instance
        await self._command(Command("pause", sku, {name: for_s}, time.time()))
        return name

    def _present(self) -> list[str]:
        now = asyncio.get_running_loop().time()
        others = {
            name.removeprefix(_REPORT)
            for name, notice in self._board.items()
            if name.startswith(_REPORT) and now - notice.since < _SILENT_S
        }
        return sorted(others | {self._instance})

    async def _command(self, command: Command) -> None:
        name = _COMMAND + secrets.token_hex(8)
        self._said.add(name)
        try:
            await self._admin.notices({name: _commands.dump_json(command).decode()})
        except SeckillError:
            self._withdrawn.add(name)
            raise
        self._obey(command)

    # -- report and obey ---------------------------------------------------------------------------------------------

    async def _exchange(self) -> None:
        if self._admin.mode != self._mode:
            self._mode = self._admin.mode
            self._journal.note("mode", mode=self._mode)
        self._number += 1
        now = asyncio.get_running_loop().time()
        put = {_REPORT + self._instance: _reports.dump_json(self._report()).decode()}
        if now - self._looked_at < _SILENT_S:
            put[_LOOK + self._instance] = str(self._number)
        withdrawn = set(self._withdrawn)
        old = [
            name
            for name, notice in self._board.items()
            if now - notice.since > (_COMMAND_S if name.startswith(_COMMAND) else _STALE_S)
        ]
        found = await self._admin.notices(put, drop=[*old, *withdrawn])
        self._withdrawn -= withdrawn
        board = {}
        for name, text in found.items():
            before = self._board.get(name)
            board[name] = before if before is not None and before.text == text else _Notice(text, now)
        self._board = board
        commands = {name: text for name, text in found.items() if name.startswith(_COMMAND)}
        # What was said before we came was not meant for us.
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
            else:  # held up on its way, and not wanted any more; or the store came back older than it was
                _log.warning("a command came %.1f s late (or clocks are apart), and was not obeyed", late_s)

    def _report(self) -> Report:
        now, journal = asyncio.get_running_loop().time(), self._journal
        looks = [notice.since for name, notice in self._board.items() if name.startswith(_LOOK)]
        looked_at = now - max([self._looked_at, *looks]) < _SILENT_S
        return Report(
            instance=self._instance,
            number=self._number,
            units=journal.units,
            waiting=self._shop.buyers_waiting,
            mode=self._admin.mode,
            held=journal.held,
            grants=list(journal.grants) if looked_at else [],
            events=list(journal.events) if looked_at else [],
            pausing=self._pausing > 0,
            paused_s=max(0.0, self._paused_until - now),
        )

    def _obey(self, command: Command) -> None:
        number = command.each.get(self._instance)
        if number is None:
            return
        if command.what == "rush":
            self._do(self._send(command, int(number)), "rush")
        elif command.what == "pause":
            self._do(self._pause(command.sku, number), "pause")

    def _do(self, work: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, command: Command, buyers: int) -> None:
        """Our part of a rush: purchases like any others, without the way through HTTP."""
        await asyncio.sleep(min(_TOGETHER_S, max(0.0, command.at + _TOGETHER_S - time.time())))
        rush = secrets.token_hex(4)

        async def buy(number: int) -> str:
            await asyncio.sleep(command.over_s * number / buyers)
            try:
                answer = await self._shop.buy(Purchase(1, command.sku, f"rush-{rush}-{number}"))
            except SeckillError as error:
                return type(error).__name__
            return answer.outcome

        async with asyncio.TaskGroup() as crowd:
            coming = []
            for number in range(buyers):
                coming.append(crowd.create_task(buy(number)))
                if number % _SLICE == 0:
                    await asyncio.sleep(0)  # others have their turn, too
        told = Counter(one.result() for one in coming)
        self._journal.note("rush", buyers=buyers, **{str(name): count for name, count in told.items()})

    async def _pause(self, sku: str, for_s: float) -> None:
        loop = asyncio.get_running_loop()

        def begins(token: int) -> None:
            self._admin.pause_renewal(for_s)
            self._paused_until = loop.time() + for_s
            self._journal.note("paused", token=token, for_s=for_s)

        self._pausing += 1
        try:
            await self._shop.level(sku)  # nothing is ever written of an item that isn't there
            await self._stalling.stall(sku, for_s, begins, within_s=_STALL_WITHIN_S)
        except SeckillError as error:
            _log.warning("no pause: %s", error)
        finally:
            self._pausing -= 1
