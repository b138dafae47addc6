"""The shop as people use it, in a real browser: they press, wait, reload, have no mouse, or a small phone.

The files `*.test.mjs` are about its modules alone.
"""

import http.server
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import jwt
import pytest
from playwright.sync_api import Locator, Page, Request, Route, expect

from tests.browser.conftest import PLENTY, Item, Start
from tests.harness.browser import Visitors, contrasts, fits, shows
from tests.harness.shop import Instance
from tests.harness.waiting import eventually

pytestmark = pytest.mark.slow

PRESS = re.compile(r"/stock/reduce\?")
STREAM = re.compile(r"/stock/live\?")
LEVEL = re.compile(r"/stock\?")
ORDERS = re.compile("/orders/")
PHONE: dict[str, Any] = {"viewport": {"width": 320, "height": 568}}
CLIPBOARD: dict[str, Any] = {"permissions": ["clipboard-read", "clipboard-write"]}


@pytest.fixture(scope="module")
def pair(start: Start) -> tuple[Instance, Instance]:
    """Two instances that sell at all hours."""
    return start(), start()


@pytest.fixture
def shop(pair: tuple[Instance, Instance]) -> Instance:
    return pair[0]


@pytest.fixture
def item(shop: Instance) -> Item:
    return Item(shop)


def button(page: Page) -> Locator:
    """The one that buys, whatever it says."""
    return page.locator("#buy")


def outcome(page: Page) -> Locator:
    """The outcome of the last press, where a screen reader hears it."""
    return page.locator(".outcome").get_by_role("status")


def listed(page: Page) -> Locator:
    return page.get_by_role("region", name="Your orders").get_by_role("listitem")


def buys(page: Page) -> str:
    """Press, and wait for the order's number."""
    button(page).click()
    expect(outcome(page)).to_contain_text("It's yours!")
    return order_number(page)


def order_number(page: Page) -> str:
    """All of it, of which the page shows the beginning of what can't be guessed."""
    number = httpx.URL(page.locator("#order a").get_attribute("href") or "").params["id"]
    assert number.rpartition("~")[2].upper().startswith(short_number(page).replace("-", ""))
    return str(number)


def short_number(page: Page) -> str:
    text = page.locator("#order a").text_content()
    assert text
    return text


def copied(page: Page) -> str:
    return str(page.evaluate("navigator.clipboard.readText()"))


def rests(page: Page) -> None:
    """Wait until the next press counts."""
    expect(button(page)).to_be_enabled()


def keys_of(page: Page) -> list[str]:
    """A list that fills with the idempotency key of each purchase that the page sends from now on."""
    keys: list[str] = []

    def note(request: Request) -> None:
        if PRESS.search(request.url):
            keys.append(request.headers["idempotency-key"])

    page.on("request", note)
    return keys


def waits(page: Page, condition: Callable[[], object], what: str) -> None:
    """Wait for something outside of the page; meanwhile the page goes on."""
    eventually(lambda: page.wait_for_timeout(10) or condition(), what)


