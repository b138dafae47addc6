"""The id of an order. No other module knows how it is written.

An id is the item, the order's number in that item's journal, and a secret: anybody who knows the whole id may see, pay
and cancel the order. Without the secret it is the order's name, for logs, files and operators.
"""

import re
import secrets
from typing import Final, NamedTuple

DEFAULT_SKU: Final = "default"
SKU_PATTERN: Final = r"[A-Za-z0-9._-]{1,64}"
_SECRET_BYTES: Final = 16
_NAME_BYTES: Final = 10
# A store gives numbers of one or two parts. Without leading zeros: a store may read a number with some as the same one.
_ID: Final = re.compile(
    rf"({SKU_PATTERN})~((?:0|[1-9][0-9]{{0,19}})(?:-(?:0|[1-9][0-9]{{0,15}}))?)?(?:~([0-9a-f]{{{2 * _SECRET_BYTES}}}))?"
)


class OrderId(NamedTuple):
    """The id of an order; `secret` is "" where only its name is known."""

    sku: str
    number: str
    secret: str = ""

    def __str__(self) -> str:
        """The id as clients know it."""
        return f"{self.sku}~{self.number}~{self.secret}" if self.secret else self.name

    @property
    def name(self) -> str:
        """The part that may be seen by anybody."""
        return f"{self.sku}~{self.number}"

    @classmethod
    def parse(cls, text: str) -> "OrderId | None":
        """Parse a whole id; None if it is none."""
        found = _ID.fullmatch(text)
        return cls(*found.groups()) if found and found[2] and found[3] else None

    @classmethod
    def parse_name(cls, text: str) -> "OrderId | None":
        """Parse a name, or a whole id; None if it is neither."""
        found = _ID.fullmatch(text)
        return cls(found[1], found[2], found[3] or "") if found and found[2] else None

    @classmethod
    def parse_place(cls, text: str) -> "OrderId | None":
        """Parse a name, a whole id, or the end of an item's orders: such a place has no number. None: it is neither."""
        found = _ID.fullmatch(text)
        return cls(found[1], found[2] or "", found[3] or "") if found and (found[2] or not found[3]) else None

    @staticmethod
    def sku_of(text: str) -> str:
        """The item of a text that may be an id, even a damaged one."""
        return text.partition("~")[0]

    @staticmethod
    def cut(text: str) -> str:
        """A text that may be an id, without its secret, for logs."""
        return text.rpartition("~")[0] or text

    def opens(self, secret: str) -> bool:
        """Return whether this may open the order that has such a secret. A name opens none."""
        return secrets.compare_digest(self.secret, secret)


def new_secrets(count: int) -> list[str]:
    """Make orders' secrets: 128 random bits each, in hex. A single call for all takes a tenth of the time."""
    digits = secrets.token_hex(_SECRET_BYTES * count)
    return [digits[at : at + 2 * _SECRET_BYTES] for at in range(0, len(digits), 2 * _SECRET_BYTES)]


def new_name() -> str:
    """Make the name of a refund: 80 random bits in hex, so that it is never made again."""
    return secrets.token_hex(_NAME_BYTES)
