"""The catalogue is a file that is read at the start, where errors in it are reported."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.errors import ConfigurationError
from app.orders import TERMS, Terms
from app.orders.offer import Offer, read
from app.settings import Settings
from app.web import catalogue
from app.wiring import catalogue_of

ROOT = Path(__file__).parents[2]
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"/>'
PNG = b"\x89PNG\r\n\x1a\n and so on"


def written(folder: Path, text: str) -> Path:
    file = folder / "items.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_built_in_one() -> None:
    """Without a file there is an item, with every field, and what goes with it; the shop is no list."""
    found = catalogue_of(Settings(_env_file=None))
    assert (list(found.told), found.has_list) == (["default", "bulb"], False)
    told = json.loads(found.told["default"])
    assert set(told["name"]) == {"en", "zh"}
    assert told["picture"].removeprefix(f"{catalogue.PICTURES}/") in found.pictures


def test_one_of_ones_own(tmp_path: Path) -> None:
    """Names are in one language or in each, and pictures are beside the file."""
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.SVG").write_bytes(b'\xef\xbb\xbf<?xml version="1.0"?>\n<!-- mine -->\n' + SVG)
    (tmp_path / "b.png").write_bytes(PNG)
    (tmp_path / "c.webp").write_bytes(b"RIFF\0\0\0\nWEBPVP8 ")
    (tmp_path / "d.jpeg").write_bytes(b"\xff\xd8\xff\xe0")
    pictures = {"a": "pictures/a.SVG", "b": "b.png", "c": "c.webp", "d": "d.jpeg", "same": "b.png"}
    items = "".join(f'[items.{sku}]\nname = "{sku}"\npicture = "{picture}"\n' for sku, picture in pictures.items())
    text = items + '[items."e.1_-"]\nname = { en = "Tea", zh = "茶" }\n'
    found = catalogue.read(written(tmp_path, f"shop = 'Teas'\n{text}"))
    assert found.shop == {"en": "Teas", "zh": "Teas"}
    told = {sku: json.loads(text) for sku, text in found.told.items()}
    assert told["e.1_-"] == {"name": {"en": "Tea", "zh": "茶"}, "picture": None}
    assert told["a"]["name"] == {"en": "a", "zh": "a"}
    types = {sku: found.pictures[told[sku]["picture"].rpartition("/")[2]].media_type for sku in pictures}
    assert types == {"a": "image/svg+xml", "b": "image/png", "c": "image/webp", "d": "image/jpeg", "same": "image/png"}
    assert len(found.pictures) == 4
    nothing = catalogue.read(written(tmp_path, ""))
    assert (nothing.told, nothing.shop, nothing.has_list) == ({}, None, False)


@pytest.mark.parametrize(("skus", "is_one"), [(["default"], False), (["tea"], True), (["default", "tea"], True)])
def test_when_it_is_a_list(tmp_path: Path, skus: list[str], is_one: bool) -> None:
    """The shop begins with a list of the items, unless the one without a name is all there is."""
    items = "".join(f'[items.{sku}]\nname = "{sku}"\n' for sku in skus)
    assert catalogue.read(written(tmp_path, items)).has_list is is_one


def test_what_goes_with_an_item(tmp_path: Path) -> None:
    """Each page knows the names of all that may be in a basket with its item; what is beside makes no list."""
    items = {"default": "with = ['cup', 'pot']", "cup": "", "pot": ""}
    text = "".join(f"[items.{sku}]\nname = 'A {sku}'\n{more}\n" for sku, more in items.items())
    found = catalogue.read(written(tmp_path, text))
    told = {sku: json.loads(one) for sku, one in found.told.items()}
    assert {sku: (one["with"], [*one["names"]]) for sku, one in told.items()} == {
        "default": (["cup", "pot"], ["cup", "pot"]),
        "cup": ([], ["default", "pot"]),
        "pot": ([], ["cup", "default"]),
    }
    assert (told["cup"]["names"]["pot"]["en"], found.has_list) == ("A pot", False)
    with pytest.raises(ConfigurationError, match=r"items\.a\.with: there is no item 'b'"):
        catalogue.read(written(tmp_path, '[items.a]\nname = "a"\nwith = ["b"]'))


def test_what_is_on_sale(tmp_path: Path) -> None:
    """The same file may say how many units there are and on which terms, as `seckill stock set` takes them."""
    said = 'units = 300\nprice = "499.95 EUR"\nlimit = 2\nhold = 60\nends_at = "none"\n'
    said += "starts_at = 2026-11-11T20:00:00+08:00"
    found = catalogue.read(written(tmp_path, f'[items.a]\nname = "a"\n{said}\n[items.b]\nname = "b"\n')).offers
    start = datetime(2026, 11, 11, 12, tzinfo=UTC).timestamp()
    terms = {"price": 49_995, "currency": "EUR", "limit_per_buyer": 2, "hold_s": 60, "ends_at": 0, "starts_at": start}
    assert found == {"a": Offer(300, terms), "b": Offer(None, {})}
    own = Terms(limit_per_buyer=3, starts_at=start, paused="tea")
    assert found["a"].differs(280, own) == [
        ("units", "280", "300"),
        ("limit", "3", "2"),
        ("ends_at", "default", "none"),
        ("price", "none", "499.95 EUR"),
        ("hold", "default", "60 s"),
    ]
    assert found["a"].differs(300, own.changed(terms)) == found["b"].differs(280, own) == []


def test_the_examples(tmp_path: Path) -> None:
    """The sample file can be loaded, and so can what the page prints; the sample has every field."""
    sample = catalogue.read(ROOT / "examples" / "sale.toml").offers
    assert {name for one in sample.values() for name in one.terms} == {*TERMS} - {"paused", "paused_texts"}
    page = (ROOT / "docs" / "operations.md").read_text().partition("## The sale in one file")[2]
    printed = page.partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "phone.webp").write_bytes(b"RIFF\0\0\0\nWEBPVP8 ")
    (phone,) = catalogue.read(written(tmp_path, printed)).offers.values()
    assert (phone.units, phone.terms["price"], phone.terms["currency"]) == (300, 49_995, "EUR")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[items.a", "is not TOML"),
        ("[items.a]\nname = 'x'\n[items.a]\n", "is not TOML"),
        ("[goods.a]", "goods: there is no such field"),
        ("[items.a]\nprice = '1'", "items.a.name: Field required"),
        ("[items.a]\nname = ''", "items.a.name"),
        ("[items.a]\nname = 7", "items.a.name: a text, or one for each language"),
        ("[items.a]\nname = { en = 'x' }", "items.a.name.zh: Field required"),
        ("[items.a]\nname = { en = 'x', zh = 'y', de = 'z' }", "items.a.name.de: there is no such field"),
        ("[items.a]\nname = 'x'\nprice = 199", "items.a.price: '199': an amount and its currency are such as 499EUR"),
        ("[items.a]\nname = 'x'\nprice = 4.99", "items.a.price: 4.99: a text, a whole number or a time"),
        ("[items.a]\nname = 'x'\nunits = '300'", "items.a.units: '300' is not a number of units"),
        ("[items.a]\nname = 'x'\nunits = -1", "items.a.units: -1 is not a number of units"),
        ("[items.a]\nname = 'x'\nlimit = true", "items.a.limit: True: a text, a whole number or a time"),
        ("[items.a]\nname = 'x'\nstarts_at = 2026-11-11T20:00:00", "items.a.starts_at: '2026-11-11T20:00:00' is not a"),
        ("[items.a]\nname = 'x'\ncolour = 'red'", "items.a.colour: there is no such field"),
        ("[items.'a b']\nname = 'x'", "items.a b: not an item's name"),
        ("items = 3", "items: Input should be a valid dictionary"),
        (
            "[items.a]\nname = 'x'\npicture = 'none.png'",
            "items.a.picture: {folder}/none.png can't be read: No such file",
        ),
        ("[items.a]\nname = 'x'\npicture = 'items.toml'", "items.a.picture: {folder}/items.toml is no picture"),
        ("[items.a]\nname = 'x'\npicture = 'not.png'", "items.a.picture: {folder}/not.png is not what its name says"),
        ("[items.a]\nname = 'x'\npicture = 'page.svg'", "items.a.picture: {folder}/page.svg is not what its name says"),
        ("[items.a]\nname = 'x'\npicture = 'big.png'", "items.a.picture: {folder}/big.png is larger than 1 MB"),
    ],
)
def test_one_that_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    """The start ends with a line that names the setting, the file, the item and the field."""
    (tmp_path / "not.png").write_bytes(SVG)
    (tmp_path / "page.svg").write_bytes(b"<!doctype html><title>no svg</title>")
    (tmp_path / "big.png").write_bytes(PNG + bytes(1024 * 1024))
    file = written(tmp_path, text)
    with pytest.raises(ConfigurationError) as error:
        catalogue_of(Settings(_env_file=None, catalogue=file))
    assert str(error.value).startswith(f"SECKILL_CATALOGUE: {file}")
    assert words.format(folder=tmp_path) in str(error.value)


def test_one_that_is_not_there(tmp_path: Path) -> None:
    """The same goes for an unreadable file, and an empty variable means no file."""
    with pytest.raises(ConfigurationError, match="SECKILL_CATALOGUE: .*none.toml can't be read: No such file"):
        catalogue_of(Settings(_env_file=None, catalogue=tmp_path / "none.toml"))
    assert catalogue_of(Settings(_env_file=None, catalogue="")) == catalogue.built_in()


def test_no_units_are_an_offer() -> None:
    """None at all is another thing than a number that nobody has said."""
    assert read({"units": 0}) == Offer(0, {})
    assert Offer(0, {}).differs(5, Terms()) == [("units", "5", "0")]
    assert Offer(None, {}).differs(5, Terms()) == []
