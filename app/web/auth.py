"""Operator authentication: a bearer token, or a signed cookie set by a one-time link.

The cookie is signed with a key that is derived from the operator's token, so that every instance with the same token
knows it, and none needs to remember it. A browser sends cookies with every page's requests, and ignores the port; so a
request that changes something needs a second token besides the cookie, which only our own pages can read. That keeps
other sites' pages out, but no other server on this host: the browser sends the cookie to all its ports.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

from fastapi import Depends, Request, Response, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from itsdangerous import BadSignature, TimestampSigner
from starlette.exceptions import HTTPException

CSRF_HEADER: Final = "X-Seckill-Csrf"
_LASTS_S: Final = 12 * 3600
_CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}

_bearer = HTTPBearer(scheme_name="operator", auto_error=False, description="SECKILL_ADMIN_TOKEN")
_shop_bearer = HTTPBearer(scheme_name="shop", auto_error=False, description="SECKILL_SHOP_TOKEN")
BY_SHOP: Final[list[dict[str, list[str]]]] = [{"shop": []}, {"operator": []}]  # whose token OpenAPI asks for
BY_ANYBODY: Final[list[dict[str, list[str]]]] = [{}, *BY_SHOP]


class SignedIn(NamedTuple):
    """A valid cookie, and its operator."""

    operator: str
    cookie: str


class _Key:
    """The name and the signer of a cookie, derived from an operator's token: they go when the token does."""

    def __init__(self, token: str) -> None:
        self.token = token.encode()
        # Sales with other tokens on other ports of this host have cookies of other names.
        self.cookie = f"seckill-{self.derive('name').hex()[:8]}"
        self.signer = TimestampSigner(self.derive("cookie"), digest_method=hashlib.sha256)

    def derive(self, purpose: str) -> bytes:
        return hmac.digest(self.token, f"seckill {purpose}".encode(), "sha256")


class AdminAuth:
    """Operator authentication: by an operator's token, or by a cookie that it has set. `tokens`: by their names.

    `shop_tokens`: the tokens of the shop's back end, which confirms payments; `anybody_confirms`: no token is needed,
    in a rehearsal.
    """

    def __init__(
        self, tokens: Mapping[str, str], *, shop_tokens: Sequence[str] = (), anybody_confirms: bool = False
    ) -> None:
        self._keys = {name: _Key(token) for name, token in tokens.items()}
        self._shop_tokens = [token.encode() for token in shop_tokens]
        self._anybody_confirms = anybody_confirms

    @property
    def disabled(self) -> bool:
        """True if there is no token to log in with."""
        return not self._keys

    def verify(self, token: str) -> str | None:
        """The name of the operator whose token this is."""
        right = [name for name, key in self._keys.items() if secrets.compare_digest(token.encode(), key.token)]
        return right[0] if right else None

    def is_shop(self, token: str | None) -> bool:
        """Return whether that token is the shop's back end's, or an operator's."""
        if token is None:
            return False
        own = [secrets.compare_digest(token.encode(), one) for one in self._shop_tokens]
        return any(own) or self.verify(token) is not None

    def refuse_stranger(self) -> None:
        """Raise `HTTPException` for somebody who is not the shop's back end and confirms a payment."""
        if self._anybody_confirms:
            return
        if not self._shop_tokens and self.disabled:
            raise HTTPException(403, "switched off: SECKILL_SHOP_TOKEN is not set")
        raise HTTPException(401, "the shop's bearer token is needed", headers=_CHALLENGE)

    def log_in(self, name: str, request: Request, response: Response) -> None:
        """Set the cookie: the browser's user has shown the token, and is no other operator any more."""
        self.log_out(response)
        key = self._keys[name]
        response.set_cookie(
            key.cookie,
            key.signer.sign(secrets.token_urlsafe(16)).decode(),
            max_age=_LASTS_S,
            httponly=True,
            samesite="lax",  # a strict one is not sent when the link is opened from a chat or a mail
            secure=request.url.scheme == "https",
        )

    def log_out(self, response: Response) -> None:
        """Delete the cookies."""
        for key in self._keys.values():
            response.delete_cookie(key.cookie, httponly=True, samesite="lax")

    def session(self, request: Request) -> SignedIn | None:
        """The cookie, if it is one of ours and not too old."""
        for name, key in self._keys.items():
            cookie = request.cookies.get(key.cookie, "")
            try:
                _, signed_at = key.signer.unsign(cookie, return_timestamp=True)
            except BadSignature:
                continue
            # Not by `max_age`, which rejects the future: another instance's clock may be ahead of ours.
            if key.signer.get_timestamp() - signed_at.timestamp() < _LASTS_S:
                return SignedIn(name, cookie)
        return None

    def csrf(self, session: SignedIn) -> str:
        """The second word that goes with a cookie."""
        key = self._keys[session.operator].derive("csrf")
        return hmac.new(key, session.cookie.encode(), "sha256").hexdigest()


def bearer(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The bearer token of a request, if it has one. Raises `HTTPException` for several `Authorization` headers."""
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) > 1:
        raise HTTPException(401, "one Authorization header is taken, not several", headers=_CHALLENGE)
    scheme, _, token = (given[0] if given else b"").decode("latin-1").partition(" ")
    return (token.strip() or None) if scheme.lower() == "bearer" else None


async def operator(request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]) -> str:
    """Let only operators pass: with a token, or with the cookie and, unless it only reads, the second word.

    Returns the operator's name.
    """
    auth: AdminAuth = request.state.seckill.auth
    if auth.disabled:
        raise HTTPException(403, "switched off: SECKILL_ADMIN_TOKEN is not set")
    token = bearer(request.headers.raw)
    if token is not None and (name := auth.verify(token)):
        return name
    session = auth.session(request) if token is None else None
    if session is None:
        raise HTTPException(401, "the operator's bearer token is needed", headers=_CHALLENGE)
    if request.method not in ("GET", "HEAD"):
        word = request.headers.get(CSRF_HEADER, "")
        if not secrets.compare_digest(word.encode(), auth.csrf(session).encode()):
            raise HTTPException(403, f"{CSRF_HEADER} is missing or not the one of this session; load the page again")
    return session.operator


def has_rights(request: Request) -> bool:
    """Return whether a request has the token or the cookie of an operator. Raises what `bearer` does."""
    auth: AdminAuth = request.state.seckill.auth
    token = bearer(request.headers.raw)
    return (token is not None and auth.verify(token) is not None) or auth.session(request) is not None


async def shop(request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_shop_bearer)]) -> None:
    """Let only the shop's back end pass, or an operator with a token."""
    auth: AdminAuth = request.state.seckill.auth
    if not auth.is_shop(bearer(request.headers.raw)):
        auth.refuse_stranger()


SHOP: Final = Depends(shop)
OPERATOR: Final = Depends(operator)
Operator = Annotated[str, OPERATOR]
