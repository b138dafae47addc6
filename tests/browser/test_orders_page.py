"""The orders page as operators use it in a browser: they filter, open, refund, export, without a mouse, too."""

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import httpx
import pytest
from playwright.sync_api import Page, expect

from lab.servers.process import free_port
from tests.browser.conftest import OPERATOR, Item, Start
from tests.harness.browser import Visitors, contrasts, fits, shows
from tests.harness.receiver import SECRET
from tests.harness.shop import TOKEN, Instance
from tests.harness.waiting import eventually

pytestmark = pytest.mark.slow

SIZES: Final = ((1440, 900), (1024, 768), (390, 844))
LOWEST: Final = 4.5  # WCAG AA


SUMS: Final[dict[str, Any]] = {
    "orders": {"sold": 0, "waiting": 4, "held": 2, "confirmed": 1, "expired": 3, "cancelled": 0, "refunded": 0},
    "to_ship": 2,
    "from_line": 1,
    "unpaid_orders": 3,
    "conversion": 0.25,
    "attention": 1,
    "money": {"EUR": {"paid": 998, "given_back": 0, "owed": 499, "kept": 998}},
}
REPORT: Final[dict[str, Any]] = {"at": 1.8e9, "total": SUMS, "items": [], "days": [{"day": "2026-11-11"} | SUMS]}


@pytest.fixture(scope="module")
def instance(start: Start) -> Instance:
    return start(extension="lab.rehearsal")


@pytest.fixture
def item(instance: Instance) -> Item:
    """An item at 4.99 EUR."""
    item = Item(instance, 300)
    item.terms(price=499, currency="EUR")
    return item


def hold(instance: Instance, item: Item, buyer: str, **wish: Any) -> str:
    answer = httpx.post(f"{instance.url}/holds", json={"sku": item.sku, "buyer": buyer, **wish}, timeout=30)
    return str(answer.raise_for_status().json()["id"])


def pay(instance: Instance, order: str, ref: str, amount: int, currency: str = "EUR") -> None:
    paid = {"payment_ref": ref, "amount": amount, "currency": currency}
    httpx.post(f"{instance.url}/holds/{order}/confirm", json=paid, timeout=30).raise_for_status()


@pytest.fixture
def orders(instance: Instance, item: Item) -> dict[str, str]:
    """Return four orders: held, paid, paid a wrong amount, and paid twice."""
    found = {name: hold(instance, item, name, ref=f"R-{name}") for name in ("ann", "bob", "cy", "dan")}
    pay(instance, found["bob"], "p-bob", 499)
    pay(instance, found["cy"], "p-cy", 1)
    pay(instance, found["dan"], "p-dan", 499)
    pay(instance, found["dan"], "p-dan-2", 499)
    return found


def opened(visitors: Visitors, instance: Instance, item: Item, **options: Any) -> Page:
    """The page, from the control room; the numbers of the sale are others' to test."""
    page = visitors.visit(item.room(instance), **options)
    page.context.route(re.compile(r"/report(\?.*)?$"), lambda route: route.fulfill(json=REPORT))
    page.get_by_role("link", name="Orders").click()
    expect(page).to_have_url(re.compile("/control/orders"))
    return page


def has(page: Page, *buyers: str) -> None:
    expect(page.locator("#orders td.buyer")).to_have_text(list(buyers))


def show(page: Page, state: str) -> None:
    """Show the orders of a state only."""
    page.get_by_role("group", name="State").get_by_role("button", name=re.compile(f"^{state}")).click()


def find(page: Page, text: str) -> None:
    page.get_by_role("searchbox").fill(text)
    page.keyboard.press("Enter")


