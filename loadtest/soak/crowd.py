"""The crowd: buyers with or without a key, who ask again, hang up or look on; an operator keeps the sale going."""

import asyncio
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from app.orders import DEFAULT_SKU

LIMITED: Final = "limited"  # each buyer may have a few
GONE: Final = "gone"  # none is left
ITEMS: Final = (DEFAULT_SKU, LIMITED, GONE)
_LIMIT: Final = 2
_UNITS: Final = 5000  # at the beginning of a sale, and added when fewer than half of that are left
_UNKNOWN: Final = 500  # names of items that don't exist; a finite number, so that caches of names are full early on
_REGULARS: Final = 200  # names of the buyers of the limited item
_PATIENCE_S: Final = 12.0  # longer than an instance lets anybody wait
_PAUSE_S: Final = 0.25  # of a buyer between two purchases, on average
_LISTENERS: Final = 8
_LISTENED_S: Final = 20.0  # at most
_AGAIN_S: Final = 0.3
_RESTOCK_S: Final = 2.0
_REMEMBERED: Final = 100  # orders that somebody may look up
_NO_ANSWER: Final = (httpx.HTTPError, OSError, EOFError, TimeoutError, asyncio.IncompleteReadError)


class Crowd:
    """So many buyers, and the onlookers. `told`: their answers, counted."""

    def __init__(self, urls: Sequence[str], token: str, buyers: int) -> None:
        self._urls = urls
        self._operator = {"Authorization": f"Bearer {token}"}
        self._buyers = buyers
        self._dice = random.Random(1)
        self._numbers = itertools.count(1)
        self._orders: deque[str] = deque(maxlen=_REMEMBERED)
        self.told: Counter[str] = Counter()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=4)
        self._http = httpx.AsyncClient(limits=limits, timeout=_PATIENCE_S, trust_env=False)
        self._ways: dict[Callable[[], Coroutine[Any, Any, None]], int] = {
            self._buy_with_key: 40,
            self._buy_without_key: 20,
            self._come_again_and_again: 10,
            self._come_too_late: 5,
            self._ask_for_nothing_known: 2,
            self._hang_up: 8,
            self._look: 10,
            self._look_up_order: 5,
            self._list_orders: 1,
        }

    def begin(self, sale_s: float) -> list["asyncio.Task[None]"]:
        """Start all tasks, to run until cancelled; `sale_s`: how long a sale lasts until the next one begins."""
        coming = [self._come() for _ in range(self._buyers)]
        listening = [self._listen("/stock/live") for _ in range(_LISTENERS)]
        rest = [self._listen("/control/live", **self._operator), self._keep_selling(sale_s)]
        return [asyncio.create_task(one) for one in (*coming, *listening, *rest)]

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    # -- buyers ------------------------------------------------------------------------------------------------------

    async def _come(self) -> None:
        ways, weights = list(self._ways), list(self._ways.values())
        while True:
            await asyncio.sleep(self._dice.expovariate(1 / _PAUSE_S))
            (way,) = self._dice.choices(ways, weights)
            try:
                await way()
            except Exception as error:  # any error of a client when a server is cut off in mid-answer
                self.told[f"no answer: {type(error).__name__}"] += 1
                await asyncio.sleep(_AGAIN_S)

    def _somewhere(self) -> str:
        return self._dice.choice(self._urls)

    async def _purchase(self, sku: str, *, key: str | None = None, buyer: str | None = None) -> None:
        params = {"sku": sku, "quantity": "1"} | ({"buyer": buyer} if buyer else {})
        headers = {"Accept": "application/json"} | ({"Idempotency-Key": key} if key else {})
        answer = await self._http.post(f"{self._somewhere()}/stock/reduce", params=params, headers=headers)
        if answer.status_code == 200:
            body = answer.json()
            self.told["replayed" if body["replayed"] else body["outcome"]] += 1
            if order := body.get("order"):
                self._orders.append(order)
        else:
            self.told[str(answer.status_code)] += 1
            if answer.status_code == 503:
                await asyncio.sleep(_AGAIN_S)

    async def _buy_with_key(self) -> None:
        name = f"buyer-{next(self._numbers)}"
        await self._purchase(DEFAULT_SKU, key=name, buyer=name)
        while self._dice.random() < 0.3:  # a buyer with an answer asks again, perhaps elsewhere
            await self._purchase(DEFAULT_SKU, key=name, buyer=name)

    async def _buy_without_key(self) -> None:
        await self._purchase(DEFAULT_SKU)

    async def _come_again_and_again(self) -> None:
        key = f"again-{next(self._numbers)}"
        await self._purchase(LIMITED, key=key, buyer=f"regular-{self._dice.randrange(_REGULARS)}")

    async def _come_too_late(self) -> None:
        await self._purchase(GONE, key=f"late-{next(self._numbers)}" if self._dice.random() < 0.5 else None)

    async def _ask_for_nothing_known(self) -> None:
        await self._purchase(f"unknown-{self._dice.randrange(_UNKNOWN)}")

    async def _hang_up(self) -> None:
        """Send a purchase and leave, at once or a moment later."""
        server = urlsplit(self._somewhere())
        key = f"Idempotency-Key: gone-{next(self._numbers)}\r\n" if self._dice.random() < 0.5 else ""
        _, writer = await asyncio.open_connection(server.hostname, server.port)
        try:
            writer.write(f"POST /stock/reduce HTTP/1.1\r\nHost: {server.netloc}\r\n{key}\r\n".encode())
            await asyncio.sleep(self._dice.choice((0, 0.002, 0.02)))
        finally:
            writer.transport.abort() if self._dice.random() < 0.5 else writer.close()
        self.told["hung up"] += 1

    # -- onlookers ---------------------------------------------------------------------------------------------------

    async def _get(self, path: str, **headers: str) -> None:
        answer = await self._http.get(self._somewhere() + path, headers=headers)
        self.told[f"GET {answer.status_code}"] += 1

    async def _look(self) -> None:
        await self._get(f"/stock?sku={self._dice.choice(ITEMS)}")

    async def _look_up_order(self) -> None:
        if self._orders:
            await self._get(f"/orders/{self._dice.choice(self._orders)}")

    async def _list_orders(self) -> None:
        await self._get("/orders?limit=50", **self._operator)

    async def _listen(self, path: str, **headers: str) -> None:
        """Read a stream of events for a while, leave, and come again."""
        while True:
            try:
                async with asyncio.timeout(self._dice.uniform(0.5, _LISTENED_S)):
                    async with self._http.stream("GET", self._somewhere() + path, headers=headers) as answer:
                        self.told[f"listened {answer.status_code}"] += 1
                        async for _ in answer.aiter_bytes():
                            pass
            except _NO_ANSWER:
                pass  # most of them are our own time-outs
            await asyncio.sleep(_AGAIN_S)

    # -- the operator ------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Put the items on sale."""
        await self._put(DEFAULT_SKU, stock=_UNITS, new_sale=True, forget_orders="all")
        await self._put(LIMITED, stock=_UNITS, new_sale=True, forget_orders="all", limit_per_buyer=_LIMIT)
        await self._put(GONE, stock=0, new_sale=True, forget_orders="all")

    async def _keep_selling(self, sale_s: float) -> None:
        """Add units before they run out; begin a new sale now and then, which discards the old one."""
        loop = asyncio.get_running_loop()
        new_sale_at = loop.time() + sale_s
        while True:
            await asyncio.sleep(_RESTOCK_S)
            if loop.time() >= new_sale_at:
                new_sale_at += sale_s
                for sku in (DEFAULT_SKU, LIMITED):
                    await self._put(sku, stock=_UNITS, new_sale=True, forget_orders="all")
                self.told["new sales"] += 1
            with suppress(*_NO_ANSWER, KeyError):
                for sku in (DEFAULT_SKU, LIMITED):
                    left = (await self._http.get(f"{self._somewhere()}/stock?sku={sku}")).json()["stock"]
                    if left < _UNITS / 2:
                        await self._put(sku, stock=_UNITS, add=True)
                        self.told["restocks"] += 1

    async def _put(self, sku: str, **change: object) -> None:
        while True:
            with suppress(*_NO_ANSWER):
                where = f"{self._somewhere()}/stock?sku={sku}"
                answer = await self._http.put(where, json=change, headers=self._operator)
                if answer.status_code == 200:
                    return
                if answer.status_code != 503:
                    raise RuntimeError(f"PUT {where} {change}: {answer.status_code} {answer.text}")
            await asyncio.sleep(_AGAIN_S)
