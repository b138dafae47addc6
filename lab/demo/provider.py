"""A pretended payment provider: a page where buyers pay, decline, or do worse, and callbacks as real ones send them.

Callbacks come late, twice, and out of order, are signed as Standard Webhooks has it, and are repeated until an instance
answers with 2xx. Nobody's money is involved. `/sandbox` plays a provider's bad days one by one (`lab.demo.sandbox`);
`/refunds` gives money back, as a shop asks for it, and `/payments` is what was paid and given back: its books are those
of `lab.bank`.

    python -m lab.demo.sandbox --port 8070 --shop http://127.0.0.1:8080,http://127.0.0.1:8090
"""

import asyncio
import base64
import html
import itertools
import json
import os
import secrets
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from app.orders import TermsChange
from app.settings import PREFIX
from app.web.catalogue import built_in
from lab.bank import Bank, Payment
from lab.callback import body_of, signed
from lab.servers.process import Process, free_port, port_is_free

SECRET: Final = f"{PREFIX}PAYMENTS_SECRET"
PRICE: Final[TermsChange] = {"price": 19_900, "currency": "CNY"}  # of the lamp, as the catalogue says it
BESIDE: Final[dict[str, tuple[int, TermsChange]]] = {"bulb": (20, {"price": 2_900, "currency": "CNY"})}  # goes with it
PORT: Final = 8070
_FIRST_S: Final = 1.0
_AGAIN_S: Final = 2.5
_DECLINED_S: Final = 4.0  # a decline is told after the success that followed it
_PAUSES_S: Final = (1, 2, 4, 8, 15)
_TRIES: Final = 100
_LATE_WITHIN_S: Final = 2_000.0
_KEPT: Final = 1_000
_WAYS: Final = {
    "pay": "Pay",
    "decline": "Have the card declined",
    "late": "Pay late, when the time is over",
    "twice": "Pay twice",
    "close": "Pay, and close the tab",
    "lost": "Pay, and lose the first callbacks",
    "cancel": "Pay nothing, and go back",
}


@dataclass(slots=True)
class SentCallback:
    """An event that the shop is told of. `tries`: the answers so far, as "status outcome"."""

    type: str
    hold: str
    payment_ref: str
    id: str = field(default_factory=lambda: f"evt_{secrets.token_hex(8)}")
    tries: list[str] = field(default_factory=list)


