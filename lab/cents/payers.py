"""Buyers who hold and pay, and what then becomes of their money: each knows what is to be left of it in the end."""

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from app.orders import TermsChange
from lab.bank import Bank
from lab.callback import body_of, signed
from lab.torture.buyers import Seller, Visitors

PRICE: Final = 500
CURRENCY: Final = "EUR"
SKU: Final = "lamp"
WICK: Final = "wick"  # another item of its lock, which comes later by its name: a basket of both stands at the lamp
WICK_PRICE: Final = 199
HOLD_S: Final = 6.0
OFFER: Final[TermsChange] = {"price": PRICE, "currency": CURRENCY, "hold_s": HOLD_S, "pay_s": HOLD_S}
OF_WICKS: Final[TermsChange] = {**OFFER, "price": WICK_PRICE}
SECRET: Final = "whsec_" + base64.b64encode(b"a provider's secret: 32 bytes ok").decode()
_PATIENCE_S: Final = 5.0
_WITHIN_S: Final = 120.0
_LOST: Final = 0.15  # share of the callbacks whose answer is not read
_TWICE: Final = 0.2  # share of the callbacks that come again later
_UNITS: Final = 3
_WICKS: Final = 2
_ALL: Final = PRICE * _UNITS + WICK_PRICE * _WICKS


@dataclass(frozen=True, slots=True)
class Fate:
    """What is to be left of a buyer's money, in the minor unit: `net`, or with `either` nothing; and of which hold."""

    way: str
    hold: str
    refs: tuple[str, ...]
    net: int
    either: bool = False


