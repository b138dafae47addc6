"""The bad days of the pretended provider: each button once, and then the books are right."""

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from lab.demo.provider import ProviderProcess
from lab.demo.sandbox import DAYS
from lab.servers import EtcdMember, Valkey
from lab.servers.process import free_port
from tests.harness.shop import TOKEN, ThreadedInstance
from tests.harness.waiting import eventually

pytestmark = pytest.mark.slow  # starts an instance and a provider, and waits for the end of a hold
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
STOCK, PRICE = 30, 19_900
# What the service answers on each day, and how the order stands then.
ANSWERS = {
    "pay": (["200 confirmed"], "confirmed"),
    "twice": (["200 confirmed", "200 duplicate_payment"], "confirmed"),
    "late": (["", "200 confirmed"], "confirmed"),
    "failed": (["200 ignored", "200 confirmed"], "confirmed"),
    "lost": (["lost on the way", "200 confirmed", "lost on the way back", "200 already_confirmed"], "confirmed"),
    "repeated": (["200 already_confirmed", "200 confirmed"], "confirmed"),
    "reordered": (["409 No such order", "200 confirmed", "200 refunded"], "refunded"),
    "amount": (["200 amount_mismatch"], "held"),
    "currency": (["200 amount_mismatch"], "held"),
    "part": (["200 confirmed", "200 partly_refunded"], "confirmed"),
    "whole": (["200 confirmed", "200 refunded"], "refunded"),
    "dispute": (["200 confirmed", "200 noted", "200 noted"], "refunded"),
    "foreign": (["200 ignored", "409 No such order"], "held"),
    "unsigned": (["400 Not signed by the payment provider"] * 2, "held"),
    "large": (["200 confirmed"], "confirmed"),
}


@pytest.fixture
def till(etcd: EtcdMember, valkey: Valkey) -> Iterator[tuple[ThreadedInstance, ProviderProcess]]:
    provider = ProviderProcess(port=free_port())
    variables: dict[str, Any] = {name.lower(): value for name, value in provider.variables.items()}
    variables |= {"grace_s": 0.5, "audit_interval_s": 1}
    with ExitStack() as running:
        shop = running.enter_context(ThreadedInstance(etcd.endpoint, valkey.url, **variables))
        running.enter_context(provider.of([shop.url]))
        yield shop, provider


def terms(shop: ThreadedInstance, **change: Any) -> None:
    httpx.put(f"{shop.url}/stock", json=change, headers=OPERATOR, timeout=30).raise_for_status()


def test_each_button_once(till: tuple[ThreadedInstance, ProviderProcess]) -> None:
    """The page has a button for each day; what it does is answered as expected, and no unit and no cent is lost."""
    shop, provider = till
    terms(shop, stock=STOCK, new_sale=True, forget_orders="all", price=PRICE, currency="CNY", hold_s=600)
    orders: dict[str, dict[str, Any]] = {}
    with httpx.Client(base_url=provider.url, follow_redirects=True, timeout=60) as http:
        for day in DAYS:
            if day == "late":
                terms(shop, add=True, stock=0, hold_s=1, pay_s=1)
            begun = http.post("/sandbox/begin")
            hold = begun.url.params["hold"]
            if day == "late":
                terms(shop, add=True, stock=0, hold_s=600, pay_s=600)
            assert set(re.findall(r'name="day" value="(\w+)"', begun.text)) == DAYS.keys()
            shown = http.post("/sandbox/play", data={"hold": hold, "day": day})
            assert shown.status_code == 200
            eventually(lambda: http.get("/sandbox/plays").json()[0]["done"], f"{day} is over")
            [play] = [one for one in http.get("/sandbox/plays").json() if one["hold"] == hold]
            said, state = ANSWERS[day]
            found = [answer for _, answer in play["steps"]]
            assert (sorted(found) if day == "repeated" else found) == said, day
            orders[hold] = httpx.get(f"{shop.url}/holds/{hold}").json()
            assert orders[hold]["state"] == state, day
            assert str(http.get("/sandbox", params={"hold": hold}).text).count("<article>") == 1
        payments = http.get("/payments").json()
    # Each payment of the provider's is that of its order, or is given back, or waits for somebody who gives it back.
    kept = 0
    for paid in payments:
        order = orders[paid["hold"]]
        here = next(one for one in order["payments"] if one["ref"] == paid["ref"])
        if paid["ref"] == order["payment_ref"] and order["state"] == "confirmed":
            assert (here["amount"], paid["amount"]) == (PRICE, PRICE)
            kept += paid["amount"] - paid["given_back"]
        elif not paid["given_back"]:
            assert here["owed"] == paid["amount"] or here["waits"]
        assert here["given_back"] == paid["given_back"]
    states = [order["state"] for order in orders.values()]
    assert kept == PRICE * states.count("confirmed") - PRICE // 2  # a part was given back
    ended = time.time()

    def audited() -> Any:
        found = httpx.get(f"{shop.url}/stock").json()
        return found if found["audit"] and found["audit"]["at"] > ended else None

    eventually(lambda: audited() is not None, "the auditor has looked")
    stock = audited()
    assert stock["audit"]["consistent"]
    assert (stock["stock"], stock["held"], stock["lucky"]) == (STOCK - len(DAYS), states.count("held"), 11)


def test_it_plays_no_day_that_there_is_not(till: tuple[ThreadedInstance, ProviderProcess]) -> None:
    """An unknown hold or day is refused, and nothing is played."""
    _, provider = till
    assert httpx.post(f"{provider.url}/sandbox/play", data={"hold": "none", "day": "pay"}).status_code == 404
    assert httpx.get(f"{provider.url}/sandbox/plays").json() == []
