"""The purchase: one endpoint, with one parser, for every client.

It is plain ASGI: the framework's routing, validation and middleware cost more than the sale itself
(docs/performance.md). For OpenAPI it is a route of FastAPI's as well: `purchase_route`.
"""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from app.sale import Answer, Outcome, Purchase
from app.stock import DEFAULT_SKU, SKU_PATTERN
from app.web import problems
from app.web.connection import GONE
from app.web.problems import invalid_field
from app.web.state import State

PATH: Final = "/stock/reduce"
METHODS: Final = ("GET", "POST")
_SKU: Final = re.compile(SKU_PATTERN)
_QUANTITY: Final = re.compile(r"[1-9][0-9]{0,8}")
_KEY: Final = re.compile(rb"[\x21-\x7e]{1,100}")
BUYER_MAX: Final = 100
# No control characters, and none that break lines or show text in another order. The joiners in Persian names and in
# emoji are none of these. (`str.isprintable` knows the characters of its Python's year, and no schema can say it.)
BUYER_PATTERN: Final = r"[^\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]+"
_BUYER: Final = re.compile(BUYER_PATTERN)


class PurchaseView(BaseModel):
    """What became of a purchase."""

    outcome: Outcome
    quantity: int
    order: str | None = Field(None, description="the order's id, if sold; it can't be guessed, so keep it")
    replayed: bool = Field(False, description="the same answer as the same idempotency key got before")
    instance: str = Field(description="the instance that served it")


def _never() -> bool:
    return False  # behind another server


async def purchase(scope: Scope, receive: Receive, send: Send) -> None:
    """Buy: an ASGI application."""
    state: State = scope["state"]["seckill"]
    try:
        wish, as_json = parse(scope["query_string"], scope["headers"], quantity_max=state.quantity_max)
        answer = await state.shop.buy(wish, gone=scope.get(GONE, _never))
    except Exception as error:
        await problems.of(error, scope["method"], PATH)(scope, receive, send)
        return
    headers, body = _respond(state, scope, answer, as_json=as_json)
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def parse(query: bytes, headers: Iterable[tuple[bytes, bytes]], *, quantity_max: int) -> tuple[Purchase, bool]:
    """The purchase, and whether the client asks for JSON.

    Nothing is ignored: raises `RequestValidationError`, which names the field, for a parameter that is unknown,
    repeated or not valid, for two keys, and for a body.
    """
    key: str | None = None
    as_json = False
    for name, value in headers:
        if name == b"accept":
            as_json = as_json or _wants_json(value)
        elif name == b"idempotency-key":
            if key is not None:
                raise invalid_field("Idempotency-Key", "one key, not several", where="header")
            if _KEY.fullmatch(value) is None:
                raise invalid_field("Idempotency-Key", "1 to 100 visible ASCII characters", where="header")
            key = value.decode()
        elif (name == b"content-length" and value.strip(b"0")) or name == b"transfer-encoding":
            raise invalid_field("body", "a purchase has no body; say what you want in the query", where="body")
    fields = _fields(query) if query else {}
    quantity = fields.get("quantity", "1")
    if _QUANTITY.fullmatch(quantity) is None or int(quantity) > quantity_max:
        raise invalid_field("quantity", f"a whole number from 1 to {quantity_max}, in plain digits")
    sku = fields.get("sku", DEFAULT_SKU)
    if _SKU.fullmatch(sku) is None:
        raise invalid_field("sku", "letters, digits, '.', '_' and '-', 64 at most")
    buyer = fields.get("buyer")
    if buyer is not None and (len(buyer) > BUYER_MAX or _BUYER.fullmatch(buyer) is None):
        raise invalid_field("buyer", f"1 to {BUYER_MAX} printable characters")
    return Purchase(int(quantity), sku, buyer, key), as_json


def _fields(query: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in query.decode("latin-1").split("&"):
        name, _, value = part.partition("=")
        if name not in ("sku", "quantity", "buyer"):
            raise invalid_field(name or "query", "unknown parameter; there are sku, quantity and buyer")
        if name in fields:
            raise invalid_field(name, "once, not several times")
        if "%" in value or "+" in value or not value.isascii():
            try:
                value = unquote_to_bytes(value.replace("+", " ").encode("latin-1")).decode()
            except UnicodeDecodeError:
                raise invalid_field(name, "not UTF-8") from None
        fields[name] = value
    return fields


def _wants_json(accept: bytes) -> bool:
    if b"json" not in accept.lower():
        return False
    for media in accept.decode("latin-1").lower().split(","):
        kind, *parameters = (part.strip() for part in media.split(";"))
        if kind == "application/json" and not any(re.fullmatch(r"q=0(\.0*)?", one) for one in parameters):
            return True
    return False


def _respond(state: State, scope: Scope, answer: Answer, *, as_json: bool) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of an answer."""
    if as_json:
        view = PurchaseView(
            outcome=answer.outcome,
            quantity=answer.quantity,
            order=answer.order_id,
            replayed=answer.replayed,
            instance=state.instance,
        )
        body, content_type = view.model_dump_json(exclude_none=True).encode(), b"application/json"
    else:
        server = scope.get("server")
        port = server[1] if server and server[1] else state.instance  # behind a unix socket there is no port
        body, content_type = f"{port} reduce stock end!".encode(), b"text/plain; charset=utf-8"
    headers = [
        (b"content-length", str(len(body)).encode()),
        (b"content-type", content_type),
        (b"x-seckill-outcome", answer.outcome.encode()),
    ]
    if answer.order_id is not None:
        headers.append((b"x-seckill-order", answer.order_id.encode()))
    return headers, body
