"""Amounts are read and written with the decimals of their currency."""

import re
from pathlib import Path

import pytest

from app import money
from app.stock import Change
from app.web import pages

SUCH_AS = "an amount and its currency are such as 499EUR or 499.95EUR"


@pytest.mark.parametrize(
    ("text", "amount", "written"),
    [
        ("499EUR", 49_900, "499.00 EUR"),
        ("499.9EUR", 49_990, "499.90 EUR"),
        ("0.05 USD", 5, "0.05 USD"),
        ("0EUR", 0, "0.00 EUR"),
        ("499JPY", 499, "499 JPY"),
        ("499HUF", 49_900, "499.00 HUF"),  # shown without decimals by most browsers
        ("1.5KWD", 1_500, "1.500 KWD"),
        ("0.0005 CLF", 5, "0.0005 CLF"),
        ("1.5OMR", 1_500, "1.500 OMR"),
        ("1000000000EUR", 100_000_000_000, "1000000000.00 EUR"),
        ("100000000000 JPY", 100_000_000_000, "100000000000 JPY"),
    ],
)
def test_an_amount_comes_back_as_it_was_said(text: str, amount: int, written: str) -> None:
    """Whole amounts and decimals mean what they say, whatever the minor unit is."""
    assert money.read(text) == (amount, written[-3:])
    assert money.written(amount, written[-3:]) == written
    assert money.read(written) == money.read(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("499", SUCH_AS),
        ("EUR", SUCH_AS),
        ("499eur", SUCH_AS),
        ("-1EUR", SUCH_AS),
        ("4,99EUR", SUCH_AS),
        (".99EUR", SUCH_AS),
        ("4.EUR", SUCH_AS),
        ("1e3EUR", SUCH_AS),
        ("1000000000.01EUR", "a price is at most 1000000000.00 EUR"),
        ("99999999999EUR", "a price is at most 1000000000.00 EUR"),
        ("9999999999999EUR", SUCH_AS),
        ("4.999EUR", "EUR has 2 decimals"),
        ("4.9JPY", "JPY has no decimals"),
        ("4.9999KWD", "KWD has 3 decimals"),
    ],
)
def test_an_amount_that_is_none(text: str, why: str) -> None:
    """The text of the error says what is wrong."""
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        money.read(text)


def test_less_than_nothing() -> None:
    """A difference may be negative; an amount of an unknown currency says that its unit is unknown."""
    assert money.written(-5, "EUR") == "-0.05 EUR"
    assert money.decimal(499, None) == "499"
    assert money.written(499, None) == "499 in the minor unit of no currency"


def test_the_pages_count_decimals_likewise() -> None:
    """The browser's table is the same as ours."""
    text = (Path(pages.__file__).parent / "static" / "money.js").read_text()
    found = re.findall(r'"([A-Z ]+)"\.split\(" "\)\.map\(\(one\) => \[one, (\d)\]\)', text)
    assert {one: int(count) for currencies, count in found for one in currencies.split()} == money.DECIMALS


def test_the_log_says_a_price_as_money() -> None:
    """An operator's change of a price is read as money, and one of another term as it is."""
    before = {"stock": 5, "price": 49_900, "currency": "EUR"}
    assert Change(0, "", "terms", "", before, before | {"price": 499}).difference == "price 499.00 EUR -> 4.99 EUR"
    assert Change(0, "", "terms", "", {"stock": 5}, before).difference == "price none -> 499.00 EUR"
    assert Change(0, "", "terms", "", before, {"stock": 6}).difference == "price 499.00 EUR -> none, stock 5 -> 6"
