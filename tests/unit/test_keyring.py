"""A setting has one secret or several, and no part of a key passes for a secret."""

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import SecretStr

from app.errors import ConfigurationError
from app.keyring import secrets_of
from app.web.identity import SignedBuyers

KEY = "0123456789abcdef" * 2


def pem(private: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> str:
    return private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


ONE, TWO = pem(ec.generate_private_key(ec.SECP256R1())), pem(ed25519.Ed25519PrivateKey.generate())
IN_JSON = ONE.replace("\n", "\\n")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("", []),
        (" \n\t", []),
        ("one\n", ["one"]),
        ("new old", ["new", "old"]),
        ("\r\n new \n\n\told\r\n", ["new", "old"]),
        ("same same", ["same", "same"]),
        (ONE, [ONE.strip()]),
        (f"{ONE}{TWO}{KEY}", [ONE.strip(), TWO.strip(), KEY]),
        (f"{KEY} {ONE.strip()} {TWO}", [KEY, ONE.strip(), TWO.strip()]),
        (ONE.replace("\n", "\r\n"), [ONE.strip().replace("\n", "\r\n")]),
        (ONE.replace("\n", " "), [ONE.strip().replace("\n", " ")]),
        (f"{IN_JSON}{IN_JSON} {KEY}", [IN_JSON, IN_JSON, KEY]),
    ],
)
def test_secrets_are_separated_by_blanks(given: str, found: list[str]) -> None:
    """Blanks and line breaks separate them, except within a key in PEM, whatever its line ends are."""
    assert secrets_of(SecretStr(given)) == found


SHORT = "a secret has 32 bytes or more, and no blanks or invisible characters"
NONE = "not a public key in PEM"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("short", SHORT),
        (f"{KEY}\u200b", SHORT),
        (f"\ufeff{KEY}", SHORT),
        (f"{KEY}\0", SHORT),
        (f"sk_live_{KEY}", "this is an API key; make a secret of its own"),
        (f"'{KEY}'", "it is in quotes, which count here: leave them out"),
        (f"{KEY} {KEY[:-1]}", f"secret 2 of 2: {SHORT}"),
        ("a sentence of more than 32 bytes, with blanks", f"secret 1 of 9: {SHORT}"),
        (f"{ONE}{TWO.replace('-----END', '----END')}", f"secret 2 of 2: {NONE}"),
        (f"{ONE[: ONE.index('-----END')]}{TWO}", f"secret 1 of 2: {NONE}"),
        (f"{ONE[: ONE.index('-----END')]} {KEY}", NONE),
        (ONE.replace("M", "", 1), NONE),
        (ONE.replace("PUBLIC KEY", "CERTIFICATE"), NONE),
        (ONE[ONE.index("\n") :], f"secret 3 of 5: {NONE}"),
    ],
)
def test_a_buyers_key_that_can_not_be_used(given: str, said: str) -> None:
    """No part of a damaged public key passes for a secret, which everybody who has the key would know."""
    with pytest.raises(ConfigurationError) as error:
        SignedBuyers(secrets_of(SecretStr(given)))
    assert str(error.value) == said
