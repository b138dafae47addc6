"""A webhook: signed as Standard Webhooks has it, and sent over HTTP."""

import base64
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

import aiohttp
import standardwebhooks
from yarl import URL

from app.errors import ConfigurationError
from app.outbox.message import Message

_ANSWER_MAX: Final = 65_536  # bytes that are read of an answer, so that its connection can be used again
_SECRET_BYTES: Final = 24
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_KEEPALIVE_S: Final = 4.0  # shorter than servers keep an idle connection: it is not to end as we use it


class Result(NamedTuple):
    """The result of an attempt. `status`: of the answer, 0 without one; `why` it failed, "" if it was delivered."""

    status: int
    why: str = ""
    retry_after_s: float = 0.0


class Webhook:
    """The shop's endpoint. It lives on one event loop. Raises `ConfigurationError` for a URL or a secret that is none.

    `at_once`: requests; `batch`: events of a request at most; with more than 1 all of them come as batches.
    `where`: its address for logs and people, without anything that may be secret.
    """

    def __init__(self, url: str, secret: str, *, timeout_s: float, at_once: int, batch: int = 1) -> None:
        try:
            self._url = URL(url)
            if self._url.scheme not in ("http", "https") or not self._url.host:
                raise ValueError
        except ValueError:
            raise ConfigurationError("SECKILL_WEBHOOK_URL: not a URL such as https://shop.example/events") from None
        self._signer = signer(secret, "SECKILL_WEBHOOK_SECRET")
        self.where = str(self._url.origin())
        self.batch = batch
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._at_once = at_once

    async def post(self, messages: Sequence[Message]) -> Result:
        """Send some messages in one request, once."""
        message = Message.batch(messages) if self.batch > 1 else messages[0]
        body, now = message.body.decode(), datetime.now(UTC)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "seckill",
            "webhook-id": message.id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._signer.sign(message.id, now, body),
        }
        if message.traceparent:
            headers["traceparent"] = message.traceparent
        try:
            # Redirects are not followed: a signed order goes where the operator says, and nowhere else.
            sending = self._connected().post(self._url, data=message.body, headers=headers, allow_redirects=False)
            async with sending as answer:
                size = 0
                async for part in answer.content.iter_any():
                    size += len(part)
                    if size > _ANSWER_MAX:
                        break
        except TimeoutError:
            return Result(0, f"no answer within {self._timeout_s:g} s")
        except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
            return Result(0, f"{type(error).__name__}: no connection, or none that lasts")
        if 200 <= answer.status < 300:
            return Result(answer.status)
        why = f"answered {answer.status} {answer.reason or ''}".rstrip()
        return Result(answer.status, why, _retry_after(answer.headers.get("Retry-After", "")))

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._at_once, keepalive_timeout=_KEEPALIVE_S),
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=self._url.host not in _LOOPBACK,
            )
        return self._session

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


def signer(secret: str, name: str) -> standardwebhooks.Webhook:
    """Make the object that signs and verifies. Raises `ConfigurationError`, with the name of the setting."""
    try:
        own = secret.removeprefix("whsec_")
        if len(base64.b64decode(own + "=" * (-len(own) % 4), validate=True)) < _SECRET_BYTES:
            raise ValueError
        return standardwebhooks.Webhook(secret)
    except ValueError:
        raise ConfigurationError(f"{name}: a secret is whsec_ and 24 random bytes or more in base64") from None


def _retry_after(text: str) -> float:
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return 0.0
