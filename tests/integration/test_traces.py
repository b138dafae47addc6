"""A trace for each grant, for who wants it: what is in it, and that it is in nobody's way."""

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio

from app.embedded import EtcdMember, Valkey
from app.embedded.process import free_port
from app.errors import NotDecided
from app.main import open_shop
from app.sale import Outcome, Purchase
from app.stock.redis.client import Script
from app.telemetry.metrics import Metrics
from app.torture.proxy import Proxy
from tests.harness.collector import Collector, Received, collector
from tests.harness.shop import TOKEN, Instance, settings, shop
from tests.harness.waiting import WITHIN_S, eventually

OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
STOP_S = 8.0  # long for a stop, on a busy machine; short for what OpenTelemetry would wait by itself


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector, and the variables that say where it is; a span is sent soon."""
    with collector() as found:
        say(monkeypatch, found.url)
        yield found


def say(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")  # milliseconds


async def rush(url: str, buyers: int) -> Counter[str]:
    """What so many at once are told."""
    async with httpx.AsyncClient(timeout=60) as http:
        answers = await asyncio.gather(*(http.post(f"{url}/stock/reduce?buyer=b{n}") for n in range(buyers)))
    return Counter(answer.headers.get("x-seckill-outcome", str(answer.status_code)) for answer in answers)


def stock(instance: Instance, units: int) -> None:
    httpx.put(f"{instance.url}/stock", json={"stock": units}, headers=OPERATOR).raise_for_status()


def of_children(traced: Collector, grant: Received) -> list[tuple[str, int, int]]:
    return [(span.name, span.start_ns, span.end_ns) for span in traced.under(grant)]


def test_each_grant_is_a_trace(etcd: EtcdMember, valkey: Valkey, traced: Collector) -> None:
    """Its token is that of the orders; it waits, then holds; purchases and units add up to what buyers were told."""
    with Instance(etcd.endpoint, valkey.url, traces="true", batch_max=4, sold_out_ttl_ms=0) as instance:
        stock(instance, 25)
        before_ns = time.time_ns()
        assert asyncio.run(rush(instance.url, 40)) == {"sold": 25, "sold_out": 15}
        orders = httpx.get(f"{instance.url}/orders?limit=100", headers=OPERATOR).json()["orders"]
    # What was left is sent before it ends.
    grants = traced.named("grant")
    assert len(grants) >= 10
    assert sum(grant.attributes["seckill.purchases"] for grant in grants) == 40
    sold_under = {grant.attributes["seckill.token"]: grant.attributes["seckill.units"] for grant in grants}
    assert Counter({token: units for token, units in sold_under.items() if units}) == Counter(
        str(order["token"]) for order in orders
    )
    assert len({grant.trace for grant in grants}) == len(grants)
    for grant in grants:
        assert before_ns <= grant.start_ns <= grant.end_ns <= time.time_ns()
        (wait, waits_ns, got_ns), (hold, holds_ns, over_ns) = of_children(traced, grant)
        assert (wait, hold) == ("wait", "hold")
        assert grant.start_ns == waits_ns <= got_ns == holds_ns <= over_ns == grant.end_ns
        assert (grant.parent, grant.failed, grant.events) == (b"", False, [])
        assert grant.attributes["seckill.lock"] == "/seckill/lock/all"
        assert {name: grant.resource[name] for name in ("service.name", "service.instance.id")} == {
            "service.name": "seckill",
            "service.instance.id": str(instance.port),
        }
        assert grant.resource["service.version"]
    # One after the other: they are grants of one lock. And nothing of single buyers.
    assert all(first.end_ns <= of_children(traced, second)[1][1] for first, second in itertools.pairwise(grants))
    assert len(traced.spans) == 3 * len(grants)


def test_the_service_has_the_name_that_opentelemetry_was_told(
    etcd: EtcdMember, valkey: Valkey, traced: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES have the last word."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "tickets")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=trial")

    async def main() -> None:
        async with shop(etcd.endpoint, valkey.url, traces=True) as one:
            await one.set_stock("default", 1)
            await one.buy(Purchase())

    asyncio.run(main())
    [grant] = traced.named("grant")
    assert grant.resource["service.name"] == "tickets"
    assert grant.resource["deployment.environment.name"] == "trial"
    assert grant.resource["service.instance.id"] == "test"


def test_a_refused_token_is_seen(etcd: EtcdMember, valkey: Valkey, traced: Collector) -> None:
    """A grant that the store refuses has failed, tells of which item, and has decided nothing; the others are well."""

    async def main() -> None:
        async with shop(etcd.endpoint, valkey.url, traces=True, purchase_timeout_ms=500) as one:
            for sku in ("fenced", "sound"):
                await one.set_stock(sku, 5)
                await one.buy(Purchase(sku=sku))
            async with redis.asyncio.Redis.from_url(valkey.url) as client:
                await client.hset("seckill:{fenced}:fence", "source", "etcd:another")  # type: ignore[misc]
            with pytest.raises(NotDecided):
                await one.buy(Purchase(sku="fenced"))
            await one.buy(Purchase(sku="sound"))

    asyncio.run(main())
    grants = traced.named("grant")
    refused = [grant for grant in grants if grant.failed]
    assert refused
    for grant in refused:
        [(name, at_ns, about)] = grant.events
        assert (name, about) == ("fenced", {"seckill.sku": "fenced"})
        assert grant.start_ns <= at_ns <= grant.end_ns
        assert (grant.attributes["seckill.purchases"], grant.attributes["seckill.units"]) == (0, 0)
    well = [grant for grant in grants if not grant.failed]
    assert sum(grant.attributes["seckill.units"] for grant in well) == 3
    assert not any(grant.events for grant in well)


def test_a_lost_lock_is_seen(etcd: EtcdMember, valkey: Valkey, traced: Collector) -> None:
    """A holder that stands still for longer than its lease: "lost" is in the trace of that grant, and it has failed."""
    begun: list[int] = []

    async def main() -> None:
        async with shop(etcd.endpoint, valkey.url, traces=True, lock_backend="redis", lock_ttl_s=1) as one:
            await one.set_stock("default", 100_000)
            stalling = asyncio.create_task(one.stall("default", 2.0, begun.append, within_s=WITHIN_S))
            while not stalling.done():
                assert (await one.buy(Purchase())).outcome is Outcome.SOLD
            assert stalling.result()

    asyncio.run(main())
    [lost] = traced.named("lost")
    [stalled] = [grant for grant in traced.named("grant") if grant.attributes["seckill.token"] == str(begun[0])]
    assert lost in traced.under(stalled)
    assert (lost.failed, lost.trace) == (True, stalled.trace)
    assert stalled.end_ns <= lost.start_ns
    assert stalled.end_ns - stalled.start_ns > 1e9


def test_a_lost_answer_is_seen(etcd: EtcdMember, valkey: Valkey, traced: Collector) -> None:
    """The grant under which it is found out what became of the batch tells it, and counts what was sold."""

    async def main() -> None:
        with Proxy(valkey.port) as proxy:
            async with shop(etcd.endpoint, f"redis://127.0.0.1:{proxy.port}/0", traces=True) as one:
                await one.set_stock("default", 10)
                await one.buy(Purchase())
                proxy.lose_answer_to(Script("commit.lua").sha.encode())
                buying = asyncio.create_task(one.buy(Purchase(3)))
                assert await asyncio.to_thread(proxy.struck.wait, WITHIN_S)
                proxy.restore()
                await buying

    asyncio.run(main())
    first, *_, last = traced.named("grant")
    assert (first.events, first.attributes["seckill.units"]) == ([], 1)
    assert [(name, about) for name, _, about in last.events] == [("settled", {"seckill.result": "committed"})]
    assert (last.attributes["seckill.units"], last.failed) == (3, False)


@contextmanager
def away() -> Iterator[str]:
    """Nobody listens."""
    yield f"http://127.0.0.1:{free_port()}"


@contextmanager
def hangs() -> Iterator[str]:
    """Takes connections, and answers nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("missing", [away, hangs])