def hide(page: Page, hidden: bool) -> None:
    page.evaluate(
        """(hidden) => {
          Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def no_english(text: str, *others: str) -> None:
    for other in others:
        text = text.replace(other, "")
    assert re.search("[A-Za-z]", text) is None, text


# -- what is for sale ------------------------------------------------------------------------------------------------

CATALOGUE = """
[items.phone]
name = { en = "A <b>phone</b> & \\"case\\"", zh = "手机" }
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


def test_an_item_is_described_before_the_press(boutique: Instance, shop: Instance, visitors: Visitors) -> None:
    """Name, picture, price and limit; what the catalogue says is text, not markup, and it may leave things out."""
    visitors.forgive("404|Blocked script execution|policy violated|Content Security Policy")
    phone, book, other = (Item(shop, PLENTY, sku) for sku in ("phone", "book", None))
    phone.terms(price=199_900, currency="HUF")  # which most browsers show without its decimals
    page = visitors.visit(phone.at(boutique))
    shows(page, item='A <b>phone</b> & "case"', price=re.compile("1,999.00"), limit="2 per person")
    phone.terms(price=None)
    rests(page)
    assert page.title().startswith("A <b>phone</b>")
    picture = page.locator("#picture img")
    assert picture.evaluate("async (picture) => { await picture.decode(); return picture.naturalWidth; }") > 0
    page.goto(boutique.url + (picture.get_attribute("src") or ""))
    assert page.title() != "ran"
    # During an upgrade an instance that lacks the picture may be asked for it.
    page.route(re.compile("/shop/pictures/"), lambda route: route.fulfill(status=404))
    page.goto(phone.at(boutique))
    rests(page)
    expect(page.locator("main img")).to_have_count(0)
    expect(page.locator("body")).not_to_have_class(re.compile("pictured"))
    for unpriced, name in ((book, "Le petit livre"), (other, other.sku)):
        page.goto(unpriced.at(boutique))
        rests(page)
        shows(page, item=name, price="", limit="2 per person", buy="Buy one")
        expect(page.locator("main img")).to_have_count(0)
    buys(page)


def test_the_front_page_lists_the_catalogue(boutique: Instance, visitors: Visitors) -> None:
    """Name, price, units left, and the way to each item's page, which keeps the buyer's name and the language."""
    phone = Item(boutique, 7, "phone")
    phone.terms(price=199_900, currency="CNY")
    book = Item(boutique, 5, "book")
    book.terms(paused="Tea")
    for language, screen, words in (
        ("en", {}, ('A <b>phone</b> & "case"', "7 left", "Paused")),
        ("zh", PHONE | {"color_scheme": "dark"}, ("手机", "剩余 7 件", "已暂停")),
    ):
        page = visitors.visit(f"{boutique.url}/?lang={language}#buyer=ann", **screen)
        rows = page.get_by_role("listitem")
        expect(rows).to_have_count(2)
        for text in (words[0], "¥1,999.00", words[1]):
            expect(rows.nth(0)).to_contain_text(text)
        expect(rows.nth(1)).to_contain_text(words[2])
        found = contrasts(page)
        assert [(text, ratio) for text, ratio in found if ratio < 4.5] == []
        assert fits(page)
        rows.nth(0).get_by_role("link").click()
        shows(page, left="7")
        assert page.url == f"{boutique.url}/?lang={language}&sku=phone"
    book.terms(paused="")
    phone.terms(price=None)


def test_the_list_is_live(start: Start, visitors: Visitors, tmp_path: Path) -> None:
    """What happens to an item is seen without a reload, by one stream of all; the shop has its name, and a way back.

    What is sold out steps back, what opens says when, and what is not there yet comes.
    """
    names = "".join(f"[items.{sku}]\nname = '{sku.title()}'\n" for sku in ("cup", "hat", "pen"))
    (tmp_path / "items.toml").write_text(f"shop = {{ en = 'Lantern & Co.', zh = '灯笼' }}\n{names}")
    shop = start(catalogue=tmp_path / "items.toml")
    cup, hat = Item(shop, 3, "cup"), Item(shop, 5, "hat")
    page = visitors.visit("about:blank")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(httpx.URL(request.url).path))
    page.goto(shop.url)
    rows = page.get_by_role("listitem")
    expect(rows).to_contain_text(["3 left", "5 left", "Coming later"])
    expect(page).to_have_title("Lantern & Co.")
    shows(page, connection="live")
    cup.sell(3)
    expect(rows.nth(0)).to_contain_text("Sold out")
    hat.terms(starts_at=time.time() + 7200)
    expect(rows.nth(1)).to_contain_text(re.compile(r"Opens (at|on) .*in 0[12]:\d\d:\d\d"))
    Item(shop, 9, "pen")
    expect(rows.nth(2)).to_contain_text("9 left")
    assert (asked.count("/stock"), asked.count("/stock/list/live")) == (0, 1)
    assert [(text, ratio) for text, ratio in contrasts(page) if ratio < 4.5] == []
    rows.nth(0).get_by_role("link").click()
    shows(page, item="Cup", buy="Sold out", brand="Lantern & Co.")
    page.get_by_role("link", name="See the other items").click()
    expect(rows).to_have_count(3)
    rows.nth(2).get_by_role("link").click()
    shows(page, item="Pen", buy="Buy one")
    expect(page.locator("#others")).to_be_hidden()
    for name in ("All items", "Lantern & Co."):
        page.get_by_role("link", name=name).click()
        expect(rows).to_have_count(3)
        page.go_back()


