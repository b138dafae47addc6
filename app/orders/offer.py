"""The offer of an item in a file: its units and terms, and their differences from the stock."""

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, Final, NamedTuple

from app.orders.terms import DEFAULT, NONE, OPTIONS, TERMS, NotATerm, Terms, TermsChange, read_terms

UNITS: Final = "units"
FIELDS: Final = (UNITS, *OPTIONS)
_MOST: Final = 10**12


class Offer(NamedTuple):
    """`units`: all of the sale, held and sold ones included (None: leave them); `terms`: to set."""

    units: int | None
    terms: TermsChange

    def differs(self, units: int | None, terms: Terms) -> list[tuple[str, str, str]]:
        """Each field that differs from these units and terms: its name, and the old and the new value for people."""
        found = []
        if self.units is not None and self.units != units:
            found.append((UNITS, NONE if units is None else str(units), str(self.units)))
        before, after = terms.written, terms.changed(self.terms).written
        for option, name in OPTIONS.items():
            if before.get(name) != after.get(name):
                otherwise = DEFAULT if TERMS[name].has_default else NONE
                found.append((option, before.get(name, otherwise), after.get(name, otherwise)))
        return found


def read(fields: Mapping[str, Any]) -> Offer:
    """Read the fields of an item in a TOML file. Raises `NotATerm`, which names the field."""
    texts = {}
    for name, value in fields.items():
        if name not in FIELDS:
            raise NotATerm(name, "there is no such field")
        if isinstance(value, bool) or not isinstance(value, int | str | date):
            raise NotATerm(name, f"{value!r}: a text, a whole number or a time")
        texts[name] = value.isoformat() if isinstance(value, datetime) else str(value)
    units = texts.pop(UNITS, None)
    if units is not None and (not isinstance(fields[UNITS], int) or not 0 <= int(units) <= _MOST):
        raise NotATerm(UNITS, f"{fields[UNITS]!r} is not a number of units")
    return Offer(None if units is None else int(units), read_terms(texts))
