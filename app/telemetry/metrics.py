"""The metrics of an instance, in the format that Prometheus scrapes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from app.telemetry.observer import Observer

_MS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

# The answers to buyers: outcomes, errors of theirs, and errors of ours.
_OUTCOMES: Final = ("sold", "sold_out", "limit_reached", "not_started", "ended", "paused", "hold_required")
_CHANGES: Final = {
    "hold": "held waiting already_held already_waiting sold_out limit_reached not_started ended paused",
    "confirm": "confirmed already_confirmed duplicate_payment payment_ref_in_use refund_due amount_mismatch not_found",
    "extend": "extended already_extended waiting confirmed expired cancelled refunded not_found",
    "cancel": "cancelled partly_cancelled too_much already_cancelled confirmed expired refunded not_found",
    "refund": "refunded partly_refunded too_much already_refunded nothing_due not_found",
    "request": "requested already_requested nothing_due not_found",
    "incident": "noted already_noted not_found",
    "expire": "done more",
}
_REFUSALS: Final = (
    "UnknownItem",
    "ItemNotPossible",
    "BuyerRequired",
    "KeyReused",
    "HoldsNotPossible",
    "AmountRequired",
    "BasketNotPossible",
)
_CALLBACKS: Final = ("taken", "again", "not_signed", "invalid", "switched_off")
_BLOCKED_MAX: Final = 100  # items with a series of their own
_AT_THE_DOOR: Final = ("ForeignOrigin", "Prefetched", "BuyerNotSigned")
_FAILURES: Final = (
    *("QueueFull", "NotDecided", "OutcomeUnknown", "Closing"),
    *("StockUnavailable", "StockCorrupt", "LockUnavailable", "ItemBlocked"),
)

OUTBOX: Final = {
    "sender": "1 if this instance delivers events",
    "waiting": "Events that are behind the cursors, not delivered; only the sender has it, and the others here",
    "parked": "Orders whose event is refused while others get through",
    "dead": "Events that are tried no more",
    "stuck": "Items whose events can't be read, tried again or noted; the others go on",
    "oldest_seconds": "Age of the oldest event that is not delivered",
    "away_seconds": "For how long no event has got through although some were tried",
}

CASHIER: Final = {
    "in_office": "1 if this instance makes the refunds",
    "waiting": "Orders of which something is to be given back; only the cashier has it, and the next one",
    "failed": "Refunds that didn't work, and wait for an operator",
}


class Metrics(Observer):
    """The metrics in a registry of their own, so that a process may have several apps."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        told = (*_OUTCOMES, *_REFUSALS, *_AT_THE_DOOR, *_FAILURES)
        self._purchases = self._counter("purchases", "Purchases answered, by outcome or error", "outcome", *told)
        self._outcomes: dict[str, Counter] = {}
        self._changes = Counter(
            "seckill_orders", "Holds, and changes of orders, by outcome", ["command", "outcome"], registry=registry
        )
        for command, outcomes in _CHANGES.items():
            for outcome in outcomes.split():
                self._changes.labels(command, outcome)
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
        self._renewals = self._counter(
            "lease_renewals",
            "Lease renewals, by result",
            "result",
            "renewed",
            "retried",
            "lost",
            "abandoned",
        )
        self._lost = Counter("seckill_grants_lost", "Grants that were lost while held", registry=registry)
        self._fenced = Counter(
            "seckill_fenced_writes", "Reads and writes that the store's fence refused", registry=registry
        )
        self._conflicts = Counter(
            "seckill_conflicts", "Commits that found what they were decided on changed", registry=registry
        )
        self._fallbacks = self._counter(
            "fallbacks", "Times that the lock system went away or came back", "event", "away", "back"
        )
        self._resolved = self._counter(
            "batches_resolved",
            "Batches whose answer was lost, by what became of them",
            "result",
            *("committed", "not_committed", "unasked"),
        )
        self._audits = self._counter(
            "audits", "Audits by this instance, by result", "result", "consistent", "violated", "failed"
        )

        self._unclaimed = Counter(
            "seckill_payments_unclaimed", "Payments of a hold that is not here, an hour old", registry=registry
        )
        text = "Callbacks of payment providers, by outcome; without a provider: to an address where none reports"
        self._callbacks = Counter("seckill_callbacks", text, ["provider", "outcome"], registry=registry)
        self._callbacks.labels("", "no_address")
        text = "Attempts to deliver an event, by result, and by receiver if that has a name"
        self._events = Counter("seckill_events", text, ["result", "receiver"], registry=registry)
        self._begin_events("")
        self._refunds = self._counter(
            "refunds",
            "Refunds that the cashier has asked for, by result",
            "result",
            *("done", "accepted", "refused", "unknown"),
        )

    def _counter(self, name: str, text: str, label: str, *values: str) -> Counter:
        """Make a counter that is 0 for each of these values from the start.

        PromQL's `increase` misses the first step of a series that does not begin at 0.
        """
        counter = Counter(f"seckill_{name}", text, [label], registry=self._registry)
        for value in values:
            counter.labels(value)
        return counter

    def _look(self, look: Callable[[], Iterable[GaugeMetricFamily]]) -> None:
        self._registry.register(_Looked(look))

    def _begin_events(self, receiver: str) -> None:
        for result in ("delivered", "refused", "unanswered", "dead"):
            self._events.labels(result, receiver)

    def describe(self, **what: str) -> None:
        """Describe this instance, by the labels of a metric that is always 1."""
        about = Info(
            "seckill", "What this instance is, and its name in orders, locks and logs", registry=self._registry
        )
        about.info(what)

    def watch_renewal(self, renewing: Callable[[], bool]) -> None:
        """Report at each scrape whether leases are renewed in time."""
        gauge = Gauge("seckill_renewing", "1 while leases are renewed in time", registry=self._registry)
        gauge.set_function(renewing)

    def watch_clock(self, offset_s: Callable[[], float], jump_s: Callable[[], float]) -> None:
        """Report at each scrape by how much the store's clock is wrong."""
        text = "How far the store's clock is ahead of this instance's; less than 0: behind it"
        Gauge("seckill_store_clock_offset_seconds", text, registry=self._registry).set_function(offset_s)
        text = "How far it has jumped ahead of the time that has passed, more than 30 s, and not come back"
        Gauge("seckill_store_clock_jump_seconds", text, registry=self._registry).set_function(jump_s)

    def watch_mode(self, mode: Callable[[], str]) -> None:
        """Report at each scrape whether sales happen without a lock."""
        gauge = Gauge("seckill_optimistic", "1 while sales happen without a lock", registry=self._registry)
        gauge.set_function(lambda: mode() == "optimistic")

    @override
    def fallback(self, event: str) -> None:
        self._fallbacks.labels(event).inc()

    def watch_queues(self, waiting: Callable[[], Mapping[str, int]]) -> None:
        """Report at each scrape the depth of the queues by `waiting()`."""
        text = "Buyers who wait in this instance, by item"
        self._look(lambda: [_gauge("queue_buyers", text, [({"sku": one}, n) for one, n in waiting().items()])])

    def watch_blocked(self, errors: Callable[[], Mapping[str, Exception]]) -> None:
        """Report the items of which nothing can be sold, as they are at each scrape: a hundred at most."""
        text = "1 for each item of which this instance can't sell anything, and why"

        def blocked() -> list[tuple[Mapping[str, str], float]]:
            some = sorted(errors().items())[:_BLOCKED_MAX]
            return [({"sku": sku, "reason": type(error).__name__}, 1) for sku, error in some]

        self._look(lambda: [_gauge("item_blocked", text, blocked())])

    @override
    def answered(self, outcome: str) -> None:
        child = self._outcomes.get(outcome)
        if child is None:  # `labels` costs more than all the rest of it
            child = self._outcomes[outcome] = self._purchases.labels(outcome)
        child.inc()

    @override
    def changed(self, command: str, outcome: str) -> None:
        self._changes.labels(command, outcome).inc()

    @override
    def committed(self, purchases: int) -> None:
        self._batch.observe(purchases)

    @override
    def granted(self, lock: str, token: int, waited_s: float) -> None:
        self._wait.observe(waited_s)

    @override
    def released(self, lock: str, token: int, held_s: float, purchases: int, units: int) -> None:
        self._hold.observe(held_s)
        self._units.inc(units)

    @override
    def fenced(self, lock: str, sku: str) -> None:
        self._fenced.inc()

    @override
    def lost(self, lock: str) -> None:
        self._lost.inc()

    @override
    def conflicted(self) -> None:
        self._conflicts.inc()

    @override
    def resolved(self, result: str) -> None:
        self._resolved.labels(result).inc()

    @override
    def renewal(self, event: str) -> None:
        self._renewals.labels(event).inc()

    def watch_auditor(
        self,
        leads: Callable[[], bool],
        violations: Callable[[], int],
        owed: Callable[[], int],
        units: Callable[[], Mapping[str, tuple[int, ...]]],
    ) -> None:
        """Report whether this instance is the auditor; what the last audit found, and the payments that are owed by it,
        whichever instance made it; and the units left and sold of each item that it has seen as the auditor, the
        orders in line, and the offers to these: those cost no call of their own.
        """
        auditor = Gauge("seckill_auditor", "1 if this instance is the auditor", registry=self._registry)
        auditor.set_function(leads)
        found = Gauge("seckill_audit_violations", "Violations that the last audit found", registry=self._registry)
        found.set_function(violations)
        text = "Payments that are to be given back, or of a wrong amount, when the auditor last looked"
        Gauge("seckill_payments_owed", text, registry=self._registry).set_function(owed)
        self._look(lambda: _of_units(units()))

    @override
    def audited(self, result: str) -> None:
        self._audits.labels(result).inc()

    def begin_callbacks(self, providers: Iterable[str]) -> None:
        """Begin to count the callbacks of these providers."""
        for provider in providers:
            for outcome in _CALLBACKS:
                self._callbacks.labels(provider, outcome)

    def called_back(self, provider: str, outcome: str) -> None:
        """Count a callback of a payment provider."""
        self._callbacks.labels(provider, outcome).inc()

    def unclaimed(self) -> None:
        """Count a payment of a hold that is not here, and won't come any more."""
        self._unclaimed.inc()

    @override
    def delivered(self, result: str, receiver: str) -> None:
        self._events.labels(result, receiver).inc()

    @override
    def refunded(self, result: str) -> None:
        self._refunds.labels(result).inc()

    def watch_cashier(self, view: Callable[[], Mapping[str, float]]) -> None:
        """Report the refunds that wait, as they are at each scrape: none unless this instance is the cashier."""
        self._look(lambda: [_gauge(f"cashier_{name}", CASHIER[name], [({}, n)]) for name, n in view().items()])

    def watch_outbox(self, views: Callable[[], Mapping[str, Mapping[str, float]]]) -> None:
        """Report the waiting events of each receiver ("": the default one) at each scrape; only its sender knows."""
        for receiver in views():
            self._begin_events(receiver)
        self._look(lambda: _of_outbox(views()))

    def render(self) -> bytes:
        """The text that is scraped."""
        return generate_latest(self._registry)


