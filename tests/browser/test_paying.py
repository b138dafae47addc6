"""The shop where units are held and paid, with a pretended payment provider, in a real browser."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from lab.demo.provider import BESIDE, PRICE, ProviderProcess
from lab.servers.process import free_port
from tests.browser.conftest import OPERATOR, Item, Start
from tests.harness.browser import Visitors, contrasts, fits, shows
from tests.harness.shop import Instance
from tests.harness.waiting import eventually

pytestmark = pytest.mark.slow

SIZES: tuple[dict[str, Any], ...] = (
    {"viewport": {"width": 1440, "height": 900}},
    {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
)


@pytest.fixture(scope="module")
def till(start: Start) -> Iterator[tuple[Instance, ProviderProcess]]:
    """An instance whose page sends buyers to a provider, and the provider."""
    provider = ProviderProcess(port=free_port())
    variables = {name.lower(): value for name, value in provider.variables.items()}
    shop = start(extension="lab.rehearsal", grace_s=0.5, audit_interval_s=1, **variables)
    with provider.of([shop.url]):
        yield shop, provider


@pytest.fixture
def shop(till: tuple[Instance, ProviderProcess]) -> Instance:
    return till[0]


def priced(shop: Instance, stock: int = 3, **terms: float) -> Item:
    item = Item(shop, stock)
    item.terms(**PRICE, **terms)
    return item


def outcome(page: Page) -> Locator:
    return page.locator(".outcome").get_by_role("status")


def press(page: Page, text: str | re.Pattern[str]) -> None:
    """Press the main button once it says so."""
    expect(page.locator("#buy")).to_have_text(text)
    expect(page.locator("#buy")).to_be_enabled()
    page.locator("#buy").click()


def holds(page: Page) -> None:
    press(page, re.compile("^Buy one"))
    expect(outcome(page)).to_contain_text("It's held for you")


def goes_to_pay(page: Page, how: str) -> None:
    press(page, "Pay CN¥199.00")
    page.locator(f"button[value={how}]").click()


def hold_of(page: Page, item: Item) -> str:
    """Return the hold that the browser keeps for its guest."""
    name = page.evaluate("JSON.parse(localStorage.getItem('seckill.buyer'))")
    kept = page.evaluate("name => JSON.parse(localStorage.getItem(name))", f"seckill.hold.{item.sku}.{name}")
    return str(kept["id"])


def levels(shop: Instance, item: Item) -> tuple[int, int, int]:
    found = httpx.get(f"{shop.url}/stock", params={"sku": item.sku}).json()
    return found["stock"], found["held"], found["lucky"]


@pytest.mark.parametrize("size", SIZES, ids=["wide", "phone"])
def test_hold_and_pay_with_a_reload_at_each_step(shop: Instance, visitors: Visitors, size: dict[str, Any]) -> None:
    """The page says the same before and after a reload: held, waiting, paid with the order's number."""
    item = priced(shop)
    page = visitors.visit(item.at(shop), **size)
    holds(page)
    for reloaded in (False, True):
        if reloaded:
            page.reload()
        expect(outcome(page)).to_contain_text("It's held for you")
        shows(
            page, phase="Held for you: pay within", countdown=re.compile(r"^(09:[0-5]\d|10:00)$"), buy="Pay CN¥199.00"
        )
        assert [(text, ratio) for text, ratio in contrasts(page) if ratio < 4.5] == []
        assert fits(page)
    press(page, "Pay CN¥199.00")
    expect(page.get_by_role("heading", name="Payment")).to_be_visible()
    assert fits(page)
    page.goto(item.at(shop))  # without having paid: by hand, or in another window
    shows(page, headline="Waiting for your payment")
    page.reload()
    shows(page, headline="Waiting for your payment")
    goes_to_pay(page, "pay")
    shows(page, headline="Paid. It's yours!")
    for _ in range(2):
        shows(page, headline="Paid. It's yours!", left="2", buy="Buy one more for CN¥199.00")
        expect(page.locator("#order a")).to_have_text(re.compile("^[0-9A-F]{4}-[0-9A-F]{4}$"))
        expect(page.get_by_role("region", name="Your orders").get_by_role("listitem")).to_have_count(1)
        page.reload()
    assert levels(shop, item) == (2, 0, 1)


def test_the_time_runs_out_and_the_buyer_tries_again(shop: Instance, visitors: Visitors) -> None:
    """The page asks the service what became of the hold, and then the button holds another unit."""
    item = priced(shop, 1, hold_s=1, pay_s=1)
    page = visitors.visit(item.at(shop))
    press(page, re.compile("^Buy one"))
    shows(page, headline="The time to pay has run out", left="1")
    page.reload()
    shows(page, headline="The time to pay has run out")
    item.terms(hold_s=600, pay_s=600)
    press(page, "Try again")
    shows(page, headline="It's held for you")
    page.locator("#cancel").click()
    shows(page, headline="Given back", left="1", buy=re.compile("^Buy one"))
    assert levels(shop, item) == (1, 0, 0)


