"""The control room as operators use it, in a real browser: they look, press, lose the connection, have no mouse."""

import itertools
import re
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from lab.servers import EtcdMember, Valkey
from tests.browser.conftest import Start
from tests.harness.browser import Visitors, contrasts, drawn, fits
from tests.harness.shop import TOKEN, Instance
from tests.harness.waiting import eventually

pytestmark = pytest.mark.slow

OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
TTL_S = 2
DESK: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}}
SMALL_PHONE: dict[str, Any] = {"viewport": {"width": 320, "height": 568}}

_numbers = itertools.count(1)


class Item:
    """Something to sell, which no other test sells; at any of some instances."""

    def __init__(self, instance: Instance, stock: int) -> None:
        self._url = instance.url
        self.sku = f"control-{next(_numbers)}"
        self.set(stock)

    def set(self, stock: int) -> None:
        change = {"stock": stock}
        httpx.put(f"{self._url}/stock", params={"sku": self.sku}, json=change, headers=OPERATOR).raise_for_status()

    def link(self, instance: Instance) -> str:
        """What opens its control room to whoever has it."""
        return f"{instance.url}/control?sku={self.sku}&token={TOKEN}"

    def orders(self) -> int:
        """How many there are."""
        answer = httpx.get(f"{self._url}/orders", params={"sku": self.sku, "limit": 1000}, headers=OPERATOR)
        return len(answer.raise_for_status().json()["orders"])


HISTORY = "import(new URL('history.js', document.querySelector('script[type=module]').src))"  # what the page remembers


@pytest.fixture(scope="module")
def pair(start: Start) -> tuple[Instance, Instance]:
    """Two instances of one sale, whose leases end soon."""
    return start(lock_ttl_s=TTL_S, rehearsal=True), start(lock_ttl_s=TTL_S, rehearsal=True)


@pytest.fixture
def item(pair: tuple[Instance, Instance]) -> Item:
    return Item(pair[0], 300)


@pytest.fixture
def room(pair: tuple[Instance, Instance], item: Item, visitors: Visitors) -> Page:
    """The first instance's page of the item."""
    return live(visitors.visit(item.link(pair[0]), **DESK))


def live(page: Page) -> Page:
    expect(page.locator("#connection")).to_contain_text("live")
    return page


def figure(page: Page, name: str) -> Locator:
    return page.locator(f"#{name}")


def number_of(locator: Locator) -> int:
    return int((locator.text_content() or "").replace(",", ""))


def row(page: Page, instance: Instance) -> Locator:
    """What is said of an instance."""
    return page.get_by_role("region", name="Instances").get_by_role("row", name=str(instance.port))


def rush(page: Page, buyers: int, over_s: float = 0) -> None:
    page.get_by_role("spinbutton", name="buyers").fill(str(buyers))
    page.get_by_role("spinbutton", name="over seconds").fill(str(over_s))
    page.get_by_role("button", name="Send buyers").click()
    expect(page.locator("#rush-said")).to_contain_text("on their way")


def pause(page: Page) -> None:
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator("#pause-said")).to_contain_text("will stand still")


def events(page: Page) -> Locator:
    return page.get_by_role("region", name="Events").get_by_role("listitem")


def sold_to(page: Page, item: Item, buyers: int) -> None:
    """Wait until so many were sold to; the figures say so, and the auditor agrees."""
    expect(figure(page, "lucky")).to_have_text(str(buyers), timeout=30_000)
    expect(figure(page, "waiting")).to_have_text("0")
    assert item.orders() == buyers
    expect(figure(page, "looked")).to_contain_text(re.compile(r"\d+ orders"), timeout=30_000)
    expect(figure(page, "verdict")).to_have_text("consistent")


# -- the door ---------------------------------------------------------------------------------------------------------


def test_the_link_opens_it(pair: tuple[Instance, Instance], item: Item, visitors: Visitors) -> None:
    """It shows the item that the link names. No token is left where it could be read: in address, cookie or storage."""
    page = live(visitors.visit(item.link(pair[0])))
    assert page.url == f"{pair[0].url}/control?sku={item.sku}"
    expect(page.get_by_role("combobox", name="Item")).to_have_value(item.sku)
    expect(figure(page, "stock")).to_have_text("300")
    (cookie,) = page.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"
    assert TOKEN not in cookie["value"]
    assert (
        page.evaluate("document.cookie + JSON.stringify({...localStorage}) + JSON.stringify({...sessionStorage})")
        == "{}{}"
    )
    page.reload()
    live(page)
    assert TOKEN not in page.content()
    # The other instance, to which a browser sends the same cookie, knows it too.
    page.goto(f"{pair[1].url}/control?sku={item.sku}")
    live(page)


def test_the_door(pair: tuple[Instance, Instance], visitors: Visitors) -> None:
    """A visitor is asked for the token; a wrong one is refused, the right one opens the room, leaving closes it."""
    page = visitors.visit(f"{pair[0].url}/control")
    assert page.url == f"{pair[0].url}/control/login"
    token = page.get_by_label("Admin token")
    expect(token).to_be_focused()
    expect(page.get_by_role("alert")).to_be_hidden()
    page.keyboard.type("open-barley")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("That is not the token.")
    expect(token).to_have_attribute("aria-invalid", "true")
    token.fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    live(page)
    assert page.url == f"{pair[0].url}/control"
    page.get_by_role("button", name="Leave").click()
    expect(page.get_by_label("Admin token")).to_be_visible()
    assert page.context.cookies() == []
    page.goto(f"{pair[0].url}/control")
    expect(page.get_by_label("Admin token")).to_be_visible()


