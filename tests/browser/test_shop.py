"""The shop as people use it, in a real browser: they press, wait, reload, have no mouse, or a small phone."""

import http.server
import itertools
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import httpx
import jwt
import pytest
from playwright.sync_api import Locator, Page, Request, Route, expect

from tests.browser.conftest import Start
from tests.harness.browser import Visitors, contrasts, fits
from tests.harness.shop import TOKEN, Instance
from tests.harness.waiting import eventually

pytestmark = pytest.mark.slow

OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
PRESS = re.compile(r"/stock/reduce\?")
STREAM = re.compile(r"/stock/live\?")
LEVEL = re.compile(r"/stock\?")
PHONE: dict[str, Any] = {"viewport": {"width": 320, "height": 568}}
PLENTY = 100

_numbers = itertools.count(1)


class Item:
    """Something to sell, which no other test sells."""

    def __init__(self, instance: Instance, stock: int, sku: str = "") -> None:
        self._url = instance.url
        self.sku = sku or f"item-{next(_numbers)}"
        self.set(stock)

    def set(self, stock: int, **how: Any) -> None:
        self._change({"stock": stock, **how})

    def terms(self, **terms: float) -> None:
        """Of its own, from now on; its stock stays."""
        self._change(terms)

    def pause(self, text: str) -> None:
        self._change({"paused": text})

    def _change(self, change: dict[str, Any]) -> None:
        httpx.put(f"{self._url}/stock", params={"sku": self.sku}, json=change, headers=OPERATOR).raise_for_status()

    def at(self, instance: Instance) -> str:
        """The address of its page."""
        return f"{instance.url}/?sku={self.sku}"

    def sell(self, quantity: int) -> None:
        """To somebody without a browser."""
        wish = {"sku": self.sku, "quantity": quantity, "buyer": f"b{next(_numbers)}"}
        answer = httpx.post(f"{self._url}/stock/reduce", params=wish, timeout=30)
        assert answer.headers["x-seckill-outcome"] == "sold"

    def orders(self) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self._url}/orders", params={"sku": self.sku, "limit": 1000}, headers=OPERATOR)
        found: list[dict[str, Any]] = answer.raise_for_status().json()["orders"]
        return found


@pytest.fixture(scope="module")
def pair(start: Start) -> tuple[Instance, Instance]:
    """Two instances that sell at all hours."""
    return start(), start()


@pytest.fixture
def shop(pair: tuple[Instance, Instance]) -> Instance:
    return pair[0]


@pytest.fixture
def item(shop: Instance) -> Item:
    """Plenty of it."""
    return Item(shop, PLENTY)


def button(page: Page) -> Locator:
    """The one that buys, whatever it says."""
    return page.locator("#buy")


def outcome(page: Page) -> Locator:
    """What became of the last press, where a screen reader hears it."""
    return page.locator(".outcome").get_by_role("status")


def left(page: Page) -> Locator:
    return page.locator("#left")


def buys(page: Page) -> str:
    """Press, and wait for the order's number."""
    button(page).click()
    expect(outcome(page)).to_contain_text("It's yours!")
    return order_number(page)


def order_number(page: Page) -> str:
    """All of it, of which the page shows the beginning of what can't be guessed."""
    number = httpx.URL(page.locator("#order a").get_attribute("href") or "").params["id"]
    shown = page.locator("#order a").text_content() or ""
    assert number.rpartition("~")[2].upper().startswith(shown.replace("-", ""))
    return str(number)


def short_number(page: Page) -> str:
    text = page.locator("#order a").text_content()
    assert text
    return text


def width(element: Locator) -> float:
    box = element.bounding_box()
    assert box
    return box["width"]


def rests(page: Page) -> None:
    """Wait until the next press counts."""
    expect(button(page)).to_be_enabled()


def keys_of(page: Page) -> list[str]:
    """Fills with the idempotency key of each purchase that the page sends from now on."""
    keys: list[str] = []

    def note(request: Request) -> None:
        if PRESS.search(request.url):
            keys.append(request.headers["idempotency-key"])

    page.on("request", note)
    return keys


def arrives(page: Page, held: list[Route]) -> None:
    """Wait until a request is held."""
    eventually(lambda: page.wait_for_timeout(10) or held, "the request arrives")


