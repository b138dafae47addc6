"""The purchase: one endpoint, with one parser, for every client.

It goes past the framework, whose routing, validation and middleware cost more than the sale itself
(docs/performance.md). For OpenAPI it is a route of FastAPI's as well: `purchase_route`.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel, Field

from app.errors import ForeignOrigin, Prefetched
from app.orders import DEFAULT_SKU, SKU_PATTERN, Answer, Outcome, Purchase
from app.web.auth import bearer
from app.web.call import Asked, Call, Form, Route
from app.web.identity import BUYER_MAX, is_buyer
from app.web.problems import invalid_field

PATH: Final = "/stock/reduce"
METHODS: Final = ("GET", "POST")
_SKU: Final = re.compile(SKU_PATTERN)
_QUANTITY: Final = re.compile(r"[1-9][0-9]{0,8}")
_PURPOSE: Final = frozenset({b"sec-purpose", b"purpose", b"x-purpose", b"x-moz"})
_AHEAD: Final = re.compile(rb"(?i)prefetch|prerender|preview")
_BODY: Final = frozenset({b"content-length", b"transfer-encoding"})
_ORIGIN: Final = frozenset({b"host", b"origin", b"sec-fetch-site"})
_HEARD: Final = _PURPOSE | _BODY | _ORIGIN | {b"accept", b"idempotency-key"}
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\["\\])+"')
_KEY: Final = re.compile(rb"[\x21-\x7e]{1,100}")
_NAME_DIGITS: Final = 16  # of a part, and they are an order's own


class PurchaseView(BaseModel):
    """The outcome of a purchase."""

    outcome: Outcome
    quantity: int
    order: str | None = Field(None, description="the order's id, if sold; it can't be guessed, so keep it")
    replayed: bool = Field(False, description="the same answer as the same idempotency key got before")
    instance: str = Field(description="the instance that served it")


def read(call: Call) -> Asked:
    """Read a purchase. Raises `parse`'s errors, or `BuyerNotSigned`."""
    state = call.state
    wish, as_json = parse(call.query, call.headers, quantity_max=state.quantity_max, buyer_max=state.buyer_max)
    if state.signed is not None:
        wish = wish._replace(buyer=state.signed.read(token_of(wish.buyer, call.headers)))
    if call.request_id is not None:
        wish = wish._replace(request_id=call.request_id, traceparent=call.traceparent)
    if as_json:
        return Asked(wish, _json(state.instance))
    port = call.server[1] if call.server else None  # there is none behind a unix socket
    return Asked(wish, _text(str(port) if port else state.instance))


