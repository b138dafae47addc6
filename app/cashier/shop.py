"""Refunds that the shop makes by itself: it is asked by a signed `refund.requested`, as an event is sent."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import httpx
import standardwebhooks

from app.cashier.provider import Became, Result, Wish

_ANSWER_MAX: Final = 65_536
_REFUSALS: Final = (400, 404, 405, 410, 422)


class Shop:
    """The shop's endpoint for refunds. It lives on one event loop; each of the secrets signs."""

    def __init__(self, url: str, secrets: Sequence[str], *, timeout_s: float) -> None:
        address = httpx.URL(url)
        self.where = f"{address.scheme}://{address.netloc.decode()}"
        self._url = address
        self._signers = [standardwebhooks.Webhook(secret) for secret in secrets]
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None

    async def refund(self, wish: Wish, *, again: bool) -> Result:
        """See `Provider`. The shop answers `{"outcome": "refunded"}`, or any other 2xx and calls back later."""
        self._client = self._client or httpx.AsyncClient(timeout=self._timeout_s)
        now, request = datetime.now(UTC), wish.request
        data: dict[str, Any] = {"order": str(wish.order), "sku": wish.order.sku, "ref": wish.shop_ref}
        data |= {"payment_ref": request.ref, "part": request.name if request.name != request.ref else None}
        data |= {"amount": request.amount, "currency": request.currency}
        at = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        body = json.dumps({"type": "refund.requested", "timestamp": at, "data": data}, separators=(",", ":"))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "seckill",
            "webhook-id": wish.key,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signer.sign(wish.key, now, body) for signer in self._signers),
        }
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._client.post(self._url, content=body.encode(), headers=headers)
        except (TimeoutError, httpx.HTTPError, OSError) as error:
            return Result(Became.UNKNOWN, f"{self.where}: no answer ({type(error).__name__})")
        if answer.is_success:
            return Result(Became.DONE if _says_refunded(answer) else Became.ACCEPTED)
        why = f"{self.where} answered {answer.status_code}"
        if answer.status_code in (401, 403):
            return Result(Became.UNKNOWN, f"{why}; is SECKILL_WEBHOOK_SECRET the shop's?", closed=True)
        return Result(Became.REFUSED if answer.status_code in _REFUSALS else Became.UNKNOWN, why)

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()


def _says_refunded(answer: httpx.Response) -> bool:
    if len(answer.content) > _ANSWER_MAX:
        return False
    try:
        told = answer.json()
    except ValueError:
        return False
    return isinstance(told, dict) and told.get("outcome") == "refunded"
