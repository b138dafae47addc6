"""A webhook: signed as Standard Webhooks has it, and sent over HTTP."""

import asyncio
import json
import logging
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

import httpx
import standardwebhooks

from app.errors import ConfigurationError
from app.orders import Event, OrderId
from app.orders.view import of_event

_ANSWER_MAX: Final = 65_536  # bytes that are read of an answer, so that its connection can be used again
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")

# It logs each address, with what secrets may be in its path.
logging.getLogger("httpx").setLevel(logging.WARNING)


class Result(NamedTuple):
    """The result of an attempt. `status`: of the answer, 0 without one; `why` it failed, "" if it was delivered."""

    status: int
    why: str = ""
    retry_after_s: float = 0.0


class Webhook:
    """The shop's endpoint. It lives on one event loop. Raises `ConfigurationError` for a URL that is none.

    `secrets`: each signs every event, as the receiver may know only one of them. `where`: its address for logs and
    people, without anything that may be secret.
    """

    def __init__(self, url: str, secrets: Sequence[str], *, timeout_s: float, at_once: int) -> None:
        try:
            self._url = httpx.URL(url)
            if self._url.scheme not in ("http", "https") or not self._url.host:
                raise ValueError
        except (httpx.InvalidURL, ValueError):
            raise ConfigurationError("SECKILL_WEBHOOK_URL: not a URL such as https://shop.example/events") from None
        self._signers = [standardwebhooks.Webhook(secret) for secret in secrets]
        self.where = f"{self._url.scheme}://{self._url.netloc.decode()}"
        self._timeout_s = timeout_s
        self._client: httpx.AsyncClient | None = None
        self._at_once = at_once

    async def post(self, event: Event, ref: str | None) -> Result:
        """Send an event once."""
        if self._client is None:
            # Redirects are not followed: a signed order goes where the operator says, and nowhere else.
            self._client = httpx.AsyncClient(
                timeout=self._timeout_s,
                limits=httpx.Limits(max_connections=self._at_once, max_keepalive_connections=self._at_once),
                trust_env=self._url.host not in _LOOPBACK,
            )
        body = json.dumps(of_event(event, ref), separators=(",", ":"), ensure_ascii=False)
        name, now = OrderId(event.sku, event.entry).name, datetime.now(UTC)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "seckill",
            "webhook-id": name,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signer.sign(name, now, body) for signer in self._signers),
        }
        if "traceparent" in event.facts:  # of the request by which the order began
            headers["traceparent"] = event.facts["traceparent"]
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._client.stream("POST", self._url, content=body.encode(), headers=headers) as answer,
            ):
                size = 0
                async for part in answer.aiter_raw():
                    size += len(part)
                    if size > _ANSWER_MAX:
                        break
        except TimeoutError:
            return Result(0, f"no answer within {self._timeout_s:g} s")
        except (httpx.HTTPError, ssl.SSLError, OSError) as error:
            return Result(0, f"{type(error).__name__}: no connection, or none that lasts")
        if answer.is_success:
            return Result(answer.status_code)
        why = f"answered {answer.status_code} {answer.reason_phrase}"
        return Result(answer.status_code, why, _retry_after(answer.headers.get("Retry-After", "")))

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()


def _retry_after(text: str) -> float:
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return 0.0
