"""The id of an order is read as it was written, and by its form only; so are the terms of an item."""

import json
import re
from dataclasses import fields
from string import ascii_letters, digits
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import moments, money
from app.orders import NO_TERMS, OrderId, Terms, new_secrets
from app.orders.id import new_name
from app.orders.terms import OPTIONS, TERMS, NotATerm, read_terms
from app.web.admin import StockChange

SKUS = st.text(f"{ascii_letters}{digits}._-", min_size=1, max_size=64)
NUMBERS = st.builds(
    "{}{}".format, st.integers(0, 10**20 - 1), st.just("") | st.integers(0, 10**16 - 1).map("-{}".format)
)
SECRETS = st.binary(min_size=16, max_size=16).map(bytes.hex)


@given(SKUS, NUMBERS, SECRETS)
def test_an_id_is_read_as_it_was_written(sku: str, number: str, secret: str) -> None:
    """Whole, as a name, and as a place; a secret opens its order, and nothing else does."""
    whole, name, end = OrderId(sku, number, secret), OrderId(sku, number), f"{sku}~"
    assert (str(whole), str(name), whole.name) == (f"{sku}~{number}~{secret}", f"{sku}~{number}", f"{sku}~{number}")
    for parse, taken in (
        (OrderId.parse, {str(whole): whole}),
        (OrderId.parse_name, {str(whole): whole, str(name): name}),
        (OrderId.parse_place, {str(whole): whole, str(name): name, end: OrderId(sku, "")}),
    ):
        others = (
            f"{end}~{secret}",
            f"{whole}0",
            f"{whole} ",
            f"{sku}~0{number}",
            f"~{number}",
            sku,
            f"{name}~{secret[1:]}",
        )
        for text in (str(whole), str(name), end, *others, f"{name}~{secret[:-1]}A"):
            assert parse(text) == taken.get(text), text
    assert whole.opens(secret) and not whole.opens(secret[::-1] + "0") and not name.opens(secret)
    assert {OrderId.sku_of(text) for text in (str(whole), str(name), end, sku)} == {sku}
    assert [OrderId.cut(text) for text in (str(whole), str(name), sku)] == [str(name), sku, sku]


def test_secrets_and_names_are_made_at_random() -> None:
    """So many secrets of 128 bits, and names of 80, none like another one."""
    made = new_secrets(50)
    assert len(set(made)) == 50 and all(re.fullmatch("[0-9a-f]{32}", one) for one in made)
    names = {new_name() for _ in range(50)}
    assert len(names) == 50 and all(re.fullmatch("[0-9a-f]{20}", one) for one in names)


TIMES = st.none() | st.just(0) | st.integers(1, 10**9)
TERMS_OF_ITEMS = st.builds(
    Terms,
    limit_per_buyer=st.none() | st.integers(0, 10**6),
    starts_at=TIMES,
    ends_at=TIMES,
    price=st.none() | st.integers(0, money.MOST),
    currency=st.sampled_from(["EUR", "JPY"]),
    hold_s=st.none() | st.integers(1, 86_400),
    pay_s=st.none() | st.integers(1, 86_400),
    paused=st.none() | st.sampled_from(["wait", "a" * 200]),
    paused_texts=st.none() | st.just({"zh": "等", "de": "Tee"}),
)


@given(TERMS_OF_ITEMS, TERMS_OF_ITEMS)
def test_terms_are_read_as_they_were_written(terms: Terms, everywhere: Terms) -> None:
    """Those that are None are as everywhere; people are shown the others, with the price as money."""
    assert Terms.from_text(terms.to_text()) == terms
    assert terms.named == {one.name: value for one in fields(Terms) if (value := getattr(terms, one.name)) is not None}
    for name in TERMS:
        own, other = getattr(terms, name), getattr(everywhere, name)
        assert getattr(terms.completed_by(everywhere), name) == (other if own is None else own)
        assert getattr(terms.changed({name: other}), name) == other
    shown = dict[str, str]()
    for name, never, said in (
        ("limit_per_buyer", "no limit", "{} a buyer"),
        ("starts_at", "has started", "starts {}"),
        ("ends_at", "never ends", "ends {}"),
    ):
        value = terms.named.get(name)
        if value is not None:
            as_text = str(value) if name == "limit_per_buyer" else moments.written(value)
            shown[name] = said.format(as_text) if value else never
            assert terms.written[name] == (as_text if value else "none")
    if terms.price is not None:
        shown["price"] = terms.written["price"]
        assert shown["price"] == money.written(terms.price, terms.currency)
    for name, said in (("hold_s", "held for {:g} s"), ("pay_s", "{:g} s to pay")):
        if name in terms.named:
            shown[name] = said.format(terms.named[name])
            assert terms.written[name] == f"{terms.named[name]:g} s"
    shown |= {"paused": f"PAUSED: {terms.paused}"} if terms.paused else {}
    shown |= {"paused_texts": "zh: 等, de: Tee"} if terms.paused_texts else {}
    assert terms.said == ", ".join(shown.values()) and "currency" not in terms.written


