"""The overview as it hangs on the wall: each item as it stands, the totals, what is wrong, and a pause of all."""

import re
import time
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from lab.servers import EtcdMember, Valkey
from tests.browser.conftest import OPERATOR, Item
from tests.harness.browser import Visitors, contrasts, fits, shows
from tests.harness.shop import TOKEN, Instance
from tests.harness.waiting import eventually

pytestmark = pytest.mark.slow

SIZES: Final = ((1440, 900), (1024, 768), (390, 844))
LOWEST: Final = 4.5  # WCAG AA
SUMS: Final[dict[str, Any]] = {
    "orders": {"sold": 0, "held": 1, "confirmed": 2, "expired": 0, "cancelled": 0, "refunded": 0},
    "units": {"sold": 0, "held": 1, "confirmed": 3, "expired": 0, "cancelled": 0, "refunded": 0},
    "to_ship": 3,
    "paid_orders": 2,
    "unpaid_orders": 0,
    "conversion": 1.0,
    "attention": 1,
    "money": {"EUR": {"paid": 149_700, "given_back": 0, "owed": 49_900, "kept": 149_700}},
}
CATALOGUE: Final = """
[items.lamp]
name = { en = "Brass lamp", zh = "黄铜灯" }
picture = "lamp.svg"
[items.poster]
name = { en = "Poster", zh = "海报" }
"""


@pytest.fixture(scope="module")
def sale(
    etcd: EtcdMember, valkey_server: Valkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Instance, dict[str, Item]]]:
    """An instance whose sale has an item in each state, on a store of its own."""
    folder = tmp_path_factory.mktemp("catalogue")
    (folder / "lamp.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'
    )
    more = [f'[items.{sku}]\nname = "{sku}"' for sku in ("sold", "ended", "paused", "early")]
    (folder / "sale.toml").write_text("\n".join([CATALOGUE, *more]))
    store = valkey_server.url.removesuffix("/0") + "/3"
    with Instance(etcd.endpoint, store, extension="lab.rehearsal", catalogue=folder / "sale.toml") as instance:
        now = time.time()
        items = {sku: Item(instance, 5, sku) for sku in ("lamp", "sold", "ended", "paused", "early")}
        items["lamp"].terms(price=49_900, currency="EUR")
        items["sold"].sell(5)
        items["ended"].terms(ends_at=now - 60)
        items["paused"].terms(paused="Tea", paused_texts={"zh": "茶歇"})
        items["early"].terms(starts_at=now + 3000)
        yield instance, items


def opened(visitors: Visitors, instance: Instance, report: dict[str, Any] | None = None, **options: Any) -> Page:
    """The overview, with these numbers of the sale if they are given."""
    page = visitors.visit(f"{instance.url}/control/login", **options)
    if report is not None:
        page.context.route(re.compile(r"/report(\?.*)?$"), lambda route: route.fulfill(json=report))
    page.get_by_label(re.compile("Admin token|管理令牌")).fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    return page


def thing(page: Page, name: str) -> Locator:
    link = page.get_by_role("link", name=name, exact=True)
    return page.locator("#items").get_by_role("listitem").filter(has=link)


REPORT: Final[dict[str, Any]] = {
    "at": 1_795_739_858.4,
    "total": SUMS,
    "items": [{"sku": "lamp"} | SUMS],
    "days": [{"day": "2026-11-11"} | SUMS, {"day": "2026-11-12"} | SUMS],
}


