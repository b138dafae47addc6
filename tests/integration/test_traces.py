"""A span for each grant, sent by OpenTelemetry's own SDK: `opentelemetry-instrument seckill serve`."""

import asyncio
import itertools
import os
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
import redis

from app.dashboard import Journal
from app.stock.redis.client import Script
from app.telemetry.metrics import Metrics
from app.telemetry.observer import Observers
from app.telemetry.traces import Traces
from lab.servers import EtcdMember, Valkey
from lab.servers.process import free_port
from lab.torture.proxy import Proxy
from tests.harness.collector import Collector, Received, collector
from tests.harness.shop import TOKEN, Instance
from tests.harness.waiting import WITHIN_S

OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
INSTRUMENT = str(Path(sys.executable).with_name("opentelemetry-instrument"))


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector, and the variables with which the SDK finds it."""
    with collector() as found:
        send_to(monkeypatch, found.url)
        yield found


def send_to(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "none")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "tickets")


def instrumented(etcd: EtcdMember, store_url: str, **others: Any) -> Instance:
    """An instance that is started as an operator starts it who wants traces."""
    return Instance(etcd.endpoint, store_url, under=[INSTRUMENT], **{"traces": "true"} | others)


def set_stock(instance: Instance, units: int, sku: str = "default") -> None:
    change = {"stock": units}
    httpx.put(f"{instance.url}/stock", params={"sku": sku}, json=change, headers=OPERATOR).raise_for_status()


def buy(instance: Instance, **wish: Any) -> str:
    """What a buyer is told."""
    answer = httpx.post(f"{instance.url}/stock/reduce", params=wish, timeout=30)
    return answer.headers.get("x-seckill-outcome", str(answer.status_code))


async def rush(url: str, buyers: int) -> Counter[str]:
    """What so many at once are told."""
    async with httpx.AsyncClient(timeout=60) as http:
        answers = await asyncio.gather(*(http.post(f"{url}/stock/reduce?buyer=b{n}") for n in range(buyers)))
    return Counter(answer.headers.get("x-seckill-outcome", str(answer.status_code)) for answer in answers)


def events(grant: Received, name: str) -> list[tuple[int, dict[str, Any]]]:
    """When an event happened under a grant, and its facts."""
    return [(at_ns, facts) for kind, at_ns, facts in grant.events if kind == name]


async def test_each_grant_is_a_span(etcd: EtcdMember, valkey: Valkey, traced: Collector) -> None:
    """Its token is that of the orders; its purchases and units add up to what the buyers were told."""
    with instrumented(etcd, valkey.url, batch_max=4, sold_out_ttl_ms=0) as instance:
        set_stock(instance, 25)
        before_ns = time.time_ns()
        assert await rush(instance.url, 40) == {"sold": 25, "sold_out": 15}
        orders = httpx.get(f"{instance.url}/orders?limit=100", headers=OPERATOR).json()["orders"]
    # The last ones were sent as it ended.
    grants = traced.named("grant")
    assert len(grants) >= 10
    assert sum(grant.attributes["seckill.purchases"] for grant in grants) == 40
    sold_under = {grant.attributes["seckill.token"]: grant.attributes["seckill.units"] for grant in grants}
    assert {token: units for token, units in sold_under.items() if units} == Counter(order["token"] for order in orders)
    for grant in grants:
        [(got_ns, _)] = events(grant, "granted")
        assert before_ns <= grant.start_ns <= got_ns <= grant.end_ns <= time.time_ns()
        assert grant.attributes["seckill.held_s"] == pytest.approx((grant.end_ns - got_ns) / 1e9, abs=0.05)
        committed = [facts["seckill.purchases"] for _, facts in events(grant, "committed")]
        assert sum(committed) == grant.attributes["seckill.purchases"]
        assert (grant.parent, grant.failed) == (b"", False)
        assert grant.attributes["seckill.lock"] == "/seckill/lock/all"
        assert grant.attributes["seckill.instance"] == str(instance.port)
        assert grant.resource["service.name"] == "tickets"
    # They are grants of one lock: one comes after the other.
    for earlier, later in itertools.pairwise(grants):
        assert earlier.end_ns <= events(later, "granted")[0][0]
    assert len({grant.trace for grant in grants}) == len(grants)
    # No buyer has a span, although the web framework makes one for other requests.
    assert not [span for span in traced.spans if "reduce" in f"{span.name} {span.attributes}"]


def test_a_refused_token_is_seen(etcd: EtcdMember, valkey: Valkey, traced: Collector) -> None:
    """A grant whose token the store refuses has failed and tells which item it was; other grants are well."""
    with instrumented(etcd, valkey.url, purchase_timeout_ms=500) as instance:
        for sku in ("fenced", "sound"):
            set_stock(instance, 5, sku)
            assert buy(instance, sku=sku) == "sold"
        with redis.Redis.from_url(valkey.url) as client:
            client.hset("seckill:{fenced}:fence", "source", "etcd:another")
        assert buy(instance, sku="fenced") == "503"
        assert buy(instance, sku="sound") == "sold"
    grants = traced.named("grant")
    refused = [grant for grant in grants if grant.failed]
    assert refused
    for grant in refused:
        [(_, facts)] = events(grant, "fenced")
        assert facts == {"seckill.sku": "fenced"}
    well = [grant for grant in grants if not grant.failed]
    assert sum(grant.attributes["seckill.units"] for grant in grants) == 3
    assert not any(events(grant, "fenced") for grant in well)


async def test_a_lost_answer_is_seen(etcd: EtcdMember, valkey: Valkey, traced: Collector) -> None:
    """The grant under which a batch in doubt is resolved tells the result, and counts what was sold."""
    with Proxy(valkey.port) as proxy, instrumented(etcd, f"redis://127.0.0.1:{proxy.port}/0") as instance:
        set_stock(instance, 10)
        assert buy(instance) == "sold"
        proxy.lose_answer_to(Script("commit.lua").sha.encode())
        buying = asyncio.create_task(asyncio.to_thread(buy, instance, quantity=3))
        assert await asyncio.to_thread(proxy.struck.wait, WITHIN_S)
        proxy.restore()
        assert await buying == "sold"
    first, last = [grant for grant in traced.named("grant") if grant.attributes["seckill.units"]]
    assert [name for name, *_ in first.events] == ["granted", "committed"]
    assert first.attributes["seckill.units"] == 1
    assert [facts for _, facts in events(last, "resolved")] == [{"seckill.result": "committed"}]
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
async def test_a_missing_collector_is_in_nobodys_way(
    etcd: EtcdMember, valkey: Valkey, monkeypatch: pytest.MonkeyPatch, missing: Any
) -> None:
    """Buyers are served as ever, and the instance ends by itself."""
    with missing() as url:
        send_to(monkeypatch, url)
        # Room for few: all the others are dropped.
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "20")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # seconds
        with instrumented(etcd, valkey.url, batch_max=1) as instance:
            set_stock(instance, 60)
            for _ in range(3):
                assert await rush(instance.url, 20) == {"sold": 20}
            began = time.monotonic()
            instance.terminate(within_s=WITHIN_S)
            assert time.monotonic() - began < WITHIN_S


@pytest.mark.parametrize(("wanted", "under"), [("false", [INSTRUMENT]), ("true", [])], ids=["not wanted", "no SDK"])
def test_grants_have_no_spans_without_the_setting_and_the_sdk(
    etcd: EtcdMember, valkey: Valkey, traced: Collector, wanted: str, under: list[str]
) -> None:
    """Both are needed for a grant's span; with one of them alone an instance sells as ever."""
    with Instance(etcd.endpoint, valkey.url, under=under, traces=wanted) as instance:
        set_stock(instance, 1)
        assert buy(instance) == "sold"
    assert traced.named("grant") == []


def test_nothing_comes_between_a_buyer_and_the_count() -> None:
    """What is called for each buyer is the metrics' own method, with traces and without."""
    metrics, journal = Metrics(), Journal()
    with_traces = Observers([metrics, journal, Traces(instance="a")])
    without = Observers([metrics, journal])
    assert with_traces.answered == without.answered == metrics.answered
    assert without.conflicted == metrics.conflicted
    assert with_traces.conflicted != metrics.conflicted


def test_traces_need_their_extra() -> None:
    """Without OpenTelemetry the start ends with a line that says what to install."""
    # The web framework may bring the API along: it is taken away when all the rest has been imported.
    script = (
        "import sys, app.main, opentelemetry.trace; del opentelemetry.trace; "
        "sys.modules['opentelemetry.trace'] = None; app.main.create_app()"
    )
    environment = os.environ | {"SECKILL_TRACES": "true"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "seckill: SECKILL_TRACES needs OpenTelemetry; in the checkout: pip install '.[traces]'\n"
