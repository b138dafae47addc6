"""The terms of an item: how many units a buyer may have, when, and at which price.

Each term is here once, with its type, unit, limits and texts. The columns of the stores, the options of the command
line, the fields of HTTP and the defaults of the settings are made from it.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Final, TypeAlias

from app import moments, money
from app.orders.id import SKU_PATTERN

LANGUAGE_PATTERN: Final = "^[a-z]{2,3}$"
LANGUAGES_MAX: Final = 20
CURRENCY_PATTERN: Final = r"^[A-Z]{3}$"
LATEST: Final = 1e11  # in seconds since 1970: the year 5138
NONE: Final = "none"  # on the command line: no limit, no start, no end, no price
DEFAULT: Final = "default"  # for the value of the settings, which is for all items
_HALVES: Final = re.compile("[\ud800-\udfff]")  # of UTF-16: no store, and no JSON of HTTP, can have one alone
_KEPT_MAX: Final = 1e12  # the largest number in a store; an earlier release may have had wider limits

TermsChange: TypeAlias = Mapping[str, Any]
"""Terms of an item to set, by their names; None: as everywhere again. Terms that are not named stay."""


@dataclass(frozen=True, slots=True)
class Term:
    """A term of an item, with its limits and all texts about it."""

    # of its value; dict: a text for each language
    kind: type[int] | type[float] | type[bool] | type[str] | type[dict[str, str]]
    text: str  # a description, for the settings and HTTP
    least: float = 0
    most: float = _KEPT_MAX  # of a number, or of the length of a text
    pattern: str | None = None
    option: str = ""  # on the command line; "": none
    metavar: str = ""
    help: str = ""  # there
    wanted: str = ""  # the expected form, for an error
    read: Callable[[str], Any] = str  # parses it there, or raises `ValueError`
    said: Callable[[Any], str] = str  # writes it as a sentence for people
    never: str = ""  # the sentence for 0
    write: Callable[[Any], str] = str  # writes the value alone

    def written(self, value: Any) -> str:
        """The value for people, without the term's name."""
        return NONE if self.never and not value else self.write(value)

    @property
    def has_default(self) -> bool:
        """Whether the settings have one for all items."""
        return DEFAULT in self.metavar

    @property
    def limits(self) -> dict[str, Any]:
        """The limits, as Pydantic names them."""
        if self.kind in (str, dict):
            return {"pattern": self.pattern} | ({"max_length": int(self.most)} if self.most < _KEPT_MAX else {})
        if self.kind is bool:
            return {}
        return {"ge": self.least, "le": self.most}

    def may_be_kept(self, value: object) -> bool:
        """Return whether a store may hold this."""
        if self.kind is dict:
            texts = replace(self, kind=str)
            return (
                isinstance(value, dict)
                and len(value) <= LANGUAGES_MAX
                and all(re.fullmatch(LANGUAGE_PATTERN, name) and texts.may_be_kept(one) for name, one in value.items())
            )
        if self.kind is str:
            right = isinstance(value, str) and 0 < len(value) <= self.most and not _HALVES.search(value)
            return right and re.fullmatch(self.pattern or ".*", str(value)) is not None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self.kind is bool and isinstance(value, bool)
        if self.kind is bool:
            return False
        return 0 <= value < _KEPT_MAX and (self.kind is float or isinstance(value, int))


def _units(text: str) -> int:
    if not re.fullmatch("[0-9]{1,7}", text) or int(text) > _LIMIT_MAX:
        raise ValueError
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch("[0-9]{1,5}", text) or not 1 <= int(text) <= _WINDOW_MAX_S:
        raise ValueError
    return float(text)


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError
    return text == "yes"


_GROUP: Final = rf"^[1-9][0-9]{{0,5}}(?: {SKU_PATTERN}){{1,19}}$"


def _group(text: str) -> str:
    if not re.fullmatch(_GROUP, text):
        raise ValueError('a number of units and the names of the other items, such as "3 case charger"')
    return text


def _offer(text: str) -> float:
    try:
        return _seconds(text)
    except ValueError:
        raise ValueError("a whole number of seconds, a day at most") from None


def _moment(text: str) -> float:
    at = 0 if text == "0" else moments.read(text).timestamp()
    if not 0 <= at <= LATEST:
        raise ValueError
    return at


