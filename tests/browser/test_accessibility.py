"""All pages, judged by axe-core: what it calls serious or critical keeps somebody out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from lab.demo.provider import PRICE, ProviderProcess
from lab.servers.process import free_port
from tests.browser.conftest import Item, Start
from tests.harness.browser import Visitors
from tests.harness.shop import Instance

pytestmark = pytest.mark.slow

GRAVE: Final = ("serious", "critical")


def faults(page: Page) -> list[str]:
    """What is wrong with a page as it is now: a line for each element, with axe's rule and its reason."""
    return [
        f"{page.url}: {one['id']}: {' '.join(node['target'])}: {node['failureSummary']}"
        for one in Axe().run(page).response["violations"]
        if one["impact"] in GRAVE
        for node in one["nodes"]
    ]


@pytest.fixture(scope="module")
def shop(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """An instance with a list of two items, and a provider."""
    catalogue: Path = tmp_path_factory.mktemp("catalogue") / "sale.toml"
    catalogue.write_text("".join(f"[items.{sku}]\nname = {sku!r}\n" for sku in ("lamp", "poster")))
    provider = ProviderProcess(port=free_port())
    variables = {name.lower(): value for name, value in provider.variables.items()}
    shop = start(extension="lab.rehearsal", catalogue=catalogue, **variables)
    for sku in ("lamp", "poster"):
        Item(shop, 9, sku).terms(**PRICE)
    with provider.of([shop.url]):
        yield shop


@pytest.mark.parametrize(("scheme", "language"), [("light", "en"), ("dark", "zh")])
def test_nobody_is_kept_out(visitors: Visitors, shop: Instance, scheme: Any, language: str) -> None:
    """Not of the shop, and of no page of the operator's, with something in it. (`/docs` is Swagger's.)"""
    item = Item(shop, 9, "lamp")
    item.terms(**PRICE)
    hold = httpx.post(f"{shop.url}/holds", json={"sku": item.sku, "buyer": "ann"}, timeout=30).json()["id"]
    paid = {"payment_ref": f"p-{language}", "amount": 1, "currency": PRICE["currency"]}
    httpx.post(f"{shop.url}/holds/{hold}/confirm", json=paid, timeout=30).raise_for_status()
    page = visitors.visit("about:blank", color_scheme=scheme, reduced_motion="reduce")

    def look(path: str, shown: str) -> list[str]:
        page.goto(f"{shop.url}{path}{'&' if '?' in path else '?'}lang={language}")
        expect(page.locator(shown).first).not_to_be_empty()
        return faults(page)

    found = look("/", "main li") + look(f"/shop/order?id={hold}", "h1")
    found += look(f"/?sku={item.sku}", "#left")
    page.locator("#buy").click()
    expect(page.locator("#cancel")).to_be_visible()
    found += faults(page) + look("/control/login", "form")
    page.goto(item.room(shop))
    expect(page.locator("#story")).to_be_attached()
    found += look("/control", "#items :is(li, [role=listitem])") + look(f"/control?sku={item.sku}", "#stock")
    found += (
        look("/control/deliveries", "#undelivered-said")
        + look("/control/reconcile", "h1")
        + look(f"/control/orders?sku={item.sku}", "#orders td.buyer")
    )
    page.locator("#orders button").first.click()
    expect(page.locator("#life")).to_be_visible()
    found += faults(page)
    assert found == []
