"""The story that `seckill cluster` plays: a rush through all hosts, hosts that are cut off, and a rolling update."""

import asyncio
import json
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from rich.console import Console
from rich.table import Table

from app.orders import DEFAULT_SKU, OrderId
from app.wiring import Sale
from lab.cluster.stage import ClusterStage, set_up
from lab.demo import state_file
from lab.demo.rehearse import Rehearsal, argv_of
from lab.servers.process import Process, ProcessFailed
from lab.torture.buyers import Crowd
from lab.torture.history import HttpCall, Item, Theft

_LASTING: Final = Item("phone", 10**6)  # is not sold out while hosts go and come
_PATIENCE_S: Final = (20.0,)  # longer than an instance lets a buyer wait
_RETRIES: Final = 10
_WITHIN_S: Final = 120.0
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class StoryOptions:
    """`rate`: buyers a second; `away_s`: for how long a host is cut off; `keep`: stay up afterwards, until Ctrl-C."""

    hosts: int
    buyers: int
    stock: int
    rate: float
    away_s: float
    ports: tuple[int, int]
    ttl_s: int
    keep: bool


@dataclass(slots=True)
class Chapter:
    """A part of the story, and the answers that its buyers got."""

    name: str
    began: float
    ended: float = 0.0
    told: list[HttpCall] = field(default_factory=list)

    @property
    def sold(self) -> list[HttpCall]:
        """Return the answers "sold" that were no repetitions, in the order in which they came."""
        return [one for one in self.told if one.outcome == "sold" and not one.replayed]

    @property
    def unanswered(self) -> list[HttpCall]:
        """Return the requests that were refused, or got no answer."""
        return [one for one in self.told if one.status != 200]


class Story:
    """The parts, one after the other. `problems`: events that should not have happened, in sentences."""

    def __init__(self, stage: ClusterStage, sale: Sale, options: StoryOptions, console: Console) -> None:
        self._stage = stage
        self._sale = sale
        self._options = options
        self._console = console
        self._began = time.monotonic()
        self.chapters: list[Chapter] = []
        self._rushed: dict[str, int] = {}  # the orders of the rush, with their units
        self.problems: list[str] = []
        seed = random.getrandbits(32)
        self._crowd = Crowd([stage.balancer], [_LASTING], seed, self._now, self._told, patience_s=_PATIENCE_S)

    async def play(self) -> None:
        """Play it, and judge it."""
        await self._sale.stock.set_stock(DEFAULT_SKU, self._options.stock, new_sale=True)
        await self._sale.stock.set_stock(_LASTING.sku, _LASTING.initial, new_sale=True)
        try:
            await self._rush()
            coming = asyncio.create_task(self._crowd.come(self._options.rate))
            try:
                async with self._chapter("all hosts are there"):
                    await self._some_are_sold()
                await self._cut_off(self._stage.names[-1], "it has no Valkey")
                await self._cut_off_primary()
                await self._update()
            finally:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
            await self._crowd.all_told(_WITHIN_S)
        finally:
            await self._crowd.close()
        await self._judge()

    def table(self) -> Table:
        """Return a table of the results."""
        table = Table("while", "seconds", "sold", "asked again", "longest pause")
        answers = sorted(it.done_at for one in self.chapters for it in one.told if it.outcome == "sold")
        for one in self.chapters:
            moments = [one.began, *(at for at in answers if one.began < at < one.ended), one.ended]
            pause_s = max(after - before for before, after in pairwise(moments))
            figures = (
                f"{one.ended - one.began:.1f}",
                f"{len(one.sold):,}",
                f"{len(one.unanswered):,}",
                f"{pause_s:.1f}",
            )
            table.add_row(one.name, *figures)
        return table

    async def _rush(self) -> None:
        buyers, units = self._options.buyers, self._options.stock
        self._say(f"{buyers:,} buyers press the button at the same instant, for {units:,} units")
        sent = Rehearsal([self._stage.balancer.url], buyers, [DEFAULT_SKU], 1, 0, _RETRIES, 0, None, None)
        crowd = Process("crowd", lambda folder: argv_of(sent, folder / "report.json"))
        try:
            crowd.start()
            await _until(lambda: not crowd.running, "the rush is over")
            report = json.loads((crowd.directory / "report.json").read_text())
        except FileNotFoundError:
            raise ProcessFailed(f"the buyers left no report:\n{crowd.last_lines()}") from None
        finally:
            crowd.stop()
        self._rushed = {one["order"]: one["quantity"] for one in report["answers"] if one["outcome"] == "sold"}
        got = len(self._rushed)
        self._say(f"{got:,} got one, {buyers - got:,} did not, within {report['wall_s']:.1f} s")
        self.problems += report["problems"]
        if got != min(buyers, units):
            self.problems.append(f"in the rush {got} buyers got one of {units} units")

    async def _cut_off(self, name: str, what: str) -> None:
        self._say(f"{name} is cut off: no packet reaches it or leaves it; {what}")
        self._stage.hosts.cut_off(name)
        try:
            async with self._chapter(f"{name} is cut off"):
                await self._some_are_sold()
                await asyncio.sleep(self._options.away_s)
                await self._some_are_sold()
        finally:
            self._stage.hosts.connect(name)
        await self._is_back(name)

    async def _cut_off_primary(self) -> None:
        store = self._stage.store
        old = await asyncio.to_thread(store.primary_now)
        name = self._stage.host_of(old)
        self._say(f"{name} is cut off, whose Valkey is the primary: nothing is sold without a second copy")
        self._stage.hosts.cut_off(name)
        try:
            async with self._chapter(f"{name}, with the primary, is cut off"):
                await _until(lambda: store.primary_now() is not old, "another Valkey is the primary")
                new = self._stage.host_of(await asyncio.to_thread(store.primary_now))
                self._say(f"the Valkey of {new} is the primary; buyers wait, or are asked to come again")
                await asyncio.sleep(self._options.away_s)
        finally:
            self._stage.hosts.connect(name)
        await self._is_back(name)

    async def _is_back(self, name: str) -> None:
        instance = next(one for one in self._stage.instances if one.name == name)
        async with self._chapter(f"{name} is back"):
            await _until(self._stage.store.all_follow, "the copies are in sync")
            await _until(instance.sells, f"{name} sells")
            await self._some_are_sold()
        self._say(f"{name} is back, and sells")

    async def _update(self) -> None:
        self._say("All instances are replaced, one after the other, as a new release")
        async with self._chapter("the rolling update") as update:
            for instance in self._stage.instances:
                await asyncio.to_thread(instance.terminate, within_s=_WITHIN_S)
                await asyncio.to_thread(instance.start)
                await _until(lambda instance=instance: instance.answered() > 0, f"{instance.name} serves buyers")  # type: ignore[misc]
                self._say(f"{instance.name} is replaced")
        # The balancer takes each connection: one that takes too long says that this machine is busy.
        if refused := [one for one in update.unanswered if one.error != "ConnectTimeout"]:
            first = refused[0]
            self.problems.append(
                f"the rolling update refused {len(refused)} requests, the first with {first.status} {first.error}"
            )

    async def _judge(self) -> None:
        self._say("The audit")
        told = [one for chapter in self.chapters for one in chapter.told]
        sold = {one.told or "": one.shown["quantity"] for one in told if one.outcome == "sold"}
        # Without an idempotency key a buyer who got no answer can't ask again, and may have bought.
        unsure = sum(one.key is None and one.status != 200 for one in told)
        for sku, orders, more in ((DEFAULT_SKU, self._rushed, 0), (_LASTING.sku, sold, unsure)):
            audit = await self._sale.audit(sku)
            self.problems += audit.violations
            for order, quantity in orders.items():
                wanted = OrderId.parse(order)
                found = await self._sale.shop.order(wanted) if wanted else None
                if found is None or found.quantity != quantity:
                    self.problems.append(f"a buyer was told of the order {order}, and the store has {found}")
            if not 0 <= audit.orders - len(orders) <= more:
                self.problems.append(f"{sku}: {audit.orders} orders, and buyers were told of {len(orders)}")
            self._say(f"{sku}: {audit.lucky:,} units sold in {audit.orders:,} orders, {audit.stock:,} left")

    @asynccontextmanager
    async def _chapter(self, name: str) -> AsyncIterator[Chapter]:
        one = Chapter(name, self._now())
        self.chapters.append(one)
        try:
            yield one
        finally:
            one.ended = self._now()

    async def _some_are_sold(self, count: int = 20) -> None:
        told = self.chapters[-1].told
        enough = sum(one.outcome == "sold" for one in told) + count
        await _until(lambda: sum(one.outcome == "sold" for one in told) >= enough, "buyers are sold something")

    def _told(self, one: HttpCall | Theft) -> None:
        if isinstance(one, Theft):
            if one.status == 200:
                self.problems.append(f"somebody got the order of another buyer: {one.said}")
            return
        # A request belongs to the part in which it was sent.
        chapter = next((it for it in reversed(self.chapters) if it.began <= one.sent_at), self.chapters[0])
        chapter.told.append(one)

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _say(self, what: str) -> None:
        self._console.print(f"  {self._now():5.1f} s  {what}", highlight=False, markup=False, soft_wrap=True)


