"""`make bench`, the whole flow: hold, the provider's signed callback, and the event that says so at the shop's door.

    python -m loadtest.bench.flow [--buyers 3000] [--connections 100] [--instances 2] [--batch 1] [--report DIR]

A round ends when the receiver has the `order.confirmed` of every buyer. Payer, receiver, servers and instances share
the cores of this machine.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from base64 import b64encode
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import uvicorn
import uvloop
from rich.console import Console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lab.callback import body_of, signed
from lab.servers.process import free_port
from loadtest.bench.stand import CONTENDERS, Running, Stand

_SECRET: Final = "whsec_" + b64encode(b"no secret: of the benchmark only").decode()
_WITHIN_S: Final = 300.0
_ALONE: Final = 20  # buyers before the others, one after the other


class CountingReceiver:
    """Takes the events, and counts the orders that are confirmed."""

    def __init__(self, buyers: int) -> None:
        self._left = buyers
        self._confirmed: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.all_there = asyncio.Event()

    async def has(self, order: str) -> None:
        """Wait until an order is confirmed here."""
        await self._confirmed[order].wait()

    async def take(self, request: Request) -> Response:
        """Take an event, or a batch."""
        found = await request.json()
        for event in found.get("events", [found]):
            if event["type"] == "order.confirmed":
                confirmed = self._confirmed[event["data"]["order"]]
                self._left -= not confirmed.is_set()
                confirmed.set()
        if not self._left:
            self.all_there.set()
        return Response(status_code=204)


class Payer:
    """A connection, on which one buyer after the other holds a unit, and their payment is announced."""

    def __init__(self, url: str) -> None:
        self._where = urlsplit(url)

    async def connect(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(self._where.hostname, self._where.port)

    async def _post(self, path: str, body: str, headers: dict[str, str] | None = None) -> Any:
        lines = [f"POST {path} HTTP/1.1", "Host: bench", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self._writer.write("\r\n".join([*lines, "", body]).encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return json.loads(await self._reader.readexactly(length))

    async def buy(self, name: str) -> str:
        """Hold a unit, and announce its payment as the provider does; return the order."""
        held = await self._post("/holds", json.dumps({"buyer": name}))
        body = body_of("payment.succeeded", {"hold": held["id"], "payment_ref": name})
        told = await self._post("/payments/webhook", body, signed(_SECRET, name, body))
        if told.get("outcome") != "confirmed":
            raise RuntimeError(f"a payment was answered {told}")
        return str(held["id"])

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


async def _delay_s(payer: Payer, receiver: CountingReceiver) -> float:
    """The median time from the answer to a payment until its event is there, while one buyer comes after the other."""
    took_s = list[float]()
    for number in range(_ALONE):
        order = await payer.buy(f"alone-{time.time_ns()}-{number}")
        began = time.perf_counter()
        await receiver.has(order)
        took_s.append(time.perf_counter() - began)
    return statistics.median(took_s)


async def _flow(running: Running, port: int, buyers: int, connections: int) -> dict[str, float]:
    """Return the delay of an event, and how many seconds it took until all had paid, and all events were there."""
    receiver = CountingReceiver(buyers + _ALONE)
    application = Starlette(routes=[Route("/", receiver.take, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(application, port=port, log_level="warning", lifespan="off"))
    serving = asyncio.create_task(server._serve())
    urls, names = running.urls(""), (f"buyer-{time.time_ns()}-{number}" for number in range(buyers))
    payers = [Payer(urls[number % len(urls)]) for number in range(connections)]

    async def one_after_the_other(payer: Payer) -> None:
        for name in names:
            await payer.buy(name)

    try:
        async with asyncio.timeout(_WITHIN_S):
            for payer in payers:
                await payer.connect()
            delay_s = await _delay_s(payers[0], receiver)
            began = time.perf_counter()
            await asyncio.gather(*map(one_after_the_other, payers))
            paid_s = time.perf_counter() - began
            await receiver.all_there.wait()
            return {"delay_s": delay_s, "paid_s": paid_s, "all_s": time.perf_counter() - began}
    finally:
        for payer in payers:
            payer.close()
        server.should_exit = True
        await serving


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--buyers", type=int, default=3000)
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--instances", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1, help="events of a request at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--report", type=Path, default=Path("bench-report"))
    options = parser.parse_args()
    console, port, found = Console(), free_port(), list[dict[str, Any]]()
    own = {"WEBHOOK_URL": f"http://127.0.0.1:{port}/", "WEBHOOK_SECRET": _SECRET, "PAYMENTS_SECRET": _SECRET}
    own |= {"WEBHOOK_BATCH": str(options.batch)}
    contender = replace(CONTENDERS["holds"], settings=CONTENDERS["holds"].settings | own)
    with Stand() as stand, console.status("Starting etcd, the store and the instances"):
        running = stand.start(contender, options.instances)
        for _ in range(options.rounds):
            running.fill()
            took_s = uvloop.run(_flow(running, port, options.buyers, options.connections))
            found.append({"buyers": options.buyers, **took_s})
    rates = sorted(options.buyers / one["all_s"] for one in found)
    paid = sorted(options.buyers / one["paid_s"] for one in found)
    delays = sorted(1000 * one["delay_s"] for one in found)
    console.print(
        f"hold, callback, event delivered: {rates[len(rates) // 2]:,.0f} buyers a second "
        f"({rates[0]:,.0f}-{rates[-1]:,.0f}), of them paid {paid[len(paid) // 2]:,.0f} a second, "
        f"on {os.cpu_count()} cores for all programs; while one buys alone, an event is there {delays[0]:.0f} to "
        f"{delays[-1]:.0f} ms after the payment (medians)",
        highlight=False,
    )
    options.report.mkdir(parents=True, exist_ok=True)
    (options.report / "flow.json").write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
