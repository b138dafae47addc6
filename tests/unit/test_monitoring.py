"""Monitoring matches the metrics: the dashboard, the alerts, and their sections of docs/operations.md."""

import re
import subprocess
from pathlib import Path

import pytest

import fencelock
from app import errors
from app.orders import Outcome
from app.orders.commands import VERBS
from tests.harness.monitoring import ALERTS, MONITORING, ROOT, expressions, generate, used
from tests.harness.servers import optional_server

RULE_TESTS = Path(__file__).with_name("alerts.yml")

# Prometheus adds these to each sample, or counts them itself; etcd's metrics are tested with a real one elsewhere.
OF_THE_TARGET = {"instance", "job"}
OF_PROMETHEUS = {"up": set[str](), "ALERTS": {"alertname", "alertstate", "severity"}}
OF_ETCD: dict[str, set[str]] = {
    "etcd_server_has_leader": set(),
    "etcd_disk_wal_fsync_duration_seconds_bucket": {"le"},
    "etcd_mvcc_db_total_size_in_bytes": set(),
    "etcd_server_quota_backend_bytes": set(),
}


def counted() -> dict[str, set[str]]:
    """Return each sample's name, and its labels."""
    found: dict[str, set[str]] = {}
    for family in generate.families().values():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_what_is_asked_for_is_counted(where: str, expression: str) -> None:
    """Every metric that the dashboard or an alert uses exists, with the labels that it uses."""
    known = counted() | OF_PROMETHEUS | OF_ETCD
    metrics = used(expression)
    assert metrics, where
    at_hand = set(OF_THE_TARGET)
    for name, labels in metrics:
        assert name in known, where
        assert labels <= known[name] | OF_THE_TARGET, where
        at_hand |= known[name]
    for labels in re.findall(r"\bby\s*\(([^)]*)\)", expression):
        assert set(labels.replace(" ", "").split(",")) <= at_hand, where


def test_every_outcome_is_there_before_it_happens() -> None:
    """The first sale and the first error increment a counter from 0, and each name is one that exists."""
    told = generate.families()["seckill_purchases"]
    outcomes = {sample.labels["outcome"]: sample.value for sample in told.samples if sample.name.endswith("_total")}
    assert {outcome.value for outcome in Outcome} <= set(outcomes)
    kinds = [*errors.SaleError.__subclasses__(), *errors.TurnedAway.__subclasses__()]
    of_sale = {kind.__name__ for kind in kinds if not kind.__subclasses__()}
    assert of_sale <= set(outcomes)
    for name in set(outcomes) - {outcome.value for outcome in Outcome}:
        assert issubclass(getattr(errors, name, None) or getattr(fencelock, name), errors.EXPECTED)
    assert set(outcomes.values()) == {0.0}


def test_every_change_is_there_before_it_happens() -> None:
    """The outcomes of holds, and of changes of orders, likewise."""
    told = {
        (sample.labels["command"], sample.labels["outcome"])
        for sample in generate.families()["seckill_orders"].samples
        if sample.name.endswith("_total")
    }
    assert told == {(verb, outcome) for kind, verb in VERBS.items() for outcome in kind}


# -- the alerts ------------------------------------------------------------------------------------------------------


def promtool(*arguments: str | Path) -> None:
    """Run Prometheus' own checker; its errors fail the test."""
    tool = optional_server("promtool", "prometheus")
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_config_and_the_rules_are_valid() -> None:
    """Prometheus' own checker accepts both."""
    promtool("check", "config", MONITORING / "prometheus.yml")
    promtool("check", "rules", "--lint=all", "--lint-fatal", MONITORING / "alerts.yml")


@pytest.mark.slow
def test_each_alert_fires_when_it_should() -> None:
    """Prometheus' own checker runs it: a good sale fires no alert, and every rule fires with a cause."""
    promtool("test", "rules", RULE_TESTS)
    played = RULE_TESTS.read_text()
    assert {rule["alert"] for rule in ALERTS} == set(re.findall(r"\b(?:Seckill|Etcd)\w+", played))


def test_an_alert_says_what_to_do() -> None:
    """Each alert has a severity, a summary, a remedy, and a section of the guides that exists."""
    anchors: dict[str, set[str]] = {}
    for page in ("docs/operations.md", "docs/payments.md", "docs/webhooks.md"):
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
        anchors[page] = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "action", "runbook"}, rule["alert"]
        document, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert anchor in anchors[document], rule["alert"]
