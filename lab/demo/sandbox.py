"""The bad days of a payment provider, one button each: what it does, what the service answers, how the order stands."""

import argparse
import asyncio
import base64
import html
import os
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from app import money
from lab.bank import Payment
from lab.callback import body_of
from lab.demo import provider as till
from lab.demo.provider import PORT, SECRET, DemoProvider, amount_of, item_of, page

_KEPT: Final = 200
_PATIENCE_S: Final = 5.0  # a page is not shown later; what takes longer is seen when it is loaded again
_AGAIN_S: Final = 1.0
_TRIES: Final = 60
_LARGE_BYTES: Final = 40_000
_OTHERS_SECRET: Final = f"whsec_{base64.b64encode(b'of another provider, or nobody').decode()}"


@dataclass(slots=True)
class BadDay:
    """A bad day that is, or was, played. `steps`: what the provider did, and what it was answered."""

    day: str
    hold: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    done: bool = False
    state: str = ""


class Till:
    """The provider in the middle of a bad day, with one hold. `costs`: what is to be paid for it."""

    def __init__(self, provider: DemoProvider, hold: dict[str, Any], play: BadDay) -> None:
        self._provider = provider
        self._hold = hold
        self._play = play
        self.hold: str = hold["id"]
        self.costs: int = hold.get("to_pay") or 0

    def paid(self, amount: int | None = None, currency: str | None = None) -> Payment:
        """The buyer has paid."""
        return self._provider.pay(self._hold, amount, currency)

    def refund(self, paid: Payment, amount: int | None = None) -> dict[str, Any]:
        """Give back a payment, or a part of it; return what a callback says of that."""
        return self._provider.refund(paid, amount)

    def note(self, what: str, said: str = "") -> None:
        """Note a step."""
        self._play.steps.append((what, said))

    async def until_over(self) -> None:
        """Wait for the end of the hold."""
        self.note("waits until the hold has run out")
        await self._provider.until_over(self._hold)

    async def succeeded(self, paid: Payment, name: str = "", **more: Any) -> None:
        """Report a payment."""
        await self.tell("payment.succeeded", paid.told(**more), name)

    async def tell(self, kind: str, data: dict[str, Any], name: str = "", *, signed_with: str | None = None) -> None:
        """Send a callback, and again while nobody can take it."""
        body = body_of(kind, data)
        size = f", {len(body) // 1000} kB" if len(body) > 1000 else ""
        what = f"{kind} of {data['payment_ref']}" + (f": {data['amount']}" if data.get("amount") is not None else "")
        for _ in range(_TRIES):
            said, wait_s = await self._provider.send(
                name or f"evt_{secrets.token_hex(8)}", body, signed_with=signed_with
            )
            self.note(what + size, said)
            if not said.startswith(("503", "no answer")):
                return
            await asyncio.sleep(max(wait_s, _AGAIN_S))


class Day(NamedTuple):
    """A bad day: its button, what it does, and the play."""

    label: str
    what: str
    play: Callable[[Till], Awaitable[None]]


async def _pay(till: Till) -> None:
    await till.succeeded(till.paid())


async def _twice(till: Till) -> None:
    await till.succeeded(till.paid())
    await till.succeeded(till.paid())


async def _late(till: Till) -> None:
    await till.until_over()
    await till.succeeded(till.paid())


async def _after_failure(till: Till) -> None:
    await till.tell("payment.failed", {"hold": till.hold, "payment_ref": f"pay_{secrets.token_hex(6)}"})
    await till.succeeded(till.paid())


async def _lost(till: Till) -> None:
    paid, name = till.paid(), f"evt_{secrets.token_hex(8)}"
    till.note(f"payment.succeeded of {paid.ref}", "lost on the way")
    await till.succeeded(paid, name)
    till.note("that answer", "lost on the way back")
    await till.succeeded(paid, name)


async def _repeated(till: Till) -> None:
    paid, name = till.paid(), f"evt_{secrets.token_hex(8)}"
    await asyncio.gather(till.succeeded(paid, name), till.succeeded(paid, name))


async def _reordered(till: Till) -> None:
    paid = till.paid()
    given_back = till.refund(paid)
    await till.tell("payment.refunded", given_back)
    await till.succeeded(paid)
    await till.tell("payment.refunded", given_back)


async def _wrong_amount(till: Till) -> None:
    await till.succeeded(till.paid(max(1, till.costs - 100)))


