"""OpenTelemetry's own SDK sends a span for each grant: `opentelemetry-instrument seckill serve`."""

import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from app.dashboard.journal import Journal
from app.stock.redis.client import Script
from app.telemetry.metrics import Metrics
from app.telemetry.observer import Observers
from app.telemetry.traces import Traces
from lab.servers import EtcdMember, Valkey
from lab.torture.proxy import Proxy
from tests.harness.collector import Collector, Received, collector
from tests.harness.shop import TOKEN, Instance
from tests.harness.waiting import WITHIN_S, eventually_async

OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
INSTRUMENT = str(Path(sys.executable).with_name("opentelemetry-instrument"))


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Start a collector, and set the variables by which the SDK finds it."""
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
    """Start an instance as an operator who wants traces would."""
    return Instance(etcd.endpoint, store_url, under=[INSTRUMENT], **{"traces": "true"} | others)


def set_stock(instance: Instance, units: int, sku: str = "default") -> None:
    change = {"stock": units}
    httpx.put(f"{instance.url}/stock", params={"sku": sku}, json=change, headers=OPERATOR).raise_for_status()


def buy(instance: Instance, **wish: Any) -> str:
    """Buy, and return the outcome."""
    answer = httpx.post(f"{instance.url}/stock/reduce", params=wish, timeout=30)
    return answer.headers.get("x-seckill-outcome", str(answer.status_code))


async def rush(url: str, buyers: int) -> Counter[str]:
    """Count the outcomes of so many concurrent purchases."""
    async with httpx.AsyncClient(timeout=60) as http:
        answers = await asyncio.gather(*(http.post(f"{url}/stock/reduce?buyer=b{n}") for n in range(buyers)))
    return Counter(answer.headers.get("x-seckill-outcome", str(answer.status_code)) for answer in answers)


def events(grant: Received, name: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the time and the facts of each such event under a grant."""
    return [(at_ns, facts) for kind, at_ns, facts in grant.events if kind == name]


async def test_each_grant_is_a_span(etcd: EtcdMember, valkey: Valkey, traced: Collector) -> None:
    """A grant's span has the orders' token, purchases and units that add up, and events of refused and lost writes."""
    with (
        Proxy(valkey.port) as proxy,
        instrumented(
            etcd, f"redis://127.0.0.1:{proxy.port}/0", batch_max=4, sold_out_ttl_ms=0, purchase_timeout_ms=60_000
        ) as instance,
        redis.Redis.from_url(valkey.url) as store,
    ):
        set_stock(instance, 25)
        set_stock(instance, 9, "other")
        before_ns = time.time_ns()
        assert await rush(instance.url, 40) == {"sold": 25, "sold_out": 15}
        orders = httpx.get(f"{instance.url}/orders?limit=100", headers=OPERATOR).json()["orders"]
        assert buy(instance, sku="other") == "sold"
        source = store.hget("seckill:{other}:fence", "source")
        store.hset("seckill:{other}:fence", "source", "etcd:another")
        press = f"{instance.url}/stock/reduce?sku=other"
        assert httpx.post(press).json()["type"] == "urn:seckill:item-blocked"
        store.hset("seckill:{other}:fence", "source", source)
        await eventually_async(lambda: httpx.post(press).status_code == 200, "it is sold again")
        proxy.lose_answer_to(Script("put.lua").sha.encode())
        buying = asyncio.create_task(asyncio.to_thread(buy, instance, quantity=3, sku="other"))
        assert await asyncio.to_thread(proxy.struck.wait, WITHIN_S)
        proxy.restore()
        assert await buying == "sold"
    # The last spans were sent as the instance ended.
    grants = traced.named("grant")
    sold = [grant for grant in grants if grant.attributes["seckill.units"]]
    assert sum(grant.attributes["seckill.purchases"] for grant in grants) == 43
    assert sum(grant.attributes["seckill.units"] for grant in grants) == 25 + 5
    under = {grant.attributes["seckill.token"]: grant.attributes["seckill.units"] for grant in sold[:-3]}
    assert under == Counter(order["token"] for order in orders)
    for grant in grants:
        [(got_ns, _)] = events(grant, "granted")
        assert before_ns <= grant.start_ns <= got_ns <= grant.end_ns <= time.time_ns()
        assert grant.attributes["seckill.held_s"] == pytest.approx((grant.end_ns - got_ns) / 1e9, abs=1.0)
        refused = [facts for _, facts in events(grant, "fenced")]
        assert refused == [{"seckill.sku": "other"}] * grant.failed
        resolved = [facts for _, facts in events(grant, "resolved")]
        assert resolved == [{"seckill.result": "committed"}] * (grant is sold[-1])
        committed = [facts["seckill.purchases"] for _, facts in events(grant, "committed")]
        assert sum(committed) == grant.attributes["seckill.purchases"]
        assert grant.parent == b""
        assert grant.attributes["seckill.lock"] == "/seckill/lock/all"
        assert grant.attributes["seckill.instance"] == str(instance.port)
        assert grant.resource["service.name"] == "tickets"
    assert any(grant.failed for grant in grants)
    # They are grants of one lock, and must not overlap.
    for earlier, later in itertools.pairwise(grants):
        assert earlier.end_ns <= events(later, "granted")[0][0]
    assert len({grant.trace for grant in grants}) == len(grants)
    # Purchases have no spans, although the web framework makes one for other requests.
    assert not [span for span in traced.spans if "reduce" in f"{span.name} {span.attributes}"]


@pytest.mark.slow
@pytest.mark.parametrize(("wanted", "under"), [("false", [INSTRUMENT]), ("true", [])], ids=["not wanted", "no SDK"])
def test_grants_have_no_spans_without_the_setting_and_the_sdk(
    etcd: EtcdMember, valkey: Valkey, traced: Collector, wanted: str, under: list[str]
) -> None:
    """A grant's span needs both; with one of them alone an instance sells as ever."""
    with Instance(etcd.endpoint, valkey.url, under=under, traces=wanted) as instance:
        set_stock(instance, 1)
        assert buy(instance) == "sold"
    assert traced.named("grant") == []


def test_nothing_comes_between_a_buyer_and_the_count() -> None:
    """The metrics' own method is called for each buyer, with traces and without."""
    metrics, journal = Metrics(), Journal()
    with_traces = Observers([metrics, journal, Traces(instance="a")])
    without = Observers([metrics, journal])
    assert with_traces.answered == without.answered == metrics.answered
    assert without.conflicted == metrics.conflicted
    assert with_traces.conflicted != metrics.conflicted


@pytest.mark.slow
def test_traces_need_their_extra() -> None:
    """Without OpenTelemetry the start ends with a line that names the package to install."""
    # The web framework may import the API: it is removed after all other imports.
    script = (
        "import sys, app.main, opentelemetry.trace; del opentelemetry.trace; "
        "sys.modules['opentelemetry.trace'] = None; app.main.create_app()"
    )
    environment = os.environ | {"SECKILL_TRACES": "true"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "seckill: SECKILL_TRACES needs OpenTelemetry; in the checkout: pip install '.[traces]'\n"
