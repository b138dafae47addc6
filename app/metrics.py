"""What an instance counts, in the format that Prometheus scrapes."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_MS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """A registry of its own for each app, so that a process may have several."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        self._purchases = Counter(
            "seckill_purchases", "Purchases answered, by outcome or error", ["outcome"], registry=registry
        )
        self._outcomes: dict[str, Counter] = {}
        self._batch = Histogram(
            "seckill_batch_purchases",
            "Purchases decided in one batch",
            registry=registry,
            buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500),
        )
        self._wait = Histogram("seckill_lock_wait_seconds", "Wait for a lock grant", registry=registry, buckets=_MS)
        self._hold = Histogram(
            "seckill_lock_hold_seconds", "Time that a grant was held", registry=registry, buckets=_MS
        )
        self._units = Counter("seckill_units_sold", "Units sold by this instance", registry=registry)
        self._renewals = Counter("seckill_lease_renewals", "Lease renewals, by result", ["result"], registry=registry)
        self._lost = Counter("seckill_grants_lost", "Grants that were lost while held", registry=registry)
        self._fenced = Counter(
            "seckill_fenced_writes", "Reads and writes that the store's fence refused", registry=registry
        )
        self._conflicts = Counter(
            "seckill_conflicts", "Commits that found what they were decided on changed", registry=registry
        )
        self._fallbacks = Counter(
            "seckill_fallbacks", "Times that the lock system went away or came back", ["event"], registry=registry
        )
        self._settled = Counter(
            "seckill_batches_settled",
            "Batches whose answer was lost, by what became of them",
            ["result"],
            registry=registry,
        )

        self._audits = Counter("seckill_audits", "Audits by this instance, by result", ["result"], registry=registry)

    def watch_way(self, way: Callable[[], str]) -> None:
        """Report whether sales happen without a lock, as it is at each scrape."""
        gauge = Gauge("seckill_optimistic", "1 while sales happen without a lock", registry=self._registry)
        gauge.set_function(lambda: way() == "optimistic")

    def fallback(self, event: str) -> None:
        """The lock system went "away", or is "back"."""
        self._fallbacks.labels(event).inc()

    def watch_queues(self, waiting: Callable[[], Mapping[str, int]]) -> None:
        """Report the depth of the queues as `waiting()` has it at each scrape."""
        self._registry.register(_Queues(waiting))

    def served(self, outcome: str) -> None:
        """A buyer was answered."""
        child = self._outcomes.get(outcome)
        if child is None:  # `labels` costs more than all the rest of it
            child = self._outcomes[outcome] = self._purchases.labels(outcome)
        child.inc()

    def committed(self, purchases: int) -> None:
        """A batch was decided."""
        self._batch.observe(purchases)

    def granted(self, lock: str, token: int, waited_s: float) -> None:
        """A lock was got."""
        self._wait.observe(waited_s)

    def released(self, lock: str, token: int, held_s: float, purchases: int, units: int) -> None:
        """A lock was given back."""
        self._hold.observe(held_s)
        self._units.inc(units)

    def fenced(self, lock: str, sku: str) -> None:
        """The store refused our token."""
        self._fenced.inc()

    def lost(self, lock: str) -> None:
        """A grant was lost."""
        self._lost.inc()

    def conflicted(self) -> None:
        """Somebody was faster."""
        self._conflicts.inc()

    def settled(self, result: str) -> None:
        """What became of a batch whose answer was lost."""
        self._settled.labels(result).inc()

    def renewal(self, result: str) -> None:
        """What became of a lease renewal."""
        self._renewals.labels(result).inc()

    def watch_auditor(self, leads: Callable[[], bool], violations: Callable[[], int]) -> None:
        """Report whether this instance is the auditor, and what the last audit found, whoever made it."""
        auditor = Gauge("seckill_auditor", "1 if this instance is the auditor", registry=self._registry)
        auditor.set_function(leads)
        found = Gauge("seckill_audit_violations", "Violations that the last audit found", registry=self._registry)
        found.set_function(violations)

    def audited(self, result: str) -> None:
        """The auditor has looked at all items."""
        self._audits.labels(result).inc()

    def render(self) -> bytes:
        """The text that is scraped."""
        return generate_latest(self._registry)


class _Queues(Collector):
    def __init__(self, waiting: Callable[[], Mapping[str, int]]) -> None:
        self._waiting = waiting

    def collect(self) -> list[GaugeMetricFamily]:
        gauge = GaugeMetricFamily("seckill_queue_buyers", "Buyers who wait in this instance, by item", labels=["sku"])
        for sku, count in self._waiting().items():
            gauge.add_metric([sku], count)
        return [gauge]
