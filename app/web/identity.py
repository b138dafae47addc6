"""The identity of a buyer: without a key any text; with one, a claim that the shop in front has signed."""

import re
from collections.abc import Sequence
from typing import Any, Final

from app.errors import BuyerNotSigned, BuyerRequired, ConfigurationError
from app.keyring import check_shared, each
from app.orders import ERASED

BUYER_MAX: Final = 100
# No control characters, and none that break lines, show text in another order, or show nothing. The joiners in Persian
# names and in emoji are none of these. (`str.isprintable` knows the characters of its Python's year, and no schema can
# say it.)
_HIDDEN: Final = (
    r"\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufeff"
    r"\uffa0\ufff9-\ufffb"
)
BUYER_PATTERN: Final = rf"[^\x00-\x1f\x7f-\x9f{_HIDDEN}]+"
# Nor tags, and halves of characters, which JSON can say: no schema can forbid them in every language.
_TEXT: Final = re.compile(BUYER_PATTERN.replace("]", r"\ud800-\udfff\U000e0000-\U000e007f]"))
TOKEN_MAX: Final = 2048
_LEEWAY_S: Final = 10  # by which the shop's clock and ours may differ
_AUDIENCE: Final = "seckill"


def is_text(text: str, most: int) -> bool:
    """Return whether that is a text of at most that many characters, all of them visible."""
    return len(text) <= most and _TEXT.fullmatch(text) is not None


def is_buyer(text: str, most: int = BUYER_MAX) -> bool:
    """Return whether that can be a buyer's name. `erased` is refused, as it replaces erased names."""
    return is_text(text, most) and text != ERASED


class SignedBuyers:
    """Reads buyers from JSON Web Tokens (RFC 7519): `sub` is the buyer, `exp` has to be there, `aud` is ours or none.

    `keys`: secrets of 32 bytes or more (HS256), or public keys in PEM, of RSA, an elliptic curve or Ed25519, whose line
    ends may be written as in JSON; a token is signed with any of them. Raises `ConfigurationError` for any other.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        try:
            import jwt
        except ImportError:
            raise ConfigurationError("signed buyers need PyJWT: pip install 'PyJWT[crypto]'") from None
        self._jwt = jwt
        # `sub` and `aud` are looked at below; of when it was issued (`iat`) RFC 7519 demands nothing.
        ignored = dict.fromkeys(("verify_aud", "verify_sub", "verify_iat", "verify_jti"), False)
        self._checks: Any = {"require": ["sub", "exp"], **ignored}
        try:
            self._keys = each(keys, _key)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None

    def _reason(self, error: Exception) -> str:
        match error:
            case self._jwt.ExpiredSignatureError():
                return "the token has expired: get a new one from the shop"
            case self._jwt.ImmatureSignatureError():
                return f"the token is not valid yet: its `nbf` is more than {_LEEWAY_S} s ahead of our clock"
            case self._jwt.MissingRequiredClaimError(claim=name):
                return f"the token has no `{name}`"
            case self._jwt.InvalidSignatureError():
                return "the token was signed with another key than the shop's"
            case self._jwt.InvalidAlgorithmError():
                names = dict.fromkeys(name for _, algorithms in self._keys for name in algorithms)
                return f"the token must be signed with {' or '.join(names)}"
            case _:
                return "not a token that the shop has signed"

    def _claims(self, token: str) -> dict[str, Any]:
        errors: list[Exception] = []
        for key, algorithms in self._keys:
            try:
                found: dict[str, Any] = self._jwt.decode(token, key, algorithms, options=self._checks, leeway=_LEEWAY_S)
            except self._jwt.PyJWTError as error:
                errors.append(error)
            else:
                return found
        raise BuyerNotSigned(self._reason(max(errors, key=self._depth))) from None

    def _depth(self, error: Exception) -> int:
        """The step at which a key refused a token: the algorithm, the signature, or the contents."""
        if isinstance(error, self._jwt.InvalidAlgorithmError | self._jwt.InvalidKeyError):
            return 0
        return 1 if isinstance(error, self._jwt.InvalidSignatureError) else 2

    def read(self, token: str | None) -> str:
        """The buyer that a token names. Raises `BuyerRequired` without one, and `BuyerNotSigned`, which says why."""
        if token is None:
            raise BuyerRequired("buyers are named by the shop here: send the token that it gave you")
        claims = self._claims(token)
        audience = claims.get("aud", _AUDIENCE)
        if _AUDIENCE not in (audience if isinstance(audience, list) else [audience]):
            raise BuyerNotSigned("the token is for another service")
        buyer = claims["sub"]
        if not isinstance(buyer, str) or not is_buyer(buyer):
            raise BuyerNotSigned("the token's `sub` is not a buyer's name")
        return buyer


def _key(given: str) -> tuple[Any, list[str]]:
    """A key, and the algorithms of a token that is signed with it. Raises `ValueError`."""
    if "-----" in given:  # a damaged public key in PEM can't be a secret either, as it is public
        return _public_key(given.replace("\\n", "\n"))
    check_shared(given)
    return given, ["HS256"]


def _public_key(pem: str) -> tuple[Any, list[str]]:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    # By the kind of key, and never by the token's own header, which may ask for no signature.
    algorithms: dict[type, list[str]] = {
        RSAPublicKey: ["RS256", "PS256"],
        EllipticCurvePublicKey: ["ES256", "ES384", "ES512"],
        Ed25519PublicKey: ["EdDSA"],
    }

    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("not a public key in PEM") from None
    for kind, names in algorithms.items():
        if isinstance(key, kind):
            return key, names
    raise ValueError("a public key must be of RSA, an elliptic curve, or Ed25519")