def test_a_wrong_link(pair: tuple[Instance, Instance], visitors: Visitors) -> None:
    """It leads to the door, and its token doesn't stay in the address either."""
    page = visitors.visit(f"{pair[0].url}/control?token=open-barley")
    expect(page.get_by_role("alert")).to_be_visible()
    assert "barley" not in page.url


def test_without_a_token_it_is_locked(start: Start, visitors: Visitors) -> None:
    """The page says what is missing."""
    instance = start(admin_token="")
    try:
        page = visitors.visit(f"{instance.url}/control")
        expect(page.get_by_role("heading", name="The control room is locked")).to_be_visible()
        expect(page.get_by_text("SECKILL_ADMIN_TOKEN=")).to_be_visible()
    finally:
        instance.terminate()  # it would be one of those to whom other tests send buyers


def test_a_session_ends(room: Page, visitors: Visitors) -> None:
    """When the session has ended, the next press leads to the door."""
    visitors.forgive("status of 401")
    room.context.clear_cookies()
    room.get_by_role("button", name="Send buyers").click()
    expect(room.get_by_label("Admin token")).to_be_visible()


# -- what it shows ----------------------------------------------------------------------------------------------------


def test_a_rush_moves_everything_everywhere(
    pair: tuple[Instance, Instance], item: Item, room: Page, visitors: Visitors
) -> None:
    """Both instances obey the buttons of one page, and the figures move on the pages of both."""
    other = live(visitors.visit(item.link(pair[1]), **DESK))
    sold_before = [number_of(row(room, instance).get_by_role("cell").nth(0)) for instance in pair]
    rush(room, 120, over_s=4)
    expect(room.locator("#rush-said")).to_contain_text(str(pair[0].port))
    expect(room.locator("#rush-said")).to_contain_text(str(pair[1].port))
    for page in (room, other):
        expect(figure(page, "rate")).not_to_have_text("0")
        expect(page.get_by_role("img", name=re.compile("Units sold per second"))).to_be_visible()
    for page in (room, other):
        sold_to(page, item, 120)
        expect(figure(page, "stock")).to_have_text("180")
        expect(figure(page, "of")).to_have_text("of 300 left")
        expect(figure(page, "share")).to_have_text("40 % sold")
        expect(page.get_by_role("img", name=re.compile("stock 180, sold 120"))).to_be_visible()
        for instance, before in zip(pair, sold_before, strict=True):
            expect(row(page, instance).get_by_role("cell").nth(0)).to_have_text(str(before + 60))
            expect(row(page, instance).get_by_role("cell").nth(2)).to_have_text("lock")
            expect(row(page, instance)).to_contain_text("ready")
            expect(events(page).filter(has_text=f"60 buyers came to {instance.port}: 60 sold")).to_have_count(1)
        grants = page.get_by_role("region", name="Last grants")
        assert grants.get_by_role("row").count() > 5
        expect(page.locator("#line")).to_contain_text("Nobody holds the lock. Last:")
        expect(figure(page, "rate")).to_have_text("0")
    expect(row(room, pair[0])).to_contain_text("this page")
    expect(row(other, pair[1])).to_contain_text("this page")


def test_an_instance_has_one_colour(pair: tuple[Instance, Instance], room: Page) -> None:
    """It has the same colour wherever it is named: in the table, at its curve, among the grants, at its events."""
    rush(room, 20)
    expect(events(room).filter(has_text="buyers came")).not_to_have_count(0)
    for instance in pair:
        name = str(instance.port)
        plates = room.locator(".nameplate", has_text=re.compile(f"^{name}$"))
        expect(plates).not_to_have_count(0)
        colours = {plate.get_attribute("data-colour") for plate in plates.all()}
        assert len(colours) == 1
    both = {row(room, instance).locator(".nameplate").get_attribute("data-colour") for instance in pair}
    assert len(both) == 2


