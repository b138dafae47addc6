"""An address of the shop's: requests to it are signed by Standard Webhooks, and sent over HTTP."""

import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

import aiohttp
import standardwebhooks
from yarl import URL

from app.errors import ConfigurationError

_ANSWER_MAX: Final = 65_536  # bytes that are read of an answer, so that its connection can be used again
_REASON_MAX: Final = 100  # characters of the reason phrase, which is the receiver's
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_KEEPALIVE_S: Final = 4.0  # shorter than servers keep an idle connection, so that none is closed just as we use it


class Result(NamedTuple):
    """The result of an attempt. `status`: of the answer, 0 without an answer; `why`: the reason of a failure, or "".

    `body`: the beginning of the answer's, up to 64 KiB.
    """

    status: int
    why: str = ""
    retry_after_s: float = 0.0
    body: bytes = b""


class ShopEndpoint:
    """An address of the shop's. It lives on one event loop. Raises `ConfigurationError` for a URL that is none.

    `secrets`: each signs every request, as the receiver may know only one of them. `at_once`: requests. `where`: its
    address for logs and people, without anything that may be secret.
    """

    def __init__(self, url: str, secrets: Sequence[str], *, timeout_s: float, at_once: int) -> None:
        try:
            self._url = URL(url)
            if self._url.scheme not in ("http", "https") or not self._url.host:
                raise ValueError
        except ValueError:
            raise ConfigurationError("not a URL such as https://shop.example/events") from None
        try:
            if own := aiohttp.BasicAuth.from_url(self._url):
                own.encode()
        except ValueError:
            raise ConfigurationError("user and password must be of Latin-1, the user without a colon") from None
        self._signers = [standardwebhooks.Webhook(secret) for secret in secrets]
        self.where = str(self._url.origin())
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._at_once = at_once

    async def post(self, name: str, body: bytes, more: Mapping[str, str] | None = None) -> Result:
        """Send a request once, under this name (`webhook-id`). `more`: further headers."""
        now, text = datetime.now(UTC), body.decode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "seckill",
            "webhook-id": name,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": " ".join(signer.sign(name, now, text) for signer in self._signers),
            **(more or {}),
        }
        found = bytearray()
        try:
            # Redirects are not followed: what is signed goes where the operator says, and nowhere else.
            sending = self._connected().post(self._url, data=body, headers=headers, allow_redirects=False)
            async with sending as answer:
                async for part in answer.content.iter_any():
                    found += part
                    if len(found) > _ANSWER_MAX:
                        break
        except TimeoutError:
            return Result(0, f"no answer within {self._timeout_s:g} s")
        except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
            return Result(0, f"{type(error).__name__}: no connection, or none that lasts")
        if 200 <= answer.status < 300:
            return Result(answer.status, body=bytes(found[:_ANSWER_MAX]))
        reason = "".join(one for one in answer.reason or "" if one.isprintable())
        why = f"answered {answer.status} {reason[:_REASON_MAX]}".rstrip()
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


def _retry_after(text: str) -> float:
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return 0.0