def test_each_item_looks_as_it_stands(visitors: Visitors, sale: tuple[Instance, dict[str, Item]]) -> None:
    """Names, pictures, units and money; what is sold out, paused, ended or not open yet says so."""
    page = opened(visitors, sale[0], REPORT)
    for name, kind, pill in (
        ("Brass lamp", "open", "Ready to sell"),
        ("sold", "sold_out", "Sold out"),
        ("ended", "ended", "Ended"),
        ("paused", "paused", "Paused"),
        ("early", "before", "Not open yet"),
        ("Poster", "off", "No stock yet"),
    ):
        expect(thing(page, name)).to_have_attribute("data-kind", kind)
        expect(thing(page, name).locator(".pill")).to_have_text(pill)
    expect(thing(page, "paused").locator(".told")).to_have_text("“Tea” “茶歇”")
    expect(thing(page, "early").locator(".told")).to_have_text(re.compile(r"Opens in .*\d\d:\d\d"))
    expect(thing(page, "Brass lamp").locator("img")).to_have_js_property("naturalWidth", 9, timeout=20_000)
    expect(thing(page, "Brass lamp")).to_contain_text("€499.00")
    expect(thing(page, "Brass lamp").locator(".sums")).to_contain_text("€1,497.00 paid")
    expect(thing(page, "sold").get_by_role("img")).to_have_attribute("aria-label", "Of 5: 5 sold, 0 held, 0 left")
    shows(page, all_sold="5", all_left="20", all_money="€1,497.00", all_owed="€499.00", health="Ready to sell")
    rows = page.locator("#days tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text(re.compile("12 Nov.*€1,497.00.*€499.00"))
    page.locator("#attention").click()
    expect(page).to_have_url(re.compile("/control/orders.*state=attention"))


def test_units_are_seen_to_go(visitors: Visitors, sale: tuple[Instance, dict[str, Item]]) -> None:
    """What is sold meanwhile is in the figures, the bar and the pace, without a reload."""
    instance, items = sale
    items["lamp"].terms(price=None, currency=None)
    try:
        page = opened(visitors, instance, REPORT)
        lamp = thing(page, "Brass lamp")
        expect(lamp.locator(".pace .small")).to_have_text("0 a second")
        before = int(page.locator("#all-sold").inner_text())
        items["lamp"].sell(2)
        expect(lamp).to_have_attribute("data-kind", "selling")
        expect(lamp.locator("[data-curve=stock] dd")).to_have_text("3")
        shows(page, all_sold=str(before + 2), health="Selling")
        assert "," in (lamp.locator("polyline").get_attribute("points") or "")
    finally:
        items["lamp"].set(5)
        items["lamp"].terms(price=49_900, currency="EUR")


def test_all_is_paused_and_goes_on(visitors: Visitors, sale: tuple[Instance, dict[str, Item]]) -> None:
    """One button pauses what is sold, with words in both languages, and another one lets it go on; each asks first."""
    instance, items = sale
    page = opened(visitors, instance, REPORT)

    def paused() -> dict[str, tuple[str, ...]]:
        found = httpx.get(f"{instance.url}/control/overview", headers=OPERATOR).json()["items"]
        levels = {one["sku"]: one["level"] for one in found if one["level"]}
        return {sku: (level["paused"], *level["paused_texts"].values()) for sku, level in levels.items()}

    before = paused()
    page.get_by_role("button", name="Pause all").click()
    dialog = page.get_by_role("dialog", name="Pause the sale?")
    expect(dialog).to_contain_text("Brass lamp")
    dialog.get_by_role("button", name="Cancel").click()
    assert paused() == before
    page.get_by_role("button", name="Pause all").click()
    dialog.get_by_role("textbox", name="what buyers are told").fill("A minute")
    dialog.get_by_role("textbox", name="what readers of Chinese are told").fill("一分钟")
    dialog.get_by_role("button", name="Pause the sale").click()
    shows(page, all_said="3 items are paused.")
    told = ("A minute", "一分钟")
    assert paused() == before | {"lamp": told, "sold": told, "early": told}
    expect(thing(page, "Brass lamp")).to_have_attribute("data-kind", "paused")
    page.get_by_role("button", name="Resume all").click()
    page.get_by_role("dialog", name="Go on with the whole sale?").get_by_role("button", name="Resume all").click()
    shows(page, all_said="4 items go on.")
    assert set(paused().values()) == {("",)}
    expect(page.locator("#log li").first).to_contain_text(re.compile("^.*operator went on selling "))
    items["paused"].terms(paused="Tea", paused_texts={"zh": "茶歇"})


def test_the_last_changes_tell_money(visitors: Visitors, sale: tuple[Instance, dict[str, Item]]) -> None:
    """As a person would, with the order as a link; the same again and again is one line, to be unfolded."""
    instance, items = sale
    held = httpx.post(f"{instance.url}/holds", json={"sku": items["lamp"].sku, "buyer": "ann"}, timeout=30).json()["id"]
    for currency in ("XTS", "EUR"):
        paid = {"payment_ref": f"p-{currency}", "amount": 49_900, "currency": currency}
        httpx.post(f"{instance.url}/holds/{held}/confirm", json=paid, timeout=30).raise_for_status()
    for ref in ("p-XTS", "p-EUR"):
        note = {"restock": True, "payment_ref": ref}
        httpx.post(f"{instance.url}/orders/{held}/refund", json=note, headers=OPERATOR).raise_for_status()
    name = held.rpartition("~")[0]
    for locale, words, more in (
        ("en-GB", f"noted that €499.00 of {name} was given back", "and one before"),
        ("zh-CN", f"记录 {name} 已退 €499.00", "此前还有 1 次"),
    ):
        page = opened(visitors, instance, REPORT, locale=locale)
        last = page.locator("#log > li").first
        expect(last.locator(".words").first).to_have_text(words)
        last.get_by_text(more).click()
        expect(last.locator("details p")).to_contain_text(re.compile(r"XTS.499\.00"))
        last.get_by_role("link").first.click()
        expect(page.locator("#life-title")).to_contain_text(name)


def test_what_is_wrong_is_at_the_top(visitors: Visitors, etcd: EtcdMember, valkey_server: Valkey) -> None:
    """An item whose stock can't be read is named above all else, and the light is red."""
    store = valkey_server.url.removesuffix("/0") + "/4"
    with Instance(etcd.endpoint, store) as instance:
        for sku in ("good", "bad"):
            Item(instance, 5, sku)
        page = opened(visitors, instance, REPORT)
        expect(page.locator("#wrong")).to_be_hidden()
        import redis

        with redis.Redis.from_url(store) as client:
            (key,) = (one for one in client.keys("*bad*stock*") if client.type(one) == b"string")
            client.set(key, "many")
        expect(page.locator("#wrong")).to_contain_text("bad")
        expect(page.locator("#wrong")).to_have_attribute("data-kind", "bad")
        expect(thing(page, "bad")).to_have_attribute("data-kind", "wrong")
        shows(page, health="Something is wrong")
        page.goto("about:blank")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_it_can_be_read(
    visitors: Visitors, sale: tuple[Instance, dict[str, Item]], scheme: str, width: int, height: int
) -> None:
    """It fits each screen, and every text has contrast, in English and Chinese."""
    for locale in ("en-GB", "zh-CN"):
        options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme, "locale": locale}
        page = opened(visitors, sale[0], REPORT, **options)
        expect(page.locator("#items > li")).to_have_count(6)
        expect(page.locator("#days tr")).to_have_count(2)
        eventually(lambda page=page: fits(page), "it fits")
        assert [one for one in contrasts(page) if one[1] < LOWEST] == []
