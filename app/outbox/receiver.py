"""The receivers of events in a setting, and the types of events that each of them gets."""

import re
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from app.errors import ConfigurationError
from app.orders import EventKind
from app.stock import DEFAULT_RECEIVER

_NAME: Final = re.compile("[a-z0-9][a-z0-9-]{0,31}")
_TYPES: Final = {f"order.{kind}": kind for kind in EventKind}


class Receiver(NamedTuple):
    """A receiver. `url`: without the fragment, which is ours and never sent; `kinds`: the events it wants, None: all.

    `name`: names its lock and its notes in the store, so they stay its own when other receivers come and go.
    """

    url: str
    name: str = DEFAULT_RECEIVER
    kinds: frozenset[str] | None = None

    @property
    def suffix(self) -> str:
        """The part of names that distinguishes it from the default receiver."""
        return "" if self.name == DEFAULT_RECEIVER else self.name

    @classmethod
    def of(cls, text: str) -> "Receiver":
        """Parse a URL with a fragment such as `#name=erp&types=order.confirmed,order.refunded`. Raises `ValueError`."""
        url, _, fragment = text.partition("#")
        found = parse_qsl(fragment, keep_blank_values=True)
        said = dict(found)
        if len(said) < len(found) or said.keys() - {"name", "types"}:
            raise ValueError("behind the # are name and types, each once")
        if "name" in said and not _NAME.fullmatch(said["name"]):
            raise ValueError("a name is a-z, 0-9 and '-', 32 characters at most")
        if "types" not in said:
            return cls(url, said.get("name", DEFAULT_RECEIVER))
        types = said["types"].split(",")
        if unknown := [one for one in types if one not in _TYPES]:
            raise ValueError(f"no type {unknown[0]!r}; there are {', '.join(_TYPES)}")
        return cls(url, said.get("name", DEFAULT_RECEIVER), frozenset(_TYPES[one] for one in types))


def receivers_of(setting: str) -> list[Receiver]:
    """Parse URLs that blanks separate: the first may go without a name. Raises `ConfigurationError`."""
    found, texts = list[Receiver](), setting.split()
    for number, text in enumerate(texts, 1):
        where = f"URL {number} of {len(texts)}: " if len(texts) > 1 else ""
        try:
            one = Receiver.of(text)
            if found and not one.suffix:
                raise ValueError(
                    "each receiver but the first needs a name of its own, as in https://erp.example/#name=erp"
                )
            if one.name in [other.name for other in found]:
                raise ValueError(f"another one has the name {one.name!r}, too")
        except ValueError as error:
            raise ConfigurationError(f"{where}{error}") from None
        found.append(one)
    return found