def test_a_paused_holder_is_overtaken(
    pair: tuple[Instance, Instance], item: Item, room: Page, visitors: Visitors
) -> None:
    """The queue shows it: the next in line takes over, the late write is refused, and nothing is sold twice."""
    other = live(visitors.visit(item.link(pair[1]), **DESK))
    rush(room, 240, over_s=12)
    pause(room)
    said = room.locator("#pause-said").text_content() or ""
    paused, next_ = pair if said.startswith(str(pair[0].port)) else pair[::-1]
    for page in (room, other):
        holder = page.locator(".place[data-kind=holder]")
        expect(holder).to_contain_text("stands still")
        expect(holder).to_contain_text(str(paused.port))
        expect(holder).to_contain_text("lease:")
        waiter = page.locator(".place[data-kind=waiter]")
        expect(waiter).to_contain_text(str(next_.port))
        expect(waiter).to_contain_text("next")
        expect(row(page, paused)).to_contain_text("stands still")
    token = re.search(r"token (\d+)", room.locator(".place[data-kind=holder]").text_content() or "")
    assert token is not None
    card = room.locator(".place[data-kind=holder]").element_handle()
    for page in (room, other):
        ghost = page.locator(".place[data-kind=ghost]")
        expect(ghost).to_contain_text(f"{paused.port} believes that it still holds the lock (token {token[1]}).")
        expect(ghost).to_contain_text(f"{next_.port} has had it since")
        expect(ghost).to_contain_text("Its write will be refused.")
    assert card.get_attribute("data-kind") == "ghost"  # it is the same card: it has moved aside
    for page in (room, other):
        expect(events(page).filter(has_text=f"{paused.port} stands still for 5 s")).to_have_count(1)
        refused = f"The store refused a write of {paused.port} with token {token[1]}"
        expect(events(page).filter(has_text=refused)).to_have_count(1)
        lost = f"{paused.port} lost the lock while it believed in token {token[1]}"
        expect(events(page).filter(has_text=lost)).to_have_count(1)
        expect(page.locator(".place[data-kind=ghost]")).to_have_count(0)
    expect(room.locator("#news")).not_to_be_empty()  # to those who can't see it
    for page in (room, other):
        tells = [
            f"{paused.port} stands still for 5 s, just before it writes with token {token[1]}.",
            "its lease, and it has run out. It does not know.",
            f"{next_.port} has taken over",
            f"{paused.port} has woken up, and sends its write with token {token[1]}.",
            "The store refused it: a higher token was there already. Nothing was oversold. The guard worked.",
        ]
        expect(page.locator("#story li .words")).to_contain_text(tells)
        expect(page.locator("#story")).to_have_attribute("data-result", "good")
        expect(events(page).filter(has_text=f"{next_.port} took over from {paused.port}")).to_have_count(1)
        visitors.forgive("willReadFrequently")  # the browser's advice to this test
        # Lanes of both, and the shield.
        eventually(
            lambda page=page: {"29,95,209", "11,127,115", "29,125,63"} <= drawn(page, "lanes-plot"), "it is drawn"
        )
    expect(room.locator("#pause-said")).to_be_empty()  # it is not true any more
    sold_to(room, item, 240)
    expect(room.locator("#rush-said")).to_be_empty()
    room.locator("#story").get_by_role("button", name="Close").click()
    expect(room.locator("#story")).to_be_hidden()
    room.reload()
    live(room)
    expect(events(room).filter(has_text="took over")).to_have_count(1)
    expect(room.locator("#story")).to_be_hidden()  # it has been read
    expect(other.locator("#story")).to_be_visible()
    expect(room.get_by_role("region", name="Last grants").locator("[data-lost=true]")).to_have_count(0)  # long ago


@pytest.fixture
def bare(etcd: EtcdMember, visitors: Visitors) -> Iterator[Instance]:
    """One of two instances of a store that nothing guards."""
    options = {"lock_ttl_s": TTL_S, "guard": "none", "lock_prefix": "/bare/lock"}
    with (
        Valkey() as valkey,
        Instance(etcd.endpoint, valkey.url, **options) as one,
        Instance(etcd.endpoint, valkey.url, **options),
    ):
        yield one


def test_without_a_guard_the_same_story_ends_badly(bare: Instance, visitors: Visitors) -> None:
    """The store takes the late write; the page counts the units that are sold too often, and its light is red."""
    item = Item(bare, 2000)
    page = live(visitors.visit(item.link(bare), **DESK))
    rush(page, 400, over_s=16)
    pause(page)
    expect(page.locator("#story")).to_have_attribute("data-result", "bad", timeout=30_000)
    expect(page.locator("#story li .words").last).to_have_text(
        re.compile(r"The store took it. Nothing guards it: \d+ units too many are sold, or will be.")
    )
    expect(events(page).filter(has_text="The store took the late write")).to_have_count(1)
    expect(page.locator("#health")).to_have_text("The books don't add up", timeout=30_000)


def test_who_had_the_lock(pair: tuple[Instance, Instance], item: Item, room: Page) -> None:
    """Each grant is a bar that can be pointed at, also with keys; one can look closer, and go on."""
    rush(room, 80, over_s=4)
    sold_to(room, item, 80)
    plot, said = room.locator("#lanes-plot"), room.locator("#lanes-said")
    expect(plot).to_have_attribute("aria-label", re.compile(r"2 instances, \d\d+ grants in the last minute"))
    plot.focus()

    def the_last_two_are_told() -> bool:
        """As the table has them, in which those of the other instance come a moment later."""
        newest, older = ([*row.locator("th, td").all_text_contents()] for row in room.locator("#grants tr").all()[:2])
        told = []
        room.keyboard.press("Escape")
        for _ in range(2):
            room.keyboard.press("ArrowLeft")
            told.append(said.text_content() or "")
        return all(
            line.startswith(f"{one[0]} · token {one[1]} · ") for line, one in zip(told, (newest, older), strict=True)
        )

    eventually(the_last_two_are_told, "the arrow keys lead along the bars")
    expect(said).to_contain_text(re.compile(r"held for [\d.]+ ms · \d+ buyers?, \d+ units? · waited "))
    room.keyboard.press("Escape")
    expect(said).to_contain_text("Point at a bar")
    back = room.locator("#lanes-live")
    expect(back).to_be_hidden()
    box = plot.bounding_box()
    assert box is not None
    room.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    room.mouse.down()
    room.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 20, steps=5)
    room.mouse.up()
    expect(back).to_be_visible()
    back.click()
    expect(back).to_be_hidden()