def test_nothing_is_said_of_no_terms() -> None:
    """And none are kept as an empty text."""
    assert (NO_TERMS.said, NO_TERMS.to_text(), NO_TERMS.named, Terms.from_text("")) == ("", "", {}, NO_TERMS)


LANGUAGES = [f"{first}{second}" for first in "abcdefg" for second in "xyz"]
TEXTS = ("", "a" * 201, "a\nb", "a\n", "a\u2028", "\udcff", "\ud83d", 1)


@pytest.mark.parametrize(
    "kept",
    [
        *({"limit_per_buyer": one} for one in (-1, 1.5, True, "1", 10**12)),
        *({"hold_s": one} for one in (-0.1, "1", True, 10**12)),
        *({"currency": one} for one in ("", "eur", "EURO", 1)),
        *({"paused": one} for one in TEXTS),
        *({"paused_texts": one} for one in ("等", {"Chinese": "等"}, {"zh\n": "等"}, dict.fromkeys(LANGUAGES, "x"))),
        *({"paused_texts": {"zh": one}} for one in TEXTS),
        {"colour": "red"},
        [],
    ],
)
def test_what_no_store_of_ours_has_kept(kept: Any) -> None:
    """A number below or beyond all limits, a text of another form, another name; HTTP takes no such pause, either."""
    with pytest.raises(ValueError, match="not terms of ours"):
        Terms.from_text(json.dumps(kept))
    if "paused" in str(kept) and kept != {"paused": ""}:  # which ends a pause
        with pytest.raises(ValueError, match=next(iter(kept))):
            StockChange.model_validate(kept)


def test_a_pause_that_an_earlier_release_kept() -> None:
    """Its text for readers of Chinese is one of the texts by language."""
    assert Terms.from_text('{"paused":"Tea","paused_zh":"茶"}') == Terms(paused="Tea", paused_texts={"zh": "茶"})


@given(st.integers(0, 10**6), st.integers(1, 86_400), st.integers(1, 10**9), st.integers(1, 10**9))
def test_terms_of_people(limit: int, window: int, start: int, lasts: int) -> None:
    """Each is read by what people call it; "default" and "none" are what they say."""
    written = {"limit": str(limit), "hold": str(window), "pay": str(window), "price": "4.99 EUR"}
    written |= {"offer": str(window), "smaller_first": "yes", "limit_group": "3 case"}
    written |= {"starts_at": moments.written(start), "ends_at": moments.written(start + lasts)}
    own: dict[str, Any] = {"limit_per_buyer": limit, "hold_s": float(window), "pay_s": float(window), "price": 499}
    own |= {"offer_s": float(window), "smaller_first": True, "limit_group": "3 case"}
    assert read_terms(written) == own | {"currency": "EUR", "starts_at": float(start), "ends_at": float(start + lasts)}
    assert set(OPTIONS) == set(written)
    assert read_terms(dict.fromkeys(("limit", "starts_at", "ends_at"), "none")) == dict.fromkeys(
        ("limit_per_buyer", "starts_at", "ends_at"), 0
    )
    assert read_terms({"limit": "1000000"}) == {"limit_per_buyer": 1_000_000}
    assert read_terms({"price": "none"}) == {"price": None, "currency": None}
    assert read_terms({"offer": "none", "smaller_first": "no"}) == {"offer_s": None, "smaller_first": False}
    assert read_terms({"hold": "default", "limit": "default"}) == {"hold_s": None, "limit_per_buyer": None}


@pytest.mark.parametrize(
    ("option", "text", "why"),
    [
        (
            "starts_at",
            moments.written(-1),
            f"{moments.written(-1)!r} is not {moments.A_MOMENT} (from 1970 to 5138), `none` or `default`",
        ),
        ("limit", "1000001", "'1000001' is not a number of units, a million at most, `none` or `default`"),
        ("limit", "-1", "'-1' is not a number of units, a million at most, `none` or `default`"),
        ("hold", "0", "'0' is not a whole number of seconds, a day at most, `default`"),
        ("pay", "86401", "'86401' is not a whole number of seconds, a day at most, `default`"),
        ("offer", "0", "'0': a whole number of seconds, a day at most; or `none`"),
        ("smaller_first", "none", "'none' is not `yes` or `no`"),
        ("hold", "1.5", "'1.5' is not a whole number of seconds, a day at most, `default`"),
        ("price", "4", "'4': an amount and its currency are such as 499EUR or 499.95EUR; or `none`"),
        ("ends_at", "x", f"'x' is not {moments.A_MOMENT} (from 1970 to 5138), `none` or `default`"),
        ("ends_at", moments.written(60), "must be later than starts_at"),
    ],
)
def test_a_term_that_is_none(option: str, text: str, why: str) -> None:
    """The error names what people call it, and says what is wanted."""
    with pytest.raises(NotATerm, match=f"^{re.escape(why)}$") as error:
        read_terms({"starts_at": moments.written(60)} | {option: text})
    assert error.value.option == option
