"""A setting has one secret or several, and no part of a key passes for a secret."""

import base64
import re
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import SecretStr

from app.errors import ConfigurationError
from app.keyring import check_shared, check_signing, check_stripes, check_token, each, secrets_of
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


def signing(count: int) -> str:
    """A secret of Standard Webhooks of so many bytes, without the padding."""
    return "whsec_" + base64.b64encode(bytes(range(count))).decode().rstrip("=")


TOKEN, SIGNING = (
    "8 visible ASCII characters or more: it is sent in a header",
    "whsec_ and 24 random bytes or more in base64",
)
STRIPES = "the signing secret of Stripe's endpoint begins with whsec_"
QUOTED = "it is in quotes, which count here: leave them out"
API_KEY = "this is an API key; "


@pytest.mark.parametrize(
    ("check", "secret", "said"),
    [
        (check_token, "!" + "~" * 7, ""),
        (check_token, "1234567", TOKEN),
        (check_token, "1234 5678", TOKEN),
        (check_token, "12345678\n", TOKEN),
        (check_token, "1234567é", TOKEN),
        (check_token, "`12345678`", QUOTED),
        (check_token, "'12345678\"", ""),
        *(
            (check_token, f"{key}_12345678", API_KEY + "make a token of its own")
            for key in ("pk_live", "rk_test", "sk_live")
        ),
        (check_token, "xsk_live_12345678", ""),
        (check_shared, KEY, ""),
        (check_shared, KEY[:-2] + "é", ""),
        (check_shared, KEY[:-1], SHORT),
        (check_shared, f'"{KEY}"', QUOTED),
        (check_signing, signing(24), ""),
        (check_signing, signing(25), ""),
        (check_signing, signing(26), ""),
        (check_signing, signing(23), f"a secret is {SIGNING}"),
        (check_signing, signing(24).removeprefix("whsec_"), ""),
        (check_signing, signing(24) + "!", f"a secret is {SIGNING}"),
        (check_signing, "sk_test_1", API_KEY + "the signing secret begins with whsec_"),
        (check_stripes, "whsec_1", ""),
        (check_stripes, "whsec_", STRIPES),
        (check_stripes, "WHSEC_1", STRIPES),
        (check_stripes, "whsec_1 ", STRIPES),
        (check_stripes, "sk_test_1", API_KEY + "the signing secret begins with whsec_"),
    ],
)
def test_each_kind_of_secret_has_its_form(check: Callable[[str], None], secret: str, said: str) -> None:
    """The shortest one is taken; a shorter or a quoted one, or a key of something else, is named as what it is."""
    if not said:
        check(secret)
        return
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        check(secret)


def test_each_of_several_secrets_is_named() -> None:
    """One alone has no number; a setting that is unset has none."""
    assert (secrets_of(None), each(["8", "9"], int)) == ([], [8, 9])
    with pytest.raises(ValueError, match="^secret 2 of 2: invalid"):
        each(["8", "x"], int)
    with pytest.raises(ValueError, match="^invalid"):
        each(["x"], int)
