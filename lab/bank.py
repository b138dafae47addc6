"""A pretended payment provider with Stripe's API for refunds: it keeps books, and has a provider's bad days.

Nobody's money is involved. A day is a text that `manner` returns for each request: "" for a good one, else a key of
`BAD_DAYS`.
"""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

KEY: Final = "sk_test_bank"
BAD_DAYS: Final = {
    "lost": "the connection is cut before anything is done",
    "answer lost": "it is done, and the connection is cut",
    "500": "nothing is done",
    "500 after success": "it is done",
    "late": "it is done, after the caller's patience",
    "429": "too many requests",
    "409": "another request with this key is being served",
}


@dataclass(slots=True)
class Payment:
    """Money that was taken, perhaps for a hold. Amounts are in the minor unit of `currency`, "" for none."""

    ref: str
    amount: int
    currency: str = "EUR"
    hold: str = ""
    refunds: list[dict[str, Any]] = field(default_factory=list)

    @property
    def given_back(self) -> int:
        """What was given back so far."""
        return sum(one["amount"] for one in self.refunds if one["status"] != "failed")

    def told(self, **other: Any) -> dict[str, Any]:
        """What a callback says of it."""
        own = {"hold": self.hold, "payment_ref": self.ref, "amount": self.amount, "currency": self.currency or None}
        return own | other


class Bank:
    """Takes payments (`take`) and requests for refunds. `asked`: the keys of all requests, oldest first.

    `refuses`: payments that are disputed; `late_s`: how long a late answer takes. It lives on one event loop.
    """

    def __init__(self, manner: Callable[[], str] = lambda: "", *, late_s: float = 1.0) -> None:
        self.manner = manner
        self.payments: dict[str, Payment] = {}
        self.asked: list[str] = []
        self.refuses: set[str] = set()
        self._late_s = late_s
        self._answers: dict[str, tuple[str, int, dict[str, Any]]] = {}  # by idempotency key: what was asked, the answer
        self._count = 0
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.url = ""

    def take(self, ref: str, amount: int, currency: str = "EUR", hold: str = "") -> Payment:
        """Take a payment."""
        found = self.payments[ref] = Payment(ref, amount, currency, hold)
        return found

    def give_back(self, ref: str, amount: int | None = None, **more: Any) -> dict[str, Any]:
        """Give back a payment, or a part, as if in the provider's dashboard. Raises `ValueError`."""
        payment = self.payments[ref]
        left = payment.amount - payment.given_back
        amount = left if amount is None else amount
        if not 0 < amount <= left:
            raise ValueError("charge_already_refunded" if not left else "amount_too_large")
        self._count += 1
        made = {"id": f"re_{self._count}", "object": "refund", "amount": amount, "payment_intent": ref}
        made |= {
            "status": "succeeded",
            "currency": payment.currency.lower(),
            "metadata": {},
            "created": int(time.time()),
            "charge": f"ch_{ref}",
            **more,
        }
        payment.refunds.append(made)
        return made

    def fail(self, ref: str) -> dict[str, Any]:
        """Have the last refund of a payment come back from the payer's bank."""
        gone = self.payments[ref].refunds[-1]
        gone["status"] = "failed"
        return gone

    async def _refunds(self, request: Request) -> Response:  # noqa: PLR0911 - a day each
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return _error(401, "invalid_api_key")
        if request.method == "GET":
            payment = self.payments.get(request.query_params.get("payment_intent", ""))
            everything = [one for each in self.payments.values() for one in each.refunds]
            wanted = payment.refunds if payment else []
            return _list(request, wanted if "payment_intent" in request.query_params else everything)
        key, body = request.headers.get("idempotency-key", ""), (await request.body()).decode()
        self.asked.append(key)
        day = self.manner()
        if day == "lost":
            raise _CutError
        if day in ("429", "409"):
            return _error(int(day), "rate_limit" if day == "429" else "idempotency_key_in_use")
        if day == "500":
            return _error(500, "nothing_was_done")
        before = self._answers.get(key)
        if before is not None and before[0] != body:
            return _error(400, "idempotency_error", "idempotency_error")
        answer = before or (body, *self._make(dict(parse_qsl(body))))
        self._answers[key] = answer
        if day == "answer lost":
            raise _CutError
        if day == "500 after success":
            return _error(500, "it_was_done")
        if day == "late":
            await asyncio.sleep(self._late_s)
        return JSONResponse(answer[2], answer[1])

    def _make(self, wish: dict[str, str]) -> tuple[int, dict[str, Any]]:
        payment = self.payments.get(wish.get("payment_intent", ""))
        if payment is None:
            return 404, _body("resource_missing")
        if payment.ref in self.refuses:
            return 400, _body("charge_disputed")
        metadata = {name[9:-1]: value for name, value in wish.items() if name.startswith("metadata[")}
        amount = int(wish["amount"]) if "amount" in wish else None
        try:
            return 200, self.give_back(payment.ref, amount, metadata=metadata)
        except ValueError as error:
            return 400, _body(str(error))

    async def _intent(self, request: Request) -> Response:
        payment = self.payments.get(request.path_params["ref"])
        if payment is None:
            return _error(404, "resource_missing")
        return JSONResponse({"id": payment.ref, "object": "payment_intent", "currency": payment.currency.lower()})

    async def _charges(self, request: Request) -> Response:
        return _list(
            request,
            [
                {"id": f"ch_{one.ref}", "object": "charge", "payment_intent": one.ref, "captured": True, "created": 1}
                | {"amount": one.amount, "amount_captured": one.amount, "currency": one.currency.lower()}
                for one in self.payments.values()
            ],
        )

    async def _disputes(self, request: Request) -> Response:
        return _list(request, [])

    async def open(self, hosts: Iterable[str] = ("127.0.0.1",), port: int = 0) -> None:
        """Begin to listen, on this port of these addresses, or on a free one."""
        listening = [socket.create_server((host, port)) for host in hosts]
        routes = [
            Route("/v1/refunds", self._refunds, methods=["GET", "POST"]),
            Route("/v1/payment_intents/{ref}", self._intent),
            Route("/v1/charges", self._charges),
            Route("/v1/disputes", self._disputes),
        ]
        app = Starlette(routes=routes)

        async def served(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, send)
            except _CutError:
                await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})

        config = uvicorn.Config(served, log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server._serve(listening))
        while not self._server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        self.url = url_of("127.0.0.1", listening[0].getsockname()[1])

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None and self._serving is not None:
            self._server.should_exit = self._server.force_exit = True
            await self._serving


def url_of(host: str, port: int) -> str:
    """Return the setting with which the cashier asks a bank there."""
    return f"stripe://{KEY}@{host}:{port}"


def _list(request: Request, those: list[dict[str, Any]]) -> Response:
    """A page of two, as Stripe's lists go on behind the last one that was seen."""
    after = request.query_params.get("starting_after")
    begin = next((n for n, one in enumerate(those, 1) if one["id"] == after), 0)
    page = those[begin : begin + 2]
    more = begin + len(page) < len(those)
    return JSONResponse({"object": "list", "url": request.url.path, "has_more": more, "data": page})


class _CutError(Exception):
    """The connection is to be cut."""


def _body(code: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"type": kind, "code": code, "message": code}}


def _error(status: int, code: str, kind: str = "invalid_request_error") -> Response:
    kind = {401: "invalid_request_error", 429: "rate_limit_error", 500: "api_error"}.get(status, kind)
    return Response(json.dumps(_body(code, kind)), status, media_type="application/json")
