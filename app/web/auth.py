"""Operator authentication: a bearer token, or a signed cookie set by a one-time link.

The cookie is signed with a key that is derived from the admin token, so that every instance with the same token knows
it, and none needs to remember it. A browser sends cookies with every page's requests, and does not tell ports apart; so
a request that changes something needs a second word besides the cookie, which only our own pages can read. That keeps
other sites' pages out, not a server that was handed the cookie: it is sent to whatever listens on this host.
"""

import hashlib
import hmac
import secrets
from typing import Annotated, Final

from fastapi import Depends, Request, Response, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from itsdangerous import BadSignature, TimestampSigner
from starlette.exceptions import HTTPException

CSRF_HEADER: Final = "X-Seckill-Csrf"
_LASTS_S: Final = 12 * 3600

_bearer = HTTPBearer(auto_error=False, description="SECKILL_ADMIN_TOKEN")


class AdminAuth:
    """Operator authentication: by the admin token (None: nobody is let in), or by a cookie that it has set."""

    def __init__(self, admin_token: str | None) -> None:
        self._token = admin_token
        # Sales with other tokens on other ports of this host have cookies of other names.
        self._cookie = f"seckill-{self._derive('name').hex()[:8]}"
        self._signer = TimestampSigner(self._derive("cookie"), digest_method=hashlib.sha256)

    def _derive(self, purpose: str) -> bytes:
        return hmac.digest((self._token or "").encode(), f"seckill {purpose}".encode(), "sha256")

    @property
    def disabled(self) -> bool:
        """Whether there is no token to log in with."""
        return self._token is None

    def verify(self, token: str) -> bool:
        """Whether this is the admin token."""
        return self._token is not None and secrets.compare_digest(token.encode(), self._token.encode())

    def log_in(self, request: Request, response: Response) -> None:
        """Set the cookie: the browser's user has shown the token."""
        response.set_cookie(
            self._cookie,
            self._signer.sign(secrets.token_urlsafe(16)).decode(),
            max_age=_LASTS_S,
            httponly=True,
            samesite="lax",  # strict would not come along when the link is opened from a chat or a mail
            secure=request.url.scheme == "https",
        )

    def log_out(self, response: Response) -> None:
        """Delete the cookie."""
        response.delete_cookie(self._cookie, httponly=True, samesite="lax")

    def session(self, request: Request) -> str | None:
        """The cookie, if it is one of ours and not too old."""
        cookie = request.cookies.get(self._cookie, "")
        try:
            _, signed_at = self._signer.unsign(cookie, return_timestamp=True)
        except BadSignature:
            return None
        # Not by `max_age`: to it the future is the past, and another instance's clock may be ahead of ours.
        fresh = self._signer.get_timestamp() - signed_at.timestamp() < _LASTS_S
        return cookie if fresh and not self.disabled else None

    def csrf(self, session: str) -> str:
        """The second word that goes with a cookie."""
        return hmac.new(self._derive("csrf"), session.encode(), "sha256").hexdigest()


async def operator(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
) -> None:
    """Let only the operator pass: with the token, or with the cookie and, unless it only looks, the second word."""
    auth: AdminAuth = request.state.seckill.auth
    if auth.disabled:
        raise HTTPException(403, "switched off: SECKILL_ADMIN_TOKEN is not set")
    if credentials is not None and auth.verify(credentials.credentials):
        return
    session = auth.session(request) if credentials is None else None
    if session is None:
        raise HTTPException(401, "the operator's bearer token is needed", headers={"WWW-Authenticate": "Bearer"})
    if request.method not in ("GET", "HEAD"):
        word = request.headers.get(CSRF_HEADER, "")
        if not secrets.compare_digest(word.encode(), auth.csrf(session).encode()):
            raise HTTPException(403, f"{CSRF_HEADER} is missing or not the one of this session; load the page again")


def has_rights(request: Request) -> bool:
    """Whether a request has the token or the cookie of an operator."""
    auth: AdminAuth = request.state.seckill.auth
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return (scheme.lower() == "bearer" and auth.verify(token)) or auth.session(request) is not None


OPERATOR: Final = Depends(operator)
