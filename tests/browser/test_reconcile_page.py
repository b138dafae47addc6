"""The page that reconciles: a provider's list is given, and each difference is a line with its cause."""

import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Item, Start
from tests.harness.browser import Visitors, contrasts, fits, shows
from tests.harness.shop import TOKEN

pytestmark = pytest.mark.slow

LOWEST = 4.5  # WCAG AA


def test_a_list_is_compared(visitors: Visitors, start: Start, tmp_path: Path) -> None:
    """What agrees is said to; what differs has its cause, its amounts and the way to its order; a bad file says why."""
    visitors.forgive("status of 422")
    instance = start(extension="lab.rehearsal")
    item = Item(instance, 5)
    item.terms(price=499, currency="EUR")
    answer = httpx.post(f"{instance.url}/holds", json={"sku": item.sku, "buyer": "ann"}).json()
    paid = {"payment_ref": "pi_1", "amount": 499, "currency": "EUR"}
    httpx.post(f"{instance.url}/holds/{answer['id']}/confirm", json=paid).raise_for_status()
    file = tmp_path / "list.csv"
    page = visitors.visit(f"{instance.url}/control?token={TOKEN}&sku={item.sku}")
    page.context.route(re.compile(r"/report(\?.*)?$"), lambda route: route.fulfill(status=204))  # another test's
    page.get_by_role("link", name="Reconcile").click()
    compare = page.get_by_role("button", name="Compare")
    compare.click()
    shows(page, give_said="Choose the provider's list first.")
    for lines, said in (
        ("nothing\n", re.compile("no column 'payment_ref'")),
        ("payment_ref,kind,amount,currency\npi_1,charge,4.99,EUR\n", ""),
    ):
        file.write_text(lines)
        page.get_by_label("Choose a file").or_(page.locator("#file")).set_input_files(file)
        compare.click()
        shows(page, give_said=said)
    shows(page, result_title="Each payment is where it should be.")
    expect(page.locator("#differences")).to_be_hidden()
    expect(page.locator("#totals")).to_contain_text("€4.99")
    file.write_text("payment_ref,kind,amount,currency\npi_1,charge,3.99,EUR\npi_2,charge,1.00,EUR\n")
    page.locator("#file").set_input_files(file)
    compare.click()
    shows(page, result_title="2 payments differ.")
    rows = page.locator("#rows tr")
    expect(rows).to_have_text(
        [re.compile("other amounts.*pi_1.*-€1.00"), re.compile("paid, and no order.*pi_2.*€1.00")]
    )
    assert fits(page)
    assert min(contrasts(page), key=lambda one: one[1])[1] >= LOWEST
    page.get_by_role("group", name="Cause").get_by_role("button", name="other amounts").click()
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Ask Stripe").click()
    expect(page.locator("#give-said")).to_contain_text("SECKILL_REFUNDS is not stripe://KEY here")
    rows.get_by_role("link").click()
    expect(page.locator("#life-title")).to_contain_text(answer["id"].rpartition("~")[0])
    expect(page.locator("#orders td.buyer")).to_have_text(["ann"])
