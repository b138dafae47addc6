"""The shipped config, alerts and dashboard work with a real Prometheus that scrapes real instances and etcd."""

import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lab.servers import EtcdMember, Valkey
from lab.servers.process import free_port
from tests.harness.monitoring import ALERTS, CONFIG, DASHBOARD, Prometheus, expressions, generate, panels, used
from tests.harness.receiver import SECRET
from tests.harness.shop import TOKEN, ThreadedInstance
from tests.harness.waiting import eventually

pytestmark = pytest.mark.slow

# Panels of failures, of which this test has none.
QUIET = {
    "Lost grants and fenced writes",
    "Commits that came too late",
    "Batches whose answer was lost",
    "Lock system away or back",
    "Alerts that are firing",
}


@pytest.fixture
def instances(etcd: EtcdMember, valkey: Valkey) -> Iterator[list[ThreadedInstance]]:
    """Start two instances that sell; one of them soon becomes the auditor, and has a lease to renew."""
    others: dict[str, Any] = {"lock_ttl_s": 10, "audit_interval_s": 0.2, "webhook_secret": SECRET}
    others |= {"webhook_url": f"http://127.0.0.1:{free_port()}/events"}  # where nobody is
    with (
        ThreadedInstance(etcd.endpoint, valkey.url, **others) as one,
        ThreadedInstance(etcd.endpoint, valkey.url, **others) as another,
    ):
        operator = {"Authorization": f"Bearer {TOKEN}"}
        assert httpx.put(f"{one.url}/stock", json={"stock": 100_000}, headers=operator).status_code == 200
        yield [one, another]


@pytest.fixture
def prometheus(etcd: EtcdMember, instances: list[ThreadedInstance]) -> Iterator[Prometheus]:
    targets = {
        "seckill": [instance.url.removeprefix("http://") for instance in instances],
        "etcd": [etcd.endpoint.removeprefix("http://")],
    }
    with Prometheus(targets) as running:
        yield running


def as_grafana_asks(expression: str) -> str:
    """Replace Grafana's variables: all instances and items, and a range of four scrapes of the slowest job."""
    scrapes = [job.get("scrape_interval", CONFIG["global"]["scrape_interval"]) for job in CONFIG["scrape_configs"]]
    slowest_s = max(int(interval.removesuffix("s")) for interval in scrapes)
    return expression.replace("$__rate_interval", f"{4 * slowest_s}s").replace("$instance", ".+").replace("$sku", ".+")


def test_every_panel_and_every_alert_works(instances: list[ThreadedInstance], prometheus: Prometheus) -> None:
    """While something is sold each panel has data, each rule is evaluated, each metric exists."""

    def shows(expression: str) -> bool:
        for instance in instances:
            for sku in ("default", "no-such-item"):
                httpx.post(f"{instance.url}/stock/reduce", params={"sku": sku})
        return any(math.isfinite(value) for _, value in prometheus.query(as_grafana_asks(expression)))

    for panel in panels():
        for target in panel["targets"]:
            if panel["title"] in QUIET:
                prometheus.query(as_grafana_asks(target["expr"]))
            else:
                eventually(partial(shows, target["expr"]), f"{panel['title']}: {target['expr']}")

    assert {target["health"] for target in prometheus.ask("targets")["activeTargets"]} == {"up"}
    [group] = eventually(
        lambda: [group for group in prometheus.ask("rules")["groups"] if group["rules"][-1]["health"] != "unknown"],
        "the rules were evaluated",
    )
    assert {rule["name"]: rule["health"] for rule in group["rules"]} == {rule["alert"]: "ok" for rule in ALERTS}
    assert not [rule["name"] for rule in group["rules"] if rule["state"] == "firing"]

    there = set(prometheus.ask("label/__name__/values"))
    absent = {"ALERTS", "seckill_item_blocked"}  # while no alert fires, and each item can be sold
    assert {name for _, expression in expressions() for name, _ in used(expression)} - there <= absent
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
            assert found is not None
            assert prometheus.ask(f"label/{found[2]}/values", **{"match[]": found[1]}), variable["name"]


def test_the_numbers_are_those_of_the_sale(instances: list[ThreadedInstance], prometheus: Prometheus) -> None:
    """Purchases, units sold and units left match the sale, one instance is the auditor, each has its name."""
    for instance in instances:
        for _ in range(3):
            httpx.post(f"{instance.url}/stock/reduce", params={"quantity": 2})

    def shown() -> dict[str, float]:
        asked = {
            "purchases": 'sum(seckill_purchases_total{outcome="sold"})',
            "sold": "sum(seckill_lucky_units)",
            "left": "sum(seckill_stock_units)",
            "auditors": "sum(seckill_auditor)",
            "instances": "count(seckill_info)",
        }
        return {name: value for name, expression in asked.items() for _, value in prometheus.query(expression)}

    expected = {"purchases": 6, "sold": 12, "left": 99_988, "auditors": 1, "instances": 2}
    eventually(lambda: shown() == expected, "Prometheus has seen the sale")
    names = {labels["name"]: labels["instance"] for labels, _ in prometheus.query("seckill_info")}
    assert names == {str(instance.port): instance.url.removeprefix("http://") for instance in instances}


def test_an_instance_counts_what_the_guide_says(instances: list[ThreadedInstance]) -> None:
    """The table in docs/metrics.md is generated from an example; a real instance that sends events has the same."""

    def counted() -> set[str]:
        families = text_string_to_metric_families(str(instances[0].get("/metrics")[1]))
        return {family.name for family in families}

    httpx.post(f"{instances[0].url}/stock/reduce")
    assert counted() == set(generate.families())
