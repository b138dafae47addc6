"""`make soak`: sells for hours beside short faults, and fails if anything grows that must not, or the books are wrong.

    python -m loadtest.soak [--minutes 60] [--buyers 48] [--judge] [--report soak-report]

etcd, a durable Valkey and two instances that are not restarted; buyers with keys and without, repeats, hung-up clients,
readers and listeners. Each minute something breaks for a moment. A sale lasts a twelfth of the run, then a new one
begins and discards the orders: so memory is a saw-tooth of several teeth a quarter, whose median has to be flat.

The first quarter of the run is warm-up. Of the rest, the median of the last quarter must not be above that of the
second by more than 5 % and a constant. Peaks at a fault move no median; a slow leak lies between the medians with its
growth of half the run; a step counts as what it adds, and is not seen in the last eighth of the run.
"""

import argparse
import asyncio
import base64
import itertools
import json
import random
import re
import statistics
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import redis.asyncio
from redis.exceptions import RedisError
from rich.console import Console
from rich.table import Table

from app.errors import EXPECTED
from app.orders import DEFAULT_SKU
from app.server import raise_file_limit
from app.settings import Settings
from app.stock.redis.keys import keys_of
from lab.demo.stage import LockName, Stage, StageOptions, StoreName, set_up
from lab.servers import EtcdMember
from lab.servers.process import ProcessFailed, free_port

SHARE: Final = 0.05  # of the second quarter's median; the spread between two healthy quarters is a third of that
_ENOUGH: Final = 5  # values that a median needs
_JUDGED_FROM_MINUTES: Final = 20  # before that all is warm-up
_TTL_S: Final = 5
_AGAIN_S: Final = 0.3
_UNITS: Final = 5000  # of a sale, and added when fewer than half of that are left
_TERMS: Final[dict[str, dict[str, int]]] = {DEFAULT_SKU: {}, "limited": {"limit_per_buyer": 2}, "gone": {"stock": 0}}
_LEFT: Final = (httpx.HTTPError, OSError, EOFError)  # no answer, as in a fault; a TimeoutError is an OSError

# The title and the unit of what is sampled, and by how much the last quarter may be above the share; None: it is not
# judged. A leak of one with each fault adds thirty between the two medians of an hour, and one with each new sale six.
# So no slack of a count is as large as six.
QUANTITIES: Final[dict[str, tuple[str, str, float | None]]] = {
    "rss_mib": ("memory (RSS)", "MiB", 4.0),  # arenas of the allocator, of which a few are half empty
    "open_files": ("open file descriptors", "", 5.0),  # buyers' connections, which come and go
    "threads": ("threads", "", 2.0),  # gRPC's and the executor's come with the work
    "etcd_leases": ("leases in etcd", "", 3.0),  # those lent last are kept for two seconds
    "etcd_lock_keys": ("keys under the lock prefix", "", 2.0),  # a waiter, or none, of each instance
    "etcd_watchers": ("watchers in etcd", "", 3.0),  # a waiter has one
    "etcd_open_files": ("etcd's open file descriptors", "", 4.0),  # its log is in a few files
    "store_clients": ("connections of the store", "", 5.0),  # a pool keeps what a rush has opened, 16 at most
    "store_keys": ("keys in the store", "", 2.0),  # refusals of an item are in one key or in two
    "store_notices": ("notices on the board", "", 2.0),  # a look of the control room is one
    "store_bytes_per_order": ("the store's bytes an order", "B", 16.0),  # a hash doubles its table in steps
    "latency_ms": ("median time of a purchase", "ms", 250.0),  # the machine has other work, too
    "latency_p99_ms": ("99 % of purchases take at most", "ms", None),  # a fault in the interval decides it
    "store_mib": ("the store's memory", "MiB", None),  # grows with the orders of a sale
}
Sample = dict[str, float | None]


def medians(at_s: Sequence[float], values: Sequence[float | None]) -> tuple[float, float] | None:
    """Return the medians of the second quarter and of the last; None if there is too little to compare."""
    quarters: list[list[float]] = [[], [], [], []]
    for at, value in zip(at_s, values, strict=True):
        if value is not None:
            quarters[min(3, int(4 * at / at_s[-1]))].append(value)
    if min(len(quarters[1]), len(quarters[3])) < _ENOUGH:
        return None
    return statistics.median(quarters[1]), statistics.median(quarters[3])