def in_s(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def waits(page: Page, condition: Callable[[], object], what: str) -> None:
    """Until something outside of the page is so; meanwhile the page goes on."""
    eventually(lambda: page.wait_for_timeout(10) or condition(), what)


def asked_of(page: Page) -> Callable[[], list[str]]:
    """What the instance, and not the browser's cache, is asked for from now on: paths."""
    session = page.context.new_cdp_session(page)
    session.send("Network.enable")
    sent: dict[str, str] = {}

    def note(event: dict[str, Any]) -> None:
        sent[event["requestId"]] = httpx.URL(event["request"]["url"]).path

    def forget(event: dict[str, Any]) -> None:
        if "response" not in event or event["response"].get("fromDiskCache"):
            sent.pop(event["requestId"], None)

    session.on("Network.requestWillBeSent", note)
    session.on("Network.requestServedFromCache", forget)
    session.on("Network.responseReceived", forget)
    return lambda: list(sent.values())


# -- what is for sale ------------------------------------------------------------------------------------------------

CATALOGUE = """
[items.phone]
name = { en = "A <b>phone</b> & \\"case\\"", zh = "手机" }
price = "¥ 1999"
picture = "phone.svg"

[items.book]
name = "Le petit livre"
"""
PICTURE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><script>document.title = "ran"</script>
<rect width="9" height="9" fill="teal"/></svg>"""


@pytest.fixture(scope="module")
def boutique(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Instance:
    """An instance with a catalogue of its own, and a limit of two."""
    folder = tmp_path_factory.mktemp("catalogue")
    (folder / "items.toml").write_text(CATALOGUE)
    (folder / "phone.svg").write_text(PICTURE)
    return start(catalogue=folder / "items.toml", limit_per_buyer=2)


def sells(instance: Instance, sku: str, stock: int = PLENTY) -> Item:
    item = Item(instance, 0, sku)
    item.set(stock, new_sale=True, forget_orders="all")
    return item


@pytest.mark.parametrize(
    ("locale", "name", "limit", "words"),
    [
        ("en-GB", 'A <b>phone</b> & "case"', "2 per person", "Buy one for ¥ 1999"),
        ("zh-CN", "手机", "每人限购 2 件", "立即抢购一件（¥ 1999）"),  # noqa: RUF001
    ],
)
def test_what_is_sold_is_told_before_the_press(
    boutique: Instance, visitors: Visitors, locale: str, name: str, limit: str, words: str
) -> None:
    """Name, picture, price and limit; the button has the price, too. What the catalogue says is text, not markup."""
    page = visitors.visit(sells(boutique, "phone").at(boutique), locale=locale)
    rests(page)
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    expect(page.locator("#price")).to_have_text("¥ 1999")
    expect(page.locator("#limit")).to_have_text(limit)
    expect(button(page)).to_have_text(words)
    assert page.title().startswith(name)
    picture = page.locator("#picture img")
    assert picture.evaluate("async (picture) => { await picture.decode(); return picture.naturalWidth; }") > 0
    address = picture.get_attribute("src") or ""
    page.goto(boutique.url + address)
    assert page.title() != "ran"
    visitors.forgive("Blocked script execution|policy violated|Content Security Policy")


def test_what_the_catalogue_does_not_say(boutique: Instance, shop: Instance, visitors: Visitors) -> None:
    """An item may have a name alone; one that is not in it is called by its sku, and sold all the same."""
    page = visitors.visit(sells(boutique, "book").at(boutique), locale="zh-CN")
    rests(page)
    expect(page.get_by_role("heading", level=1)).to_have_text("Le petit livre")
    expect(button(page)).to_have_text("立即抢购")
    item = Item(shop, 5)
    page.goto(item.at(boutique) + "&lang=en")
    rests(page)
    expect(page.get_by_role("heading", level=1)).to_have_text(item.sku)
    expect(page.locator("#price")).to_have_text("")
    expect(page.locator("#limit")).to_have_text("2 per person")
    expect(page.locator("main img")).to_have_count(0)
    expect(button(page)).to_have_text("Buy one")
    buys(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("screen", "language"), [({}, "en"), (PHONE, "zh")])
def test_the_front_page_lists_the_catalogue(
    boutique: Instance, visitors: Visitors, scheme: Any, screen: dict[str, Any], language: str
) -> None:
    """Name, price, units left, and the way to each item's page, which keeps the buyer's name and the language."""
    sells(boutique, "phone", 7)
    sells(boutique, "book").set(5)
    item = Item(boutique, 5, "book")
    item.pause("Tea")
    page = visitors.visit(f"{boutique.url}/?lang={language}#buyer=ann", color_scheme=scheme, **screen)
    rows = page.get_by_role("listitem")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text({"en": 'A <b>phone</b> & "case"', "zh": "手机"}[language])
    expect(rows.nth(0)).to_contain_text("¥ 1999")
    expect(rows.nth(0)).to_contain_text({"en": "7 left", "zh": "剩余 7 件"}[language])
    expect(rows.nth(1)).to_contain_text({"en": "Paused", "zh": "已暂停"}[language])
    fits(page)
    rows.nth(0).get_by_role("link").click()
    rests(page)
    expect(page.locator("#left")).to_have_text("7")
    assert page.url == f"{boutique.url}/?lang={language}&sku=phone#buyer=ann"
    item.pause("")


def test_a_picture_that_this_instance_lacks(boutique: Instance, visitors: Visitors) -> None:
    """During an upgrade another instance may be asked for it: the page does without."""
    visitors.forgive("404")
    page = visitors.visit("about:blank")
    page.route(re.compile("/shop/pictures/"), lambda route: route.fulfill(status=404))
    page.goto(sells(boutique, "phone").at(boutique))
    rests(page)
    expect(page.locator("main img")).to_have_count(0)
    expect(page.locator("body")).not_to_have_class(re.compile("pictured"))


def test_a_reload_is_one_request(boutique: Instance, visitors: Visitors) -> None:
    """What the page is made of is in the browser's cache for good; the page itself is asked for, and is the same."""
    page = visitors.visit(sells(boutique, "phone").at(boutique))
    rests(page)
    expect(page.locator("#connection")).to_have_text("live")
    asked = asked_of(page)
    with page.expect_response(lambda one: one.request.is_navigation_request()) as shown:
        page.reload()
    rests(page)
    expect(page.locator("#connection")).to_have_text("live")
    assert sorted(asked()) == ["/", "/stock", "/stock/live"]
    assert shown.value.status in (200, 304)
    # The picture, too, and the shop of another item.
    page.goto(sells(boutique, "book").at(boutique))
    rests(page)
    assert [path for path in asked() if path not in ("/", "/stock", "/stock/live")] == []


def test_a_page_of_another_release(shop: Instance, item: Item, visitors: Visitors) -> None:
    """In mid-upgrade the page may come from one release and its files from another: it works, and nothing is kept."""
    page = visitors.visit("about:blank")

    def of_another_release(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=re.sub(r"/static/[0-9a-f]{12}/", "/static/0123456789ab/", answer.text()))

    whole = re.compile(re.escape(item.at(shop)))
    page.route(whole, of_another_release)
    for _ in range(2):
        page.goto("about:blank")
        with page.expect_response(re.compile("/static/0123456789ab/shop.js")) as script:
            page.goto(item.at(shop))
        assert (script.value.status, script.value.headers["cache-control"]) == (200, "no-store")
        rests(page)
        buys(page)
    page.unroute(whole)
    with page.expect_response(re.compile("/shop.js")) as script:
        page.goto(item.at(shop))
    assert "immutable" in script.value.headers["cache-control"]
    rests(page)


# -- buying ----------------------------------------------------------------------------------------------------------


def test_a_unit_is_bought_and_counted_everywhere(
    pair: tuple[Instance, Instance], item: Item, visitors: Visitors
) -> None:
    """A press buys one unit: its order exists, and the other instance's page counts one less without being asked."""
    here, there = (visitors.visit(item.at(instance)) for instance in pair)
    for page in (here, there):
        expect(left(page)).to_have_text(str(PLENTY))
        expect(page.locator("#of")).to_have_text(f"of {PLENTY} left")
    order = buys(here)
    (found,) = item.orders()
    assert (found["id"], found["quantity"]) == (order, 1)
    assert re.fullmatch(r"guest-[0-9a-f]{12}", found["buyer"])
    assert httpx.get(f"{pair[1].url}/orders/{order}").json()["id"] == order
    for page in (here, there):
        expect(left(page)).to_have_text(str(PLENTY - 1))
    item.sell(PLENTY // 2 - 1)
    for page in (here, there):
        expect(left(page)).to_have_text(str(PLENTY // 2))
        full, filled = (page.locator(bar) for bar in (".bar", "#bar"))
        eventually(
            lambda full=full, filled=filled: abs(width(filled) / width(full) - 0.5) < 0.01, "the bar is half full"
        )


def test_a_double_click_buys_one(shop: Instance, item: Item, visitors: Visitors) -> None:
    """A double click buys one unit, and so do five hasty clicks. Two presses with time between them buy two."""
    page = visitors.visit(item.at(shop))
    rests(page)
    button(page).dblclick()
    expect(outcome(page)).to_contain_text("It's yours!")
    rests(page)
    button(page).click(click_count=5, delay=20)
    expect(outcome(page)).to_contain_text("It's yours!")
    rests(page)
    orders = item.orders()
    assert len({order["key"] for order in orders}) == len(orders) == 2


def test_the_second_click_never_starts_a_press(shop: Instance, item: Item, visitors: Visitors) -> None:
    """It does not even if the first click has been answered already, so that a new press would count."""
    page = visitors.visit(item.at(shop))
    rests(page)
    click = "(button, number) => button.dispatchEvent(new MouseEvent('click', { detail: number }))"
    button(page).evaluate(click, 2)
    assert button(page).is_enabled()
    button(page).evaluate(click, 1)
    assert button(page).is_disabled()
    expect(outcome(page)).to_contain_text("It's yours!")
    assert len(item.orders()) == 1


def test_a_key_that_is_held_down_buys_one(shop: Instance, item: Item, visitors: Visitors) -> None:
    """Enter presses the button when the key goes down, and not again before it was up."""
    page = visitors.visit(item.at(shop))
    rests(page)
    button(page).focus()
    page.keyboard.down("Enter")
    expect(outcome(page)).to_contain_text("It's yours!")
    rests(page)
    for _ in range(5):
        page.keyboard.down("Enter")  # the key repeats
    assert button(page).is_enabled()
    page.keyboard.up("Enter")
    page.keyboard.press("Enter")
    expect(page.locator("#orders-list li")).to_have_count(2)
    assert len(item.orders()) == 2


def test_one_press_at_a_time(shop: Instance, item: Item, visitors: Visitors) -> None:
    """Until a press is answered, no other one is made, however often the key is hit."""
    page = visitors.visit(item.at(shop))
    keys = keys_of(page)
    rests(page)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(PRESS, hold)
    button(page).focus()
    for _ in range(3):
        page.keyboard.press("Enter")
    expect(button(page)).to_have_text("One moment …")
    arrives(page, held)
    held[0].continue_()
    expect(outcome(page)).to_contain_text("It's yours!")
    assert len(keys) == len(item.orders()) == 1


def test_orders_are_kept(shop: Instance, item: Item, visitors: Visitors) -> None:
    """After a reload the page lists this browser's orders of the item, newest first, with links to their pages."""
    page = visitors.visit(item.at(shop))
    rests(page)
    numbers = []
    for _ in range(2):
        buys(page)
        numbers.append((order_number(page), short_number(page)))
        rests(page)
    (first, short), (second, other) = numbers
    assert first != second
    page.reload()
    listed = page.get_by_role("region", name="Your orders").get_by_role("listitem")
    expect(listed).to_contain_text([other, short])
    listed.nth(1).get_by_role("link").click()
    expect(page.locator("#whole")).to_have_text(first)
    page.goto(Item(shop, 1).at(shop))
    rests(page)
    expect(page.get_by_role("region", name="Your orders")).to_be_hidden()


def test_sold_out_and_restocked(pair: tuple[Instance, Instance], visitors: Visitors) -> None:
    """When the last unit is gone, every page closes its button; when there are units again, it opens."""
    shop, other = pair
    item = Item(shop, 1)
    buyer, watcher = visitors.visit(item.at(shop)), visitors.visit(item.at(other))
    rests(watcher)
    buys(buyer)
    for page in (buyer, watcher):
        expect(button(page)).to_have_text("Sold out")
        expect(button(page)).to_be_disabled()
        expect(left(page)).to_have_text("0")
    expect(watcher.locator("#news")).to_have_text("Sold out.")
    item.set(1)
    expect(watcher.locator("#news")).to_have_text("There are units again.")
    rests(watcher)
    buys(watcher)


def test_who_was_too_slow_is_told(pair: tuple[Instance, Instance], visitors: Visitors) -> None:
    """A buyer whose page still showed a unit is told that somebody was faster, until there are units again."""
    item = Item(pair[0], 1)
    page = visitors.visit(item.at(pair[1]))
    rests(page)
    page.route(PRESS, lambda route: (item.sell(1), route.continue_()))
    button(page).click()
    expect(outcome(page)).to_contain_text("Somebody was faster")
    expect(button(page)).to_have_text("Sold out")
    page.unroute(PRESS)
    item.set(5)
    rests(page)
    expect(outcome(page)).not_to_contain_text("Somebody was faster")


def test_a_limit_per_buyer_is_per_browser(start: Start, visitors: Visitors) -> None:
    """A buyer who has their share is told so, after a reload, too; somebody else can buy."""
    shop = start(limit_per_buyer=1)
    item = Item(shop, 5)
    page = visitors.visit(item.at(shop))
    rests(page)
    buys(page)
    for _ in range(2):
        expect(button(page)).to_have_text("You have yours")
        expect(button(page)).to_be_disabled()
        page.reload()
    page.evaluate("localStorage.removeItem(`seckill.orders.${new URLSearchParams(location.search).get('sku')}`)")
    page.reload()
    rests(page)
    button(page).click()
    expect(outcome(page)).to_contain_text("You have your share")
    expect(button(page)).to_have_text("You have yours")
    somebody = visitors.visit(item.at(shop))
    rests(somebody)
    buys(somebody)
    assert len({order["buyer"] for order in item.orders()}) == 2


def test_the_button_says_what_it_will_do(boutique: Instance, visitors: Visitors) -> None:
    """It is loud until one has bought, can't be pressed at the limit, and opens again with a new sale.

    The order of the old sale is not known any more: it is marked, and not dropped.
    """
    item = sells(boutique, "phone")
    page = visitors.visit(item.at(boutique))
    rests(page)
    loud, hint = button(page).evaluate("(one) => getComputedStyle(one).backgroundColor"), page.locator("#detail")
    expect(hint).to_have_text("One press buys one unit. A double click counts once.")
    buys(page)
    rests(page)
    expect(button(page)).to_have_text("Buy one more for ¥ 1999")
    page.mouse.move(0, 0)
    expect(button(page)).not_to_have_css("background-color", loud)
    buys(page)
    expect(button(page)).to_have_text("You have your 2")
    page.wait_for_timeout(1_200)
    expect(button(page)).to_be_disabled()
    page.reload()
    expect(button(page)).to_have_text("You have your 2")
    expect(button(page)).to_be_disabled()
    expect(hint).to_have_text("")
    visitors.forgive("404")
    item.set(PLENTY, new_sale=True, forget_orders="all")
    rests(page)
    expect(button(page)).to_have_text("Buy one for ¥ 1999")
    expect(hint).to_have_text(re.compile("One press"))
    listed = page.get_by_role("region", name="Your orders").get_by_role("listitem")
    expect(listed).to_contain_text(2 * ["Not known any more"])
    expect(outcome(page)).not_to_contain_text("It's yours!")
    buys(page)
    expect(listed).to_have_count(3)
    expect(listed.first).not_to_contain_text("Not known")


def test_a_new_sale_while_nobody_looked(boutique: Instance, visitors: Visitors) -> None:
    """A page that comes back after a while asks whether its orders are still known; until it hears, they are."""
    visitors.forgive("404|503")
    item = sells(boutique, "phone")
    page = visitors.visit(item.at(boutique))
    rests(page)
    for _ in range(2):
        buys(page)
        page.wait_for_timeout(1_200)
    address = page.url
    page.goto("about:blank")
    item.set(PLENTY, new_sale=True, forget_orders="all")
    for _ in range(3):
        item.sell(2)
    page.add_init_script("const now = Date.now; Date.now = () => now() + 300_000;")
    page.route(re.compile("/orders/"), lambda route: route.fulfill(status=503, json={}))
    page.goto(address)
    expect(button(page)).to_have_text("You have your 2")
    page.unroute(re.compile("/orders/"))
    page.reload()
    expect(button(page)).to_have_text("Buy one for ¥ 1999")
    expect(page.locator("#orders-list p")).to_have_count(2)


def test_another_buyer_in_the_same_browser(start: Start, visitors: Visitors) -> None:
    """Who is signed by the shop in front and has bought is not told of somebody else's limit."""
    secret = "a secret that is long enough: 32"
    shop = start(buyer_key=secret, limit_per_buyer=1)
    item = Item(shop, 5)
    page = visitors.visit("about:blank")
    for buyer in ("ann", "bob"):
        for _ in range(2):  # a token is made anew each time
            token = jwt.encode({"sub": buyer, "exp": time.time() + 60 + len(item.orders())}, secret, "HS256")
            page.goto("about:blank")
            page.goto(f"{item.at(shop)}#buyer={token}")
            if len(item.orders()) == ("ann", "bob").index(buyer):
                rests(page)
                buys(page)
                page.locator("#order a").click()
                expect(page.locator("#state")).to_have_text("Bought")
                page.get_by_role("link", name="Back to the shop").click()
            expect(button(page)).to_have_text("You have yours")
    assert [order["buyer"] for order in item.orders()] == ["ann", "bob"]


# -- orders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("locale", "words"),
    [
        ("en-GB", ["Your order", "Bought", "Quantity", "Back to the shop", "Copied"]),
        ("zh-CN", ["您的订单", "已购买", "数量", "返回商店", "已复制"]),
    ],
)
def test_an_order_has_a_page(boutique: Instance, visitors: Visitors, locale: str, words: list[str]) -> None:
    """Thing, quantity, moment, number and state; the number is copied as a whole; the shop is one press away."""
    title, state, quantity, back, copied = words
    clipboard = ["clipboard-read", "clipboard-write"]
    address = sells(boutique, "phone").at(boutique)
    page = visitors.visit(address, locale=locale, permissions=clipboard)
    rests(page)
    button(page).click()
    expect(page.locator("#order a")).to_be_visible()
    order, short = order_number(page), short_number(page)
    assert re.fullmatch(r"[0-9A-F]{4}-[0-9A-F]{4}", short)
    copy = page.get_by_role("button", name=short)
    expect(copy).to_have_count(1)
    copy.click()
    expect(copy).to_have_text(copied)
    assert page.evaluate("navigator.clipboard.readText()") == order
    page.locator("#order a").click()
    main = page.get_by_role("main")
    for text in (title, state, quantity, short, order):
        expect(main).to_contain_text(text)
    expect(page.get_by_role("heading", level=1)).to_have_text("手机" if locale == "zh-CN" else re.compile("phone"))
    expect(page.locator("#quantity")).to_have_text("1")
    expect(page.locator("#when")).to_have_text(re.compile(str(datetime.now(UTC).year)))
    assert fits(page)
    assert page.locator("#picture img").count() == 1
    page.evaluate("navigator.clipboard.writeText('')")
    page.get_by_role("button", name=short).click()
    waits(page, lambda: page.evaluate("navigator.clipboard.readText()") == order, "the whole number is copied")
    if locale == "zh-CN":
        told = main.inner_text().replace(order, "").replace(short, "")
        assert re.search("[A-Za-z]", told) is None, told
    page.get_by_role("link", name=back).click()
    rests(page)
    assert page.url == address


def test_an_order_that_nobody_knows(boutique: Instance, visitors: Visitors) -> None:
    """Its page says so, and says so of what is no order's number. While nobody can tell, it goes on asking."""
    visitors.forgive("404|503|422")
    item = sells(boutique, "phone")
    page = visitors.visit(item.at(boutique))
    rests(page)
    buys(page)
    address = boutique.url + (page.locator("#order a").get_attribute("href") or "")
    page.route(re.compile("/orders/"), lambda route: route.fulfill(status=503, json={}))
    page.goto(address)
    expect(page.locator("#state")).to_have_text("It can't be looked up at the moment")
    page.unroute(re.compile("/orders/"))
    expect(page.locator("#state")).to_have_text("Bought")
    item.set(5, new_sale=True, forget_orders="all")
    page.goto(address)
    expect(page.locator("#state")).to_have_text("The service does not know this order")
    expect(page.locator("#when")).to_have_text(re.compile(str(datetime.now(UTC).year)))
    for odd in ("", "..", "phone~1-1~aa", "<img src=x onerror=alert(1)>~", "phone~" + 300 * "x", "/../stock~1"):
        page.goto(str(httpx.URL(f"{boutique.url}/shop/order", params={"id": odd})))
        expect(page.locator("#state")).to_have_text("The service does not know this order")
    page.goto(f"{boutique.url}/shop/order")
    expect(page.get_by_role("heading", level=1)).to_have_text("No such order")


def test_short_numbers_are_told_apart(shop: Instance, item: Item, visitors: Visitors) -> None:
    """Orders on one page whose numbers begin alike get as many groups as it takes."""
    page = visitors.visit(item.at(shop))
    shorten = """async ([order, others]) => {
        const { shorten } = await import(new URL("orders.js", document.querySelector("script[type=module]").src));
        return shorten(order, others);
    }"""
    one, alike, same = (f"x~1-{number}~{secret}" for number, secret in enumerate(("abcd1234ef", "abcd1234f0", "abcd9")))
    assert page.evaluate(shorten, [one, [one, same]]) == "ABCD-1234"
    assert page.evaluate(shorten, [one, [one, same, alike]]) == "ABCD-1234-EF"
    assert page.evaluate(shorten, ["", []]) == ""


def test_without_a_clipboard(shop: Instance, item: Item, visitors: Visitors) -> None:
    """Over plain HTTP there is none in most browsers; the number is copied all the same."""
    page = visitors.visit("about:blank", permissions=["clipboard-read", "clipboard-write"])
    page.add_init_script("navigator.clipboard.writeText = () => Promise.reject(new Error('no'));")
    page.goto(item.at(shop))
    rests(page)
    buys(page)
    page.locator("#copy button").click()
    expect(page.locator("#copy button")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == order_number(page)


# -- who buys --------------------------------------------------------------------------------------------------------


def test_a_buyer_whom_the_shop_in_front_has_signed(start: Start, visitors: Visitors) -> None:
    """The token comes behind the page's address, and the order is that buyer's."""
    secret = "a secret that is long enough: 32"
    shop = start(buyer_key=secret)
    item = Item(shop, 5)
    token = jwt.encode({"sub": "ann", "exp": time.time() + 60}, secret, "HS256")
    page = visitors.visit(f"{item.at(shop)}#buyer={token}")
    rests(page)
    buys(page)
    assert [order["buyer"] for order in item.orders()] == ["ann"]


class _Elsewhere(http.server.BaseHTTPRequestHandler):
    """A page of another origin that tries to buy in every way it can."""

    at = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(
            f"""<link rel=prefetch href="{self.at}"><img src="{self.at}">
            <form id=form method=post action="{self.at}"></form>
            <script>
              fetch("{self.at}", {{method: "POST", mode: "no-cors"}}).then(() => document.title = "tried")
            </script>""".encode()
        )

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_page_of_another_origin_buys_nothing(pair: tuple[Instance, Instance], visitors: Visitors, host: str) -> None:
    """No image, no prefetch, no fetch and no form in it: not of another site, nor of another port of this one."""
    item = Item(pair[0], 5)
    _Elsewhere.at = f"{pair[0].url}/stock/reduce?sku={item.sku}"
    visitors.forgive("403|ERR_BLOCKED_BY_ORB")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere) as elsewhere:
        thread = Thread(target=elsewhere.serve_forever)
        thread.start()
        try:
            page = visitors.visit(f"http://{host}:{elsewhere.server_port}/")
            expect(page).to_have_title("tried")
            with page.expect_navigation():
                page.evaluate("document.getElementById('form').submit()")
            expect(page.locator("body")).to_contain_text("urn:seckill:foreign-origin")
        finally:
            elsewhere.shutdown()
            thread.join()
    assert item.orders() == []


@pytest.mark.parametrize(
    ("locale", "headline", "words"),
    [
        ("en-GB", "That did not work", ["There is no such item any more", "refused it (418)", "refused it (403)"]),
        ("zh-CN", "没有成功", ["这件商品已不存在", "服务拒绝了请求（418）", "服务拒绝了请求（403）"]),  # noqa: RUF001
    ],
)
def test_what_is_wrong_is_said(
    shop: Instance, item: Item, visitors: Visitors, locale: str, headline: str, words: list[str]
) -> None:
    """Why a purchase was refused is said in the buyer's language, whatever the service or a proxy calls it."""
    visitors.forgive("40[34]|418")
    page = visitors.visit(item.at(shop), locale=locale)
    keys = keys_of(page)
    raw = {"type": "urn:seckill:new-one", "title": "New", "status": 418, "detail": "raw words"}
    answers: list[dict[str, Any]] = [{"json": raw, "status": 418}, {"body": "<p>raw words</p>", "status": 403}]

    def refuse(route: Route) -> None:
        if len(keys) == 1:
            route.continue_(url=route.request.url.replace(item.sku, "nothing"))
        else:
            route.fulfill(**answers[len(keys) - 2])

    page.route(PRESS, refuse)
    for expected in words:
        rests(page)
        button(page).click()
        expect(outcome(page)).to_contain_text(headline)
        expect(outcome(page)).to_contain_text(expected)
        expect(outcome(page)).not_to_contain_text("raw")
        expect(outcome(page)).not_to_contain_text("nothing'")
    assert len(set(keys)) == len(keys) == 3


def test_who_tries_too_often_is_told(shop: Instance, item: Item, visitors: Visitors) -> None:
    """When each try was refused as one too many, nothing was bought, and the next press is a new one."""
    visitors.forgive("429")
    page = visitors.visit(item.at(shop))
    keys = keys_of(page)
    rests(page)
    page.route(PRESS, lambda route: route.fulfill(status=429, headers={"Retry-After": "60"}))
    button(page).click()
    expect(outcome(page)).to_contain_text("Too many tries")
    expect(button(page)).to_have_text("Buy one")
    page.unroute(PRESS)
    rests(page)
    buys(page)
    assert keys[0] != keys[1]


# -- when it starts and ends -----------------------------------------------------------------------------------------

# The browser's machine believes that it is an hour later.
AN_HOUR_LATE = "const now = Date.now; Date.now = () => now() + 3_600_000;"


def seconds_of(page: Page) -> int:
    hours, minutes, seconds = (page.get_by_role("timer").text_content() or "").split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def test_the_countdown_opens_the_sale(shop: Instance, item: Item, visitors: Visitors) -> None:
    """It goes by the service's clock, whatever the browser's; at zero the button opens by itself, where it was.

    That is announced once, and the seconds never are.
    """
    item.terms(starts_at=time.time() + 3600)
    page = visitors.visit("about:blank", **PHONE)
    keys = keys_of(page)
    page.add_init_script(AN_HOUR_LATE)
    page.goto(item.at(shop))
    page.evaluate("""() => {
        window.said = [];
        const hear = () => window.said.push(document.querySelector('#news').textContent);
        new MutationObserver(hear).observe(document.querySelector('#news'), { childList: true });
    }""")
    expect(button(page)).to_have_text(re.compile(r"Opens (at|on) .*\d?\d:\d\d$"))
    expect(button(page)).to_be_disabled()
    expect(page.locator("#detail")).to_have_text("")
    expect(page.locator("#phase")).to_have_text("Starts in")
    assert 3000 < seconds_of(page) <= 3600
    place = button(page).bounding_box()
    button(page).click(force=True)
    starts_at = time.time() + 5
    item.terms(starts_at=starts_at)
    rests(page)
    assert time.time() > starts_at - 1
    assert keys == []
    assert button(page).bounding_box() == place
    expect(page.get_by_role("timer")).to_be_hidden()
    buys(page)
    assert page.evaluate("window.said") == ["The sale has started."]


def test_who_is_early_is_told_and_waits(start: Start, visitors: Visitors) -> None:
    """A page whose clock is wrong presses too early: it is told, and counts down again by the service's clock."""
    shop = start(sale_starts_at=in_s(3600))
    item = Item(shop, 5)

    def an_hour_ahead(route: Route) -> None:
        answer = route.fetch()
        level = answer.json()
        route.fulfill(response=answer, json=level | {"now": level["now"] + 3700})

    def a_second_late(route: Route) -> None:
        time.sleep(1)
        route.continue_()

    page = visitors.visit("about:blank")
    page.route(LEVEL, an_hour_ahead)
    page.goto(item.at(shop))
    rests(page)
    page.unroute(LEVEL)
    page.route(LEVEL, a_second_late)
    button(page).click()
    expect(outcome(page)).to_contain_text("Not yet")
    expect(page.locator("#phase")).to_have_text("Starts in")
    expect(button(page)).to_be_disabled()
    assert 3400 < seconds_of(page) <= 3600
    assert item.orders() == []


def test_the_sale_ends(shop: Instance, item: Item, visitors: Visitors) -> None:
    """The time that is left is shown, then the button closes by itself; what was bought stays."""
    item.terms(ends_at=time.time() + 3600)
    page = visitors.visit(item.at(shop))
    rests(page)
    expect(page.locator("#phase")).to_have_text("Ends in")
    assert 3000 < seconds_of(page) <= 3600
    buys(page)
    item.terms(ends_at=time.time() + 2)
    expect(button(page)).to_have_text("Ended")
    expect(button(page)).to_be_disabled()
    expect(page.locator("#news")).to_have_text("The sale has ended.")
    expect(outcome(page)).to_contain_text(short_number(page))


def test_a_long_wait_has_days(start: Start, visitors: Visitors) -> None:
    """A countdown of more than a day shows days, and fits on a small phone in each language."""
    shop = start(sale_starts_at=in_s(100 * 86_400 + 3_600))
    item = Item(shop, PLENTY)
    for locale, days, opens in (("en-GB", "100 d", "Opens on "), ("zh-CN", "100 天", " 开抢")):
        page = visitors.visit(item.at(shop), locale=locale, **PHONE)
        expect(button(page)).to_contain_text(opens)
        expect(page.get_by_role("timer")).to_contain_text(re.compile(rf"^{days} 0[01]:\d\d:\d\d$"))
        assert fits(page)


# -- when something fails --------------------------------------------------------------------------------------------


def lose(route: Route) -> None:
    """The service has answered, and the page does not hear of it."""
    route.fetch()
    route.abort()


def test_a_lost_answer_is_asked_for_again(shop: Instance, item: Item, visitors: Visitors) -> None:
    """The unit was sold and the answer lost: the same key is sent again, and the buyer hears of the one order."""
    visitors.forgive("ERR_FAILED")
    page = visitors.visit(item.at(shop))
    keys = keys_of(page)
    rests(page)
    page.route(PRESS, lose, times=1)
    button(page).click()
    expect(outcome(page)).to_contain_text("Sending the same press again, 2 of 5")
    expect(button(page)).to_be_disabled()
    expect(outcome(page)).to_contain_text("had counted already, once")
    assert [order["id"] for order in item.orders()] == [order_number(page)]
    assert len(keys) == 2
    assert len(set(keys)) == 1
    rests(page)
    buys(page)
    assert keys[2] != keys[0]


def test_the_service_says_when_to_try_again(shop: Instance, item: Item, visitors: Visitors) -> None:
    """After a 503 the page tries again, but not before its Retry-After."""
    visitors.forgive("503")
    page = visitors.visit(item.at(shop))
    keys = keys_of(page)
    rests(page)
    page.route(PRESS, lambda route: route.fulfill(status=503, headers={"Retry-After": "3"}), times=1)
    began = time.monotonic()
    button(page).click()
    expect(outcome(page)).to_contain_text("It's yours!")
    assert time.monotonic() - began >= 3
    assert keys[0] == keys[1]


def test_an_unanswered_press_can_be_asked_about(shop: Instance, item: Item, visitors: Visitors) -> None:
    """When nobody answers the page says that it doesn't know. The next press asks about the same purchase."""
    visitors.forgive("ERR_FAILED")
    page = visitors.visit(item.at(shop))
    keys = keys_of(page)
    rests(page)
    page.route(PRESS, lose)
    button(page).click()
    expect(outcome(page)).to_contain_text("We don't know yet", timeout=40_000)
    expect(button(page)).to_have_text("Ask again (the last answer was lost)")
    page.unroute(PRESS)
    rests(page)
    button(page).click()
    expect(outcome(page)).to_contain_text("had counted already, once")
    assert len(item.orders()) == 1
    assert (len(keys), len(set(keys))) == (6, 1)


def test_a_reload_in_mid_press(shop: Instance, item: Item, visitors: Visitors) -> None:
    """A buyer who reloads before the answer learns what became of the press; it counted once."""
    page = visitors.visit(item.at(shop))
    keys = keys_of(page)
    rests(page)
    held: list[Route] = []

    def hold_the_first(route: Route) -> None:
        if held:
            route.continue_()
        else:
            route.fetch()
            held.append(route)

    page.route(PRESS, hold_the_first)
    button(page).click()
    expect(button(page)).to_have_text("One moment …")
    arrives(page, held)
    page.reload()
    expect(outcome(page)).to_contain_text("had counted already, once")
    assert [order["id"] for order in item.orders()] == [order_number(page)]
    assert (len(keys), len(set(keys))) == (2, 1)
    page.reload()
    rests(page)
    assert len(keys) == 2


def test_an_instance_that_is_killed_and_comes_back(start: Start, visitors: Visitors) -> None:
    """The page stays, says that the connection is lost, and goes on by itself; a press meanwhile is kept."""
    visitors.forgive("ERR_")
    shop = start(lock_ttl_s=2)
    item = Item(shop, PLENTY)
    page = visitors.visit(item.at(shop))
    rests(page)
    shop.kill()
    expect(page.locator("#connection")).to_have_text("connection lost, trying again")
    expect(left(page)).to_have_text(str(PLENTY))
    button(page).click()
    expect(outcome(page)).to_contain_text("Sending the same press again")
    shop.start()
    expect(outcome(page)).to_contain_text("It's yours!")
    item.sell(9)
    expect(left(page)).to_have_text(str(PLENTY - 10))
    expect(page.locator("#connection")).not_to_have_text("connection lost, trying again")
    assert len(item.orders()) == 2


def test_an_instance_that_is_restarted(start: Start, visitors: Visitors) -> None:
    """It is told to stop, as in an upgrade: the level stays, the page says that it connects again, and does.

    A press that was given up meanwhile is asked about by itself when somebody answers again.
    """
    visitors.forgive("ERR_|503|502")
    shop = start(lock_ttl_s=2)
    item = Item(shop, PLENTY)
    page = visitors.visit(item.at(shop))
    keys = keys_of(page)
    rests(page)
    expect(page.locator("#connection")).to_have_text("live")
    shop.terminate()
    expect(page.locator("#connection")).to_have_text("connection lost, trying again")
    expect(left(page)).to_have_text(str(PLENTY))
    # A proxy in front says so at once, and with no word of when.
    page.route(PRESS, lambda route: route.fulfill(status=502, headers={"Retry-After": "60"}))
    page.route(STREAM, lambda route: route.fulfill(status=502))
    button(page).click()
    expect(outcome(page)).to_contain_text("We don't know yet")
    expect(button(page)).to_have_text("Ask again (the last answer was lost)")
    page.wait_for_timeout(5_000)
    page.unroute(PRESS)
    page.unroute(STREAM)
    shop.start()
    expect(outcome(page)).to_contain_text("It's yours!")
    expect(page.locator("#connection")).to_have_text("live")
    assert (len(keys), len(set(keys)), len(item.orders())) == (2, 1, 1)


def test_without_the_stream_the_page_asks(shop: Instance, item: Item, visitors: Visitors) -> None:
    """When too many listen already, the page asks every few seconds, and says so."""
    visitors.forgive("503")
    page = visitors.visit("about:blank")
    page.route(STREAM, lambda route: route.fulfill(status=503))
    page.goto(item.at(shop))
    expect(page.locator("#connection")).to_have_text("every few seconds")
    item.sell(3)
    expect(left(page)).to_have_text(str(PLENTY - 3))


def test_a_hidden_page_does_not_listen(shop: Instance, item: Item, visitors: Visitors) -> None:
    """It lets go of the stream, and looks again as soon as it is seen."""
    page = visitors.visit(item.at(shop))
    expect(page.locator("#connection")).to_have_text("live")
    become = """(hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with page.expect_event("requestfailed", lambda request: STREAM.search(request.url)):
        page.evaluate(become, True)
    item.sell(2)
    expect(left(page)).to_have_text(str(PLENTY))
    page.evaluate(become, False)
    expect(left(page)).to_have_text(str(PLENTY - 2))
    expect(page.locator("#connection")).to_have_text("live")


def test_a_browser_that_keeps_nothing(shop: Instance, item: Item, visitors: Visitors) -> None:
    """In a browser that refuses storage one can buy all the same."""
    page = visitors.visit("about:blank")
    page.add_init_script(
        "for (const name of ['localStorage', 'sessionStorage']) "
        "Object.defineProperty(window, name, { get() { throw new DOMException('no'); } });"
    )
    page.goto(item.at(shop))
    rests(page)
    buys(page)
    expect(page.get_by_role("region", name="Your orders").get_by_role("listitem")).to_have_count(1)


# -- what is in the address ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sku", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a b", "x" * 500])
def test_an_odd_item_is_no_item(shop: Instance, visitors: Visitors, sku: str) -> None:
    """The page says that there is no such item, and nothing of the name becomes markup."""
    visitors.forgive("status of 422")
    page = visitors.visit("about:blank")
    page.on("dialog", lambda dialog: pytest.fail(f"it ran: {dialog.message}"))
    page.goto(str(httpx.URL(shop.url, params={"sku": sku, "buyer": sku, "lang": sku})))
    expect(page.get_by_role("heading", level=1)).to_have_text("No such item")
    expect(button(page)).to_be_disabled()
    assert page.locator("script").count() == 1
    assert page.locator("main img").count() == 0


def test_an_item_that_comes(shop: Instance, visitors: Visitors) -> None:
    """An item that doesn't exist yet is shown when it does."""
    visitors.forgive("status of 404")
    item = Item(shop, 1)
    item.sku = f"later-{item.sku}"
    page = visitors.visit(item.at(shop))
    expect(page.get_by_role("heading", level=1)).to_have_text("No such item")
    assert (page.locator("main").text_content() or "").lower().count("no such item") == 1
    assert (page.locator("main").text_content() or "").count("One press") == 0
    item.set(7)
    expect(left(page)).to_have_text("7", timeout=40_000)
    buys(page)


def test_the_item_that_is_there_by_default(shop: Instance, visitors: Visitors) -> None:
    """`/` alone is for the item without a name, which the built-in catalogue knows."""
    item = Item(shop, 1)
    item.sku = "default"
    item.set(4)
    page = visitors.visit(shop.url)
    expect(page.get_by_role("heading", level=1)).to_have_text("Brass reading lamp")
    expect(left(page)).to_have_text("4")
    buys(page)


# -- for everybody ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("locale", "query", "language", "word"),
    [
        ("zh-CN", "", "zh-Hans", "立即抢购"),
        ("zh-TW", "", "zh-Hans", "立即抢购"),
        ("en-US", "", "en", "Buy one"),
        ("fr-FR", "", "en", "Buy one"),
        ("en-GB", "&lang=zh", "zh-Hans", "立即抢购"),
        ("zh-CN", "&lang=en", "en", "Buy one"),
    ],
)
def test_languages(
    shop: Instance, item: Item, visitors: Visitors, locale: str, query: str, language: str, word: str
) -> None:
    """The browser's wish decides, or `lang` in the address; a language that we don't speak gets English."""
    page = visitors.visit(item.at(shop) + query, locale=locale)
    expect(page.get_by_role("button", name=word)).to_be_enabled()
    expect(page.locator("html")).to_have_attribute("lang", language)


def test_all_of_it_in_chinese(shop: Instance, visitors: Visitors) -> None:
    """From the title to the outcome no English word is left."""
    item = Item(shop, 1)
    page = visitors.visit(item.at(shop), locale="zh-CN")
    rests(page)
    button(page).click()
    expect(outcome(page)).to_contain_text("抢到了")
    expect(button(page)).to_have_text("已售罄")
    expect(page.locator("#connection")).to_have_text("实时更新")
    words = page.locator("main").inner_text().replace(short_number(page), "").replace(item.sku, "")
    assert re.search("[A-Za-z]", words) is None, words
    assert page.title().endswith("限时秒杀")


def test_by_keyboard_alone(shop: Instance, item: Item, visitors: Visitors) -> None:
    """Tab comes to the button first, whose focus is seen and stays; then to the order and its copying."""
    page = visitors.visit(item.at(shop), permissions=["clipboard-read", "clipboard-write"])
    rests(page)
    page.keyboard.press("Tab")
    expect(button(page)).to_be_focused()
    outline = (
        "getComputedStyle(document.activeElement).outlineStyle + getComputedStyle(document.activeElement).outlineWidth"
    )
    assert page.evaluate(outline) == "solid3px"
    page.keyboard.press("Space")
    expect(outcome(page)).to_contain_text("It's yours!")
    expect(button(page)).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("#order a")).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate(outline) == "solid3px"
    expect(page.locator("#copy button")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#copy button")).to_have_text("Copied")
    expect(page.locator("#news")).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == order_number(page)


def test_for_a_screen_reader(shop: Instance, item: Item, visitors: Visitors) -> None:
    """Everything has a name and a role, what happens is in a live region, and what ticks is in none."""
    page = visitors.visit(item.at(shop))
    rests(page)
    buys(page)
    expect(page).to_have_title(f"{item.sku} · Flash sale")
    expect(page.get_by_role("main")).to_have_count(1)
    expect(page.get_by_role("heading", level=1)).to_have_text(item.sku)
    expect(page.get_by_role("region", name=item.sku)).to_be_visible()
    expect(page.get_by_role("button", name="Buy one more")).to_be_visible()
    expect(page.get_by_role("button", name=f"Copy order number {short_number(page)}")).to_have_count(1)
    assert page.locator("button:not([type=button]), img:not([alt]), [tabindex]:not([tabindex='0'])").count() == 0
    live = page.locator("[aria-live], [role=status], [role=alert], output")
    assert live.locator("#countdown, #left").count() == 0
    expect(outcome(page)).to_contain_text(short_number(page))
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours(start: Start, visitors: Visitors, scheme: str) -> None:
    """Light or dark as the system is; each text has a contrast of 4.5 or more, in all that the shop says."""
    visitors.forgive("ERR_FAILED|status of 404")
    shop = start(limit_per_buyer=2)
    item = Item(shop, 3)
    page = visitors.visit(item.at(shop), color_scheme=scheme, reduced_motion="reduce")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in re.findall(r"\d+", ground)) > 3 * 128) == (scheme == "light")

    def judge(*texts: str) -> None:
        for text in texts:
            expect(page.locator("body")).to_contain_text(text)
        found = contrasts(page)
        assert len(found) >= 5
        assert [(text, ratio) for text, ratio in found if ratio < 4.5] == []

    rests(page)
    judge("Buy one", "double click", "On sale now")
    button(page).hover()
    judge("Buy one")
    buys(page)
    judge("It's yours!", "Your orders", "Buy one more")
    rests(page)
    page.route(PRESS, lambda route: route.abort(), times=1)
    button(page).click()
    judge("Sending the same press again", "One moment …")
    judge("It's yours!", "You have your 2", "2 per person")
    item.set(0)
    judge("Units may come back")
    page.locator("#order a").click()
    judge("Bought", "Back to the shop")
    page.goto(f"{shop.url}/?sku=nothing")
    judge("No such item")