def test_to_the_shop_and_back(item: Item, room: Page) -> None:
    """The same item, in the same language."""
    room.get_by_role("link", name="Shop").click()
    expect(room.locator("#left")).to_have_text("300")
    room.get_by_role("link", name="Back to the control room").click()
    live(room)
    expect(room.get_by_role("combobox", name="Item")).to_have_value(item.sku)


def test_what_was_before_is_told(pair: tuple[Instance, Instance], item: Item, room: Page) -> None:
    """A page that is opened later shows the sale of before, in its curves and lanes."""
    rush(room, 40, over_s=2)
    sold_to(room, item, 40)
    opened = room.evaluate("Date.now() / 1000")
    room.reload()
    live(room)
    expect(room.locator("#lanes-plot")).to_have_attribute("aria-label", re.compile(r"2 instances, \d\d+ grants"))
    assert room.evaluate(f"{HISTORY}.then(({{ levels }}) => levels()[0][0])") < opened


def test_when_its_instance_is_gone_it_goes_on_with_another(
    start: Start, pair: tuple[Instance, Instance], item: Item, visitors: Visitors
) -> None:
    """It was told where the others are."""
    third = start(lock_ttl_s=TTL_S, rehearsal=True)
    page = live(visitors.visit(item.link(third), **DESK))
    expect(row(page, pair[0])).to_be_visible()
    visitors.forgive(f"ERR_(CONNECTION_REFUSED|CONNECTION_RESET|INCOMPLETE_CHUNKED_ENCODING).*{third.port}/control/")
    third.kill()
    expect(page.locator("#connection")).to_contain_text(
        re.compile(f"live, from ({pair[0].port}|{pair[1].port})"), timeout=30_000
    )
    assert f"/control?sku={item.sku}" in page.url
    expect(figure(page, "stock")).to_have_text("300")
    expect(row(page, third)).to_contain_text("silent for")  # rushes of other tests don't count on it


@pytest.mark.parametrize(("reduced", "moves"), [("no-preference", True), ("reduce", False)])
def test_cards_move(pair: tuple[Instance, Instance], item: Item, visitors: Visitors, reduced: str, moves: bool) -> None:
    """Cards glide to their places, unless the visitor prefers reduced motion."""
    page = live(visitors.visit(item.link(pair[0]), reduced_motion=reduced, **DESK))
    page.evaluate(
        """() => {
          window.moved = 0;
          const animate = Element.prototype.animate;
          Element.prototype.animate = function (...how) { window.moved += 1; return animate.apply(this, how); };
        }"""
    )
    rush(page, 60, over_s=4)
    pause(page)
    expect(page.locator(".place[data-kind=ghost]")).to_be_visible()
    sold_to(page, item, 60)
    assert (page.evaluate("window.moved") > 0) == moves


def test_a_pause_that_nobody_meets(pair: tuple[Instance, Instance], item: Item, room: Page) -> None:
    """While nobody buys, the page says that the pause waits; the rush that it offers brings it about."""
    pause(room)
    expect(row(room, pair[0])).to_contain_text("pauses at its next write")
    expect(room.get_by_text("Nobody buys at the moment.")).to_be_visible()
    room.get_by_role("spinbutton", name="buyers").fill("20")
    room.get_by_role("button", name="Send the rush").click()
    expect(row(room, pair[0])).to_contain_text("stands still")
    expect(room.get_by_text("Nobody buys at the moment.")).to_be_hidden()
    sold_to(room, item, 20)


def test_restock(item: Item, room: Page, visitors: Visitors) -> None:
    """A restock sets the units; a new sale begins only after a question, which can be answered with no."""
    visitors.forgive("status of 412")
    rush(room, 30)
    expect(figure(room, "lucky")).to_have_text("30")
    units = room.get_by_role("spinbutton", name="units from now on")
    restock = room.get_by_role("button", name="Restock")
    units.fill("500")
    restock.click()
    expect(room.locator("#restock-said")).to_have_text("500 units are for sale.")
    expect(figure(room, "stock")).to_have_text("500")
    expect(figure(room, "of")).to_have_text("of 530 left")
    expect(figure(room, "lucky")).to_have_text("30")

    room.get_by_role("checkbox", name="a new sale").check()
    units.fill("80")
    restock.click()
    dialog = room.get_by_role("dialog", name="Begin a new sale?")
    expect(dialog).to_contain_text("30 orders will be forgotten")
    room.keyboard.press("Escape")
    expect(room.locator("#restock-said")).to_have_text("Nothing was changed.")
    assert item.orders() == 30
    restock.click()
    dialog.get_by_role("button", name="Cancel").click()
    expect(room.locator("#restock-said")).to_have_text("Nothing was changed.")
    restock.click()
    dialog.get_by_role("button", name="Forget and restock").click()
    expect(figure(room, "stock")).to_have_text("80")
    expect(figure(room, "lucky")).to_have_text("0")
    assert item.orders() == 0


