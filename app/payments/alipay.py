"""Alipay's notices (异步通知), signed with RSA2. https://opendocs.alipay.com/open/203/105286

The shop gives the hold's id as `passback_params`, and Alipay repeats it. A payment is called by Alipay's `trade_no`.
A notice has no age by which it could be refused: the same one again does nothing. `refund_fee` is all that was given
back so far, and other notices of the trade repeat it.
"""

import base64
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final
from urllib.parse import parse_qsl, unquote

from typing_extensions import override

from app import money
from app.errors import ConfigurationError
from app.payments.reading import ensure_signed, missing
from app.payments.report import Kind, Reader, Report

_SETTING: Final = "SECKILL_ALIPAY_KEY"
_UNSIGNED: Final = ("sign", "sign_type")
_KINDS: Final = {
    "TRADE_SUCCESS": Kind.SUCCEEDED,
    "TRADE_FINISHED": Kind.SUCCEEDED,  # likewise, and it can't be given back any more
    "TRADE_CLOSED": Kind.CANCELED,  # or all of it was given back
}


class Alipay(Reader):
    """Alipay: payments, refunds, and trades that are closed."""

    taken: ClassVar = "success"

    def __init__(self, secrets: Sequence[str]) -> None:
        try:
            from cryptography.exceptions import InvalidSignature
            from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
            from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.serialization import load_der_public_key
        except ImportError:
            raise ConfigurationError(missing(_SETTING, "cryptography", "alipay")) from None
        self._invalid, self._how = InvalidSignature, (PKCS1v15(), SHA256())
        self._keys: dict[str, list[RSAPublicKey]] = defaultdict(list)
        for one in secrets:
            app, _, key = one.partition(":")
            try:
                public = load_der_public_key(base64.b64decode(key, validate=True))
            except ValueError:
                public = None
            if not app.isdigit() or not isinstance(public, RSAPublicKey):
                text = f"{_SETTING}: an app's id, a colon, and Alipay's public key for that app (支付宝公钥) in base64"
                raise ConfigurationError(text)
            self._keys[app].append(public)

    @override
    def read(self, body: bytes, headers: Mapping[str, str]) -> Report | None:
        # In whichever charset, each byte of it is a character here.
        said = dict(parse_qsl(body.decode("latin-1"), keep_blank_values=True, encoding="latin-1"))
        text = "&".join(f"{name}={value}" for name, value in sorted(said.items()) if name not in _UNSIGNED)

        def verify(key: Any) -> None:
            key.verify(base64.b64decode(said.get("sign", "")), text.encode("latin-1"), *self._how)

        ensure_signed(self._keys.get(said.get("app_id", ""), ()), verify, self._invalid)
        kind = _KINDS.get(said.get("trade_status", ""))
        if kind is None:
            return None
        total, given = (_fen(said.get(name) or "0") for name in ("total_amount", "refund_fee"))
        paid_at, at = _at(said.get("gmt_payment")), _at(said.get("notify_time"))
        more: dict[str, Any] = {"amount": total, "paid_at": paid_at}
        if given:
            kind, more = Kind.REFUNDED, {"so_far": given, "whole": given >= total}
        more |= {"message": said.get("notify_id", ""), "hold": unquote(said.get("passback_params", "")) or None}
        at = (_at(said.get("gmt_refund")) if given else paid_at) or at
        return Report(kind=kind, payment_ref=said.get("trade_no", ""), currency="CNY", at=at, **more)


def _fen(yuan: str) -> int:
    return money.read(f"{yuan}CNY")[0]


def _at(text: str | None) -> float | None:
    """A moment, which is Beijing's, in seconds since 1970."""
    return datetime.fromisoformat(f"{text}+08:00").timestamp() if text else None