def token_of(given: str | None, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The token, in the query or as `Authorization: Bearer`, which no log of a proxy shows; if in both, the same."""
    shown = bearer(headers)
    if None not in (given, shown) and given != shown:
        raise invalid_field("buyer", "another token than that of the Authorization header")
    return shown if given is None else given


def parse(
    query: bytes, headers: Iterable[tuple[bytes, bytes]], *, quantity_max: int, buyer_max: int = BUYER_MAX
) -> tuple[Purchase, bool]:
    """Parse a purchase, and whether the client asks for JSON.

    Nothing is ignored: it raises `RequestValidationError`, which names the field, for a parameter that is unknown,
    repeated or not valid, for two keys, and for a body; `ForeignOrigin` or `Prefetched` for a request that a browser
    makes by itself.
    """
    key, as_json = _read_headers(headers)
    fields = _fields(query) if query else {}
    quantity = fields.get("quantity", "1")
    if _QUANTITY.fullmatch(quantity) is None or int(quantity) > quantity_max:
        raise invalid_field("quantity", f"a whole number from 1 to {quantity_max}, in plain digits")
    sku = fields.get("sku", DEFAULT_SKU)
    if _SKU.fullmatch(sku) is None:
        raise invalid_field("sku", "letters, digits, '.', '_' and '-', 64 at most")
    buyer = fields.get("buyer")
    if buyer is not None and not is_buyer(buyer, buyer_max):
        raise invalid_field("buyer", f"1 to {buyer_max} printable characters, and not `erased`")
    return Purchase(int(quantity), sku, buyer, key), as_json


def _read_headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str | None, bool]:
    """The idempotency key, and whether the client asks for JSON."""
    key: str | None = None
    as_json = False
    said: dict[bytes, bytes] = {}  # the headers about its origin
    for name, value in headers:
        if name not in _HEARD:
            continue
        if name == b"accept":
            as_json = as_json or _wants_json(value)
        elif name == b"idempotency-key":
            if key is not None:
                raise invalid_field("Idempotency-Key", "one key, not several", where="header")
            key = read_key(value)
        elif name in _ORIGIN:
            said[name] = value
        elif name in _BODY:
            if name == b"transfer-encoding" or value.strip(b"0"):
                raise invalid_field("body", "a purchase has no body; say what you want in the query", where="body")
        elif _AHEAD.search(value):
            raise Prefetched("this was asked for ahead of time, by a browser and not by a buyer; nothing was done")
    refuse_foreign(said)
    return key, as_json


def read_key(value: bytes) -> str:
    """Read an idempotency key, bare or in quotes. Raises `RequestValidationError`."""
    said = value.strip(b" \t")
    if _STRING.fullmatch(said):  # as the draft has it: a string of structured fields (RFC 9651)
        said = re.sub(rb"\\(.)", rb"\1", said[1:-1])
    if _KEY.fullmatch(said) is None:
        raise invalid_field("Idempotency-Key", "1 to 100 visible ASCII characters", where="header")
    return said.decode()


def name_of_part(what: str, key: str) -> str:
    """The name by which an order remembers a part's idempotency key for good."""
    return hashlib.sha256(f"{what} {key}".encode()).hexdigest()[:_NAME_DIGITS]


def refuse_foreign(headers: Mapping[bytes, bytes]) -> None:
    """Raise `ForeignOrigin` if a page of another origin sent a request with these headers."""
    if _is_foreign(headers):
        raise ForeignOrigin("a page of another site sent this; nothing was done")


def _is_foreign(said: Mapping[bytes, bytes]) -> bool:
    """Return whether a page of another origin sent it. Over plain HTTP browsers don't say so, but most send `Origin`.

    Source: F. Valsorda, "Cross-Site Request Forgery" (words.filippo.io/csrf).
    """
    site, origin = said.get(b"sec-fetch-site"), said.get(b"origin")
    if site is not None or origin is None:
        return site not in (None, b"same-origin", b"none")
    return origin.lower().partition(b"://")[2] != said.get(b"host", b"").lower()


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
    if accept == b"application/json":
        return True
    if b"json" not in accept.lower():
        return False
    for media in accept.decode("latin-1").lower().split(","):
        kind, *parameters = (part.strip() for part in media.split(";"))
        if kind == "application/json" and not any(re.fullmatch(r"q=0(\.0*)?", one) for one in parameters):
            return True
    return False


@lru_cache(8)
def _json(instance: str) -> Form:
    """`PurchaseView`, by hand: no outcome and no id has anything to escape."""
    quoted = json.dumps(instance)

    def form(answer: Answer) -> tuple[list[tuple[bytes, bytes]], bytes]:
        order = f'"order":"{answer.order}",' if answer.order is not None else ""
        replayed = "true" if answer.replayed else "false"
        told = f'{{"outcome":"{answer.outcome}","quantity":{answer.quantity},{order}"replayed":{replayed}'
        return _with_order(b"application/json", answer), f'{told},"instance":{quoted}}}'.encode()

    return form


@lru_cache(8)
def _text(name: str) -> Form:
    """The articles' text, with the port that the request came to."""

    def form(answer: Answer) -> tuple[list[tuple[bytes, bytes]], bytes]:
        said = "hold required: it has a price" if answer.outcome is Outcome.HOLD_REQUIRED else "reduce stock end!"
        return _with_order(b"text/plain; charset=utf-8", answer), f"{name} {said}".encode()

    return form


def _with_order(content_type: bytes, answer: Answer) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", content_type)]
    if answer.order is not None:
        headers.append((b"x-seckill-order", str(answer.order).encode()))
    return headers


ROUTE: Final = Route(PATH, read, has_body=False)
