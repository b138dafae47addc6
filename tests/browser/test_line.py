"""A place in line on the shop page, in a real browser: wait, be offered a unit, pay for it or leave."""

import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from lab.demo.provider import PRICE, ProviderProcess
from lab.servers.process import free_port
from tests.browser.conftest import Item, Start
from tests.harness.browser import Visitors, contrasts, fits, shows
from tests.harness.shop import Instance

pytestmark = pytest.mark.slow

PHONE = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
MAY_COME = r"some may come back|the first may come back at \d+:\d\d"


@pytest.fixture(scope="module")
def shop(start: Start) -> Iterator[Instance]:
    """An instance whose page sends buyers to a provider."""
    provider = ProviderProcess(port=free_port())
    variables = {name.lower(): value for name, value in provider.variables.items()}
    found = start(extension="lab.rehearsal", grace_s=0.5, audit_interval_s=1, **variables)
    with provider.of([found.url]):
        yield found


@pytest.fixture
def item(shop: Instance) -> Item:
    """The last unit of something with a price."""
    found = Item(shop, 1)
    found.terms(**PRICE)
    return found


def press(page: Page, text: str) -> None:
    """Press the main button once it says so."""
    expect(page.locator("#buy")).to_have_text(text)
    expect(page.locator("#buy")).to_be_enabled()
    page.locator("#buy").click()


def states(item: Item) -> list[str]:
    return sorted(str(one["state"]) for one in item.orders())


def reads_well(page: Page) -> bool:
    return fits(page) and min(ratio for _, ratio in contrasts(page)) >= 4.5


def test_wait_and_pay(shop: Instance, item: Item, visitors: Visitors) -> None:
    """The place is there after a reload; a unit that comes back is held for whoever is first; nobody overtakes."""
    holder, first, second = (visitors.visit(item.at(shop), **PHONE) for _ in range(3))
    press(holder, "Buy one for CN¥199.00")
    shows(holder, headline="It's held for you")
    shows(first, phase="All units are held", moment=re.compile("not everybody pays$"))
    press(first, "Wait in line")
    for _ in range(2):
        shows(first, phase="You are next in line", headline="You have a place in line", buy="You are in line")
        shows(first, moment=re.compile(f"^1 unit is held by others; ({MAY_COME})$"), cancel="Leave the line")
        expect(first.locator("#buy")).to_be_disabled()
        assert reads_well(first)
        first.reload()
    shows(second, moment=re.compile(r"not everybody pays · 1 in line$"))
    press(second, "Wait in line")
    shows(second, phase="You are number 2 in line")
    assert states(item) == ["held", "waiting", "waiting"]
    holder.locator("#cancel").click()
    shows(holder, headline="Given back", buy="Wait in line")
    for _ in range(2):
        shows(first, phase="It's your turn: pay within", headline="A unit has come back for you", buy="Pay CN¥199.00")
        expect(first).to_have_title(re.compile("^It's your turn · "))
        assert reads_well(first)
        first.reload()
    shows(second, phase="You are next in line")
    press(first, "Pay CN¥199.00")
    first.locator("button[value=pay]").click()
    shows(first, headline="Paid. It's yours!")
    assert states(item) == ["cancelled", "confirmed", "waiting"]


