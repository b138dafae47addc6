"""Buyers who hold and then pay, or don't; and the payments' callbacks, which come late, twice, or are not answered.

Each visit begins with a hold, of one item or of a basket, and the buyer's way (`WAYS`) decides how it goes on. A
callback that gets no answer is repeated, elsewhere, until it gets one or the run is over.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import httpx

from lab.torture.buyers import Seller, Visitors
from lab.torture.history import UNKNOWN, Flow, HttpCall

# The fates of holds, and how often each comes.
WAYS: Final = {
    "pays": 30,
    "declines": 10,
    "buys at once": 10,
    "cancels": 7,
    "cancels and pays": 4,
    "extends and pays": 10,
    "extends": 4,
    "pays late": 14,
    "pays twice": 8,
    "has two payments": 8,
    "pays a wrong amount": 10,
    "pays for a stranger": 6,
    "pays with another's payment": 5,
    "cancels while paying": 4,
    "is refunded": 14,
}
# Those that only baskets have: a part is a line, or a unit of one.
WAYS_OF_BASKETS: Final = {
    "cancels a part and pays": 45,
    "cancels each line": 12,
    "is refunded a part": 30,
    "is refunded each line": 12,
}
_BASKETS: Final = 0.5  # share of the visits to an item that can be in one
_ITEMS: Final = (3, 2, 1, 1)  # how often each item of the flow is wanted: the first one is scarce
_LATE_S: Final = (0.1, 1.5)  # after the end of the hold
_HURRY_S: Final = 0.02  # the patience of a callback whose answer is to be lost
_LOST: Final = 0.15  # share of the callbacks
_REPEATED: Final = 0.3  # share of the answered callbacks that come once more
_REPEATED_S: Final = 2.0  # at most, after the first one
_KEYED: Final = 30  # percent of the callbacks
_KEYLESS: Final = 0.15  # share of the holds
_BY_SHOP: Final = 0.5  # share of the holds for which the shop asks
_AGAIN: Final = 0.2  # share of the buyers who come a second time while they hold
_REGULARS: Final = 6
_VISITS_OF_A_REGULAR: Final = 5
_RESTOCKED: Final = 0.7  # share of the refunds of an order
_WAITS: Final = 0.6  # share of the holds that get in line where none is left
_LOOKS_EACH_S: Final = 0.25
_WAITS_S: Final = (0.5, 6.0)  # the patience of those who are in line
_LEAVES: Final = 0.8  # share of those who tell that they wait no more; the others just go
# What an answer says of itself, or of the line: the rest is about the order.
_OF_THE_ANSWER: Final = {"outcome", "order", "refund", "line", "replayed", "instance", "now", "gives_back", "place"}
_OTHERS: Final = 50  # payments that are remembered


@dataclass(frozen=True, slots=True)
class Act:
    """A request to make. See `HttpCall`."""

    verb: str
    wish: str
    sku: str
    buyer: str
    quantity: int
    key: str | None = None
    order: str | None = None
    payment: str | None = None
    amount: int | None = None
    restock: bool | None = None
    wait: bool = False
    items: dict[str, int] = field(default_factory=dict)
    line: str | None = None
    units: int | None = None


class Payers(Visitors):
    """Visitors of the items of the flow, and the operator who refunds. `token`: the one that confirms payments."""

    def __init__(
        self,
        actors: Sequence[Seller],
        flows: Sequence[Flow],
        seed: int,
        clock: Callable[[], float],
        told: Callable[[HttpCall], None],
        *,
        patience_s: tuple[float, ...],
        token: str,
    ) -> None:
        super().__init__(actors, seed, clock, patience_s=patience_s)
        self._flows = flows
        self._told = told
        self._token = token
        self._payments: dict[str, list[str]] = defaultdict(list)  # of each item, as they are unique there

    async def come(self, per_s: float) -> None:
        """Come at random moments, `per_s` a second on average, until cancelled."""
        while True:
            self._count += 1
            (flow,) = self._wishes.choices(self._flows, _ITEMS[: len(self._flows)])
            wish = f"pays-{self._name}-{self._count}"
            flows = self._basket(flow) if flow.basket and self._wishes.random() < _BASKETS else [flow]
            buyer = f"buyer-{wish}"
            items = {one.item.sku: self._wishes.choice((1, 1, 2)) for one in flows}
            if any(one.item.limit or one.group for one in flows):
                newest = self._count // (_VISITS_OF_A_REGULAR * _REGULARS)
                buyer = f"payer-{self._name}-{newest * _REGULARS + self._wishes.randrange(_REGULARS)}"
            ways = WAYS | WAYS_OF_BASKETS if len(flows) > 1 else WAYS
            (way,) = self._wishes.choices(list(ways), list(ways.values()))
            self._begin(self._visit(flows[0], way, wish, buyer, items))
            await asyncio.sleep(self._wishes.expovariate(per_s))

    def _basket(self, flow: Flow) -> list[Flow]:
        """Return an item with one or two others, in the order in which an order has them."""
        others = [one for one in self._flows if one.basket and one is not flow]
        some = self._wishes.sample(others, self._wishes.randint(1, len(others)))
        return sorted([flow, *some], key=lambda one: one.item.sku)

    async def _visit(  # noqa: PLR0912, PLR0915 - a case each
        self, flow: Flow, way: str, wish: str, buyer: str, items: dict[str, int]
    ) -> None:
        sku = flow.item.sku
        quantity = items[sku]
        key = None if self._ways.random() < _KEYLESS else wish
        if way == "buys at once":
            await self._until_told(Act("buy", wish, sku, buyer, quantity, wish))
            return
        held = await self._until_told(self._hold(wish, sku, buyer, items, key))
        if held is not None and held.outcome in ("waiting", "already_waiting"):
            held = await self._wait(held)
        if held is None or held.outcome not in ("held", "already_held") or held.told is None:
            return
        began, units = self._clock(), held.shown.get("quantity", quantity)
        costs = held.shown.get("to_pay", 0)
        if self._ways.random() < _AGAIN:
            again = f"{wish}-again"
            self._begin(self._nothing(self._until_told(self._hold(again, sku, buyer, items, again))))
        payment = f"payment-{wish}"

        def do(verb: str, order: str = held.told, **more: Any) -> Act:
            return Act(verb, wish, sku, buyer, units, order=order, **more)

        def pay(ref: str = payment, amount: int = costs, order: str = held.told) -> Act:
            return do("confirm", order, payment=ref, amount=amount, key=_key_of(ref, order, amount))

        await asyncio.sleep(self._ways.uniform(0, 0.5 * flow.hold_s))
        match way:
            case "pays":
                await self._confirm(pay())
            case "cancels" | "cancels and pays":
                await self._until_told(do("cancel"))
                if way != "cancels":
                    await self._confirm(pay())
                    await self._refund(do("refund", restock=True))
            case "cancels while paying":
                await asyncio.gather(self._until_told(do("cancel")), self._confirm(pay()))
            case "extends" | "extends and pays":
                await self._until_told(do("extend"))
                if way != "extends":
                    await asyncio.sleep(max(0.0, began + flow.hold_s + flow.grace_s + 0.2 - self._clock()))
                    await self._confirm(pay())
            case "pays late":
                ended_s = began + flow.hold_s + flow.grace_s + self._ways.uniform(*_LATE_S)
                await asyncio.sleep(max(0.0, ended_s - self._clock()))
                await self._confirm(pay())
            case "is refunded":
                await self._confirm(pay())
                await self._refund(do("refund", restock=self._ways.random() < _RESTOCKED))
            case "pays twice":
                await asyncio.gather(self._confirm(pay()), self._confirm(pay()))
            case "has two payments":
                both = await asyncio.gather(self._confirm(pay()), self._confirm(pay(f"{payment}-b")))
                for owed in [told.refund for told in both if told and told.refund]:
                    await self._refund(do("refund", payment=owed, restock=True))
            case "pays a wrong amount":
                await self._confirm(pay(f"{payment}-wrong", amount=costs + 1))
                await self._confirm(pay())
            case "pays for a stranger":  # who knows the number, and not the secret; or an order that is not there yet
                number, _, secret = held.told.rpartition("~")
                for unknown in (f"{number}~{secret[::-1]}", f"{sku}~1-1~{secret}"):
                    await self._confirm(pay(f"{payment}-stray", order=unknown))
                await self._confirm(pay())
            case "cancels a part and pays":
                told = await self._until_told(do("cancel", **self._part(held)))
                await self._confirm(pay(amount=told.shown.get("to_pay", costs) if told else costs))
            case "is refunded a part" if await self._has_paid(pay()):
                await self._refund(do("refund", **self._part(held), restock=self._ways.random() < _RESTOCKED))
            case "is refunded each line" if await self._has_paid(pay()):
                for line in held.shown["items"]:
                    await self._refund(do("refund", **_line(wish, line["sku"]), restock=True))
            case "cancels each line":
                for line in held.shown["items"]:
                    await self._until_told(do("cancel", **_line(wish, line["sku"])))
            case "pays with another's payment" if self._payments[sku]:
                await self._confirm(pay(self._ways.choice(self._payments[sku])))
                await self._confirm(pay())

    def _hold(self, wish: str, sku: str, buyer: str, items: dict[str, int], key: str | None) -> Act:
        if len(items) > 1:  # a basket can't wait
            return Act("hold", wish, sku, buyer, items[sku], key, items=items)
        return Act("hold", wish, sku, buyer, items[sku], key, wait=self._ways.random() < _WAITS)

    def _part(self, held: HttpCall) -> dict[str, Any]:
        """Choose a line of an order, or a unit of one."""
        line = self._ways.choice(held.shown["items"])
        return {"line": line["sku"], "units": self._ways.choice((None, 1)), "key": f"{held.wish}-part"}

    async def _wait(self, told: HttpCall) -> HttpCall | None:
        """Look at a place in line until it is a hold, and return that; None if it has ended, or was given up."""
        if told.told is None:
            return None  # a stranger may have begun it in this name
        look = Act("look", told.wish, told.sku, told.buyer, told.quantity, order=told.told)
        until, seen = self._clock() + self._ways.uniform(*_WAITS_S), told
        while seen.outcome in ("waiting", "already_waiting") and self._clock() < until:
            await asyncio.sleep(self._ways.uniform(0, 2 * _LOOKS_EACH_S))
            seen = await self._until_told(look) or seen
        if seen.outcome in ("waiting", "already_waiting") and self._ways.random() < _LEAVES:
            await self._until_told(replace(look, verb="cancel"))
        return seen

    async def _has_paid(self, act: Act) -> bool:
        told = await self._confirm(act)
        return told is not None and told.outcome in ("confirmed", "already_confirmed")

    async def _nothing(self, asked: Any) -> None:
        await asked

    async def _refund(self, act: Act) -> None:
        """Refund, twice, at two instances at once: the operator has two windows open."""
        actor = self._ways.choice(self._actors)
        await asyncio.gather(self._until_told(act, actor), self._until_told(act, self._another(actor)))

    async def _confirm(self, act: Act) -> HttpCall | None:
        """Call back: now and then the answer is lost, or the callback comes once more, later, to another instance.

        Returns the first answer that was read.
        """
        actor = self._ways.choice(self._actors)
        if self._ways.random() < _LOST:
            await self._ask(actor, act, _HURRY_S)
        told = await self._until_told(act, actor)
        if told is None:
            return None
        if act.payment is not None:
            self._payments[act.sku] = [*self._payments[act.sku][-_OTHERS:], act.payment]
        if self._ways.random() < _REPEATED:
            await self._rest(_REPEATED_S)
            await self._until_told(act, self._another(actor))
        return told

    async def _until_told(self, act: Act, actor: Seller | None = None) -> HttpCall | None:
        actor = actor or self._ways.choice(self._actors)
        while True:
            call = await self._ask(actor, act, self._ways.choice(self._patience_s))
            if call.status not in (0, 503):
                return call
            once = act.verb in ("hold", "buy") and act.key is None
            if once and (call.status == 0 or call.error == UNKNOWN):
                return None  # it may be held: asking again could hold twice
            await self._pause(call.retry_after)
            actor = self._another(actor)

    async def _ask(self, actor: Seller, act: Act, patience_s: float) -> HttpCall:
        sent_at = self._clock()

        def told(status: int, **fields: Any) -> HttpCall:
            about = {name: getattr(act, name) for name in Act.__slots__}
            at = {"sent_at": round(sent_at, 4), "done_at": round(self._clock(), 4)}
            call = HttpCall(**about | at | fields, instance=actor.name, status=status)
            self._told(call)
            return call

        try:
            method = "GET" if act.verb == "look" else "POST"
            answer = await self._http.request(method, actor.url + _path(act), **self._request(act, patience_s))
        except httpx.HTTPError as error:
            return told(0, error=type(error).__name__)
        except asyncio.CancelledError:
            told(0, error="the run was over")
            raise
        try:
            body = answer.json()
            if answer.status_code != 200:
                return told(answer.status_code, retry_after=answer.headers.get("retry-after"), error=body["type"])
            return told(
                200,
                outcome=body["state" if act.verb == "look" else "outcome"],
                told=body.get("order") if act.verb in ("buy", "refund") else body.get("id"),
                refund=body.get("refund"),
                refused=body.get("line"),
                replayed=False if act.verb in ("look", "refund") else body["replayed"],
                shown={name: value for name, value in body.items() if name not in _OF_THE_ANSWER},
            )
        except (ValueError, KeyError, TypeError):
            return told(answer.status_code, error="not an answer of ours")

    def _request(self, act: Act, patience_s: float) -> dict[str, Any]:
        body: dict[str, Any] = {}
        headers = {"Accept": "application/json"} | ({"Idempotency-Key": act.key} if act.key else {})
        about: dict[str, Any] = {"headers": headers, "timeout": httpx.Timeout(patience_s, connect=1.0)}
        if act.verb == "look":
            return about
        if act.verb == "buy":
            return about | {"params": {"sku": act.sku, "quantity": act.quantity, "buyer": act.buyer}}
        if act.verb == "hold":
            body = {"buyer": act.buyer, "ref": act.wish} | ({"wait": True} if act.wait else {})
            lines = [{"sku": sku, "quantity": quantity} for sku, quantity in act.items.items()]
            body |= {"items": lines} if lines else {"sku": act.sku, "quantity": act.quantity}
        if act.verb == "confirm":
            body = {"payment_ref": act.payment, "amount": act.amount, "currency": "EUR"}
        if act.verb == "refund":
            body = {"restock": act.restock} | ({"payment_ref": act.payment} if act.payment else {})
        body |= {name: one for name, one in (("sku", act.line), ("units", act.units)) if one is not None}
        by_shop = act.verb == "hold" and self._ways.random() < _BY_SHOP
        if by_shop or act.verb in ("confirm", "refund"):
            headers["Authorization"] = f"Bearer {self._token}"
        return about | {"json": body}


def _line(wish: str, sku: str) -> dict[str, Any]:
    return {"line": sku, "key": f"{wish}-{sku}"}


def _key_of(ref: str, order: str, amount: int) -> str | None:
    """Return the idempotency key of a callback, which has one always or never.

    A payment may be announced for two orders, and with two amounts: visits of one buyer may be told of the same hold.
    """
    return f"{ref}/{amount}/{order[-8:]}" if sum(f"{ref}{order}".encode()) % 100 < _KEYED else None


def _path(act: Act) -> str:
    match act.verb:
        case "buy":
            return "/stock/reduce"
        case "hold":
            return "/holds"
        case "look":
            return f"/holds/{act.order}"
        case "refund":
            return f"/orders/{act.order}/refund"
        case verb:
            return f"/holds/{act.order}/{verb}"