class DemoProvider(Bank):
    """Takes payments for the holds of a shop's instances, and tells any of them. `secret`: signs what it tells."""

    def __init__(self, shops: Sequence[str], secret: str) -> None:
        super().__init__()
        self._shops = shops
        self._turns = itertools.cycle(shops)
        self._secret = secret
        self._http = httpx.AsyncClient(timeout=10, trust_env=False)
        self._tasks: set[asyncio.Task[None]] = set()
        self._given_back: set[str] = set()  # the keys of refunds
        self.callbacks: deque[SentCallback] = deque(maxlen=_KEPT)

    async def hold(self, hold: str) -> dict[str, Any] | None:
        """Return how a hold stands; None if no instance knows it, or none answers."""
        for _ in self._shops:
            try:
                answer = await self._http.get(f"{next(self._turns)}/holds/{quote(hold, safe='')}")
            except httpx.HTTPError:
                continue
            if answer.status_code == 200:
                found: dict[str, Any] = answer.json()
                return found
        return None

    async def begin(self) -> dict[str, Any] | None:
        """Hold one of the shop's item for a pretended buyer."""
        wish = {"buyer": f"sandbox-{secrets.token_hex(3)}", "quantity": 1}
        answer = await self._http.post(f"{next(self._turns)}/holds", json=wish)
        found: dict[str, Any] = answer.json()
        return found if found.get("outcome") == "held" else None

    def pay(self, hold: dict[str, Any], amount: int | None = None, currency: str | None = None) -> Payment:
        """Take a payment: of what the hold costs, or of another amount."""
        costs = hold.get("to_pay") or 0
        about = costs if amount is None else amount, currency or hold.get("currency") or "", hold["id"]
        return self.take(f"pay_{secrets.token_hex(6)}", *about)

    def refund(self, paid: Payment, amount: int | None = None) -> dict[str, Any]:
        """Give some of a payment back (None: what is left), and return what a callback says of that."""
        left = paid.amount - paid.given_back
        made = self.give_back(paid.ref, min(left, amount or left), id=f"re_{secrets.token_hex(6)}")
        return paid.told(amount=made["amount"], refund_id=made["id"])

    def refund_once(self, paid: Payment, key: str, name: str, amount: int | None) -> None:
        """Give back a payment, or a part, once for a key, and tell the shop, with its `name` for the refund."""
        if key not in self._given_back and paid.given_back < paid.amount:
            self._given_back |= {key} if key else set()
            callback = SentCallback("payment.refunded", paid.hold, paid.ref)
            self.callbacks.append(callback)
            told = self.refund(paid, amount) | {"refund_name": name or None}
            self.start(self._repeat(callback, body_of(callback.type, told)))

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Do something in the background."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def is_ours(self, address: str) -> bool:
        """Return whether an address is one of the shops', as nobody is sent elsewhere."""
        there = urlsplit(address)
        return f"{there.scheme}://{there.netloc}" in {shop.rstrip("/") for shop in self._shops}

    def pay_as(self, hold: dict[str, Any], way: str) -> None:
        """Take a payment in one of the ways, and tell the shop in our own time."""
        if way in ("decline", "cancel"):
            kind = "payment.failed" if way == "decline" else "payment.canceled"
            self._tell(hold, kind, _DECLINED_S if way == "decline" else 0.0)
            return
        for _ in range(2 if way == "twice" else 1):
            self._tell(hold, "payment.succeeded", _FIRST_S, lost=3 if way == "lost" else 0, ended=way == "late")

    def _tell(self, hold: dict[str, Any], kind: str, after_s: float, *, lost: int = 0, ended: bool = False) -> None:
        ref = f"pay_{secrets.token_hex(6)}"
        paid = self.pay(hold) if kind == "payment.succeeded" else Payment(ref, 0, "", hold["id"])
        callback = SentCallback(kind, paid.hold, paid.ref)
        self.callbacks.append(callback)
        priced = hold.get("to_pay") is not None
        body = body_of(
            kind, paid.told(amount=hold["to_pay"]) if priced else {"hold": paid.hold, "payment_ref": paid.ref}
        )
        for delay_s in (after_s, after_s + _AGAIN_S):  # at least once means: sometimes twice
            self.start(self._deliver(callback, body, hold, delay_s, lost, ended=ended))

    async def _deliver(
        self, callback: SentCallback, body: str, hold: dict[str, Any], delay_s: float, lost: int, *, ended: bool
    ) -> None:
        if ended:
            await self.until_over(hold)
        await asyncio.sleep(delay_s)
        await self._repeat(callback, body, lost)

    async def until_over(self, hold: dict[str, Any]) -> None:
        """Wait until a hold is held no more."""
        until = time.monotonic() + _LATE_WITHIN_S
        while time.monotonic() < until and hold["state"] == "held":
            await asyncio.sleep(0.5)
            hold = await self.hold(hold["id"]) or hold

    async def _repeat(self, callback: SentCallback, body: str, lost: int = 0) -> None:
        for number in range(_TRIES):
            if number < lost:
                said, wait_s = "lost on the way", 0
            else:
                said, wait_s = await self.send(callback.id, body)
            callback.tries.append(said)
            if said.startswith("2"):
                return
            await asyncio.sleep(max(wait_s, _PAUSES_S[min(number, len(_PAUSES_S) - 1)]))

    async def send(self, name: str, body: str, *, signed_with: str | None = None) -> tuple[str, int]:
        """Tell one of the instances; return its answer, and how many seconds it asks us to wait.

        `signed_with`: another secret than ours, "" for none.
        """
        headers = {"Content-Type": "application/json"} | signed(signed_with or self._secret, name, body)
        if signed_with == "":
            del headers["webhook-signature"]
        try:
            answer = await self._http.post(f"{next(self._turns)}/payments/webhook", content=body, headers=headers)
        except httpx.HTTPError as error:
            return f"no answer: {type(error).__name__}", 0
        told = answer.json() if answer.headers.get("Content-Type", "").endswith("json") else {}
        wait = answer.headers.get("Retry-After", "0")
        said = f"{answer.status_code} {told.get('outcome') or told.get('title') or ''}".strip()
        return said, min(int(wait), 30) if wait.isdigit() else 0


_STYLE: Final = """
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif;
  background: light-dark(#fff, #16191d); color: light-dark(#1a2027, #e6eaee); }
body { max-width: 28rem; margin: 0 auto; padding: 2rem 1rem; }
main { padding: 1.5rem; border: 1px solid light-dark(#d8dee6, #3a414b); border-radius: 16px; }
h1 { margin: 0 0 1rem; font-size: 1.25rem; } dl { margin: 0 0 1.5rem; } dl div { display: flex; gap: 1rem; }
dt { flex: 0 0 6rem; color: light-dark(#5a6470, #aab4c0); } dd { margin: 0; overflow-wrap: anywhere; }
button { width: 100%; min-height: 2.75rem; margin-top: .5rem; border: 1px solid light-dark(#9aa6b2, #5b6673);
  border-radius: 10px; background: none; color: inherit; font: inherit; cursor: pointer; }
button[value=pay] { border: 0; background: #1d5fd1; color: #fff; font-weight: 650; }
[role=status] { font-weight: 650; } p { margin: 0 0 1rem; } .quiet { color: light-dark(#5a6470, #aab4c0); }
"""