@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
def test_on_a_small_phone(shop: Instance, visitors: Visitors, locale: str) -> None:
    """320 by 568: nothing is cut off sideways, the button is seen without scrolling, and fingers hit all there is."""
    item = Item(shop, 10**12)
    page = visitors.visit(item.at(shop), locale=locale, has_touch=True, is_mobile=True, **PHONE)
    rests(page)
    assert fits(page)
    place = button(page).bounding_box()
    assert place
    assert place["y"] + place["height"] <= PHONE["viewport"]["height"]
    button(page).tap()
    expect(page.locator("#orders-list li")).to_have_count(1)
    assert fits(page)
    assert button(page).bounding_box() == place
    for one in page.get_by_role("button").all():
        box = one.bounding_box()
        assert box
        assert min(box["width"], box["height"]) >= 44


def test_nothing_moves_for_who_wants_that(shop: Instance, item: Item, visitors: Visitors) -> None:
    """With prefers-reduced-motion the bar jumps; else it glides."""
    for wish, durations in (("reduce", "0s"), ("no-preference", "0.4s")):
        page = visitors.visit(item.at(shop), reduced_motion=wish)
        assert page.locator("#bar").evaluate("(bar) => getComputedStyle(bar).transitionDuration") == durations


def test_without_javascript(shop: Instance, visitors: Visitors) -> None:
    """The page says how to buy without it."""
    page = visitors.visit(shop.url, java_script_enabled=False)
    expect(page.locator("noscript p").first).to_be_visible()
    expect(page.locator("noscript p").first).to_contain_text("curl -X POST")


# -- what these tests rest on ----------------------------------------------------------------------------------------


def test_the_policy_is_in_force_and_its_violations_are_heard(shop: Instance, item: Item, visitors: Visitors) -> None:
    """A script within the page is refused by the browser, and that would fail any of these tests."""
    page = visitors.visit(item.at(shop))
    rests(page)
    assert visitors.unforgiven() == []
    page.evaluate("document.head.append(Object.assign(document.createElement('script'), { text: 'window.ran = 1' }))")
    assert page.evaluate("window.ran") is None
    eventually(
        lambda: (
            page.wait_for_timeout(10) or [text for text in visitors.complaints if "policy violated: script-src" in text]
        ),
        "the violation is heard",
    )
    visitors.forgive("policy violated|Content Security Policy")
