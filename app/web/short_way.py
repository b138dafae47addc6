"""The short way of a usual purchase through the web framework: around it.

Routing, validation and the layers of middleware cost several times what the sale itself costs. So a request for a
purchase that is plain to see is parsed here by hand. Everything else takes the long way through FastAPI: whatever is
unusual, or wrong in any respect, is understood, refused and documented in one place only, by `app.web.stock.reduce`.
"""

import re
from collections.abc import Iterable
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from app.sale import Purchase
from app.stock import DEFAULT_SKU
from app.web import problems
from app.web.state import State
from app.web.stock import respond

PATH: Final = "/stock/reduce"
_PLAIN: Final = re.compile(rb"(sku|quantity|buyer)=([A-Za-z0-9._-]{1,64})")
_QUANTITY: Final = re.compile(rb"[1-9][0-9]{0,8}")
_KEY: Final = re.compile(rb"[\x21-\x7e]{1,100}")
_DEFAULT: Final = DEFAULT_SKU.encode()
_LONG_WAY: Final = frozenset({b"content-length", b"transfer-encoding", b"expect"})  # a body: somebody must read it


class ShortWay:
    """ASGI: around everything else."""

    def __init__(self, long_way: ASGIApp) -> None:
        self._long_way = long_way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the purchase, or pass the request on."""
        plain = _plain(scope) if scope["type"] == "http" and scope["path"] == PATH else None
        if plain is None:
            await self._long_way(scope, receive, send)
            return
        purchase, as_json = plain
        state: State = scope["state"]["seckill"]
        try:
            answer = await state.shop.buy(purchase)
        except Exception as error:
            await problems.of(error, scope["method"], PATH)(scope, receive, send)
            return
        headers, body = respond(state, scope, answer, as_json=as_json)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _plain(scope: Scope) -> tuple[Purchase, bool] | None:
    """The purchase, and whether JSON is asked for; None if there is anything to be thought about."""
    if scope["method"] not in ("GET", "POST"):
        return None
    head = _head(scope["headers"])
    wish = _wish(scope["query_string"]) if head is not None else None
    if head is None or wish is None or wish[0] > scope["state"]["seckill"].quantity_max:
        return None
    return Purchase(*wish, head[0]), head[1]


def _head(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str | None, bool] | None:
    key = None
    as_json = False
    for name, value in headers:
        if name == b"accept":
            as_json = as_json or b"application/json" in value
        elif name == b"idempotency-key":
            if key is not None or _KEY.fullmatch(value) is None:
                return None
            key = value.decode()
        elif name in _LONG_WAY:
            return None
    return key, as_json


def _wish(query: bytes) -> tuple[int, str, str | None] | None:
    if not query:
        return 1, DEFAULT_SKU, None
    found: dict[bytes, bytes] = {}
    for part in query.split(b"&"):
        match = _PLAIN.fullmatch(part)
        if match is None or match[1] in found:
            return None
        found[match[1]] = match[2]
    quantity = found.get(b"quantity", b"1")
    if _QUANTITY.fullmatch(quantity) is None:
        return None
    buyer = found.get(b"buyer")
    return int(quantity), found.get(b"sku", _DEFAULT).decode(), None if buyer is None else buyer.decode()