def test_one_box_finds_an_order(visitors: Visitors, instance: Instance, item: Item, orders: dict[str, str]) -> None:
    """By its number or id, buyer, shop's number or payment; of a state, or those that need a look; kept at a reload."""
    page = opened(visitors, instance, item)
    has(page, "ann", "bob", "cy", "dan")
    show(page, "Paid")
    has(page, "bob", "dan")
    show(page, "All")
    number = orders["bob"].split("~")[1]
    for text in (number, f"{item.sku}~{number}", orders["bob"], "R-bob", "r-BO", "p-bob"):
        find(page, text)
        has(page, "bob")
        find(page, "")
        has(page, "ann", "bob", "cy", "dan")
    find(page, "p-dan-2")
    has(page, "dan")
    page.reload()
    has(page, "dan")
    find(page, "")
    show(page, "Needs a look")
    has(page, "cy", "dan")
    expect(page.locator("#orders .need")).to_have_text(["a wrong amount was paid", "€4.99 owed"])
    page.get_by_role("link", name="Control room").click()
    expect(page).to_have_url(re.compile(rf"/control\?sku={item.sku}$"))


def test_a_row_says_what_how_much_and_since_when(
    visitors: Visitors, instance: Instance, item: Item, orders: dict[str, str]
) -> None:
    """Units, money, and the time of the payment; the orders of a day have its sum; all items are one list."""
    two = hold(instance, item, "eve", quantity=2)
    pay(instance, two, "p-eve", 998)
    page = opened(visitors, instance, item)
    row = page.get_by_role("row", name=re.compile("eve"))
    expect(row).to_contain_text("2 units, €9.98")
    expect(row.locator(".pill")).to_have_text(re.compile(r"^paid \d\d:\d\d$"))
    expect(page.locator("#orders .day")).to_contain_text("5 orders on this page, €24.96 paid, €24.96 kept")
    expect(page.get_by_role("row", name=re.compile("ann")).locator(".pill")).to_have_text(re.compile("^held until"))
    page.goto(f"{instance.url}/control/orders?q={orders['ann'].split('~')[1]}")
    has(page, "ann")
    expect(page.locator("#orders button")).to_have_text(orders["ann"].rpartition("~")[0])


def test_sums_by_state_and_day(visitors: Visitors, instance: Instance, item: Item) -> None:
    """How many orders are in each state, the money of all, and each day."""
    page = opened(visitors, instance, item)
    counts = page.locator("#states .count")
    expect(counts).to_have_text(["10", "1", "1", "2", "4", "0", "3", "0", "0"])
    expect(page.locator("#sums dt")).to_have_text(
        ["Paid", "Owed", "Kept", "Units to ship", "Of these to buyers in line"]
    )
    expect(page.locator("#sums dd")).to_have_text(["€9.98", "€4.99", "€9.98", "2", "1"])
    expect(page.locator("#days tr")).to_contain_text(re.compile("11 Nov.*10.*2.*€9.98.*€4.99.*3.*25 %"))


def test_an_order_is_refunded(visitors: Visitors, instance: Instance, item: Item, orders: dict[str, str]) -> None:
    """Its life is a line of time with tokens; a button asks, and says what became of it; without a mouse, too."""
    page = opened(visitors, instance, item)
    page.get_by_role("button", name=orders["bob"].rpartition("~")[0]).press("Enter")
    life = page.get_by_role("region", name=re.compile("^Order "))
    expect(life.get_by_role("heading")).to_be_focused()
    expect(page.locator("#life-state")).to_have_text(re.compile(r"^paid \d\d:\d\d$"))
    shows(page, life_sum="1 unit, €4.99", life_money="€4.99 paid · €4.99 kept")
    expect(life.locator("#steps li").last).to_contain_text("with p-bob")
    expect(life.locator("#steps li .amount")).to_have_text(["€4.99"])
    expect(life.locator("#steps li strong")).to_have_text(["Held", "Paid"])
    expect(life.locator("#steps li").last).to_contain_text(re.compile(r"token \d+, batch \w+"))
    page.get_by_role("button", name="Refund", exact=True).click()
    dialog = page.get_by_role("dialog", name="Was €4.99 given back?")
    expect(dialog).to_contain_text("This notes it for payment p-bob.")
    expect(page.locator("#refund-note")).to_be_hidden()
    dialog.get_by_role("button", name="Leave it").click()
    expect(page.locator("#done")).to_have_text("Nothing was changed.")
    page.get_by_role("button", name="Refund", exact=True).click()
    dialog.get_by_role("checkbox", name="sell the units again").check()
    dialog.get_by_role("button", name="It was given back: note it").click()
    expect(page.locator("#done")).to_have_text("The refund is noted.")
    expect(page.locator("#steps li strong")).to_have_text(["Held", "Paid", "Given back"])
    expect(page.locator("#steps li").last).to_contain_text("by operator")
    expect(page.locator("#steps li .amount")).to_have_text(["€4.99", "\u2212€4.99"])
    shows(page, life_money="€4.99 paid · €4.99 given back")
    page.reload()
    expect(page.locator("#steps li")).to_have_count(3)
    assert httpx.get(f"{instance.url}/stock", params={"sku": item.sku}).json()["stock"] == 297
    page.keyboard.press("Escape")
    expect(page.locator("#life")).to_be_hidden()