def test_a_missing_collector_is_in_nobodys_way(
    etcd: EtcdMember, valkey: Valkey, monkeypatch: pytest.MonkeyPatch, missing: Any
) -> None:
    """Buyers are served, the log has a line about it at most, without the address' password, and it ends in time."""
    with missing() as url:
        say(monkeypatch, url)
        # Room for few: all the others are dropped.
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "20")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{url}/v1/traces?key=hunter2")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")  # seconds
        with Instance(etcd.endpoint, valkey.url, traces="true", batch_max=1) as instance:
            stock(instance, 60)
            log = instance.directory / "output.log"
            for _ in range(3):
                assert asyncio.run(rush(instance.url, 20)) == {"sold": 20}
            eventually(lambda: "traces may be missing" in log.read_text(), "it is said")
            began = time.monotonic()
            instance.terminate(within_s=WITHIN_S)
            took_s = time.monotonic() - began
            said = log.read_text()
            assert instance._child is not None
            assert instance._child.returncode in (0, -signal.SIGTERM)
    assert took_s < STOP_S
    assert said.count("traces may be missing") == 1
    assert "hunter2" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize("wanted", [True, False])
def test_who_wants_no_traces_has_nothing_of_them(
    etcd: EtcdMember, valkey: Valkey, traced: Collector, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    """Without SECKILL_TRACES a process that sells has imported nothing that sends traces, wherever they would go."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")  # it says each module that it imports
    with Instance(etcd.endpoint, valkey.url, traces=wanted) as instance:
        stock(instance, 1)
        assert asyncio.run(rush(instance.url, 1)) == {"sold": 1}
        log = (instance.directory / "output.log").read_text()
    imported = {line.rpartition("|")[2].strip() for line in log.splitlines() if line.startswith("import time:")}
    assert "app.main" in imported
    # The web framework and Redis' client import parts of OpenTelemetry that do nothing by themselves.
    ours = ("app.telemetry.traces", "opentelemetry.sdk.trace", "opentelemetry.exporter")
    assert [name for name in ours if any(one.startswith(name) for one in imported)] == (list(ours) if wanted else [])
    assert bool(traced.spans) == wanted


@pytest.mark.parametrize("wanted", [True, False])
def test_nothing_comes_between_a_buyer_and_the_count(
    etcd: EtcdMember, valkey: Valkey, traced: Collector, wanted: bool
) -> None:
    """What is called for each buyer is the metrics' own, with traces and without."""

    async def main() -> None:
        metrics = Metrics()
        async with open_shop(settings(etcd.endpoint, valkey.url, traces=wanted), metrics) as one:
            assert one.journal.served == metrics.served
            assert (one.journal.conflicted == metrics.conflicted) != wanted

    asyncio.run(main())


def test_traces_need_their_extra(tmp_path: Path) -> None:
    """Without the packages the start ends with a line that says what to install."""
    # As if it were not installed: its place is taken by something else.
    (tmp_path / "hidden.py").write_text("import sys\nsys.modules['opentelemetry.sdk'] = None\n")
    started = ["-c", "import hidden, app.main; app.main.create_app()"]
    environment = os.environ | {"SECKILL_TRACES": "true", "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"}
    done = subprocess.run([sys.executable, *started], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "seckill: SECKILL_TRACES needs OpenTelemetry: pip install 'seckill[traces]'\n"


def test_a_wrong_variable_of_opentelemetry_ends_the_start() -> None:
    """What it can't work with is said in a line, not in a stack trace once buyers come."""
    environment = os.environ | {"SECKILL_TRACES": "true", "OTEL_BSP_MAX_QUEUE_SIZE": "0"}
    started = ["-c", "import app.main; app.main.create_app()"]
    done = subprocess.run([sys.executable, *started], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("seckill: OpenTelemetry refuses its settings")
    assert done.stderr.count("\n") == 1
