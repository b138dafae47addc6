"""`make bench`, units that are held and paid: how many buyers a second, and what it costs when many holds run out.

    python -m loadtest.bench.holds [--rounds 5] [--seconds 3] [--connections 500] [--holds 10000] [--report DIR]

A buyer who holds and pays is two requests on one connection, `POST /holds` and `POST /holds/{id}/confirm`; beside them
are purchases by the same program, on the same instances, in turn. And purchases while so many holds run out in the same
instant, beside purchases while nothing does: the longest that one of them waits.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import uvloop
from rich.console import Console

from loadtest.bench.generator import Load, Request, drive
from loadtest.bench.stand import CONTENDERS, TOKEN, Running, Stand

_AIM: Final = 0.4
_WARM_S: Final = 0.7
_HOLDS_PER_S: Final = 700  # are made at least
_RUNS_OUT_S: Final = 2.0  # of purchases, from when the first hold is given back
_ANSWERED_WITHIN_S: Final = 120.0
_READ: Final = (b"outcome", b"id")  # of an answer
_HEAD: Final = (
    "POST {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
)


@dataclass(frozen=True, slots=True)
class Round:
    """A round's figures: purchases, and buyers who hold and pay; purchases with and without holds that run out."""

    purchases: Load
    payers: Load
    calm: Load
    running_out: Load


class _Payer(asyncio.Protocol):
    """A connection, on which one buyer after the other holds a unit and, if `pays`, pays for it."""

    def __init__(self, name: str, wanted: Counter[str], latencies_s: list[float], *, pays: bool) -> None:
        self._name = name
        self._pays = pays
        self._wanted = wanted
        self._latencies_s = latencies_s
        self._rest = b""
        self._number, self._began, self._holding = 0, 0.0, False
        self.until = 0.0
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def hold(self) -> None:
        """Let the next buyer come."""
        self._number, self._holding, self._began = self._number + 1, True, time.perf_counter()
        self._send("/holds", f'{{"buyer":"{self._name}-{self._number}"}}')

    def _send(self, path: str, body: str) -> None:
        head = _HEAD.format(path=path, token=TOKEN)
        self._transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())

    def data_received(self, data: bytes) -> None:
        self._rest += data
        end = self._rest.find(b"\r\n\r\n")
        head = self._rest[:end].lower()
        at = head.find(b"content-length: ")
        length = int(head[at + 16 :].partition(b"\r\n")[0]) if end >= 0 else 0
        if end < 0 or len(self._rest) < end + 4 + length:
            return
        body, self._rest = self._rest[end + 4 :], b""
        self._told(head[9:12].decode(), body)

    def _told(self, status: str, body: bytes) -> None:
        # Not parsed: the buyers share the cores with the instances.
        outcome, own_id = (body.partition(b'"%s":"' % name)[2].partition(b'"')[0].decode() for name in _READ)
        well = status == "200" and outcome == ("held" if self._holding else "confirmed")
        if well and self._holding and self._pays:
            self._holding = False
            self._send(f"/holds/{own_id}/confirm", f'{{"payment_ref":"{self._name}-{self._number}"}}')
            return
        now = time.perf_counter()
        self._latencies_s.append(now - self._began)
        self._wanted["200" if well else f"{status} {outcome}"] += 1
        if now < self.until:
            self.hold()
        else:
            self._end(True)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(False)

    def _end(self, well: bool) -> None:
        if not self.ended.done():
            self.ended.set_result(well)
            self._transport.close()