class _Looked(Collector):
    """Families that are made anew at each scrape."""

    def __init__(self, look: Callable[[], Iterable[GaugeMetricFamily]]) -> None:
        self._look = look

    def collect(self) -> Iterable[GaugeMetricFamily]:
        return self._look()


def _gauge(name: str, text: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"seckill_{name}", text)
    for labels, value in samples:
        family.add_sample(family.name, dict(labels), value)
    return family


def _of_outbox(views: Mapping[str, Mapping[str, float]]) -> Iterator[GaugeMetricFamily]:
    for name, text in OUTBOX.items():
        of_each = [({"receiver": one} if one else {}, view[name]) for one, view in views.items() if name in view]
        yield _gauge(f"outbox_{name}", text, of_each)


def _of_units(units: Mapping[str, tuple[int, ...]]) -> Iterator[GaugeMetricFamily]:
    when = "when the auditor last looked; only the auditor has it"
    names = {
        "stock_units": "Units left",
        "lucky_units": "Units sold",
        "line_orders": "Orders in the line",
        "line_offers_taken": "Offers that were paid in the line",
        "line_offers_lapsed": "Offers that ended without a payment in the line",
    }
    for n, (name, what) in enumerate(names.items()):
        of_each = [({"sku": sku}, found[n]) for sku, found in units.items()]
        yield _gauge(name, f"{what} of an item {when}", of_each)