async def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WITHIN_S
    while True:
        with suppress(OSError):
            if await asyncio.to_thread(holds):
                return
        if time.monotonic() > deadline:
            raise ProcessFailed(f"not within {_WITHIN_S:.0f} s: {what}")
        await asyncio.sleep(_POLL_S)


def run(options: StoryOptions) -> int:
    """Play the story; return the exit status: 0 if every promise was kept, 1 if not, 130 if it was interrupted."""
    console = Console()
    try:
        console.print(f"Starting {options.hosts} hosts: on each an etcd member, a Redis node and an instance")
        with set_up(options.hosts, options.ports, options.ttl_s) as stage:
            _say_where(stage, console)
            with state_file.told(state_file.of(stage.settings, [stage.balancer.url])):
                problems = asyncio.run(_played(stage, options, console))
                if options.keep:
                    console.print("\n  All of it stays up; Ctrl-C ends it.")
                    _stay()
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    return 1 if problems else 0


async def _played(stage: ClusterStage, options: StoryOptions, console: Console) -> list[str]:
    async with stage.open_sale() as sale:
        story = Story(stage, sale, options, console)
        await story.play()
    console.print(story.table())
    for problem in story.problems[:10]:
        console.print(f"✗ {problem}", style="red", markup=False, highlight=False)
    if not story.problems:
        console.print("Consistent: no unit was sold twice or lost, and each buyer who was told so has an order.")
    return story.problems


def _stay() -> None:
    with suppress(KeyboardInterrupt):
        while True:
            signal.pause()  # also without instances: who replaces them by hand needs the servers


def _say_where(stage: ClusterStage, console: Console) -> None:
    console.print()
    for name, instance in zip(stage.names, stage.instances, strict=True):
        console.print(f"  [bold]{name:16}[/]  [cyan]{instance.address}[/]", highlight=False)
    token = stage.variables["ADMIN_TOKEN"]
    places = [
        ("The shop", stage.balancer.url + "/"),
        ("The control room", f"{stage.balancer.operators_url}/control?token={token}"),
    ]
    for what, place in places:
        console.print(f"  [bold]{what:16}[/]  [cyan]{place}[/]", soft_wrap=True, highlight=False)
    console.print()