def page(title: str, *parts: str) -> HTMLResponse:
    """A page of the provider's."""
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{_STYLE}</style><body><main><h1>{title}</h1>{''.join(parts)}</main>"
        '<p class="quiet">A pretended payment provider: no money is involved.</p></body></html>',
        headers={"Referrer-Policy": "no-referrer", "Cache-Control": "no-store"},
    )


def item_of(hold: dict[str, Any]) -> str:
    """What a hold is of, in words: with the names of its items, if the built-in catalogue has them."""

    def said(sku: str, units: int) -> str:
        told = built_in().told.get(sku)
        return f"{json.loads(told)['name']['en'] if told else sku}, {units} unit{'s' * (units != 1)}"

    return "; ".join(said(line["sku"], line["quantity"]) for line in hold["items"])


def amount_of(hold: dict[str, Any]) -> str:
    """What is to be paid for a hold, in words."""
    to_pay, currency = hold.get("to_pay"), hold.get("currency") or ""
    return "as agreed" if to_pay is None else f"{currency} {to_pay / 100:,.2f}".strip()


def _form(hold: dict[str, Any], back: str, said: str = "") -> HTMLResponse:
    facts = {
        "Item": item_of(hold),
        "Amount": amount_of(hold),
        "Buyer": hold.get("buyer") or "unknown",
        "Hold": f"{hold['id'].rpartition('~')[0]} ({hold['state']})",
    }
    rows = "".join(f"<div><dt>{name}</dt><dd>{html.escape(value)}</dd></div>" for name, value in facts.items())
    buttons = "".join(f'<button name="how" value="{way}">{label}</button>' for way, label in _WAYS.items())
    hidden = "".join(
        f'<input type="hidden" name="{name}" value="{html.escape(value)}">'
        for name, value in (("hold", hold["id"]), ("back", back))
    )
    status = f'<p role="status">{said}</p>' if said else ""
    return page("Payment", status, f"<dl>{rows}</dl>", f'<form method="post" action="/pay">{hidden}{buttons}</form>')


def routes(provider: DemoProvider) -> list[Route]:
    """The provider's pages: the one where a hold is paid, and `/callbacks`, all that the shop was told."""

    async def ask(request: Request) -> Response:
        hold = await provider.hold(request.query_params.get("hold", ""))
        if hold is None:
            return page("Payment", "<p>There is nothing to pay here: the shop knows no such hold.</p>")
        return _form(hold, request.query_params.get("back", ""))

    async def pay(request: Request) -> Response:
        # Parsed by hand: a form of a few fields needs no further package.
        given = dict(httpx.QueryParams((await request.body()).decode()))
        hold, how, back = await provider.hold(given.get("hold", "")), given.get("how", ""), given.get("back", "")
        if hold is None or how not in _WAYS:
            return JSONResponse({"detail": "no such hold, or no such way to pay"}, status_code=404)
        provider.pay_as(hold, how)
        if how == "decline":
            return _form(hold, back, "The card was declined. Try another one.")
        if how == "close" or not provider.is_ours(back):
            return page("Payment", '<p role="status">Done. You may close this tab.</p>')
        return RedirectResponse(back, status_code=303)

    async def callbacks(_: Request) -> Response:
        return JSONResponse([asdict(one) for one in provider.callbacks])

    async def payments(_: Request) -> Response:
        return JSONResponse(list(map(_shown, provider.payments.values())))

    async def refunds(request: Request) -> Response:
        wish, key = await request.json(), request.headers.get("idempotency-key", "")
        if (paid := provider.payments.get(wish.get("payment_ref", ""))) is None:
            return JSONResponse({"detail": "no such payment"}, status_code=404)
        provider.refund_once(paid, key, wish.get("refund_name", ""), wish.get("amount"))
        return JSONResponse(_shown(paid))

    return [
        Route("/", ask),
        Route("/pay", pay, methods=["POST"]),
        Route("/callbacks", callbacks),
        Route("/payments", payments),
        Route("/refunds", refunds, methods=["POST"]),
    ]


def _shown(paid: Payment) -> dict[str, Any]:
    return asdict(paid) | {"given_back": paid.given_back}


class ProviderProcess(Process):
    """The provider in a process of its own. `variables`: the settings, without their prefix, that instances need."""

    def __init__(self, *, port: int | None = None) -> None:
        self.port = port or next((one for one in range(PORT, PORT + 10) if port_is_free(one)), None) or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._secret = f"whsec_{base64.b64encode(secrets.token_bytes(24)).decode()}"
        self.variables = {"PAYMENTS_SECRET": self._secret, "PAY_URL": f"{self.url}/"}
        self._shops: Sequence[str] = ()
        argv = [sys.executable, "-m", "lab.demo.sandbox", "--port", str(self.port)]
        super().__init__(
            "payments",
            lambda _: [*argv, "--shop", ",".join(self._shops)],
            ready=self._answers,
            env={**os.environ, SECRET: self._secret},
        )

    def of(self, shops: Sequence[str]) -> "ProviderProcess":
        """Set the instances that it tells, and return itself."""
        self._shops = shops
        return self

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/callbacks", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
