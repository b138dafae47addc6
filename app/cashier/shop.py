"""Refunds that the shop makes by itself: it gets a signed `refund.requested`, in the way of events."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from app.cashier.provider import Became, RefundWish
from app.cashier.provider import Result as Refunded
from app.outbox.endpoint import ShopEndpoint
from app.payments import Report

_REFUSALS: Final = (400, 404, 405, 410, 422)
_NOT_OURS: Final = (401, 403)


class ShopRefunds:
    """The shop's endpoint for refunds. It lives on one event loop; each of the secrets signs."""

    def __init__(self, url: str, secrets: Sequence[str], *, timeout_s: float) -> None:
        self._endpoint = ShopEndpoint(url, secrets, timeout_s=timeout_s, at_once=1)
        self.where = self._endpoint.where

    async def refund(self, wish: RefundWish) -> Refunded:
        """See `Provider`. The shop answers `{"outcome": "refunded"}`, or any other 2xx and calls back later."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        data: dict[str, Any] = {"order": str(wish.order), "sku": wish.order.sku, "ref": wish.shop_ref}
        data |= {"payment_ref": wish.payment_ref, "refund_name": wish.name}
        data |= {"amount": wish.amount, "currency": wish.currency}
        said = {"type": "refund.requested", "timestamp": at, "data": data}
        answer = await self._endpoint.post(wish.key, json.dumps(said, separators=(",", ":")).encode())
        if not answer.why:
            return Refunded(Became.DONE if _says_refunded(answer.body) else Became.ACCEPTED)
        why = f"{self.where}: {answer.why}"
        if answer.status in _NOT_OURS:
            return Refunded(Became.UNKNOWN, f"{why}; is SECKILL_WEBHOOK_SECRET the shop's?", closed=True)
        return Refunded(Became.REFUSED if answer.status in _REFUSALS else Became.UNKNOWN, why)

    async def made(self, payment_ref: str) -> list[Report] | None:
        """See `Provider`. Nothing asks a shop for its refunds."""
        return None

    async def close(self) -> None:
        """Close all connections."""
        await self._endpoint.close()


def _says_refunded(body: bytes) -> bool:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(told, dict) and told.get("outcome") == "refunded"