def test_another_amount_is_paid(shop: Instance, visitors: Visitors) -> None:
    """The page says so, the unit stays held, and the price can still be paid."""
    item = priced(shop)
    page = visitors.visit(item.at(shop))
    holds(page)
    hold_id = hold_of(page, item)
    paid = {"payment_ref": "half", "amount": 9950, "currency": "CNY"}
    answer = httpx.post(f"{shop.url}/holds/{hold_id}/confirm", json=paid)
    assert answer.json()["outcome"] == "amount_mismatch"
    shows(page, headline="That was not the price", buy="Pay CN¥199.00")
    assert levels(shop, item) == (2, 1, 0)
    goes_to_pay(page, "pay")
    shows(page, headline="Paid. It's yours!")


def test_two_tabs_show_one_hold(shop: Instance, visitors: Visitors) -> None:
    """Each tab shows what the other one does to the hold."""
    item = priced(shop)
    one = visitors.visit(item.at(shop))
    two = one.context.new_page()
    two.goto(item.at(shop))
    holds(one)
    shows(two, headline="It's held for you", buy="Pay CN¥199.00")
    assert levels(shop, item) == (2, 1, 0)
    two.locator("#cancel").click()
    shows(one, headline="Given back")
    assert levels(shop, item) == (3, 0, 0)


def test_money_that_is_too_much_or_too_late_comes_back(shop: Instance, visitors: Visitors) -> None:
    """A buyer who pays twice has one order, one who pays when the unit is gone has none; both read of a refund."""
    item = priced(shop, 2)
    page = visitors.visit(item.at(shop))
    holds(page)
    goes_to_pay(page, "twice")
    expect(outcome(page)).to_contain_text("You paid more than once")
    item.terms(hold_s=8, pay_s=8)
    late = visitors.visit(item.at(shop))
    press(late, re.compile("^Buy one"))
    goes_to_pay(late, "late")
    wish = {"sku": item.sku, "buyer": "zoe"}  # who presses all the time, and is faster than the payment
    eventually(
        lambda: (
            late.wait_for_timeout(50)
            or httpx.post(f"{shop.url}/holds", json=wish).headers["X-Seckill-Outcome"] == "held"
        ),
        "the unit is somebody else's",
    )
    shows(late, headline="Your money comes back")
    assert levels(shop, item) == (0, 1, 1)


def test_a_payment_that_may_be_on_its_way_is_waited_for(shop: Instance, visitors: Visitors) -> None:
    """After the buyer went to pay, the page neither says that nothing was charged, nor lets them pay a second time."""
    item = priced(shop, hold_s=15, pay_s=15)
    page = visitors.visit(item.at(shop))
    press(page, re.compile("^Buy one"))
    press(page, "Pay CN¥199.00")
    expect(page.get_by_role("heading", name="Payment")).to_be_visible()
    page.goto(item.at(shop))
    shows(page, headline="The time to pay has run out", buy="One moment …")
    expect(outcome(page)).to_contain_text("If you have paid, don't pay again")
    expect(page.locator("#buy")).to_be_disabled()
    hold_id = hold_of(page, item)
    paid = {"payment_ref": "late", "amount": 19_900, "currency": "CNY"}
    assert httpx.post(f"{shop.url}/holds/{hold_id}/confirm", json=paid).json()["outcome"] == "confirmed"
    shows(page, headline="Paid. It's yours!")


def test_an_app_that_pays_leaves_the_page_alive(shop: Instance, visitors: Visitors) -> None:
    """Where the provider's address opens no page, the buyer may try again or give back, and sees what was paid."""
    item = priced(shop)
    page = visitors.visit(item.at(shop))
    page.route("**/?hold=*", lambda route: route.fulfill(status=204))
    holds(page)
    press(page, "Pay CN¥199.00")
    shows(page, headline="Waiting for your payment", buy="Pay CN¥199.00")
    for button in ("#buy", "#cancel"):
        expect(page.locator(button)).to_be_enabled()
    paid = {"payment_ref": "app", "amount": 19_900, "currency": "CNY"}
    httpx.post(f"{shop.url}/holds/{hold_of(page, item)}/confirm", json=paid).raise_for_status()
    shows(page, headline="Paid. It's yours!", buy="Buy one more for CN¥199.00")
    expect(page.locator("#buy")).to_be_enabled()