async def _wrong_currency(till: Till) -> None:
    await till.succeeded(till.paid(currency="XTS"))


async def _part(till: Till) -> None:
    paid = till.paid()
    await till.succeeded(paid)
    await till.tell("payment.refunded", till.refund(paid, paid.amount // 2))


async def _whole(till: Till) -> None:
    paid = till.paid()
    await till.succeeded(paid)
    await till.tell("payment.refunded", till.refund(paid))


async def _dispute(till: Till) -> None:
    paid = till.paid()
    await till.succeeded(paid)
    disputed = till.refund(paid)
    await till.tell("payment.disputed", disputed)
    await till.tell("payment.dispute_lost", disputed)


async def _foreign(till: Till) -> None:
    data = {"payment_ref": f"pay_{secrets.token_hex(6)}", "amount": till.costs}
    await till.tell("payment.succeeded", data | {"hold": "cart 4711 of another shop"})
    await till.tell("payment.refunded", data)


async def _unsigned(till: Till) -> None:
    forged = {"hold": till.hold, "payment_ref": f"pay_{secrets.token_hex(6)}", "amount": till.costs}
    await till.tell("payment.succeeded", forged, signed_with="")
    await till.tell("payment.succeeded", forged, signed_with=_OTHERS_SECRET)


async def _large(till: Till) -> None:
    await till.succeeded(till.paid(), cart="x" * _LARGE_BYTES)


DAYS: Final[dict[str, Day]] = {
    "pay": Day("Pay", "A good day: one payment, one callback.", _pay),
    "twice": Day("Pay twice", "The buyer pays in two tabs: two payments for one hold.", _twice),
    "late": Day("Pay late", "The money comes when the hold has run out.", _late),
    "failed": Day("Success after failure", "A card is declined, and the next one is not.", _after_failure),
    "lost": Day("Callback lost", "The first callback is lost, then an answer is; it is repeated.", _lost),
    "repeated": Day("Callback twice", "The same callback comes twice, side by side.", _repeated),
    "reordered": Day("Out of order", "The refund comes before the payment, and again after it.", _reordered),
    "amount": Day("Wrong amount", "Less was paid than it costs.", _wrong_amount),
    "currency": Day("Wrong currency", "The right amount, in another currency.", _wrong_currency),
    "part": Day("Partial refund", "Half of it is given back in the dashboard.", _part),
    "whole": Day("Whole refund", "All of it is given back in the dashboard.", _whole),
    "dispute": Day("Dispute", "The buyer disputes the payment, and gets the money back.", _dispute),
    "foreign": Day("Another shop's payment", "A payment and a refund that are none of this service.", _foreign),
    "unsigned": Day("Unsigned callback", "Somebody says that it is paid: unsigned, and signed by another.", _unsigned),
    "large": Day("Large event", "A callback with a whole cart in it.", _large),
}


class Sandbox:
    """Plays bad days, and remembers them, the last one first."""

    def __init__(self, provider: DemoProvider) -> None:
        self._provider = provider
        self.plays: deque[BadDay] = deque(maxlen=_KEPT)

    async def play(self, day: str, hold: dict[str, Any]) -> BadDay:
        """Play a day with a hold, and come back when it is over, or takes too long for a page."""
        play = BadDay(day, hold["id"])
        self.plays.appendleft(play)
        await asyncio.wait([self._provider.start(self._run(play, hold))], timeout=_PATIENCE_S)
        return play

    async def _run(self, play: BadDay, hold: dict[str, Any]) -> None:
        try:
            await DAYS[play.day].play(Till(self._provider, hold, play))
        finally:
            now = await self._provider.hold(play.hold) or hold
            play.state, play.done = stands(now), True


def stands(hold: dict[str, Any]) -> str:
    """How an order stands, in words."""
    parts = [str(hold["state"])]
    for paid in hold["payments"]:
        parts += [f"{paid['ref']}, of another amount, waits for an operator"] if paid["waits"] else []
        for name, word in (("owed", "is owed"), ("given_back", "was given back")):
            parts += [f"{money.written(paid[name], paid['currency'])} of {paid['ref']} {word}"] if paid[name] else []
    return "; ".join(parts)


# -- the page --------------------------------------------------------------------------------------------------------

_STYLE: Final = """
body { max-width: 60rem; }
.days { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(16rem, 100%), 1fr)); gap: .75rem; }
.days button { display: grid; align-content: start; height: 100%; margin: 0; padding: .75rem 1rem; text-align: start; }
.days strong, .days span { display: block; } .days span { font-size: .875rem; }
.days [value=pay] span { color: #fff; font-weight: 400; }
h2 { margin: 2rem 0 .5rem; font-size: 1.0625rem; } ol { margin: 0; padding-inline-start: 1.25rem; }
article { padding: .75rem 0; border-top: 1px solid light-dark(#d8dee6, #3a414b); overflow-wrap: anywhere; }
article h3 { margin: 0; font-size: 1rem; } code { font-size: .875rem; } article p { margin: .25rem 0 0; }
"""


def routes(provider: DemoProvider) -> list[Route]:
    """The sandbox's pages; what was played is at `/sandbox/plays` as JSON."""
    sandbox = Sandbox(provider)

    async def show(request: Request) -> Response:
        name = request.query_params.get("hold", "")
        hold = await provider.hold(name) if name else None
        plays = [one for one in sandbox.plays if hold is None or one.hold == name]
        begin = (
            '<form method="post" action="/sandbox/begin"><button value="pay" name="how">Hold one more</button></form>'
        )
        facts = "<p>Hold one for a pretended buyer, or open this page with <code>?hold=</code> and a hold's id.</p>"
        if hold is not None:
            rows = {"Item": item_of(hold), "Amount": amount_of(hold)}
            rows |= {"Hold": name.rpartition("~")[0], "It stands": stands(hold)}
            facts = "".join(f"<div><dt>{key}</dt><dd>{html.escape(value)}</dd></div>" for key, value in rows.items())
            facts = f"<dl>{facts}</dl>{_buttons(name)}"
        again = '<meta http-equiv="refresh" content="2">' if any(not one.done for one in plays) else ""
        told = f"<h2 id='happened'>What happened</h2>{''.join(map(_told, plays))}" if plays else ""
        return page(
            "A provider's bad days", f"{again}<style>{_STYLE}</style>", facts, told, f"<h2>Another hold</h2>{begin}"
        )

    async def begin(_: Request) -> Response:
        hold = await provider.begin()
        if hold is None:
            return page("A provider's bad days", '<p role="status">Nothing can be held: is anything left?</p>')
        return RedirectResponse(f"/sandbox?hold={quote(hold['id'], safe='')}", status_code=303)

    async def play(request: Request) -> Response:
        given = dict(httpx.QueryParams((await request.body()).decode()))
        hold = await provider.hold(given.get("hold", ""))
        if hold is None or given.get("day") not in DAYS:
            return JSONResponse({"detail": "no such hold, or no such day"}, status_code=404)
        await sandbox.play(given["day"], hold)
        return RedirectResponse(f"/sandbox?hold={quote(hold['id'], safe='')}#happened", status_code=303)

    async def plays(_: Request) -> Response:
        return JSONResponse(
            [{"day": one.day, "hold": one.hold, "steps": one.steps, "done": one.done} for one in sandbox.plays]
        )

    return [
        Route("/sandbox", show),
        Route("/sandbox/begin", begin, methods=["POST"]),
        Route("/sandbox/play", play, methods=["POST"]),
        Route("/sandbox/plays", plays),
    ]


def _buttons(hold: str) -> str:
    buttons = "".join(
        f'<button name="day" value="{name}"><strong>{day.label}</strong><span class="quiet">{day.what}</span></button>'
        for name, day in DAYS.items()
    )
    hidden = f'<input type="hidden" name="hold" value="{html.escape(hold)}">'
    return f'<form method="post" action="/sandbox/play" class="days">{hidden}{buttons}</form>'


def _told(play: BadDay) -> str:
    steps = "".join(
        f"<li><code>{html.escape(what)}</code>{f' → <strong>{html.escape(said)}</strong>' if said else ''}</li>"
        for what, said in play.steps
    )
    state = f"<p>The order: <strong>{html.escape(play.state)}</strong></p>" if play.done else "<p>It goes on …</p>"
    return f"<article><h3>{DAYS[play.day].label}</h3><ol>{steps}</ol>{state}</article>"


def main() -> None:
    """Serve the provider's pages until the process is ended."""
    parser = argparse.ArgumentParser(description="A pretended payment provider.")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--shop", required=True, help="URLs of the shop's instances, with commas")
    given = parser.parse_args()
    provider = DemoProvider(given.shop.split(","), os.environ[SECRET])
    pages = Starlette(routes=[*till.routes(provider), *routes(provider)])
    uvicorn.run(pages, host="127.0.0.1", port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