async def _hold(urls: list[str], connections: int, seconds: float, *, pays: bool) -> Load:
    loop = asyncio.get_running_loop()
    told, latencies_s, began = Counter[str](), list[float](), time.perf_counter()
    buyers = []
    for number in range(connections):
        url, name = urlsplit(urls[number % len(urls)]), f"{time.time_ns()}-{number}"
        make = lambda name=name: _Payer(name, told, latencies_s, pays=pays)  # noqa: E731
        _, buyer = await loop.create_connection(make, url.hostname or "", url.port or 80)
        buyers.append(buyer)
    began = time.perf_counter()
    for buyer in buyers:
        buyer.until = began + seconds
        buyer.hold()
    async with asyncio.timeout(seconds + _ANSWERED_WITHIN_S):
        well = await asyncio.gather(*(buyer.ended for buyer in buyers))
    took_s = time.perf_counter() - began
    latencies_s.sort()
    middle, late = (latencies_s[len(latencies_s) * part // 100] * 1000 for part in (50, 99))
    return Load(
        "asyncio", took_s, len(latencies_s), dict(told), well.count(False), middle, late, latencies_s[-1] * 1000
    )


def pay(urls: list[str], connections: int, seconds: float) -> Load:
    """Let buyers hold and pay, on so many connections; `requests` are the buyers."""
    return uvloop.run(_hold(urls, connections, seconds, pays=True))


def hold(urls: list[str], count: int, connections: int) -> None:
    """Hold so many units, each for another buyer."""
    left = count
    while left > 0:
        some = min(left, connections)
        uvloop.run(_hold(urls, some, 0, pays=False))
        left -= some


def _runs_out(running: Running, count: int, connections: int) -> Load:
    """Buy while so many holds run out at once: nobody gives them back before, as nobody has the lock."""
    hold_s = 3.0 + count / _HOLDS_PER_S
    running.fill(terms={"hold_s": hold_s, "pay_s": hold_s})
    began = time.monotonic()
    hold(running.urls(""), count, connections)
    if time.monotonic() - began > hold_s:
        raise RuntimeError(f"it took longer than {hold_s:g} s to make {count} holds")
    with running.held_up():
        time.sleep(max(0.0, began + hold_s - time.monotonic()) + 2)
    return drive(running.urls(""), connections, _RUNS_OUT_S, request=Request.POST, never_wrk=True)


def _measure(running: Running, connections: int, seconds: float, holds: int) -> Round:
    urls = running.urls("")
    running.fill()
    drive(urls, connections, _WARM_S, request=Request.POST, never_wrk=True)
    purchases = drive(urls, connections, seconds, request=Request.POST, never_wrk=True)
    running.fill()
    pay(urls, connections, _WARM_S)
    payers = pay(urls, connections, seconds)
    running.fill()
    calm = drive(urls, connections, _RUNS_OUT_S, request=Request.POST, never_wrk=True)
    return Round(purchases, payers, calm, _runs_out(running, holds, connections))


def main() -> int:
    """Measure and print; exit status 1 if something was answered otherwise than it should, or a connection broke."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--holds", type=int, default=10_000)
    parser.add_argument("--report", type=Path, default=Path("bench-report"))
    options = parser.parse_args()
    console, rounds = Console(), list[Round]()
    with Stand() as stand, console.status("Starting etcd, the store and the instances") as status:
        running = stand.start(CONTENDERS["holds"], options.instances)
        for number in range(options.rounds):
            status.update(f"Round {number + 1} of {options.rounds}")
            rounds.append(_measure(running, options.connections, options.seconds, options.holds))
    ratios = sorted(one.payers.per_s / one.purchases.per_s for one in rounds)
    middle = statistics.median(ratios)
    colour = "green" if middle >= _AIM else "red"
    console.print(
        f"{statistics.median(one.payers.per_s for one in rounds):,.0f} buyers a second hold and pay, "
        f"[{colour}]{middle:.2f}[/] of those who buy at once ({ratios[0]:.2f}-{ratios[-1]:.2f}; aim: {_AIM})",
        highlight=False,
    )
    more = sorted(one.running_out.longest_ms - one.calm.longest_ms for one in rounds)
    console.print(
        f"While {options.holds:,} holds run out at once, the longest wait of a purchase is "
        f"{statistics.median(more):+,.0f} ms longer ({more[0]:+,.0f} to {more[-1]:+,.0f}), of "
        f"{statistics.median(one.calm.longest_ms for one in rounds):,.0f} ms",
        highlight=False,
    )
    options.report.mkdir(parents=True, exist_ok=True)
    (options.report / "holds.json").write_text(json.dumps([asdict(one) for one in rounds], indent=1))
    loads = [load for one in rounds for load in (one.purchases, one.payers, one.calm, one.running_out)]
    failed = sum(load.lost + load.requests - load.statuses.get("200", 0) for load in loads)
    if failed:
        console.print(f"{failed} requests were not answered as they should be", style="red")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