def test_several_units_are_held_and_paid(shop: Instance, visitors: Visitors) -> None:
    """The button says the price of all of them; the order's page is told of the payment without a reload."""
    item = priced(shop, 5)
    page = visitors.visit(item.at(shop))
    expect(page.locator("#buy")).to_be_enabled()
    page.get_by_role("button", name="One more").click()
    press(page, "Buy 2 for CN¥398.00")
    shows(page, headline="2 are held for you", buy="Pay CN¥398.00", left="3")
    hold_id = hold_of(page, item)
    order = page.context.new_page()
    order.goto(f"{shop.url}/shop/order?id={hold_id}")
    shows(order, state="Held, not paid yet", quantity="2", amount_title="To pay", amount="CN¥398.00")
    paid = {"payment_ref": "both", "amount": 39_800, "currency": "CNY"}
    httpx.post(f"{shop.url}/holds/{hold_id}/confirm", json=paid).raise_for_status()
    shows(order, state="Bought", amount_title="Paid", amount="CN¥398.00")


@pytest.mark.parametrize("size", SIZES, ids=["wide", "phone"])
def test_a_basket(shop: Instance, visitors: Visitors, size: dict[str, Any]) -> None:
    """A lamp and two bulbs are refused by name, held with one deadline and one sum, paid once, and one order."""
    lamp, bulb = Item(shop, 5, "default"), Item(shop, 4, "bulb")
    lamp.terms(**PRICE)
    bulb.terms(**BESIDE["bulb"][1], limit_per_buyer=2)
    page = visitors.visit(f"{shop.url}/", **size)
    beside = page.locator("#beside")
    expect(beside.locator(".name")).to_have_text(["Spare bulb"])
    more = beside.get_by_role("button", name="One more")
    more.click()
    more.click()
    expect(more).to_be_disabled()  # that is all that one may have
    expect(page.locator("#buy")).to_have_text("Buy all for CN¥257.00")
    assert [(text, ratio) for text, ratio in contrasts(page) if ratio < 4.5] == []
    assert fits(page)
    page.evaluate("localStorage.setItem('seckill.buyer', '\"ann\"')")
    one = httpx.post(f"{shop.url}/holds", json={"sku": "bulb", "buyer": "ann"}).json()["id"]
    press(page, "Buy all for CN¥257.00")
    shows(page, headline="Spare bulb: You have your share", detail=re.compile("nothing is held"))
    assert (levels(shop, lamp), levels(shop, bulb)) == ((5, 0, 0), (3, 1, 0))
    httpx.post(f"{shop.url}/holds/{one}/cancel").raise_for_status()
    press(page, "Buy all for CN¥257.00")
    for _ in range(2):
        shows(page, headline="3 are held for you", buy="Pay CN¥257.00", moment=re.compile(r"^CN¥257\.00 · until"))
        expect(page.locator("#lines li")).to_have_text(
            ["2 \u00d7 Spare bulbCN¥58.00", "1 \u00d7 Brass reading lampCN¥199.00"]
        )
        expect(beside).to_be_hidden()
        assert fits(page)
        page.reload()
    hold_id = hold_of(page, lamp)
    press(page, "Pay CN¥257.00")
    expect(page.locator("dd").first).to_have_text("Spare bulb, 2 units; Brass reading lamp, 1 unit")
    page.locator("button[value=pay]").click()
    shows(page, headline="Paid. It's yours!", buy="Buy one more for CN¥199.00")
    assert (levels(shop, lamp), levels(shop, bulb)) == ((4, 0, 1), (2, 0, 2))
    page.goto(f"{shop.url}/shop/order?id={hold_id}")
    shows(page, state="Bought", item="Basket of 2 items", amount_title="Paid", amount="CN¥257.00")
    expect(page.locator("#lines li")).to_have_count(2)
    assert fits(page)


def test_a_price_without_a_way_to_pay(start: Start, visitors: Visitors) -> None:
    """The page shows it, and leaves the sale to the shop that holds and takes the money."""
    shop = start()
    item = priced(shop)
    page = visitors.visit(item.at(shop))
    shows(page, price="CN¥199.00", buy="Sold in the shop")
    expect(page.locator("#buy")).to_be_disabled()
    assert levels(shop, item) == (3, 0, 0)


@pytest.mark.parametrize("size", SIZES, ids=["wide", "narrow and dark"])
def test_the_sandbox(till: tuple[Instance, ProviderProcess], visitors: Visitors, size: dict[str, Any]) -> None:
    """A hold is begun and a bad day played by two presses; the page fits, and can be read."""
    shop, provider = till
    httpx.put(f"{shop.url}/stock", json={"stock": 3, **PRICE}, headers=OPERATOR).raise_for_status()
    page = visitors.visit(f"{provider.url}/sandbox", **size)
    page.get_by_role("button", name="Hold one more").click()
    page.get_by_role("button", name=re.compile("^Pay twice")).click()
    expect(page.locator("article")).to_contain_text("200 duplicate_payment")
    expect(page.locator("dd").first).to_have_text("Brass reading lamp, 1 unit")
    expect(page.locator("article")).to_contain_text(re.compile(r"confirmed; 199\.00 CNY of pay_\w+ is owed"))
    assert fits(page)
    assert min(ratio for _, ratio in contrasts(page)) >= 4.5
