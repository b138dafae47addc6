"""The catalogue of the shop: its name, and name and picture of each item, read from a file at the start.

It is for display only: the store and the settings decide on sales, and on prices. The same file may say with how many
units and on which terms `seckill stock load` puts each item on sale.
"""

import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    model_validator,
)

from app.errors import ConfigurationError
from app.orders import DEFAULT_SKU, SKU_PATTERN, offer
from app.orders.offer import Offer
from app.orders.terms import NotATerm
from app.web.files import File

BUILT_IN: Final = Path(__file__).parent / "catalogue.toml"
PICTURES: Final = "/shop/pictures"
_PICTURE_MAX_BYTES: Final = 1024 * 1024
# How a file of each type begins; an SVG may have a declaration and comments in front.
_BEGINS: Final = {
    ".svg": re.compile(rb"(?s)(?:\xef\xbb\xbf)?\s*<(?:svg[\s>]|[?!].*<svg[\s>])"),
    ".png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    ".jpg": re.compile(rb"\xff\xd8\xff"),
    ".jpeg": re.compile(rb"\xff\xd8\xff"),
    ".webp": re.compile(rb"(?s)RIFF....WEBP"),
}

_Text = Annotated[str, StringConstraints(strict=True, strip_whitespace=True, min_length=1, max_length=200)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Names(_Strict):
    en: _Text
    zh: _Text


def _in_each_language(name: Any) -> Any:
    return {"en": name, "zh": name} if isinstance(name, str) else name


class _Entry(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: Annotated[_Names, BeforeValidator(_in_each_language)]
    picture: _Text | None = None
    goes_with: list[str] = Field(default_factory=list, alias="with", max_length=5)
    _offer: Offer = PrivateAttr()

    @model_validator(mode="after")
    def _read_offer(self) -> "_Entry":
        self._offer = offer.read(self.model_extra or {})
        return self

    @property
    def offer(self) -> Offer:
        """Its units and terms, if the file says any."""
        return self._offer


class _File(_Strict):
    shop: Annotated[_Names, BeforeValidator(_in_each_language)] | None = None
    items: dict[Annotated[str, StringConstraints(pattern=f"^{SKU_PATTERN}$")], _Entry] = Field(default_factory=dict)


@dataclass(frozen=True)
class Catalogue:
    """The descriptions of some items; any other has only its sku.

    `told`: the description of each item for the page, as JSON; `pictures`: by their names below `PICTURES`, which
    contain a digest; `offers`: what `seckill stock load` makes of each item; `shop`: the shop's name in each language,
    if it has one; `aside`: the items that go with another one, on whose page they are.
    """

    told: Mapping[str, str]
    pictures: Mapping[str, File]
    offers: Mapping[str, Offer]
    shop: Mapping[str, str] | None = None
    aside: frozenset[str] = frozenset()

    @property
    def has_list(self) -> bool:
        """Whether the shop begins with a list: if there are several items beside those aside, or no default item."""
        return bool(self.told) and self.told.keys() - self.aside != {DEFAULT_SKU}

    @cached_property
    def whole(self) -> str:
        """All items, as JSON."""
        return "{" + ",".join(f'"{sku}":{told}' for sku, told in self.told.items()) + "}"


NOTHING: Final = "{}"  # the description of any other item


@cache
def built_in() -> Catalogue:
    """The catalogue if none is configured."""
    return read(BUILT_IN)


def read(path: Path) -> Catalogue:
    """Read the catalogue from a TOML file. Raises `ConfigurationError`, which names the file and its faults."""
    try:
        found = _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from None
    except ValidationError as error:
        raise ConfigurationError("\n".join(f"{path}: {_line(one)}" for one in error.errors())) from None
    told: dict[str, str] = {}
    pictures: dict[str, File] = {}
    beside = _beside(path, found.items)
    for sku, item in found.items.items():
        address = None
        if item.picture is not None:
            picture = path.parent / item.picture
            try:
                name, file = _picture(picture)
            except ConfigurationError as error:
                raise ConfigurationError(f"{path}: items.{sku}.picture: {picture} {error}") from None
            pictures[name] = file
            address = f"{PICTURES}/{name}"
        about: dict[str, Any] = {"name": item.name.model_dump(), "picture": address}
        if sku in beside:
            names = {one: found.items[one].name.model_dump() for one in sorted(beside[sku] - {sku})}
            about |= {"with": item.goes_with, "names": names}
        told[sku] = json.dumps(about, ensure_ascii=False)
    offers = {sku: item.offer for sku, item in found.items.items()}
    aside = frozenset(other for item in found.items.values() for other in item.goes_with)
    return Catalogue(told, pictures, offers, found.shop.model_dump() if found.shop is not None else None, aside)


def _beside(path: Path, items: Mapping[str, _Entry]) -> dict[str, set[str]]:
    """Which items may be in a basket with an item, whose page is to say their names, too."""
    found = defaultdict[str, set[str]](set)
    for sku, item in items.items():
        basket = {sku, *item.goes_with}
        if strange := basket - items.keys():
            raise ConfigurationError(f"{path}: items.{sku}.with: there is no item {min(strange)!r}")
        for one in basket if len(basket) > 1 else ():
            found[one] |= basket
    return found


def _picture(path: Path) -> tuple[str, File]:
    """Read a picture, and make a unique name for it."""
    ending = path.suffix.lower()
    if ending not in _BEGINS:
        raise ConfigurationError(f"is no picture that we can show: {', '.join(_BEGINS)}")
    try:
        with path.open("rb") as opened:
            body = opened.read(_PICTURE_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"can't be read: {error.strerror}") from None
    if len(body) > _PICTURE_MAX_BYTES:
        raise ConfigurationError("is larger than 1 MB")
    if not _BEGINS[ending].match(body):
        raise ConfigurationError(f"is not what its name says: {ending}")
    file = File.of(f"picture{ending}", body)
    return f"{file.digest}{ending}", file


def _line(error: Any) -> str:
    """Describe a fault, with the name of its field as in TOML."""
    where = ".".join(str(part) for part in error["loc"] if part != "[key]")
    if error["type"] == "value_error" and isinstance(wrong := error["ctx"]["error"], NotATerm):
        return f"{where}.{wrong.option}: {wrong}"
    if error["type"] == "extra_forbidden":
        return f"{where}: there is no such field"
    if error["type"] == "string_pattern_mismatch":
        return f"{where}: not an item's name (letters, digits, '.', '_' and '-', 64 at most)"
    if where.endswith(".name") and error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"{where}: a text, or one for each language: {{ en = ..., zh = ... }}"
    return f"{where}: {error['msg']}"