def test_on_another_device(shop: Instance, item: Item, visitors: Visitors) -> None:
    """Whoever has the link of a place finds it there the next morning, pays for what comes back, or leaves."""
    holder, page = (visitors.visit(item.at(shop)) for _ in range(2))
    press(holder, "Buy one for CN¥199.00")
    press(page, "Wait in line")
    shows(page, phase="You are next in line")
    expect(page.get_by_role("button", name="Copy the address of your place")).to_be_visible()
    link = str(page.evaluate("document.querySelector('#order a').href"))
    other = visitors.visit(link, **PHONE)
    shows(other, state="You are next in line", remark=re.compile(f"^1 unit is held by others; ({MAY_COME})$"))
    shows(other, quantity="1", amount="CN¥199.00", back="Go to your place")
    assert reads_well(other)
    other.locator("#back").click()
    shows(other, phase="You are next in line", cancel="Leave the line")
    holder.locator("#cancel").click()
    for one in (page, other):
        shows(one, phase=re.compile("^It's your turn: pay within$|^Held for you: pay within$"), buy="Pay CN¥199.00")
    other.goto(link)
    shows(other, state="Held, not paid yet", until=re.compile(r"\d+:\d\d"), back="Go on to pay")
    assert reads_well(other)
    other.locator("#back").click()
    press(other, "Pay CN¥199.00")
    other.locator("button[value=pay]").click()
    for one in (page, other):
        shows(one, headline="Paid. It's yours!")
    assert states(item) == ["cancelled", "confirmed"]


def test_an_order_that_never_came_to_be_held(shop: Instance, item: Item, visitors: Visitors) -> None:
    """Its page doesn't say that it was bought, or not paid in time."""
    holder, page = (visitors.visit(item.at(shop)) for _ in range(2))
    press(holder, "Buy one for CN¥199.00")
    press(page, "Wait in line")
    link = str(page.locator("#order a").get_attribute("href"))
    page.locator("#cancel").click()
    shows(page, headline="You are no longer in line")
    page.goto(f"{shop.url}{link}")
    shows(page, state="No longer in line", remark=re.compile("Nothing was bought.$"), back="Back to the item")
    page.goto(f"{shop.url}{link}&lang=zh")
    shows(page, state="已不在队中", back="返回商品页")


def test_leave(shop: Instance, item: Item, visitors: Visitors) -> None:
    """Whoever leaves reads so, in another tab, too, and may wait again behind those who have come since."""
    holder, page, other = (visitors.visit(item.at(shop)) for _ in range(3))
    press(holder, "Buy one for CN¥199.00")
    press(page, "Wait in line")
    shows(page, phase="You are next in line")
    press(other, "Wait in line")
    shows(other, phase="You are number 2 in line")
    tab = page.context.new_page()
    tab.goto(item.at(shop))
    shows(tab, phase="You are next in line")
    tab.locator("#cancel").click()
    for one in (tab, page):
        shows(one, headline="You are no longer in line", phase="All units are held")
    press(page, "Wait in line")
    for one in (page, tab):
        shows(one, phase="You are number 2 in line")
    shows(other, phase="You are next in line")


def test_all_others_have_paid(shop: Instance, item: Item, visitors: Visitors) -> None:
    """Then nothing is expected, and said to be; a unit that an operator adds is offered all the same."""
    holder, page = (visitors.visit(item.at(shop)) for _ in range(2))
    press(holder, "Buy one for CN¥199.00")
    press(page, "Wait in line")
    press(holder, "Pay CN¥199.00")
    holder.locator("button[value=pay]").click()
    shows(holder, headline="Paid. It's yours!")
    shows(page, moment=re.compile("^All others are paid for"))
    item.set(1, add=True)
    shows(page, phase="It's your turn: pay within", buy="Pay CN¥199.00")


def test_the_sale_ends(shop: Instance, item: Item, visitors: Visitors) -> None:
    """The line ends with it; a buyer who comes back later reads that once."""
    holder, page = visitors.visit(item.at(shop)), visitors.visit(item.at(shop), locale="zh-CN")
    press(holder, "Buy one for CN¥199.00")
    press(page, "排队等候")
    shows(page, phase="下一位就是您", cancel=re.compile("^不排了"))
    item.terms(ends_at=time.time() + 1)
    shows(page, phase="活动已结束", buy="已结束")  # before the page hears what became of the place, too
    expect(page.locator("#cancel")).to_be_hidden()
    shows(page, headline=re.compile("^活动结束"))
    page.reload()
    shows(page, headline="", phase="活动已结束")
