"""All pages, judged by axe-core: what it calls serious or critical keeps somebody out."""

from typing import Any, Final

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from lab.demo.provider import PRICE, ProviderProcess
from lab.servers.process import free_port
from tests.browser.conftest import PLENTY, Item, Start
from tests.harness.browser import Visitors
from tests.harness.shop import Instance

pytestmark = pytest.mark.slow

GRAVE: Final = ("serious", "critical")


def grave(page: Page) -> list[str]:
    """What is wrong with a page as it is now: a line for each element, with axe's rule and its reason."""
    page.wait_for_load_state("networkidle") if page.url.endswith("/docs") else None
    found = Axe().run(page).response["violations"]
    return [
        f"{page.url}: {one['id']}: {' '.join(node['target'])}: {node['failureSummary']}"
        for one in found
        if one["impact"] in GRAVE
        for node in one["nodes"]
    ]


@pytest.fixture(scope="module")
def shop(start: Start) -> Any:
    provider = ProviderProcess(port=free_port())
    variables = {name.lower(): value for name, value in provider.variables.items()}
    shop = start(rehearsal=True, **variables)
    with provider.of([shop.url]):
        yield shop


@pytest.mark.parametrize(("scheme", "language"), [("light", "en"), ("dark", "zh")])
def test_nobody_is_kept_out(visitors: Visitors, shop: Instance, scheme: Any, language: str) -> None:
    """Shop, hold, order and each page of the operator's, with something in it, in both colour schemes and languages."""
    item = Item(shop, PLENTY)
    item.terms(**PRICE)
    page = visitors.visit(f"{item.at(shop)}&lang={language}", color_scheme=scheme, reduced_motion="reduce")
    faults = list[str]()
    buy = page.locator("#buy")
    expect(buy).to_be_enabled()
    faults += grave(page)
    buy.click()
    expect(page.locator(".outcome").get_by_role("status")).not_to_be_empty()
    expect(page.locator("#cancel")).to_be_visible()
    faults += grave(page)
    hold = httpx.post(f"{shop.url}/holds", json={"sku": item.sku, "buyer": "ann"}, timeout=30).json()["id"]
    paid = {"payment_ref": f"p-{item.sku}", "amount": 1, "currency": PRICE["currency"]}
    httpx.post(f"{shop.url}/holds/{hold}/confirm", json=paid, timeout=30).raise_for_status()
    for path in (f"/?lang={language}", f"/shop/order?id={hold}&lang={language}", "/docs"):
        page.goto(shop.url + path)
        expect(page.locator("h1").first).not_to_be_empty()
        faults += grave(page)
    page.goto(f"{shop.url}/control/login?lang={language}")
    faults += grave(page)
    page.goto(f"{item.room(shop)}&lang={language}")
    for path in ("", f"?sku={item.sku}", f"/orders?sku={item.sku}", "/reconcile"):
        page.goto(f"{shop.url}/control{path}{'&' if '?' in path else '?'}lang={language}")
        expect(page.locator("h1").first).not_to_be_empty()
        page.wait_for_timeout(1500)
        if path.startswith("/orders"):
            page.locator("#orders tr").first.click()
        faults += grave(page)
    assert faults == []