def test_the_line(visitors: Visitors, instance: Instance) -> None:
    """Who waits, and since when, in the order of places; the life of one has the place; an operator may end it."""
    item = Item(instance, 1)
    item.terms(price=499, currency="EUR")
    held = hold(instance, item, "ann")
    for buyer in ("zoe", "bob", "cy"):
        hold(instance, item, buyer, wait=True)
    page = opened(visitors, instance, item)
    show(page, "In line")
    has(page, "zoe", "bob", "cy")
    expect(page.locator("#orders .pill").first).to_have_text(re.compile(r"^in line since \d\d:\d\d$"))
    page.get_by_role("row", name=re.compile("bob")).get_by_role("button").press("Enter")
    shows(page, life_sum="1 unit, €4.99", life_money="number 2 in line; others hold 1")
    expect(page.locator("#steps li strong")).to_have_text(["Got a place in line"])
    page.get_by_role("button", name="End its place in line").click()
    page.get_by_role("dialog").get_by_role("button", name="End its place").click()
    expect(page.locator("#done")).to_have_text("Cancelled.")
    has(page, "zoe", "cy")
    page.get_by_role("row", name=re.compile("cy")).get_by_role("button").click()
    shows(page, life_money="number 2 in line; others hold 1")
    httpx.post(f"{instance.url}/holds/{held}/cancel").raise_for_status()
    shows(page, life_money="number 1 in line; others hold 1")  # without a reload
    has(page, "cy")
    show(page, "All")
    page.get_by_role("row", name=re.compile("zoe")).get_by_role("button").click()
    steps = ["Got a place in line", "Its turn has come: units that came back are held"]
    expect(page.locator("#steps li strong")).to_have_text(steps)
    expect(page.locator("#life-state")).to_have_text(re.compile("^held until"))
    page.get_by_role("link", name="Control room").click()
    shows(page, held="1", held_note="1 in line")