def test_the_sale_is_paused_and_ended(
    pair: tuple[Instance, Instance], item: Item, room: Page, visitors: Visitors
) -> None:
    """The room says what buyers read; the shop's page is shut with it and opens by itself; an end is asked about."""
    shop = visitors.visit(f"{pair[1].url}/?sku={item.sku}", **PHONE)
    buy = shop.locator("#buy")
    expect(buy).to_have_attribute("aria-disabled", "false")
    room.get_by_role("textbox", name="what buyers are told").fill("Tea until nine")
    room.get_by_role("button", name="Pause the sale").click()
    expect(room.locator("#sale-state")).to_have_text("Paused. Buyers read: “Tea until nine”")
    expect(room.locator("#health")).to_have_text("The sale is paused")
    expect(shop.locator("#phase")).to_have_text("Paused")
    expect(shop.locator("#moment")).to_have_text("Tea until nine")
    expect(buy).to_have_attribute("aria-disabled", "true")
    expect(buy).to_have_text("Paused")
    fits(shop)
    room.get_by_role("button", name="Go on selling").click()
    expect(shop.locator("#news")).to_have_text("The sale goes on.")
    expect(buy).to_have_attribute("aria-disabled", "false")
    buy.click()
    expect(shop.locator("#headline")).to_have_text("It's yours!")
    room.get_by_role("button", name="End now").click()
    room.get_by_role("dialog", name="End the sale?").get_by_role("button", name="Cancel").click()
    expect(room.locator("#sale-said")).to_have_text("Nothing was changed.")
    room.get_by_role("button", name="End now").click()
    room.get_by_role("dialog", name="End the sale?").get_by_role("button", name="End it").click()
    expect(room.locator("#sale-state")).to_have_text("It has ended.")
    expect(shop.locator("#phase")).to_have_text("The sale has ended")
    log = httpx.get(f"{pair[0].url}/log", params={"sku": item.sku}, headers=OPERATOR).json()
    assert [one["what"] for one in log] == ["terms", "resume", "pause", "stock"]


def test_a_real_sale_shows_no_rehearsal(start: Start, visitors: Visitors) -> None:
    """There is nothing in its room that makes orders or stops a holder."""
    instance = start()
    room = live(visitors.visit(Item(instance, 5).link(instance), **DESK))
    expect(room.get_by_role("button", name="Pause the sale")).to_be_visible()
    for name in ("Send buyers", "Pause"):
        expect(room.get_by_role("button", name=name, exact=True)).to_be_hidden()


def test_what_is_wrong_is_said(room: Page, visitors: Visitors) -> None:
    """A command that the service refuses shows why beside its button."""
    visitors.forgive("status of 422")
    room.locator("#buyers").evaluate("field => field.removeAttribute('max')")
    room.get_by_role("spinbutton", name="buyers").fill("30000")
    room.get_by_role("button", name="Send buyers").click()
    expect(room.locator("#rush-said")).to_contain_text("buyers: Input should be less than or equal to 20000")
    # What the browser itself knows to be wrong is not sent.
    room.get_by_role("spinbutton", name="units from now on").fill("-1")
    room.get_by_role("button", name="Restock").click()
    assert room.evaluate("document.activeElement.id") == "units"
    expect(room.locator("#restock-said")).to_be_empty()


