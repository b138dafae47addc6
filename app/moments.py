"""Moments, as people write and read them."""

from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

A_ZONE: Final = "the name of a time zone, such as Europe/Berlin"
A_MOMENT: Final = "a time with its zone, such as 2026-11-11T20:00:00+08:00"


def read(text: str) -> datetime:
    """Parse a time as people write it. Raises `ValueError` without a zone, and so for plain digits."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"not {A_MOMENT}")
    return found


def zone(name: str) -> ZoneInfo:
    """Find a time zone by its name. Raises `ValueError`."""
    try:
        return ZoneInfo(name)
    except (ValueError, KeyError, OSError):
        raise ValueError(f"not {A_ZONE}") from None


def written(at: float) -> str:
    """Format a moment, in the zone of this machine, which it says. `at`: in seconds since 1970."""
    return datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")


def long_past(at: datetime) -> bool:
    """Return whether a start is so early that it is probably a typing error."""
    return at.year < datetime.now(at.tzinfo).year