def test_a_reload_is_one_request(boutique: Instance, visitors: Visitors) -> None:
    """The browser has kept the parts of the page for good; the page itself is asked for, and is the same."""
    sent = "performance.getEntriesByType('resource').filter((one) => one.transferSize > 0).map((one) => one.name)"
    page = visitors.visit(Item(boutique, PLENTY, "phone").at(boutique))
    shows(page, connection="live")
    assert len(page.evaluate(sent)) > 5
    with page.expect_response(lambda one: one.request.is_navigation_request()) as shown:
        page.reload()
    assert shown.value.status in (200, 304)
    for again in (page.url, Item(boutique, PLENTY, "book").at(boutique)):
        page.goto(again)
        shows(page, connection="live")
        assert {httpx.URL(url).path for url in page.evaluate(sent)} <= {"/stock", "/stock/live"}


# -- buying ----------------------------------------------------------------------------------------------------------


def test_a_unit_is_bought_and_counted_everywhere(
    pair: tuple[Instance, Instance], item: Item, visitors: Visitors
) -> None:
    """An order exists, and the other instance's page counts one less, unasked, until all units are gone.

    A buyer whose page still showed a unit is told that somebody was faster, until there are units again.
    """
    here, there = pages = [visitors.visit(item.at(instance)) for instance in pair]
    for page in pages:
        shows(page, left=str(PLENTY), of=f"of {PLENTY} left")
    order = buys(here)
    (found,) = item.orders()
    assert (found["id"], found["quantity"]) == (order, 1)
    assert re.fullmatch(r"guest-[0-9a-f]{12}", found["buyer"])
    assert httpx.get(f"{pair[1].url}/orders/{order}").json()["id"] == order
    for page in pages:
        shows(page, left=str(PLENTY - 1))
    item.sell(PLENTY // 2 - 1)
    for page in pages:
        shows(page, left=str(PLENTY // 2))
        expect(page.locator("#bar")).to_have_css("transform", "matrix(0.5, 0, 0, 1, 0, 0)")  # half of it is full
    there.route(PRESS, lambda route: (item.sell(PLENTY // 2), route.continue_()))
    button(there).click()
    expect(outcome(there)).to_contain_text("Somebody was faster")
    there.unroute(PRESS)
    for page in pages:
        shows(page, buy="Sold out", left="0", news="Sold out.")
        expect(button(page)).to_be_disabled()
    item.set(1)
    for page in pages:
        shows(page, news="There are units again.")
    rests(there)
    expect(outcome(there)).not_to_contain_text("Somebody was faster")
    buys(there)


def test_a_press_is_one_press(shop: Instance, item: Item, visitors: Visitors) -> None:
    """A double click buys one unit, and so do five hasty clicks, a key that is held down, and keys while it waits."""
    page = visitors.visit(item.at(shop))
    keys = keys_of(page)
    rests(page)
    button(page).dblclick()
    expect(listed(page)).to_have_count(1)
    rests(page)
    button(page).click(click_count=5, delay=20)
    expect(listed(page)).to_have_count(2)
    rests(page)
    # A second click starts no press even if the first has been answered already.
    click = "(button, number) => button.dispatchEvent(new MouseEvent('click', { detail: number }))"
    button(page).evaluate(click, 2)
    assert button(page).is_enabled()
    held: list[Route] = []
    page.route(PRESS, lambda route: held.append(route), times=1)  # noqa: PLW0108 - Playwright marks the function
    button(page).evaluate(click, 1)
    assert button(page).is_disabled()
    button(page).focus()
    for _ in range(2):
        page.keyboard.press("Enter")
    shows(page, buy="One moment …")
    waits(page, lambda: held, "the request arrives")
    held[0].continue_()
    expect(listed(page)).to_have_count(3)
    rests(page)
    page.keyboard.down("Enter")
    expect(listed(page)).to_have_count(4)
    rests(page)
    for _ in range(5):
        page.keyboard.down("Enter")  # the key repeats
    assert button(page).is_enabled()
    page.keyboard.up("Enter")
    page.keyboard.press("Enter")
    expect(listed(page)).to_have_count(5)
    assert len(set(keys)) == len(keys) == len(item.orders()) == 5


def test_a_buyer_has_their_share(boutique: Instance, visitors: Visitors) -> None:
    """Orders are kept, and told in two tabs; at the limit there is no button to press, and a new sale opens it again.

    The button is loud until one has bought. Orders of the old sale are marked, and not dropped.
    """
    item = Item(boutique, PLENTY, "phone")
    page = visitors.visit(item.at(boutique), reduced_motion="reduce")  # or a colour could be seen half-way
    tab = page.context.new_page()
    tab.goto(item.at(boutique))
    for one in (page, tab):
        rests(one)
    loud = button(tab).evaluate("(one) => getComputedStyle(one).backgroundColor")
    shows(page, detail="One press is one purchase. A double click counts once.")
    numbers = [(buys(page), short_number(page))]
    rests(page)
    for one in (page, tab):
        shows(one, buy="Buy one more")
    expect(button(tab)).not_to_have_css("background-color", loud)
    numbers.append((buys(page), short_number(page)))
    tab.reload()
    shows(tab, detail="")
    for one in (page, tab):
        shows(one, buy="You have your 2")
        expect(button(one)).to_be_disabled()
        expect(listed(one)).to_contain_text([numbers[1][1], numbers[0][1]])
    listed(tab).nth(1).get_by_role("link").click()
    shows(tab, whole=numbers[0][0])
    tab.goto(Item(boutique, 1, "book").at(boutique))
    rests(tab)
    expect(tab.get_by_role("region", name="Your orders")).to_be_hidden()

    visitors.forgive("404")
    shows(page, left=str(PLENTY - 2))
    item.set(PLENTY, new_sale=True, forget_orders="all")
    rests(page)
    shows(page, buy="Buy one", detail="One press is one purchase. A double click counts once.")
    expect(listed(page)).to_contain_text(2 * ["Not known any more"])
    expect(outcome(page)).not_to_contain_text("It's yours!")
    for bought in (3, 4):
        rests(page)
        buys(page)
        expect(listed(page)).to_have_count(bought)
        expect(listed(page).first).not_to_contain_text("Not known")

    page.evaluate("localStorage.removeItem('seckill.orders.phone')")
    page.reload()
    rests(page)
    button(page).click()
    expect(outcome(page)).to_contain_text("You have your share")
    shows(page, buy="You have your 2")
    somebody = visitors.visit(item.at(boutique))
    rests(somebody)
    buys(somebody)
    assert len({order["buyer"] for order in item.orders()}) == 2


def test_several_units_by_one_press(boutique: Instance, visitors: Visitors) -> None:
    """As many can be chosen as are left for this buyer; one press and one order have them, also at the limit."""
    item = Item(boutique, 9, "phone")
    page = visitors.visit(item.at(boutique), **PHONE)
    rests(page)
    more = page.get_by_role("button", name="One more")
    more.click()
    shows(page, units="2", buy="Buy 2")
    expect(more).to_be_disabled()  # that is the limit
    assert fits(page)
    buys(page)
    shows(page, left="7", buy="You have your 2")
    expect(page.get_by_role("group", name="Quantity")).to_be_hidden()
    assert [order["quantity"] for order in item.orders()] == [2]
    page.locator("#order a").click()
    shows(page, state="Bought", quantity="2")


def test_buyers_whom_the_shop_in_front_has_signed(start: Start, visitors: Visitors) -> None:
    """The token comes behind the page's address, and the order is that buyer's, of whose limit no other is told."""
    secret = "a-secret-that-is-long-enough:-32"
    shop = start(buyer_key=secret, limit_per_buyer=1)
    item = Item(shop, 5)
    page = visitors.visit("about:blank")
    for place, buyer in enumerate(("ann", "bob")):
        for _ in range(2):  # a token is made anew each time
            token = jwt.encode({"sub": buyer, "exp": time.time() + 600 + len(item.orders())}, secret, "HS256")
            page.goto("about:blank")
            page.goto(f"{item.at(shop)}#buyer={token}")
            page.wait_for_url(item.at(shop))  # the address is free of it
            if len(item.orders()) == place:
                rests(page)
                buys(page)
                page.locator("#order a").click()
                shows(page, state="Bought")
                page.get_by_role("link", name="Back to the item").click()
            shows(page, buy="You have yours")
    assert [order["buyer"] for order in item.orders()] == ["ann", "bob"]


def test_an_order_has_a_page(boutique: Instance, visitors: Visitors) -> None:
    """Item, quantity, moment, number and state; the number is copied as a whole; the shop is one press away.

    While nobody can tell the state, the page goes on asking. It knows a number that nobody knows, and one that is none.
    """
    visitors.forgive("404|503|422")
    item = Item(boutique, PLENTY, "phone")
    page = visitors.visit(item.at(boutique), **CLIPBOARD)
    rests(page)
    order = buys(page)
    short = short_number(page)
    assert re.fullmatch(r"[0-9A-F]{4}-[0-9A-F]{4}", short)
    copy = page.get_by_role("button", name=short)
    copy.click()
    expect(copy).to_have_text("Copied")
    assert copied(page) == order
    page.locator("#order a").click()
    facts: dict[str, Any] = {
        "quantity_title": "Quantity",
        "quantity": "1",
        "when": re.compile(str(datetime.now(UTC).year)),
    }
    shows(page, title="Your order", item=re.compile("phone"), state="Bought", number=short, whole=order, **facts)
    assert fits(page)
    assert page.locator("#picture img").count() == 1
    # Over plain HTTP most browsers have no clipboard; the number is copied all the same.
    page.evaluate("navigator.clipboard.writeText('')")
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('no')); }")
    copy.click()
    expect(copy).to_have_text("Copied")
    assert copied(page) == order
    address = page.url
    page.get_by_role("link", name="Back to the item").click()
    rests(page)
    assert page.url == item.at(boutique)

    page.route(ORDERS, lambda route: route.fulfill(status=503, json={}))
    page.goto(address)
    shows(page, state="It can't be looked up at the moment")
    page.unroute(ORDERS)
    shows(page, state="Bought")
    item.set(5, new_sale=True, forget_orders="all")
    page.goto(address)
    shows(page, state="We don't know this order", when=facts["when"])
    for odd in ("..", "phone~1-1~aa", "<img src=x onerror=alert(1)>~", "phone~" + 300 * "x", "/../stock~1"):
        page.goto(str(httpx.URL(f"{boutique.url}/shop/order", params={"id": odd})))
        shows(page, state="We don't know this order")
    page.goto(f"{boutique.url}/shop/order")
    shows(page, item="No such order")


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


def test_a_page_of_another_origin_buys_nothing(shop: Instance, visitors: Visitors) -> None:
    """No image, no prefetch, no fetch and no form in it: not of another site, nor of another port of this one."""
    item = Item(shop, 5)
    _Elsewhere.at = f"{shop.url}/stock/reduce?sku={item.sku}"
    visitors.forgive("403|ERR_BLOCKED_BY_ORB")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere) as elsewhere:
        thread = Thread(target=elsewhere.serve_forever)
        thread.start()
        try:
            for host in ("127.0.0.1", "localhost"):
                page = visitors.visit(f"http://{host}:{elsewhere.server_port}/")
                expect(page).to_have_title("tried")
                with page.expect_navigation():
                    page.evaluate("document.getElementById('form').submit()")
                expect(page.locator("body")).to_contain_text("urn:seckill:foreign-origin")
        finally:
            elsewhere.shutdown()
            thread.join()
    assert item.orders() == []


# -- when it starts and ends -----------------------------------------------------------------------------------------

# The browser's machine believes that it is an hour later.
AN_HOUR_LATE = "const now = Date.now; Date.now = () => now() + 3_600_000;"


WITHIN_THE_HOUR = re.compile(r"^(5\d:\d\d|01:00:00)$")


def test_a_sale_starts_and_ends(shop: Instance, item: Item, visitors: Visitors) -> None:
    """The countdown goes by the service's clock, whatever the browser's; at zero the button opens by itself, in place.

    That is announced once, and the seconds never are. A press that was too early sets the clock right. The time that
    is left is shown, and at its end the button closes; what was bought stays.
    """
    item.terms(starts_at=time.time() + 3600)
    page = visitors.visit("about:blank", **PHONE)
    keys = keys_of(page)
    page.add_init_script(AN_HOUR_LATE)

    def an_hour_ahead(route: Route) -> None:
        answer = route.fetch()
        level = answer.json()
        route.fulfill(response=answer, json=level | {"now": level["now"] + 3700})

    def a_second_late(route: Route) -> None:
        time.sleep(1)
        route.continue_()

    page.route(LEVEL, an_hour_ahead)
    page.goto(item.at(shop))
    rests(page)
    page.unroute(LEVEL)
    page.route(LEVEL, a_second_late)
    button(page).click()
    shows(page, headline="Not yet", phase="Starts in", countdown=WITHIN_THE_HOUR)
    expect(button(page)).to_be_disabled()
    assert item.orders() == []
    page.unroute(LEVEL)

    page.reload()
    page.evaluate("""() => {
        window.said = [];
        const hear = () => window.said.push(document.querySelector('#news').textContent);
        new MutationObserver(hear).observe(document.querySelector('#news'), { childList: true });
    }""")
    shows(page, buy=re.compile(r"Opens (at|on) .*\d?\d:\d\d$"), detail="", phase="Starts in", countdown=WITHIN_THE_HOUR)
    expect(button(page)).to_be_disabled()
    timer = page.get_by_role("timer")
    for _ in range(3):  # it ticks, and not only when the page hears something
        expect(timer).not_to_have_text(timer.text_content() or "")
    place = button(page).bounding_box()
    button(page).click(force=True)
    starts_at = time.time() + 5
    item.terms(starts_at=starts_at)
    rests(page)
    assert time.time() > starts_at - 1
    assert len(keys) == 1
    assert button(page).bounding_box() == place
    expect(timer).to_be_hidden()
    buys(page)
    assert page.evaluate("window.said") == ["The sale has started."]

    item.terms(ends_at=time.time() + 3600)
    shows(page, phase="Ends in", countdown=WITHIN_THE_HOUR)
    item.terms(ends_at=time.time() + 2)
    shows(page, buy="Ended", news="The sale has ended.")
    expect(button(page)).to_be_disabled()
    expect(outcome(page)).to_contain_text(short_number(page))


# -- when something fails --------------------------------------------------------------------------------------------


def test_a_lost_answer_is_asked_for_again(shop: Instance, item: Item, visitors: Visitors) -> None:
    """The same key is sent again, by itself or after a reload, and the buyer hears of the one order."""
    visitors.forgive("ERR_FAILED")
    page = visitors.visit(item.at(shop))
    keys = keys_of(page)
    rests(page)
    again: list[Route] = []
    page.route(PRESS, lambda route: again.append(route), times=1)  # noqa: PLW0108 - Playwright marks the function
    page.route(PRESS, lambda route: (route.fetch(), route.abort()), times=1)
    button(page).click()
    expect(outcome(page)).to_contain_text("Sending the same press again, 2 of 5")
    expect(button(page)).to_be_disabled()
    waits(page, lambda: again, "it is sent again")
    again[0].continue_()
    expect(outcome(page)).to_contain_text("had counted already, once")
    assert [order["id"] for order in item.orders()] == [order_number(page)]
    assert (len(keys), len(set(keys))) == (2, 1)
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
    shows(page, buy="One moment …")
    waits(page, lambda: held, "the request arrives")
    page.reload()
    expect(outcome(page)).to_contain_text("had counted already, once")
    assert len(item.orders()) == 2
    assert order_number(page) in {order["id"] for order in item.orders()}
    assert (len(keys), len(set(keys))) == (4, 2)
    page.reload()
    rests(page)
    assert len(keys) == 4


def test_an_instance_that_goes_and_comes_back(start: Start, visitors: Visitors) -> None:
    """The page stays, says that the connection is lost, and goes on by itself; a press meanwhile is kept.

    One that was given up is asked about by itself when somebody answers again.
    """
    visitors.forgive("ERR_|503|502")
    shop = start(lock_ttl_s=2)
    item = Item(shop)
    page = visitors.visit(item.at(shop))
    keys = keys_of(page)
    rests(page)
    shows(page, connection="live")
    shop.kill()
    shows(page, connection="connection lost, trying again", left=str(PLENTY))
    button(page).click()
    expect(outcome(page)).to_contain_text("Sending the same press again")
    shop.start()
    expect(outcome(page)).to_contain_text("It's yours!")
    shows(page, connection="live")
    item.sell(9)
    shows(page, left=str(PLENTY - 10))
    assert len(set(keys)) == 1
    keys.clear()
    rests(page)
    # It is told to stop, as in an upgrade. A proxy in front says so at once, and with no word of when.
    shop.terminate()
    shows(page, connection="connection lost, trying again")
    page.route(PRESS, lambda route: route.fulfill(status=502, headers={"Retry-After": "60"}))
    page.route(STREAM, lambda route: route.fulfill(status=502))
    button(page).click()
    shows(page, headline="We don't know yet", buy="Ask again (the last answer was lost)")
    with page.expect_event("requestfailed", lambda request: bool(LEVEL.search(request.url))):
        pass  # somebody has asked, and nobody has answered
    page.unroute(PRESS)
    page.unroute(STREAM)
    shop.start()
    expect(outcome(page)).to_contain_text("It's yours!")
    shows(page, connection="live")
    assert (len(keys), len(set(keys)), len(item.orders())) == (2, 1, 3)


# -- what is in the address ------------------------------------------------------------------------------------------


def test_an_odd_item_is_no_item(shop: Instance, visitors: Visitors) -> None:
    """The page says that there is no such item, and nothing of the name becomes markup. An item that comes is shown.

    A script within the page is refused by the browser, and a test that doesn't ask for that fails.
    """
    visitors.forgive("status of 4(22|04)")
    page = visitors.visit("about:blank")
    page.on("dialog", lambda dialog: pytest.fail(f"it ran: {dialog.message}"))
    for sku in ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a b", "x" * 500):
        page.goto(str(httpx.URL(shop.url, params={"sku": sku, "buyer": sku, "lang": sku})))
        shows(page, item="No such item")
        expect(button(page)).to_be_disabled()
        assert page.locator("script").count() == 1
        assert page.locator("main img").count() == 0
    item = Item(shop, None)
    page.goto(item.at(shop))
    shows(page, item="No such item")
    text = page.locator("main").text_content() or ""
    assert (text.lower().count("no such item"), text.count("One press")) == (1, 0)
    item.set(7)
    hide(page, False)  # or it would ask only some time later
    shows(page, left="7")
    buys(page)

    assert visitors.unforgiven() == []
    page.evaluate("document.head.append(Object.assign(document.createElement('script'), { text: 'window.ran = 1' }))")
    assert page.evaluate("window.ran") is None
    waits(page, lambda: re.search("policy violated: script-src", str(visitors.complaints)), "the violation is heard")
    visitors.forgive("policy violated|Content Security Policy")


def test_the_address_alone(shop: Instance, visitors: Visitors) -> None:
    """`/` is for the item without a name, which the built-in catalogue knows; without JavaScript it says how to buy."""
    Item(shop, 4, "default")
    page = visitors.visit(shop.url)
    shows(page, item="Brass reading lamp", left="4")
    expect(page.locator("html")).to_have_attribute("lang", "en")
    buys(page)
    page = visitors.visit(shop.url, java_script_enabled=False)
    expect(page.locator("noscript p").first).to_be_visible()
    expect(page.locator("noscript p").first).to_contain_text("curl -X POST")


# -- for everybody ---------------------------------------------------------------------------------------------------


def test_all_of_it_in_chinese(boutique: Instance, visitors: Visitors) -> None:
    """From the title to the order's page no English word is left, whatever the service or a proxy calls a refusal."""
    visitors.forgive("40[34]")
    item = Item(boutique, 1, "phone")
    page = visitors.visit(item.at(boutique), locale="zh-CN")
    main = page.get_by_role("main")
    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")
    shows(page, item="手机", limit="每人限购 2 件", buy="立即抢购")
    assert page.title().endswith("限时秒杀")
    refusals: list[tuple[Callable[[Route], None], str]] = [
        (lambda route: route.continue_(url=route.request.url.replace("phone", "nothing")), "商品已不存在"),
        (lambda route: route.fulfill(status=403, body="<p>raw words</p>"), "服务拒绝了请求.403"),
    ]
    for refuse, words in refusals:
        rests(page)
        page.route(PRESS, refuse, times=1)
        button(page).click()
        shows(page, headline="没有成功", detail=re.compile(words))
        no_english(main.inner_text())
    rests(page)
    button(page).click()
    shows(page, headline="抢到了！", buy="已售罄", connection="实时更新")  # noqa: RUF001
    short, order = short_number(page), order_number(page)
    no_english(main.inner_text(), short)
    page.locator("#order a").click()
    shows(page, title="您的订单", item="手机", state="已购买", quantity_title="数量", back="返回商品页")
    no_english(main.inner_text(), order, short)


def test_by_keyboard_and_ear(shop: Instance, item: Item, visitors: Visitors) -> None:
    """Tab comes to the shop's name, the units and the button, whose focus is seen and stays; then to the order.

    Everything has a name and a role, what happens is in a live region, and what ticks is in none.
    """
    page = visitors.visit(item.at(shop), **CLIPBOARD)
    rests(page)
    for name in ("#home", "#fewer", "#more", "#buy"):
        page.keyboard.press("Tab")
        expect(page.locator(name)).to_be_focused()
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
    shows(page, copy="Copied", news="Copied.")
    assert copied(page) == order_number(page)

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


def test_on_a_small_phone(shop: Instance, visitors: Visitors) -> None:
    """320 by 568: nothing is cut off sideways, the button is seen without scrolling, and fingers hit all there is.

    A long countdown has days.
    """
    for locale, days, opens in (("en-GB", "100 days", "Opens on "), ("zh-CN", "100 天", " 开抢")):
        item = Item(shop, 10**12)
        item.terms(starts_at=time.time() + 100 * 86_400 + 3_600)
        page = visitors.visit(item.at(shop), locale=locale, has_touch=True, is_mobile=True, **PHONE)
        expect(button(page)).to_contain_text(opens)
        expect(page.get_by_role("timer")).to_have_text(days)
        expect(page.locator("#bar")).to_have_css("transition-duration", "0.4s")
        assert fits(page)
        item.terms(starts_at=time.time() - 1)
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