def test_a_basket(visitors: Visitors, instance: Instance, item: Item) -> None:
    """Its lines and one sum are in a row; a held line is taken out, and units of a paid one are refunded."""
    other = Item(instance, 9, f"{item.sku}-case")
    other.terms(price=1000, currency="EUR")
    cart = [{"sku": item.sku, "quantity": 1}, {"sku": other.sku, "quantity": 2}]
    for buyer in ("ann", "bob"):
        wish = {"buyer": buyer, "items": cart}
        order = httpx.post(f"{instance.url}/holds", json=wish, timeout=30).json()["id"]
    pay(instance, order, "p-bob", 2499)
    page = opened(visitors, instance, item)
    has(page, "ann", "bob")
    row = page.get_by_role("row", name=re.compile("ann"))
    expect(row.locator(".what")).to_contain_text(f"1 \u00d7 {item.sku}, 2 \u00d7 {other.sku}, €24.99")
    row.get_by_role("button").click()
    line = page.get_by_role("list", name="Items").get_by_role("listitem").last
    expect(line).to_contain_text(re.compile(r"€20\.00.*€10\.00 a unit"))
    line.get_by_role("button", name="Take it out").click()
    page.get_by_role("dialog").get_by_role("button", name="Take it out").click()
    shows(page, done="Taken out.", life_sum="1 unit, €4.99")
    page.get_by_role("row", name=re.compile("bob")).get_by_role("button").click()
    page.get_by_role("button", name="Refund", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("radio", name="Some units").check()
    dialog.get_by_role("combobox").select_option(other.sku)
    expect(dialog.get_by_role("heading")).to_have_text("Was €10.00 given back?")
    dialog.get_by_role("checkbox", name="sell the units again").check()
    dialog.get_by_role("button", name="It was given back: note it").click()
    shows(page, done="The refund is noted.", life_money="€24.99 paid · €10.00 given back · €14.99 kept")
    assert fits(page)
    left = {one.sku: httpx.get(f"{instance.url}/stock?sku={one.sku}").json()["stock"] for one in (item, other)}
    assert left == {item.sku: 298, other.sku: 8}


def test_a_double_payment_and_a_cancellation(
    visitors: Visitors, instance: Instance, item: Item, orders: dict[str, str]
) -> None:
    """The payment that was one too many is given back by its name; a held order is cancelled."""
    page = opened(visitors, instance, item)
    page.get_by_role("button", name=orders["dan"].rpartition("~")[0]).click()
    page.get_by_role("list", name="Payments").get_by_role("button", name="Note as given back").click()
    page.get_by_role("button", name="Note the refund").click()
    expect(page.locator("#done")).to_have_text("The refund is noted.")
    row = page.get_by_role("row", name=re.compile("dan"))
    expect(row.locator(".what")).to_have_text(re.compile(r"second payment: €4\.99 given back$"))
    expect(row.locator(".pill")).to_have_text(re.compile("^paid"))
    page.get_by_role("button", name=orders["ann"].rpartition("~")[0]).click()
    page.get_by_role("button", name="Cancel the order").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the order").click()
    expect(page.locator("#done")).to_have_text("Cancelled.")
    has(page, "ann", "bob", "cy", "dan")
    expect(page.locator("#orders .pill").first).to_contain_text("cancelled")


class Refuser(BaseHTTPRequestHandler):
    """A shop that refuses the first refund that it is asked for, and makes the next one."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        asked: set[str] = self.server.asked  # type: ignore[attr-defined]
        asked.add(self.headers["webhook-id"])
        body = b'{"outcome": "refunded"}'
        self.send_response(422 if len(asked) == 1 else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def refuser() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuser) as server:
        server.asked = set()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_each_refund_is_told_once_in_its_currency(start: Start, visitors: Visitors, refuser: str) -> None:
    """One of another currency, which failed, and was tried again: the row, the account and the steps say so."""
    instance = start(alone="7", extension="lab.rehearsal", refunds=refuser, webhook_secret=SECRET)
    item = Item(instance, 300)
    item.terms(price=499, currency="EUR")
    order = hold(instance, item, "ann")
    pay(instance, order, "p-xts", 499, "XTS")
    pay(instance, order, "p-eur", 499)

    def stands() -> str:
        return str(item.orders()[0]["payments"][0]["refunds"][-1]["state"])

    eventually(lambda: stands() == "failed", "the refund has failed")
    page = opened(visitors, instance, item)
    row = page.get_by_role("row", name=re.compile("ann"))
    expect(row.locator(".need")).to_have_text(re.compile(r"^XTS.4\.99 owed, a refund has failed$"))
    row.get_by_role("button").click()
    payments = page.get_by_role("list", name="Payments")
    expect(payments).to_contain_text("failed")
    expect(payments).to_contain_text("answered 422")
    payments.get_by_role("button", name="Try again").click()
    page.get_by_role("dialog", name="Try again?").get_by_role("button", name="Try again").click()
    expect(page.locator("#done")).to_have_text("The cashier is asked.")
    eventually(lambda: stands() == "given", "it is given back")
    page.reload()
    expect(payments.locator("li li .happened")).to_have_text([re.compile(r"^given back XTS.4\.99$")])
    expect(payments.get_by_role("button")).to_have_count(0)
    taken = page.locator("#steps .amount").filter(has_text="\u2212")
    expect(taken).to_have_text([re.compile(r"^\u2212XTS.4\.99$")])
    expect(page.locator("#orders .need")).to_have_count(0)
    expect(page.locator("#orders .what .small")).to_have_text(re.compile(r"^wrong payment: XTS.4\.99 given back$"))
    expect(page.locator("#life-money")).to_have_text(
        re.compile(r"^€4\.99 \+ XTS.4\.99 paid · XTS.4\.99 given back · €4\.99 kept$")
    )


def test_the_cashier_gives_money_back(start: Start, visitors: Visitors, refuser: str) -> None:
    """With a cashier the page has it given back: some units, or an amount, and says how it went; noting is second."""
    instance = start(alone="8", extension="lab.rehearsal", refunds=refuser, webhook_secret=SECRET)
    item = Item(instance, 300)
    item.terms(price=499, currency="EUR")
    order = hold(instance, item, "ann", quantity=3)
    pay(instance, order, "p-ann", 3 * 499)
    page = opened(visitors, instance, item)
    page.get_by_role("row", name=re.compile("ann")).get_by_role("button").click()
    payments = page.get_by_role("list", name="Payments")
    page.get_by_role("button", name="Refund", exact=True).click()
    dialog = page.get_by_role("dialog", name="Give €14.97 back?")
    expect(dialog).to_contain_text("gives it back to ann, of payment p-ann.")
    page.get_by_role("radio", name="Some units").check()
    expect(page.get_by_role("dialog", name="Give €4.99 back?")).to_be_visible()
    page.get_by_role("button", name="Give €4.99 back").click()
    expect(page.locator("#done")).to_have_text("The cashier is asked to give €4.99 back.")
    expect(payments).to_contain_text("failed")  # without a reload: the shop has refused the first one
    payments.get_by_role("button", name="Try again").click()
    page.get_by_role("dialog", name="Try again?").get_by_role("button", name="Try again").click()
    expect(payments.locator("li li .happened")).to_have_text(["given back €4.99"])
    page.get_by_role("button", name="Refund", exact=True).click()
    page.get_by_role("radio", name="An amount").check()
    amount = page.get_by_role("textbox", name="An amount")
    for wrong, why in (("99.99", "There is €9.98 left"), ("1,499", "An amount such as")):
        amount.fill(wrong)
        page.locator("#refund-yes").click()
        assert why in amount.evaluate("field => field.validationMessage")
    amount.fill("2.50")
    page.get_by_role("button", name="It was given back: note it").click()
    expect(page.locator("#done")).to_have_text("The refund is noted.")
    expect(page.locator("#life-money")).to_have_text("€14.97 paid · €7.49 given back · €7.48 kept")
    refunds = item.orders()[0]["payments"][0]["refunds"]
    assert [(one["amount"], one["units"], one["way"]) for one in refunds] == [(499, 1, "provider"), (250, 0, "noted")]


def test_the_export_is_a_link(visitors: Visitors, instance: Instance, item: Item, orders: dict[str, str]) -> None:
    """The file has what the filter shows."""
    assert orders
    page = opened(visitors, instance, item)
    has(page, "ann", "bob", "cy", "dan")
    show(page, "Held")
    has(page, "ann", "cy")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename == f"orders-{item.sku}.csv"
    assert len(download.value.path().read_text().splitlines()) == 3


def test_it_turns_pages(visitors: Visitors, instance: Instance, item: Item) -> None:
    """Fifty on a page, forth and back."""
    for number in range(51):
        hold(instance, item, f"b{number}")
    page = opened(visitors, instance, item)
    expect(page.locator("#orders [data-order]")).to_have_count(50)
    page.get_by_role("button", name="Next page").click()
    has(page, "b50")
    page.get_by_role("button", name="Previous page").click()
    expect(page.locator("#orders [data-order]")).to_have_count(50)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_it_can_be_read(
    visitors: Visitors, instance: Instance, item: Item, orders: dict[str, str], scheme: str, width: int, height: int
) -> None:
    """It fits each screen, and every text has contrast, in light and dark, and in Chinese."""
    options = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
    page = opened(visitors, instance, item, **options)
    page.get_by_role("button", name=orders["dan"].rpartition("~")[0]).click()
    expect(page.locator("#life")).to_be_visible()
    assert fits(page)
    assert min(contrasts(page), key=lambda one: one[1])[1] >= LOWEST
    page.goto(f"{instance.url}/control/orders?sku={item.sku}&lang=zh")
    expect(page.locator("#orders [data-order]")).to_have_count(4)
    assert fits(page)


def test_a_stranger_is_led_to_the_door(visitors: Visitors, instance: Instance) -> None:
    """Nobody sees orders without the token."""
    page = visitors.visit(f"{instance.url}/control/orders?sku=x")
    expect(page).to_have_url(re.compile("/control/login"))
    assert httpx.get(f"{instance.url}/orders", headers={"Authorization": f"Bearer {TOKEN}x"}).status_code == 401
    assert httpx.get(f"{instance.url}/orders", headers=OPERATOR).status_code == 200


def test_events_that_did_not_leave(start: Start, visitors: Visitors) -> None:
    """An operator sees the order that the shop's end refuses, and has it tried again, and events of a moment sent."""
    nobody = {"webhook_url": f"http://127.0.0.1:{free_port()}/", "webhook_secret": SECRET}
    # Alone: the events of other tests' orders would be tried before, and then nothing for ten minutes.
    instance = start(alone="5", extension="lab.rehearsal", webhook_retry_s=600, **nobody)
    item = Item(instance, 300)
    item.terms(price=499, currency="EUR")
    order = hold(instance, item, "ann")
    page = visitors.visit(item.room(instance))
    page.get_by_role("link", name="Events").click()
    region = page.get_by_role("main")
    row = region.get_by_role("row", name=re.compile(re.escape(order.rpartition("~")[0])))
    expect(row).to_contain_text("waits, next try", timeout=120_000)
    expect(row).to_contain_text("no connection")
    assert order.rpartition("~")[2] not in page.content()
    assert fits(page)
    assert min(contrasts(page), key=lambda one: one[1])[1] >= LOWEST
    asked = f"Events of {item.sku} are sent again within some seconds."
    row.get_by_role("button", name="Try again").click()
    shows(page, replay_said=asked.replace(item.sku, order.rpartition("~")[0]))
    region.get_by_role("button", name="Try all of these again").click()
    shows(page, replay_said=asked)
    region.get_by_label("Since").fill("2026-01-01T00:00:00")
    region.get_by_role("button", name="Send again").click()
    shows(page, replay_said=asked)
    row.get_by_role("link").click()
    expect(page.locator("#life-title")).to_contain_text(order.rpartition("~")[0])


def test_events_of_several_receivers(start: Start, visitors: Visitors) -> None:
    """Each order is listed with the receiver that did not get it, and one of them can be asked for."""
    nobody = f"http://127.0.0.1:{free_port()}/"
    instance = start(
        alone="6",
        extension="lab.rehearsal",
        webhook_retry_s=600,
        webhook_url=f"{nobody} {nobody}#name=erp",
        webhook_secret=SECRET,
    )
    item = Item(instance, 300)
    item.terms(price=499, currency="EUR")
    order = hold(instance, item, "ann")
    page = visitors.visit(item.room(instance))
    page.get_by_role("link", name="Events").click()
    region = page.get_by_role("main")
    rows = region.get_by_role("row", name=re.compile(re.escape(order.rpartition("~")[0])))
    expect(rows).to_have_count(2, timeout=120_000)
    expect(rows.filter(has=page.get_by_role("cell", name="erp", exact=True))).to_have_count(1)
    expect(rows.filter(has=page.get_by_role("cell", name="default", exact=True))).to_have_count(1)
    assert fits(page)
    with page.expect_request("**/control/replay*") as asked:
        region.get_by_label("Receiver").select_option("erp")
        region.get_by_role("button", name="Try all of these again").click()
    assert asked.value.post_data_json == {"receiver": "erp"}
    shows(page, replay_said=f"Events of {item.sku} are sent again within some seconds.")
