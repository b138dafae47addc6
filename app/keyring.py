"""The secrets of a setting: one, or several while one follows another, the new one first."""

import base64
import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from pydantic import SecretStr

Made = TypeVar("Made")

_SIGNING_BYTES_MIN: Final = 24
# Blanks and line breaks separate them, but not within a key in PEM, whose line ends may be written as in JSON. A key
# that lacks its end takes no other one with it.
_SECRET: Final = re.compile(r"-----BEGIN .*?(?:-----END [^-]*-----(?:\\n)*|(?=-----BEGIN )|\Z)|\S+", re.DOTALL)
_TOKEN: Final = re.compile(r"[\x21-\x7e]{8,}")
_OF_STRIPE: Final = re.compile(r"whsec_[\x21-\x7e]+")
_API_KEY: Final = re.compile(r"[prs]k_(?:live|test)_")
_SIGNS: Final = "the signing secret begins with whsec_"
_QUOTES: Final = "\"'`"
_SHARED_MIN_BYTES: Final = 32  # RFC 7518, 3.2: as long as HS256's digest, at least


def secrets_of(given: SecretStr | None) -> list[str]:
    """The secrets of a setting, in its order; none if it is unset."""
    return _SECRET.findall(given.get_secret_value()) if given else []


def each(secrets: Sequence[str], make: Callable[[str], Made]) -> list[Made]:
    """Call `make` with each secret. Raises its `ValueError`, which then has the secret's place among several."""
    made = []
    for number, secret in enumerate(secrets, 1):
        try:
            made.append(make(secret))
        except ValueError as error:
            raise ValueError(f"secret {number} of {len(secrets)}: {error}" if len(secrets) > 1 else error) from None
    return made


def check_token(secret: str) -> None:
    """Raise `ValueError` for a bearer token that can't be sent, or can be guessed, or is another secret."""
    _refuse_odd(secret, "make a token of its own")
    if not _TOKEN.fullmatch(secret):
        raise ValueError("8 visible ASCII characters or more: it is sent in a header")


def check_shared(secret: str) -> None:
    """Raise `ValueError` for a secret of HS256 that can be guessed, or is probably a mistake."""
    _refuse_odd(secret, "make a secret of its own")
    if len(secret.encode()) < _SHARED_MIN_BYTES or not secret.isprintable():
        raise ValueError(f"a secret has {_SHARED_MIN_BYTES} bytes or more, and no blanks or invisible characters")


def check_signing(secret: str) -> None:
    """Raise `ValueError` unless it is a secret of Standard Webhooks."""
    _refuse_odd(secret, _SIGNS)
    own = secret.removeprefix("whsec_")
    try:
        enough = len(base64.b64decode(own + "=" * (-len(own) % 4), validate=True)) >= _SIGNING_BYTES_MIN
    except ValueError:
        enough = False
    if not enough:
        raise ValueError("a secret is whsec_ and 24 random bytes or more in base64")


def check_stripes(secret: str) -> None:
    """Raise `ValueError` unless it is the signing secret of an endpoint at Stripe."""
    _refuse_odd(secret, _SIGNS)
    if not _OF_STRIPE.fullmatch(secret):
        raise ValueError("the signing secret of Stripe's endpoint begins with whsec_")


def _refuse_odd(secret: str, instead: str) -> None:
    if _API_KEY.match(secret):
        raise ValueError(f"this is an API key; {instead}")
    if secret[:1] in _QUOTES and secret[-1:] == secret[:1]:
        raise ValueError("it is in quotes, which count here: leave them out")