def rows(at_s: Sequence[float], samples: Sequence[Sample]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield for each quantity what it is, both medians, the most that is allowed, and a complaint or nothing."""
    seen = sorted({column for sample in samples for column in sample})
    for name, (title, unit, slack) in QUANTITIES.items():
        for column in [one for one in seen if one.split()[-1] == name] or [name]:
            what = column.replace(" ", ": ").replace(name, title)
            found = medians(at_s, [sample.get(column) for sample in samples])
            if found is None:
                yield what, "", "", "", "" if slack is None else f"{what}: too seldom seen to judge"
                continue
            most = found[0] * (1 + SHARE) + (slack or 0)
            before, after, allowed = (f"{one:,.1f} {unit}".strip() for one in (*found, most))
            grew = f"{what} grew from {before} (median of the second quarter) to {after} (of the last one)"
            bad = slack is not None and found[1] > most
            yield what, before, after, "" if slack is None else allowed, f"{grew}; {allowed} is allowed" if bad else ""


class Soak:
    """Buyers, readers, an operator and faults on a stage, and what was seen of it. `told` counts the answers."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._operator = {"Authorization": f"Bearer {stage.admin_token}"}
        self._dice, self._numbers = random.Random(1), itertools.count(1)
        self._orders: deque[str] = deque(["none"], maxlen=100)
        self._took_ms: list[float] = []  # purchases, since the last sample
        self.told: Counter[str] = Counter()
        self.faults = 0
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=4)
        self.http = httpx.AsyncClient(limits=limits, timeout=12, trust_env=False)  # an instance answers earlier
        timeouts: dict[str, Any] = {"socket_timeout": 2, "socket_connect_timeout": 2}
        self.redis = redis.asyncio.Redis.from_url(stage.variables["STORE"], max_connections=1, **timeouts)

    def begin(self, for_s: float, buyers: int) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield what is to run until it is cancelled."""
        yield from (self._come() for _ in range(buyers))
        yield from (self._listen("/stock/live") for _ in range(8))
        yield from (self._listen("/control/live", **self._operator), self._keep_selling(for_s / 12))
        yield self._strike(min(60.0, for_s / 4))

    def _url(self, path: str) -> str:
        return self._dice.choice(self._stage.instances).url + path

    async def _come(self) -> None:
        dice, number = self._dice, self._numbers
        ways: dict[Callable[[], Coroutine[Any, Any, None]], int] = {
            lambda: self._buy(DEFAULT_SKU, f"buyer-{next(number)}", again=0.3): 40,
            lambda: self._buy(DEFAULT_SKU): 20,
            lambda: self._buy("limited", f"again-{next(number)}", buyer=f"regular-{dice.randrange(200)}"): 10,
            lambda: self._buy("gone", f"late-{next(number)}" if dice.random() < 0.5 else None): 5,
            lambda: self._buy(f"unknown-{dice.randrange(500)}"): 2,  # so few that caches of names are full early on
            self._hang_up: 8,
            lambda: self._get(f"/stock?sku={dice.choice(list(_TERMS))}"): 10,
            lambda: self._get(f"/orders/{dice.choice(self._orders)}"): 5,
            lambda: self._get("/orders?limit=50", **self._operator): 1,
        }
        while True:
            await asyncio.sleep(dice.expovariate(4))
            try:
                await dice.choices(list(ways), list(ways.values()))[0]()
            except Exception as error:  # any error of a client when a server is cut off in mid-answer
                self.told[f"no answer: {type(error).__name__}"] += 1
                await asyncio.sleep(_AGAIN_S)

    async def _buy(self, sku: str, key: str | None = None, buyer: str | None = None, again: float = 0.0) -> None:
        params = {"sku": sku} | ({"buyer": name} if (name := buyer or key) else {})
        headers = {"Accept": "application/json"} | ({"Idempotency-Key": key} if key else {})
        while True:  # a buyer with an answer asks again, perhaps elsewhere
            began = time.monotonic()
            answer = await self.http.post(self._url("/stock/reduce"), params=params, headers=headers)
            self._took_ms.append((time.monotonic() - began) * 1000)
            body = answer.json() if answer.status_code == 200 else {}
            self.told["replayed" if body.get("replayed") else body.get("outcome", str(answer.status_code))] += 1
            self._orders.extend(filter(None, [body.get("order")]))
            await asyncio.sleep(_AGAIN_S if answer.status_code == 503 else 0)
            if self._dice.random() >= again:
                return

    async def _hang_up(self) -> None:
        """Send a purchase and leave, at once or a moment later."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._dice.choice((0.001, 0.005, 0.02))):
                await self._buy(DEFAULT_SKU, f"gone-{next(self._numbers)}" if self._dice.random() < 0.5 else None)
        self.told["hung up"] += 1

    async def _get(self, path: str, **headers: str) -> None:
        self.told[f"GET {(await self.http.get(self._url(path), headers=headers)).status_code}"] += 1

    async def _listen(self, path: str, **headers: str) -> None:
        """Read a stream of events for a while, leave, and come again."""
        while True:
            with suppress(*_LEFT):  # most of them are our own time-outs
                async with asyncio.timeout(self._dice.uniform(0.5, 20)):
                    async with self.http.stream("GET", self._url(path), headers=headers) as answer:
                        self.told[f"listened {answer.status_code}"] += 1
                        async for _ in answer.aiter_bytes():
                            pass
            await asyncio.sleep(_AGAIN_S)

    async def _keep_selling(self, sale_s: float) -> None:
        """Begin a new sale of each item every `sale_s` seconds, which discards the one before; add units in between."""
        due = dict.fromkeys(_TERMS, time.monotonic())
        while True:
            for sku, terms in _TERMS.items():
                with suppress(*_LEFT):
                    change: dict[str, Any] = {"stock": _UNITS, "new_sale": True, "forget_orders": "all", **terms}
                    if time.monotonic() < due[sku]:
                        answer = await self.http.get(self._url(f"/stock?sku={sku}"))
                        if sku == "gone" or answer.json().get("stock", _UNITS) >= _UNITS / 2:
                            continue
                        change = {"stock": _UNITS, "add": True}
                    answer = await self.http.put(self._url(f"/stock?sku={sku}"), json=change, headers=self._operator)
                    if answer.status_code not in (200, 503):
                        raise RuntimeError(f"PUT {sku} {change}: {answer.status_code} {answer.text}")
                    due[sku] += sale_s if answer.status_code == 200 and "new_sale" in change else 0
            await asyncio.sleep(2)

    async def _strike(self, every_s: float) -> None:
        """Let one short fault strike after the other."""
        etcd, store, (one, other) = self._stage.locks.processes[0], self._stage.store, self._stage.instances
        # How long each stands still; 0: it is killed and started. An instance loses its leases, and an etcd that stands
        # still is like a path on which nothing arrives, for longer than the deadline of a call and less than a TTL.
        faults = ((one, _TTL_S + 2.0), (etcd, 0), (other, _TTL_S + 2.0), (etcd, 4.0), (store, 0))
        due = time.monotonic() - every_s / 2
        for process, still_s in itertools.cycle(faults):
            due += every_s
            await asyncio.sleep(due - time.monotonic())
            await asyncio.to_thread(process.pause if still_s else process.kill)
            try:
                await asyncio.sleep(still_s or 1.0)
            finally:  # also at the end of the run: the books are looked at then
                await asyncio.to_thread(process.resume if still_s else process.start)
            self.faults += 1

    async def sample(self) -> Sample:
        """Return the present values, as far as there are answers. Raises `ProcessFailed` if an instance has ended."""
        found: Sample = {}
        for at, instance in enumerate(self._stage.instances, 1):
            try:
                process = psutil.Process(instance.pid)
                found[f"instance-{at} rss_mib"] = process.memory_info().rss / 2**20
                found[f"instance-{at} open_files"] = process.num_fds()
                found[f"instance-{at} threads"] = process.num_threads()
            except (psutil.NoSuchProcess, psutil.AccessDenied):  # the latter: for a process that has just ended
                raise ProcessFailed(f"instance-{at} has ended:\n{instance.last_lines()}") from None
        took, self._took_ms = sorted(self._took_ms), []
        if took:
            found |= {"latency_ms": took[len(took) // 2], "latency_p99_ms": took[len(took) * 99 // 100]}
        with suppress(*_LEFT, KeyError):
            found |= await self._ask_etcd()
        with suppress(OSError, RedisError):
            found |= await self._ask_store()
        return found

    async def _ask_etcd(self) -> Sample:
        etcd = self._stage.locks.processes[0]
        assert isinstance(etcd, EtcdMember)
        prefix = Settings.model_fields["lock_prefix"].default
        first, end = (base64.b64encode(f"{prefix}{one}".encode()).decode() for one in "/0")  # "0" comes after "/"
        keys = await asyncio.to_thread(etcd.ask, "kv/range", key=first, range_end=end, count_only=True)
        metrics = (await self.http.get(f"{etcd.endpoint}/metrics", timeout=2)).text
        gauges = dict(re.findall(r"^(\w+) (\S+)$", metrics, re.MULTILINE))
        return {
            "etcd_leases": len(await asyncio.to_thread(etcd.leases)),
            "etcd_lock_keys": int(keys.get("count", 0)),
            "etcd_watchers": float(gauges["etcd_debugging_mvcc_watcher_total"]),
            "etcd_open_files": float(gauges["process_open_fds"]),
        }

    async def _ask_store(self) -> Sample:
        async with self.redis.pipeline(transaction=False) as pipe:
            pipe.info()
            pipe.dbsize()
            pipe.hlen("seckill:notices")
            for keys in map(keys_of, _TERMS):
                pipe.xlen(keys.orders)
                for name in (keys.orders, keys.settled, keys.buyers):
                    pipe.memory_usage(name)
            info, names, notices, *counts = await pipe.execute()
        orders = sum(counts[::4])
        size = sum(filter(None, counts)) - orders
        return {
            "store_clients": info["connected_clients"] - 1,  # without our own
            "store_keys": names,
            "store_notices": notices,
            "store_mib": info["used_memory"] / 2**20,
            "store_bytes_per_order": size / orders if orders >= 1000 else None,  # else most is the store's own
        }


async def _soak(stage: Stage, options: argparse.Namespace, console: Console) -> list[str]:
    """Sell and sample, print the table, and return what is wrong."""
    soak, for_s = Soak(stage), options.minutes * 60
    at_s, samples = list[float](), list[Sample]()
    began, every_s = time.monotonic(), min(5.0, for_s / 40)
    tasks = [asyncio.create_task(one) for one in soak.begin(for_s, options.buyers)]
    try:
        with (options.report / "soak.jsonl").open("w") as file:
            while time.monotonic() - began < for_s:
                await asyncio.sleep((len(at_s) + 1) * every_s - (time.monotonic() - began))
                for task in filter(asyncio.Task.done, tasks):
                    task.result()  # none of our tasks ends by itself
                samples.append(await soak.sample())
                at_s.append(time.monotonic() - began)
                file.write(json.dumps({"at_s": at_s[-1], **samples[-1]}) + "\n")
                file.flush()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await soak.http.aclose()
        await soak.redis.aclose()
    told = ", ".join(f"{what} {count:,}" for what, count in sorted(soak.told.items()))
    console.print(f"{soak.faults} faults. Told: {told}", highlight=False, soft_wrap=True)
    table = Table("", "second quarter", "last quarter", "at most", title=f"{options.minutes:g} minutes")
    wrong = [] if soak.told["sold"] else ["nothing was sold"]
    for *row, complaint in rows(at_s, samples):
        table.add_row(*row, style="red" if complaint else "")
        wrong += [complaint] if complaint and options.judge else []
    console.print(table)
    async with stage.open_sale() as sale:
        for sku in _TERMS:
            wrong += [f"the books of {sku}: {one}" for one in (await sale.audit(sku)).violations]
    return wrong


def main() -> int:
    """Run and judge. Return the exit status: 1 if something grows, has ended or is wrong; 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--buyers", type=int, default=48, help="who are there at once")
    parser.add_argument("--judge", action="store_true", help="growth in less than 20 minutes, too, which are warm-up")
    parser.add_argument("--report", type=Path, default=Path("soak-report"), help="folder for the samples, soak.jsonl")
    options = parser.parse_args()
    options.judge |= options.minutes >= _JUDGED_FROM_MINUTES
    if options.minutes < 0.5:
        parser.error("argument --minutes: half a minute at least")
    raise_file_limit()
    options.report.mkdir(parents=True, exist_ok=True)
    console = Console()
    stage_options = StageOptions(
        0, 2, (free_port(), free_port()), None, LockName("etcd"), StoreName.REDIS, None, _TTL_S
    )
    try:
        with set_up(stage_options, console) as stage:
            wrong = asyncio.run(_soak(stage, options, console))
    except KeyboardInterrupt:
        console.print(f"Stopped; what was seen until now is in {options.report / 'soak.jsonl'}.")
        return 130
    except EXPECTED as error:
        wrong = [str(error)]
    for line in wrong:
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    if not wrong:
        console.print("The books are right. " + ("Nothing grows." if options.judge else "Too short to judge growth."))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
