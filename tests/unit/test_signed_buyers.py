"""Buyers whom the shop in front has signed: who is believed, and what is said to all others."""

import base64
import hmac
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fastapi.exceptions import RequestValidationError

from app.errors import BuyerNotSigned, BuyerRequired, ConfigurationError
from app.main import create_app
from app.web.identity import SignedBuyers
from app.web.purchase import token_of
from tests.harness.shop import settings

SECRET = "a-secret-that-is-long-enough-for-every-digest:-it-has-sixty-four-bytes"
EDWARDS, CURVE = ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())


def in_s(seconds: float) -> float:
    return time.time() + seconds


def token(key: Any = SECRET, algorithm: str = "HS256", /, **claims: Any) -> str:
    """Return a buyer's signed token; without other claims it is for Ann, for a minute."""
    claims = {"sub": "ann", "exp": in_s(60)} | claims
    return jwt.encode({name: value for name, value in claims.items() if value is not None}, key, algorithm)


def pem(private: Any) -> str:
    text: bytes = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return text.decode()


def said(text: str, *keys: str) -> str:
    """The buyer of a token, or why there is none."""
    try:
        return SignedBuyers(keys or (SECRET,)).read(text)
    except BuyerNotSigned as error:
        return str(error)


def test_who_is_believed() -> None:
    """Ten seconds are nothing, `iat` is not looked at; what is wrong is said, so that nobody looks for a wrong key."""
    for given, buyer in (
        *((token(), "ann"), (token(aud="seckill"), "ann"), (token(aud=["other", "seckill"]), "ann")),
        *((token(sub="王芳"), "王芳"), (token(exp=in_s(-1)), "ann"), (token(iat=in_s(60)), "ann")),
        *((token(nbf=in_s(5)), "ann"), (token(jti=7), "ann"), (token(sub="x" * 100), "x" * 100)),
        *((token(aud=text), "the token is for another service") for text in ("another", "seckill-staging", ["other"])),
        *((token(sub=text), "the token's `sub` is not a buyer's name") for text in ("", "a\nb", "\ud83d", "erased", 7)),
        (token(sub="x" * 101), "the token's `sub` is not a buyer's name"),
        (token(nbf=in_s(60)), "the token is not valid yet: its `nbf` is more than 10 s ahead of our clock"),
        (token(exp=in_s(-60)), "the token has expired: get a new one from the shop"),
        (token(SECRET.upper()), "the token was signed with another key than the shop's"),
        *((token(exp=None), "the token has no `exp`"), (token(sub=None), "the token has no `sub`")),
        (token(SECRET, "HS512"), "the token must be signed with HS256"),
        (jwt.encode({"sub": "ann", "exp": in_s(60)}, "", "none"), "the token must be signed with HS256"),
        *((text, "not a token that the shop has signed") for text in ("ann", "a.b.c", "a.b.\xe9")),
    ):
        assert said(given) == buyer, buyer


@pytest.mark.parametrize(
    ("private", "algorithm"),
    [(rsa.generate_private_key(65537, 2048), "RS256"), (CURVE, "ES256"), (EDWARDS, "EdDSA")],
    ids=["rsa", "ec", "ed25519"],
)
def test_a_public_key_reads_and_can_not_sign(private: Any, algorithm: str) -> None:
    """It verifies the shop's tokens, and can't be used as the secret of a forged one, in whichever form."""
    public, head = pem(private), token().rpartition(".")[0]
    for key in (public, public.replace("\n", "\\n")):
        assert said(token(private, algorithm), key) == "ann"
    for text in (public, public.strip(), "".join(public.splitlines()[1:-1])):
        signature = base64.urlsafe_b64encode(hmac.digest(text.encode(), head.encode(), "sha256")).decode().rstrip("=")
        assert "must be signed with" in said(f"{head}.{signature}", public)


def test_one_of_several_keys() -> None:
    """A token that any of them has signed is read as if there were that one only."""
    others = [pem(ec.generate_private_key(curve)) for curve in (ec.SECP384R1(), ec.SECP256R1())]
    for given, buyer in (
        *((token(EDWARDS, "EdDSA"), "ann"), (token(), "ann")),
        *((token(exp=1), "has expired"), (token(EDWARDS, "EdDSA", exp=1), "has expired")),
        *((token(sub=None), "has no `sub`"), (token(SECRET[::-1]), "signed with another key")),
        (token(CURVE, "ES256"), "signed with another key"),
        (token(SECRET, "HS512"), "must be signed with HS256 or ES256 or ES384 or ES512 or EdDSA"),
        ("ann", "not a token"),
    ):
        assert buyer in said(given, SECRET.upper(), *others, pem(EDWARDS), SECRET)


def test_where_the_token_is() -> None:
    """In the query or in a header; two different ones are refused, and without one there is no buyer."""
    header = [(b"authorization", b"Bearer a.b.c")]
    assert token_of(None, header) == token_of("a.b.c", header) == token_of("a.b.c", []) == "a.b.c"
    with pytest.raises(RequestValidationError, match="another token"):
        token_of("d.e.f", header)
    assert token_of(None, []) is None
    with pytest.raises(BuyerRequired):
        SignedBuyers([SECRET]).read(None)


@pytest.mark.parametrize("key", ["too short", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"])
def test_a_key_that_is_none(key: str) -> None:
    """With an invalid key the instance does not start, and names the setting; the key is not in the message."""
    with pytest.raises(ConfigurationError, match="SECKILL_BUYER_KEY") as error:
        create_app(settings("http://127.0.0.1:1", "redis://127.0.0.1:1", buyer_key=key))
    assert key not in str(error.value)