def _by_language(texts: Mapping[str, str]) -> str:
    return ", ".join(f"{language}: {text}" for language, text in texts.items())


def _term(kind: type[Any], text: str, **more: Any) -> Any:
    return field(default=None, metadata={"term": Term(kind, text, **more)})


_LIMIT_MAX: Final = 10**6
_WINDOW_MAX_S: Final = 86_400
_TIME: Final[dict[str, Any]] = {
    "most": LATEST,
    "metavar": f"TIME|{NONE}|{DEFAULT}",
    "read": _moment,
    "write": moments.written,
    "wanted": f"{moments.A_MOMENT} (from 1970 to 5138), `{NONE}` or `{DEFAULT}`",
}
_WINDOW: Final[dict[str, Any]] = {
    "least": 1,
    "most": _WINDOW_MAX_S,
    "metavar": f"SECONDS|{DEFAULT}",
    "read": _seconds,
    "write": "{:g} s".format,
    "wanted": f"a whole number of seconds, a day at most, `{DEFAULT}`",
}
_A_LINE: Final = "a line of 200 characters at most"
_LINE: Final[dict[str, Any]] = {"most": 200, "pattern": r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"}


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of an item; None: as everywhere, by the settings; a price, a currency or a pause has only the item."""

    limit_per_buyer: int | None = _term(
        int,
        "how many units one buyer may have; 0: no limit",
        most=_LIMIT_MAX,
        option="limit",
        metavar=f"UNITS|{NONE}|{DEFAULT}",
        help="How many one buyer may have of this item.",
        read=_units,
        wanted=f"a number of units, a million at most, `{NONE}` or `{DEFAULT}`",
        said="{} a buyer".format,
        never="no limit",
    )
    starts_at: float | None = _term(
        float,
        "when its sale starts, in seconds since 1970; 0: it has",
        option="starts_at",
        help="When its sale starts, such as 2026-11-11T20:00:00+08:00.",
        said=lambda at: f"starts {moments.written(at)}",
        never="has started",
        **_TIME,
    )
    ends_at: float | None = _term(
        float,
        "when its sale ends, in seconds since 1970; 0: never",
        option="ends_at",
        help="When it ends.",
        said=lambda at: f"ends {moments.written(at)}",
        never="never ends",
        **_TIME,
    )
    price: int | None = _term(
        int,
        "of a unit, in the minor unit of the currency; with one it is held until it is paid",
        most=money.MOST,
        option="price",
        metavar=f"AMOUNT|{NONE}",
        help="Its price, such as 499EUR or 499.95EUR: it is held until it is paid.",
        read=money.read,
    )
    currency: str | None = _term(str, "of the price: ISO 4217, such as EUR", pattern=CURRENCY_PATTERN)
    hold_s: float | None = _term(
        float,
        "for how long units are held that are to be paid",
        option="hold",
        help="For how long its units are held.",
        said="held for {:g} s".format,
        **_WINDOW,
    )
    pay_s: float | None = _term(
        float,
        "the second window, which begins when the buyer goes to pay; not shorter than the first",
        option="pay",
        help="For how long, from when the buyer goes to pay.",
        said="{:g} s to pay".format,
        **_WINDOW,
    )
    offer_s: float | None = _term(
        float,
        "for how long units that come back are held for the one who is next in line; as other holds, if it isn't set",
        option="offer",
        help="For how long units that come back are held for whoever is next in line.",
        said="offered for {:g} s".format,
        **_WINDOW | {"metavar": f"SECONDS|{NONE}", "read": _offer, "wanted": ""},
    )
    smaller_first: bool | None = _term(
        bool,
        "whether a smaller wish passes a larger one in line, for which too few units are left",
        option="smaller_first",
        metavar="yes|no",
        help="Whether a smaller wish in line passes a larger one.",
        read=_yes,
        wanted="`yes` or `no`",
        said=lambda does: "smaller wishes pass larger ones in line" if does else "nobody is passed in line",
        write=lambda does: "yes" if does else "no",
    )
    limit_group: str | None = _term(
        str,
        "how many units one buyer may have over several items: the number, and the names of the other items",
        pattern=_GROUP,
        option="limit_group",
        metavar=f'"UNITS ITEM..."|{NONE}',
        help='How many one buyer may have over several items, such as "3 case charger".',
        read=_group,
        said=lambda group: "{} a buyer with {}".format(*group.split(" ", 1)),
    )
    paused: str | None = _term(
        str,
        "nothing is sold from now on, and this is what buyers are told of it; empty: it goes on",
        said="PAUSED: {}".format,
        wanted=_A_LINE,
        **_LINE,
    )
    paused_texts: Mapping[str, str] | None = _term(
        dict,
        "what readers of other languages are told of the pause, by language, such as zh",
        said=_by_language,
        write=_by_language,
        wanted=f"{_A_LINE} for each language, such as zh; {LANGUAGES_MAX} languages at most",
        **_LINE,
    )

    @property
    def group(self) -> tuple[int, tuple[str, ...]] | None:
        """The units that a buyer may have of some items together, and the other items."""
        if self.limit_group is None:
            return None
        units, *others = self.limit_group.split()
        return int(units), tuple(others)

    def completed_by(self, everywhere: "Terms") -> "Terms":
        """These terms, with `everywhere`'s in the place of None."""
        return everywhere if self is NO_TERMS else replace(everywhere, **self.named)

    def changed(self, change: TermsChange) -> "Terms":
        """These terms with a change. Raises `TypeError` for a name that is none."""
        return replace(self, **change)

    def to_text(self) -> str:
        """The terms as the stores keep them: JSON; empty if there are none."""
        return json.dumps(own, separators=(",", ":"), ensure_ascii=False) if (own := self.named) else ""

    @property
    def named(self) -> dict[str, Any]:
        """The terms that are not None, by their names."""
        return {name: value for name in TERMS if (value := getattr(self, name)) is not None}

    @property
    def written(self) -> dict[str, str]:
        """The values of the terms that are not None for people, by their names; the price with its currency."""
        found = {name: TERMS[name].written(value) for name, value in self.named.items() if name != "currency"}
        return found | ({} if self.price is None else {"price": money.written(self.price, self.currency)})

    @property
    def said(self) -> str:
        """The terms for people; empty if there are none."""
        found = []
        for name, value in self.named.items():
            if name == "price":
                found.append(money.written(value, self.currency))
            elif name != "currency":
                found.append(TERMS[name].said(value) if value or not TERMS[name].never else TERMS[name].never)
        return ", ".join(found)

    @classmethod
    def from_text(cls, text: str) -> "Terms":
        """Parse the terms of `to_text`. Raises `ValueError` for anything else."""
        return _parsed(text) if text else NO_TERMS


TERMS: Final[dict[str, Term]] = {one.name: one.metadata["term"] for one in fields(Terms)}
NO_TERMS: Final = Terms()
OPTIONS: Final = {term.option: name for name, term in TERMS.items() if term.option}
"""The names of the terms that people write, by what they call them: on the command line, and in a file."""


class NotATerm(ValueError):
    """A term that can't be read; `option`: its name for people."""

    def __init__(self, option: str, why: str) -> None:
        super().__init__(why)
        self.option = option


def read_terms(given: Mapping[str, str]) -> TermsChange:
    """Parse terms as people write them, by their options. Raises `NotATerm` for the first that is none."""
    found: dict[str, Any] = {}
    for option, text in given.items():
        name = OPTIONS[option]
        found[name] = _read(option, text)
        if name == "price":
            found["price"], found["currency"] = found["price"] or (None, None)
    start, end = found.get("starts_at"), found.get("ends_at")
    if start and end and end <= start:
        raise NotATerm("ends_at", "must be later than starts_at")
    return found


def _read(option: str, text: str) -> Any:
    term = TERMS[OPTIONS[option]]
    if text == DEFAULT or (text == NONE and not term.wanted):
        return None
    try:
        return term.read("0" if text == NONE else text)
    except ValueError as error:
        raise NotATerm(
            option, f"{text!r} is not {term.wanted}" if term.wanted else f"{text!r}: {error}; or `{NONE}`"
        ) from None


@lru_cache(1000)
def _parsed(text: str) -> Terms:
    found = json.loads(text)
    if isinstance(found, dict) and "paused_zh" in found:  # an earlier release had two languages
        found["paused_texts"] = {"zh": found.pop("paused_zh")}
    if not isinstance(found, dict) or not all(
        name in TERMS and TERMS[name].may_be_kept(value) for name, value in found.items()
    ):
        raise ValueError("not terms of ours")
    return Terms(**found)
