"""The shop as people use it, in a real browser: they press, wait, reload, have no mouse, or a small phone."""

import http.server
import itertools
import json
import re
import time
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

    def __init__(self, instance: Instance, stock: int) -> None:
        self._url = instance.url
        self.sku = f"item-{next(_numbers)}"
        self.set(stock)

    def set(self, stock: int) -> None:
        change = {"stock": stock}
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
    text = page.locator("#order").text_content()
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
    """After a reload the page lists this browser's orders of the item, newest first, with links to them."""
    page = visitors.visit(item.at(shop))
    rests(page)
    first = buys(page)
    rests(page)
    second = buys(page)
    assert first != second
    page.reload()
    listed = page.get_by_role("region", name="Your orders").get_by_role("listitem")
    expect(listed).to_contain_text([second, first])
    listed.nth(1).get_by_role("link").click()
    assert json.loads(page.locator("body").text_content() or "")["id"] == first
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
    page.reload()
    rests(page)
    button(page).click()
    expect(outcome(page)).to_contain_text("You have your share")
    somebody = visitors.visit(item.at(shop))
    rests(somebody)
    buys(somebody)
    assert len({order["buyer"] for order in item.orders()}) == 2


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


def test_what_is_wrong_is_said(shop: Instance, item: Item, visitors: Visitors) -> None:
    """The page shows in the service's words why a wrong purchase was refused."""
    visitors.forgive("404")
    page = visitors.visit(item.at(shop))
    rests(page)
    page.route(PRESS, lambda route: route.continue_(url=route.request.url.replace(item.sku, "nothing")))
    button(page).click()
    expect(outcome(page)).to_contain_text("That did not work")
    expect(outcome(page)).to_contain_text("'nothing'")


# -- when it starts and ends -----------------------------------------------------------------------------------------

# The browser's machine believes that it is an hour later.
AN_HOUR_LATE = "const now = Date.now; Date.now = () => now() + 3_600_000;"


def seconds_of(page: Page) -> int:
    hours, minutes, seconds = (page.get_by_role("timer").text_content() or "").split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def test_the_countdown_opens_the_sale(start: Start, visitors: Visitors) -> None:
    """It goes by the service's clock, whatever the browser's; at zero the button opens by itself, where it was.

    That is announced once, and the seconds never are.
    """
    starts_at = time.time() + 12
    shop = start(sale_starts_at=datetime.fromtimestamp(starts_at, UTC).isoformat())
    item = Item(shop, 5)
    page = visitors.visit("about:blank", **PHONE)
    keys = keys_of(page)
    page.add_init_script(AN_HOUR_LATE)
    page.goto(item.at(shop))
    page.evaluate("""() => {
        window.said = [];
        const hear = () => window.said.push(document.querySelector('#news').textContent);
        new MutationObserver(hear).observe(document.querySelector('#news'), { childList: true });
    }""")
    expect(button(page)).to_have_text("Not open yet")
    expect(button(page)).to_be_disabled()
    expect(page.locator("#phase")).to_have_text("Starts in")
    shown, real = seconds_of(page), starts_at - time.time()
    assert abs(shown - real) < 1.5
    place = button(page).bounding_box()
    button(page).click(force=True)
    rests(page)
    assert keys == []
    assert abs(time.time() - starts_at) < 1.5
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


def test_the_sale_ends(start: Start, visitors: Visitors) -> None:
    """The time that is left is shown, then the button closes by itself; what was bought stays."""
    shop = start(sale_ends_at=in_s(10))
    item = Item(shop, 5)
    page = visitors.visit(item.at(shop))
    rests(page)
    expect(page.locator("#phase")).to_have_text("Ends in")
    assert 0 <= seconds_of(page) <= 10
    order = buys(page)
    expect(button(page)).to_have_text("Ended")
    expect(button(page)).to_be_disabled()
    expect(page.locator("#news")).to_have_text("The sale has ended.")
    expect(outcome(page)).to_contain_text(order)


def test_a_long_wait_has_days(start: Start, visitors: Visitors) -> None:
    """A countdown of more than a day shows days, and fits on a small phone in each language."""
    shop = start(sale_starts_at=in_s(100 * 86_400 + 3_600))
    item = Item(shop, PLENTY)
    for locale, days in (("en-GB", "100 d"), ("zh-CN", "100 天")):
        page = visitors.visit(item.at(shop), locale=locale, **PHONE)
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
    expect(button(page)).to_have_text("Ask again")
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
    expect(button(page)).to_have_text("No such item")
    item.set(7)
    expect(left(page)).to_have_text("7", timeout=40_000)
    buys(page)


def test_the_item_that_is_there_by_default(shop: Instance, visitors: Visitors) -> None:
    """`/` alone is for the item without a name."""
    item = Item(shop, 1)
    item.sku = "default"
    item.set(4)
    page = visitors.visit(shop.url)
    expect(page.get_by_role("heading", level=1)).to_have_text("Today's offer")
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
    words = page.locator("main").inner_text().replace(order_number(page), "").replace(item.sku, "")
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
    expect(page.get_by_role("button", name="Buy one")).to_be_visible()
    expect(page.get_by_role("button", name=f"Copy order number {order_number(page)}")).to_have_count(2)
    assert page.locator("button:not([type=button]), img:not([alt]), [tabindex]:not([tabindex='0'])").count() == 0
    live = page.locator("[aria-live], [role=status], [role=alert], output")
    assert live.locator("#countdown, #left").count() == 0
    expect(outcome(page)).to_contain_text(order_number(page))
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours(start: Start, visitors: Visitors, scheme: str) -> None:
    """Light or dark as the system is; each text has a contrast of 4.5 or more, in all that the shop says."""
    visitors.forgive("ERR_FAILED|status of 404")
    shop = start(limit_per_buyer=1)
    item = Item(shop, 2)
    page = visitors.visit(item.at(shop), color_scheme=scheme, reduced_motion="reduce")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in re.findall(r"\d+", ground)) > 3 * 128) == (scheme == "light")

    def judge(*texts: str) -> None:
        for text in texts:
            expect(page.locator("body")).to_contain_text(text)
        found = contrasts(page)
        assert len(found) > 5
        assert [(text, ratio) for text, ratio in found if ratio < 4.5] == []

    rests(page)
    judge("Buy one", "double click", "On sale now")
    button(page).hover()
    judge("Buy one")
    buys(page)
    judge("It's yours!", "Your orders")
    rests(page)
    button(page).click()
    judge("You have your share")
    rests(page)
    page.route(PRESS, lambda route: route.abort(), times=1)
    button(page).click()
    judge("Sending the same press again", "One moment …")
    rests(page)
    item.set(0)
    judge("Units may come back")
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