def test_an_item_that_is_not_there(pair: tuple[Instance, Instance], visitors: Visitors) -> None:
    """The page says so, and a restock makes the item; an impossible name is said to be one, and is never markup."""
    page = live(visitors.visit(f"{pair[0].url}/control?sku=new-{next(_numbers)}&token={TOKEN}", **DESK))
    expect(page.get_by_text("There is no item “new-")).to_be_visible()
    expect(page.get_by_text("A restock makes it.")).to_be_visible()
    page.get_by_role("button", name="Restock").click()
    expect(figure(page, "stock")).to_have_text("300")
    expect(page.get_by_text("A restock makes it.")).to_be_hidden()
    visitors.forgive("status of 422")
    page.goto(f"{pair[0].url}/control?sku=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    expect(page.get_by_text("There is no item “<img src=x")).to_be_visible()
    assert page.locator("img[src=x]").count() == 0


# -- when things are away ---------------------------------------------------------------------------------------------


def test_an_instance_that_comes_back(
    pair: tuple[Instance, Instance], item: Item, room: Page, visitors: Visitors
) -> None:
    """The page stays with what it has seen, says that the connection is lost, and goes on by itself."""
    visitors.forgive(f"ERR_(CONNECTION_REFUSED|CONNECTION_RESET|INCOMPLETE_CHUNKED_ENCODING).*{pair[0].port}/control/")
    rush(room, 30)
    expect(figure(room, "lucky")).to_have_text("30")
    remembered = f"{HISTORY}.then(({{ levels }}) => levels()[0][0])"
    since = room.evaluate(remembered)
    pair[0].kill()
    try:
        expect(room.locator("#connection")).to_contain_text("trying again")
        expect(figure(room, "lucky")).to_have_text("30")
    finally:
        pair[0].start()
    live(room)
    rush(room, 30)
    sold_to(room, item, 60)
    assert room.evaluate(remembered) == since
    rates = room.evaluate(f"{HISTORY}.then(({{ rates, seen }}) => rates(seen()).slice(1).flat())")
    assert min(rate for rate in rates if rate is not None) == 0
    expect(row(room, pair[0]).get_by_role("cell").nth(0)).to_have_text("15")  # it counts from its start


@pytest.fixture
def own(etcd: EtcdMember, visitors: Visitors) -> Any:
    """A store that no other test uses, and an instance on it."""
    with Valkey() as valkey, Instance(etcd.endpoint, valkey.url, lock_ttl_s=TTL_S, lock_prefix="/own/lock") as instance:
        yield valkey, instance


def test_a_store_that_is_silent(own: tuple[Valkey, Instance], visitors: Visitors) -> None:
    """The page says so in the place of the figures until the store answers; no instance is called silent for it."""
    valkey, instance = own
    item = Item(instance, 50)
    page = live(visitors.visit(item.link(instance), **DESK))
    expect(figure(page, "stock")).to_have_text("50")
    valkey.pause()
    try:
        expect(page.locator("#store-trouble")).to_contain_text("The store does not answer")
        expect(figure(page, "stock")).to_be_hidden()
        expect(page.locator("#connection")).to_contain_text("live")
        expect(row(page, instance)).to_contain_text("can't sell: the store")
        expect(page.locator("#health")).to_have_text("Nothing is sold: the store is away")
    finally:
        valkey.resume()
    expect(page.locator("#health")).to_have_text("Ready to sell")
    expect(figure(page, "stock")).to_have_text("50")
    expect(page.locator("#store-trouble")).to_be_hidden()
    expect(events(page).filter(has_text="The store does not answer")).to_have_count(1)
    expect(events(page).filter(has_text="The store answers again")).to_have_count(1)


def test_a_lock_system_that_is_silent(visitors: Visitors) -> None:
    """The page says so in the place of the queue, until the lock system answers."""
    with EtcdMember() as etcd, Valkey() as valkey, Instance(etcd.endpoint, valkey.url) as instance:
        item = Item(instance, 50)
        page = live(visitors.visit(item.link(instance), **DESK))
        expect(page.get_by_text("Nobody holds the lock.")).to_be_visible()
        etcd.pause()
        try:
            expect(page.locator("#lock-trouble")).to_contain_text("The lock system does not answer")
            expect(page.locator("#health")).to_have_text("Nothing is sold: waiting for etcd")
            expect(page.get_by_text("Nobody knows who holds the lock.")).to_be_visible()
            expect(figure(page, "stock")).to_have_text("50")
        finally:
            etcd.resume()
        expect(page.locator("#lock-trouble")).to_be_hidden()
        expect(page.locator("#health")).to_have_text("Ready to sell")
        page.goto("about:blank")


def test_an_instance_that_stands_still_is_silent(
    pair: tuple[Instance, Instance], item: Item, room: Page, visitors: Visitors
) -> None:
    """The pages of the others call it silent; a page of its own notices that nothing comes."""
    other = live(visitors.visit(item.link(pair[1]), **DESK))
    pair[1].pause()
    try:
        expect(row(room, pair[1])).to_contain_text("silent for")
        expect(other.locator("#connection")).to_contain_text("trying again")
    finally:
        pair[1].resume()
    expect(row(room, pair[1])).to_contain_text("ready")
    live(other)


def test_a_lock_that_hides_who_waits(etcd: EtcdMember, visitors: Visitors) -> None:
    """Redis knows who holds its lock, and nobody else: the page says that there may be more."""
    with Valkey() as valkey, Instance(etcd.endpoint, valkey.url, lock=valkey.url) as instance:
        page = live(visitors.visit(Item(instance, 50).link(instance), **DESK))
        expect(page.get_by_text("those who wait can't be seen")).to_be_visible()
        page.goto("about:blank")


# -- for everybody ----------------------------------------------------------------------------------------------------


def test_by_keyboard_alone(pair: tuple[Instance, Instance], item: Item, visitors: Visitors) -> None:
    """From the token to a rush and a restock without a mouse; the focus is seen wherever it is."""
    page = visitors.visit(f"{pair[0].url}/control/login", **DESK)
    page.keyboard.type(TOKEN)
    page.keyboard.press("Enter")
    live(page)

    def go_to(name: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            focus = page.locator(":focus")
            if focus.count() == 0:
                continue
            assert focus.evaluate("one => getComputedStyle(one).outlineStyle") != "none"
            said = focus.evaluate("one => one.labels?.[0]?.textContent ?? one.textContent")
            if said.strip() == name:
                return
        raise AssertionError(f"Tab never comes to {name}")

    go_to("Item")
    page.keyboard.type(item.sku)
    page.keyboard.press("Enter")
    expect(figure(page, "stock")).to_have_text("300")
    go_to("buyers")
    page.keyboard.type("25")
    go_to("over seconds")
    page.keyboard.type("0")
    page.keyboard.press("Enter")
    sold_to(page, item, 25)
    go_to("units from now on")
    page.keyboard.type("90")
    go_to("a new sale: forget what was sold")
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(figure(page, "stock")).to_have_text("90")
    expect(figure(page, "lucky")).to_have_text("0")


def test_for_a_screen_reader(room: Page) -> None:
    """Everything has a name, headings are in order, and nothing that changes all the time is in a live region."""
    assert room.locator("html").get_attribute("lang") == "en"
    levels = [
        int(tag[1]) for tag in room.evaluate("[...document.querySelectorAll('h1,h2,h3')].map((one) => one.localName)")
    ]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    for element in room.locator("button, input:not([type=hidden]), [role=img], [role=region], section, form").all():
        name = element.evaluate(
            """one => one.ariaLabel || document.getElementById(one.getAttribute("aria-labelledby"))?.textContent ||
              one.labels?.[0]?.textContent || one.textContent.trim()"""
        )
        assert name, element.evaluate("one => one.outerHTML")
    assert room.locator("[data-text]:empty").count() == 0
    ids = room.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    expect(room.get_by_role("banner")).to_be_visible()
    expect(room.get_by_role("main")).to_be_visible()
    for part in ("line", "ghosts", "waiting", "rate", "instances", "grants", "events"):
        assert room.locator(f"#{part}").evaluate("one => one.closest('[role=status], [aria-live], output')") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours(pair: tuple[Instance, Instance], item: Item, visitors: Visitors, scheme: str) -> None:
    """Light or dark as the system is; each text has a contrast of 4.5 or more, also when something goes wrong."""
    page = visitors.visit(f"{pair[0].url}/control", color_scheme=scheme, reduced_motion="reduce", **DESK)

    def judge() -> None:
        found = contrasts(page)
        assert len(found) > 5
        assert [(text, ratio) for text, ratio in found if ratio < 4.5] == []

    judge()
    page.goto(f"{pair[0].url}/control/login?wrong")
    judge()
    page.goto(item.link(pair[0]))
    live(page)
    rush(page, 100, over_s=5)
    pause(page)
    for kind in ("holder", "ghost"):
        expect(page.locator(f".place[data-kind={kind}][data-paused=true]")).to_be_visible()
        judge()
    expect(events(page).filter(has_text="refused").first).to_be_visible()
    sold_to(page, item, 100)
    judge()
    page.get_by_role("checkbox", name="a new sale").check()
    page.get_by_role("button", name="Restock").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    judge()


def test_the_light_may_change(room: Page, visitors: Visitors) -> None:
    """The curves are drawn in the colours of now."""
    visitors.forgive("willReadFrequently")  # the browser's advice to this test
    expect(room.locator("#levels canvas")).to_be_visible()

    light, dark = "200,20,47", "255,107,124"  # --stock
    eventually(lambda: light in drawn(room, "levels"), "the curve of the stock")
    room.emulate_media(color_scheme="dark")
    eventually(
        lambda: dark in drawn(room, "levels") and light not in drawn(room, "levels"),
        "the curve of the stock in other colours",
    )


def test_light_and_language_are_the_readers(room: Page) -> None:
    """Switches at the top; what was chosen stays. A question mark explains the word beside it."""
    ground = "getComputedStyle(document.body).backgroundColor"
    light = room.evaluate(ground)
    room.get_by_role("button", name="Auto").click()
    assert room.evaluate(ground) == light
    room.get_by_role("button", name="Light").click()
    assert room.evaluate(ground) != light
    room.reload()
    live(room)
    expect(room.get_by_role("button", name="Dark")).to_be_visible()
    assert room.evaluate(ground) != light
    room.get_by_role("button", name="What is a lease?").click()
    expect(room.get_by_text("A grant ends by itself when its holder is not heard of")).to_be_visible()
    room.keyboard.press("Escape")
    expect(room.get_by_text("A grant ends by itself when its holder is not heard of")).to_be_hidden()
    room.get_by_role("button", name="中文").click()
    expect(room.locator("h1")).to_have_text("控制室")
    room.get_by_role("button", name="English").click()
    expect(room.locator("h1")).to_have_text("Control room")
    assert "sku=" in room.url


def test_one_goes_to_another_item(pair: tuple[Instance, Instance], item: Item, room: Page) -> None:
    """The items are listed, and one that is chosen is shown; with keys, when Enter is pressed. All are first."""
    other = Item(pair[0], 7)
    field = room.get_by_role("combobox", name="Item")
    expect(field).to_have_value(item.sku)
    field.focus()
    for one in (item, other):
        expect(field.locator(f"option[value='{one.sku}']")).to_have_count(1)
    field.select_option(other.sku)
    expect(figure(room, "stock")).to_have_text("7")
    room.keyboard.press("Tab")
    field.focus()
    room.keyboard.press("Home")
    expect(figure(room, "stock")).to_have_text("7")
    room.get_by_role("button", name="Leave").focus()
    expect(field).to_have_value(other.sku)
    field.select_option("")
    overview = room.get_by_role("region", name="All items")
    for one, stock in ((item, "300"), (other, "7")):
        expect(overview.get_by_role("row", name=one.sku)).to_contain_text(stock)
    overview.get_by_role("link", name=item.sku, exact=True).click()
    expect(figure(room, "stock")).to_have_text("300")


@pytest.mark.parametrize("screen", [DESK, PHONE, SMALL_PHONE])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_an_overview_of_all_items(
    pair: tuple[Instance, Instance], visitors: Visitors, screen: dict[str, Any], language: str
) -> None:
    """The room opens on it where there are several items: what is left and sold, when, and what is wrong."""
    on, paused = Item(pair[0], 30), Item(pair[0], 5)
    change = {"paused": "Tea until nine", "ends_at": 4e9}
    httpx.put(f"{pair[0].url}/stock", params={"sku": paused.sku}, json=change, headers=OPERATOR).raise_for_status()
    page = live(visitors.visit(f"{pair[0].url}/control?token={TOKEN}&lang=en", **screen))
    rows = page.locator("#items tr")
    expect(rows.filter(has_text=on.sku).locator(".state")).to_have_text("Ready to sell")
    expect(rows.filter(has_text=paused.sku)).to_contain_text("paused: “Tea until nine”")
    httpx.post(f"{pair[0].url}/stock/reduce", params={"sku": on.sku, "quantity": 4}).raise_for_status()
    expect(rows.filter(has_text=on.sku).locator("td").nth(1)).to_have_text("4")
    fits(page)
    if language == "zh":
        page.get_by_role("button", name="中文").click()
        expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")
        expect(page.get_by_role("heading", name="全部商品")).to_be_visible()
        expect(rows.filter(has_text=paused.sku)).to_contain_text("已暂停")


ONE_GLANCE: Final = "section, .side, form, .plot, .place, output"
FIRST_GLANCE: Final = ".figures, .lanes, .queue, .place, #story-steps, #rush, #pause, #restock button"


@pytest.mark.parametrize(("width", "height", "what"), [(1440, 900, ONE_GLANCE), (1280, 720, FIRST_GLANCE)])
def test_all_at_one_glance(
    pair: tuple[Instance, Instance], item: Item, visitors: Visitors, width: int, height: int, what: str
) -> None:
    """On a laptop nothing has to be scrolled, on a small one nothing of what matters: overtaken holders, too."""
    page = live(visitors.visit(item.link(pair[0]), viewport={"width": width, "height": height}))

    def seen() -> None:
        # In one step: places come and go.
        below = f"all => all.filter(one => one.getBoundingClientRect().bottom > {height}).map(one => one.outerHTML)"
        assert page.locator(what).evaluate_all(below) == []
        assert fits(page)
        assert page.locator(".instances .scroll").evaluate("one => one.scrollHeight <= one.clientHeight")
        assert page.locator(".instances .scroll").evaluate("one => one.scrollWidth <= one.clientWidth")

    seen()
    rush(page, 100, over_s=6)
    pause(page)
    expect(page.locator(".place[data-kind=ghost]")).to_be_visible()
    seen()
    if what == ONE_GLANCE:
        assert page.evaluate("document.documentElement.scrollHeight") == height
    expect(page.locator("#story[data-result=good]")).to_be_visible()
    seen()
    sold_to(page, item, 100)


@pytest.mark.parametrize("screen", [PHONE, SMALL_PHONE], ids=["phone", "small phone"])
def test_on_a_phone(pair: tuple[Instance, Instance], item: Item, visitors: Visitors, screen: dict[str, Any]) -> None:
    """Nothing is cut off sideways, and fingers hit what there is, while a holder is overtaken, too."""
    page = live(visitors.visit(item.link(pair[0]), has_touch=True, is_mobile=True, **screen))
    assert fits(page)
    for button in page.get_by_role("button").all():
        if button.is_visible():
            box = button.bounding_box()
            assert box is not None
            assert box["height"] >= 44
    rush(page, 100, over_s=6)
    pause(page)
    expect(page.locator(".place[data-kind=ghost]")).to_be_visible()
    assert fits(page)
    sold_to(page, item, 100)


def test_all_of_it_in_chinese(pair: tuple[Instance, Instance], item: Item, visitors: Visitors) -> None:
    """No English word is left but names, whatever happens; the language stays through the door."""

    def words() -> set[str]:
        return set(re.findall(r"[A-Za-z]{3,}", page.locator("body").inner_text()))

    page = visitors.visit(f"{pair[0].url}/control?lang=zh&sku={item.sku}", **DESK)
    expect(page.locator("h1")).to_have_text("控制室")
    assert page.locator("html").get_attribute("lang") == "zh-Hans"
    assert words() <= {"seckill", "SECKILL", "ADMIN", "TOKEN"}
    page.keyboard.type(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator("#connection")).to_contain_text("实时")
    expect(figure(page, "stock")).to_have_text("300")
    page.locator("#buyers").fill("60")
    page.locator("#over").fill("4")
    page.locator("#rush button").click()
    page.locator("#pause button[type=submit]").click()
    expect(page.locator(".place[data-kind=waiter]").first).to_be_visible()
    names = {"etcd", "seckill", "lock", "all", "Esc", "English"}
    assert words() <= names
    expect(page.locator(".place[data-kind=ghost]")).to_be_visible()
    assert words() <= names
    expect(page.locator("#events li[data-kind=fenced]")).not_to_have_count(0)
    expect(figure(page, "lucky")).to_have_text("60")
    assert words() <= names