class CentsPayers(Visitors):
    """Buyers, their provider and the shop's operator. `token`: the operator's; `fates`: of all who have paid.

    `baskets`: whether some hold two items at once.
    """

    def __init__(
        self,
        actors: Sequence[Seller],
        bank: Bank,
        seed: int,
        clock: Callable[[], float],
        *,
        token: str,
        baskets: bool = True,
    ) -> None:
        super().__init__(actors, seed, clock, patience_s=(_PATIENCE_S,))
        self.bank = bank
        self._all_ways = WAYS | (OF_BASKETS if baskets else {})
        self._operator = {"Authorization": f"Bearer {token}"}
        self.fates: list[Fate] = []

    async def come(self, per_s: float) -> None:
        """Come at random moments, `per_s` a second on average, until cancelled."""
        while True:
            self._count += 1
            self._begin(self._visit(self._count))
            await asyncio.sleep(self._wishes.expovariate(per_s))

    async def _visit(self, number: int) -> None:
        """Hold three units, with two of another item if the way is one of baskets, and go one of the ways."""
        buyer, ref, ways = f"buyer-{number}", f"pi_{number}", list(self._all_ways)
        way = ways[number % len(ways)]
        lines = {SKU: _UNITS} | ({WICK: _WICKS} if way in OF_BASKETS else {})
        wish: dict[str, Any] = {"items": [{"sku": sku, "quantity": units} for sku, units in lines.items()]}
        if len(lines) == 1:
            wish = {"sku": SKU, "quantity": _UNITS}
        held = await self._until(lambda: self._post("/holds", {**wish, "buyer": buyer}, key=buyer))
        hold = str(held["id"])
        net, either, refs = await self._all_ways[way](self, hold, ref)
        self.fates.append(Fate(way, hold, refs, net, either))

    async def close(self) -> None:
        """Cancel all visits, and close the bank."""
        await super().close()
        await self.bank.close()

    # -- ways ----------------------------------------------------------------------------------------------------------

    def _pays(self, ref: str, amount: int = PRICE * _UNITS) -> None:
        self.bank.take(ref, amount)

    async def _tell(self, kind: str, ref: str, hold: str | None = None, name: str = "", **data: Any) -> None:
        """Call back until it is taken, at any instance; perhaps without reading the answer, or once more."""
        body = body_of(f"payment.{kind}", {"payment_ref": ref, "hold": hold, "currency": CURRENCY, **data})
        name = name or f"msg-{kind}-{ref}-{data.get('amount')}"

        async def post() -> dict[str, Any]:
            patience_s = 0.02 if self._ways.random() < _LOST else _PATIENCE_S
            about: dict[str, Any] = {"content": body, "headers": signed(SECRET, name, body), "timeout": patience_s}
            return _read(await self._http.post(f"{self._url()}/payments/webhook", **about))

        await self._until(post)
        if self._ways.random() < _TWICE:
            await asyncio.sleep(self._ways.uniform(0, 1))
            await self._until(post)

    async def _gives_back(self, ref: str, amount: int | None = None) -> None:
        """Give back a payment, or a part, in the provider's dashboard; some shops don't tell the refund's id."""
        made = self.bank.give_back(ref, amount)
        await self._tell("refunded", ref, name=f"msg-{made['id']}", amount=made["amount"], **_id_of(ref, made["id"]))

    async def tell_what_was_asked_for(self) -> None:
        """Report the refunds of the cashiers, late, and by both names: most are known by then."""
        for payment in self.bank.payments.values():
            for made in [one for one in payment.refunds if "seckill" in one["metadata"]]:
                about = {"refund_id": made["id"], "refund_name": made["metadata"]["seckill"]}
                await self._tell("refunded", payment.ref, name=f"late-{made['id']}", amount=made["amount"], **about)

    async def _succeeds(self, hold: str, ref: str, amount: int = PRICE * _UNITS) -> None:
        await self._tell("succeeded", ref, hold, amount=amount, paid_at=time.time())

    async def pay(self, hold: str, ref: str) -> Any:
        """Pay, and keep it."""
        self._pays(ref)
        await self._succeeds(hold, ref)
        return PRICE * _UNITS, False, (ref,)

    async def pay_after_the_end(self, hold: str, ref: str) -> Any:
        """Give up, and pay all the same; who could give up only when the time was over has paid late."""
        said = await self._until(lambda: self._post(f"/holds/{hold}/cancel", {}, key=f"cancel-{ref}"))
        self._pays(ref)
        await self._succeeds(hold, ref)
        late = said["outcome"] == "expired"
        return PRICE * _UNITS if late else 0, late, (ref,)

    async def pay_late(self, hold: str, ref: str) -> Any:
        """Pay when the time is over: it takes units if they are left."""
        await asyncio.sleep(HOLD_S + 1.5)
        self._pays(ref)
        await self._succeeds(hold, ref)
        return PRICE * _UNITS, True, (ref,)

    async def pay_twice(self, hold: str, ref: str) -> Any:
        """Pay with two cards at once: one of them is owed."""
        other = f"{ref}-b"
        self._pays(ref)
        self._pays(other)
        await asyncio.gather(self._succeeds(hold, ref), self._succeeds(hold, other))
        return PRICE * _UNITS, False, (ref, other)

    async def pay_wrongly(self, hold: str, ref: str) -> Any:
        """Pay too little, then rightly."""
        other = f"{ref}-b"
        self._pays(ref, 1)
        await self._succeeds(hold, ref, 1)
        self._pays(other)
        await self._succeeds(hold, other)
        return PRICE * _UNITS, False, (ref, other)

    async def be_refunded_there(self, hold: str, ref: str) -> Any:
        """The shop gives all back in the provider's dashboard; the notice may overtake the payment's."""
        self._pays(ref)
        about = asyncio.create_task(self._gives_back(ref))
        await self._succeeds(hold, ref)
        await about
        return 0, False, (ref,)

    async def be_refunded_there_in_parts(self, hold: str, ref: str) -> Any:
        """Two parts in the dashboard."""
        await self.pay(hold, ref)
        for amount in (100, 250):
            await self._gives_back(ref, amount)
        return PRICE * _UNITS - 350, False, (ref,)

    async def be_refunded_later(self, hold: str, ref: str) -> Any:
        """An operator has the cashier give all back."""
        await self.pay(hold, ref)
        await self._refund(hold, ref, restock=True, later=True)
        return 0, False, (ref,)

    async def be_refunded_in_parts(self, hold: str, ref: str) -> Any:
        """An operator has the cashier give back a part, and a unit; asked for twice, each is one."""
        await self.pay(hold, ref)
        for wish in ({"amount": 120, "restock": False}, {"units": 1, "restock": True}):
            for _ in range(2):
                await self._refund(hold, f"{ref}-{len(wish)}-{min(wish)}", later=True, **wish)
        return PRICE * _UNITS - 120 - PRICE, False, (ref,)

    async def dispute(self, hold: str, ref: str) -> Any:
        """Have the bank take the money back."""
        await self.pay(hold, ref)
        await self._tell("disputed", ref, amount=PRICE * _UNITS, refund_id=f"dp_{ref}")
        self.bank.give_back(ref)
        await self._tell("dispute_lost", ref, amount=PRICE * _UNITS, refund_id=f"dp_{ref}")
        return 0, False, (ref,)

    async def have_a_refund_fail(self, hold: str, ref: str) -> Any:
        """A refund that comes back days later: an operator has it tried again."""
        await self.be_refunded_there(hold, ref)
        made = self.bank.fail(ref)
        await self._tell("refund_failed", ref, amount=made["amount"], **_id_of(ref, made["id"]))
        await self._until(lambda: self._post(f"/orders/{hold}/refund/retry", {}))
        return 0, False, (ref,)

    async def pay_for_all_lines(self, hold: str, ref: str) -> Any:
        """Pay for a basket, and keep it."""
        self._pays(ref, _ALL)
        await self._succeeds(hold, ref, _ALL)
        return _ALL, False, (ref,)

    async def cancel_a_line(self, hold: str, ref: str) -> Any:
        """Give up a line, and pay for the rest; or for all of it, late, if the time was over."""
        said = await self._until(lambda: self._post(f"/holds/{hold}/cancel", {"sku": WICK}, key=f"cancel-{ref}"))
        late = said["outcome"] != "partly_cancelled"
        cost = _ALL if late else PRICE * _UNITS
        self._pays(ref, cost)
        await self._succeeds(hold, ref, cost)
        return cost, True, (ref,)

    async def be_refunded_a_line(self, hold: str, ref: str) -> Any:
        """An operator has the cashier give back a line; asked for twice, it is one."""
        await self.pay_for_all_lines(hold, ref)
        for _ in range(2):
            await self._refund(hold, f"{ref}-line", sku=WICK, restock=True, later=True)
        return PRICE * _UNITS, False, (ref,)

    async def be_refunded_units_of_lines(self, hold: str, ref: str) -> Any:
        """A unit of each line, and then what is left of one of them."""
        await self.pay_for_all_lines(hold, ref)
        for sku, restock in ((SKU, True), (WICK, False)):
            await self._refund(hold, f"{ref}-{sku}", sku=sku, units=1, restock=restock, later=True)
        await self._refund(hold, f"{ref}-rest", sku=WICK, restock=True, later=True)
        return PRICE * (_UNITS - 1), False, (ref,)

    async def be_refunded_each_line(self, hold: str, ref: str) -> Any:
        """Line by line, until nothing is left."""
        await self.pay_for_all_lines(hold, ref)
        for sku in (WICK, SKU):
            await self._refund(hold, f"{ref}-{sku}", sku=sku, restock=True, later=True)
        return 0, False, (ref,)

    async def pay_nothing(self, hold: str, ref: str) -> Any:
        """Leave."""
        return 0, False, ()

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _refund(self, hold: str, key: str, **wish: Any) -> None:
        await self._until(lambda: self._post(f"/orders/{hold}/refund", wish, key=f"refund-{key}"))

    async def _post(self, path: str, body: dict[str, Any], *, key: str = "") -> dict[str, Any]:
        headers = self._operator | {"Accept": "application/json"} | ({"Idempotency-Key": key} if key else {})
        return _read(await self._http.post(self._url() + path, json=body, headers=headers, timeout=_PATIENCE_S))

    def _url(self) -> str:
        return self._ways.choice(self._actors).url

    async def _until(self, ask: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Ask until there is an answer. Raises `TimeoutError`."""
        deadline = time.monotonic() + _WITHIN_S
        while time.monotonic() < deadline:
            try:
                return await ask()
            except (httpx.HTTPError, _AgainError):
                await asyncio.sleep(self._ways.uniform(0.05, 0.5))
        raise TimeoutError(f"no answer within {_WITHIN_S:g} s")


def _id_of(ref: str, made: str) -> dict[str, Any]:
    return {"refund_id": made} if ref[-1] in "02468" else {}


class _AgainError(Exception):
    """The answer says to come again."""


def _read(answer: httpx.Response) -> dict[str, Any]:
    if answer.status_code != 200:
        raise _AgainError
    found: dict[str, Any] = answer.json()
    return found


WAYS: Final[dict[str, Callable[[CentsPayers, str, str], Awaitable[Any]]]] = {
    "pays": CentsPayers.pay,
    "pays after the end": CentsPayers.pay_after_the_end,
    "pays late": CentsPayers.pay_late,
    "pays twice": CentsPayers.pay_twice,
    "pays wrongly": CentsPayers.pay_wrongly,
    "is refunded there": CentsPayers.be_refunded_there,
    "is refunded there in parts": CentsPayers.be_refunded_there_in_parts,
    "is refunded later": CentsPayers.be_refunded_later,
    "is refunded in parts": CentsPayers.be_refunded_in_parts,
    "disputes": CentsPayers.dispute,
    "has a refund fail": CentsPayers.have_a_refund_fail,
    "pays nothing": CentsPayers.pay_nothing,
}
# Those of baskets.
OF_BASKETS: Final[dict[str, Callable[[CentsPayers, str, str], Awaitable[Any]]]] = {
    "pays for all lines": CentsPayers.pay_for_all_lines,
    "cancels a line": CentsPayers.cancel_a_line,
    "is refunded a line": CentsPayers.be_refunded_a_line,
    "is refunded units of lines": CentsPayers.be_refunded_units_of_lines,
    "is refunded each line": CentsPayers.be_refunded_each_line,
}
