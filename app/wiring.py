"""Builds a sale, and all that it stands on, from the settings. The web service on top is app.main's."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import fencelock
from app import combination
from app.audit import Audit, Auditor, audit, audit_items
from app.audit.record import read_record
from app.dashboard.journal import Journal
from app.errors import ConfigurationError
from app.journals import Journals
from app.keyring import secrets_of
from app.locks.fallback import FallbackBackend
from app.operator import OrderAdmin, Readiness, StockAdmin
from app.orders import Terms
from app.pace import Pace
from app.sale import Rules, Shop
from app.sale.clock import StoreClocks
from app.sale.expiry import Expiry
from app.settings import Settings
from app.stock import StockStore, registry
from app.telemetry.observer import Observer, Observers
from fencelock import Guarantees, LockBackend

if TYPE_CHECKING:  # imports that only an instance needs would double the time of a command
    from app.cashier import Cashier, Provider
    from app.outbox.sender import Sender
    from app.outbox.webhook import Webhook
    from app.telemetry.metrics import Metrics
    from app.web.catalogue import Catalogue


@dataclass(frozen=True, slots=True)
class Sale:
    """A sale and its parts."""

    shop: Shop  # for buyers
    stock: StockAdmin  # for operators, as are the next two
    orders: OrderAdmin
    readiness: Readiness
    store: StockStore
    journals: Journals  # the entries of all items
    journal: Journal  # the latest grants and events of this instance, for the control room
    auditor: Auditor | None  # our candidate for this office, as are the next two; None: we don't stand
    senders: "Sequence[Sender]" = ()  # one for each receiver
    cashier: "Cashier | None" = None
    gives_back: bool = False  # some instance's cashier does, by the settings

    async def audit(self, sku: str) -> Audit:
        """Check that the numbers and the orders of an item agree, as of one moment, even while it is being sold."""
        return await audit(await self.store.level(sku), self.store)

    def audits(self, skus: Sequence[str]) -> AsyncIterator[list[Audit]]:
        """Audit many items, in pages; items that are gone are left out."""
        return audit_items(self.store, skus)


class _Renewals(fencelock.Hook):
    def __init__(self, observer: Observer) -> None:
        self.renewal = observer.renewal  # type: ignore[method-assign]


def open_backend(settings: Settings, observer: Observer) -> LockBackend:
    """The lock backend that the settings name. Doesn't connect yet."""
    with about("SECKILL_LOCK"):
        backend = fencelock.connect(
            settings.lock.get_secret_value(),
            ttl_s=settings.lock_ttl_s,
            renew_ratio=settings.lock_renew_ratio,
            timeout_s=settings.lock_timeout_ms / 1000,
            instance=settings.instance_name,
            hook=_Renewals(observer),
        )
    if settings.lock_fallback:
        if backend.guarantees.scope is not fencelock.Scope.EVERYBODY:
            raise ConfigurationError(f"SECKILL_LOCK_FALLBACK: the lock {backend.name} is never away")
        return FallbackBackend(backend, most=settings.lock_fallback_max, on_change=observer.fallback)
    return backend


def open_store(settings: Settings) -> StockStore:
    """The stock store that the settings name. Doesn't connect yet."""
    with about("SECKILL_STORE"):
        return registry.connect(
            settings.store.get_secret_value(),
            settings.guard,
            timeout_s=settings.store_timeout_ms / 1000,
            connections=settings.store_connections,
            wait_replicas=settings.store_wait_replicas,
            instance=settings.instance_name,
            refusal_ttl_s=settings.refusal_ttl_s,
        )


def check_together(settings: Settings) -> Guarantees:
    """Return what the lock promises. Raises `ConfigurationError` if lock, store and guard don't fit."""
    backend = open_backend(settings, Observer())
    promised = backend.guarantees
    backend.close()
    open_store(settings)
    combination.check(promised, settings)
    return promised


def catalogue_of(settings: Settings) -> "Catalogue":
    """The catalogue that the settings name, or the built-in one."""
    from app.web import catalogue

    if settings.catalogue is None:
        return catalogue.built_in()
    with about("SECKILL_CATALOGUE"):
        return catalogue.read(settings.catalogue)


def webhooks_of(settings: Settings) -> "list[Webhook]":
    """Return the webhooks to which events are delivered: one for each receiver that the settings name."""
    if settings.webhook_url is None or settings.webhook_secret is None:
        return []
    from app.outbox.receiver import receivers_of
    from app.outbox.sender import AT_ONCE
    from app.outbox.webhook import Webhook

    urls, secrets = settings.webhook_url.get_secret_value(), secrets_of(settings.webhook_secret)
    timeout_s, batch = settings.webhook_timeout_ms / 1000, settings.webhook_batch
    with about("SECKILL_WEBHOOK_URL"):
        return [Webhook(one, secrets, timeout_s=timeout_s, at_once=AT_ONCE, batch=batch) for one in receivers_of(urls)]


def refunds_of(settings: Settings) -> "Provider | None":
    """Return the provider that makes refunds, if the settings name one."""
    if settings.refunds is None:
        return None
    from app.cashier import connect

    with about("SECKILL_REFUNDS"):
        url, timeout_s = settings.refunds.get_secret_value(), settings.webhook_timeout_ms / 1000
        secrets, options = secrets_of(settings.webhook_secret), settings.stripe_options
        return connect(url, secrets=secrets, timeout_s=timeout_s, **options)


@contextmanager
def about(variable: str) -> Iterator[None]:
    """Name the setting that is wrong; the parts know nothing of settings."""
    try:
        yield
    except (ConfigurationError, fencelock.ConfigurationError) as error:
        raise ConfigurationError(f"{variable}: {error}") from None


def traces_of(settings: Settings) -> list[Observer]:
    """The observer that sends traces, if the settings want them."""
    if not settings.traces:
        return []
    try:
        from app.telemetry.traces import Traces
    except ImportError:
        raise ConfigurationError(
            "SECKILL_TRACES needs OpenTelemetry; in the checkout: pip install '.[traces]'"
        ) from None
    return [Traces(instance=settings.instance_name)]


@asynccontextmanager
async def open_sale(
    settings: Settings,
    metrics: "Metrics | None" = None,
    *,
    with_auditor: bool = False,
    wrap: Callable[[StockStore], StockStore] = lambda store: store,
) -> AsyncIterator[Sale]:
    """A sale and all that it stands on; closed in order: buyers first, then locks, then the store.

    `wrap`: wraps the store of the settings.
    """
    journal = Journal()
    observer = Observers([journal, *([metrics] if metrics else []), *traces_of(settings)])
    rules = Rules(
        batch_max=settings.batch_max,
        max_hold_s=settings.max_hold_ms / 1000,
        queue_max=settings.queue_max,
        purchase_timeout_s=settings.purchase_timeout_ms / 1000,
        sold_out_ttl_s=settings.sold_out_ttl_ms / 1000,
        terms=Terms(
            settings.limit_per_buyer,
            settings.sale_starts_at.timestamp() if settings.sale_starts_at else 0,
            settings.sale_ends_at.timestamp() if settings.sale_ends_at else 0,
            hold_s=settings.hold_s,
            pay_s=settings.pay_s,
        ),
        grace_s=settings.grace_s,
    )
    backend = open_backend(settings, observer)
    try:
        store = wrap(open_store(settings))
        try:
            journals = Journals(store, Pace(lambda: shop.has_buyers))
            learn, auditor = _auditing(settings, backend, journals, observer)
            clocks = StoreClocks(store.server_of)
            shop = Shop(
                backend.aio,
                store,
                rules,
                observer,
                clocks=clocks,
                lock_prefix=settings.lock_prefix,
                lock_groups=settings.lock_groups,
                **({"halted": auditor.halted} if auditor else {}),
            )
            listed = catalogue_of(settings).told.keys() if settings.catalogue else None
            stands_on = (shop, backend.aio, store)
            stock = StockAdmin(*stands_on, learn=learn, catalogue=listed, never_paid=_never_paid(settings))
            orders = OrderAdmin(*stands_on)
            readiness = Readiness(*stands_on, learn=learn, clocks=clocks)
            senders, cashier = _offices(settings, backend, journals, observer, shop) if with_auditor else ([], None)
            offices: list[Sender | Cashier] = [*senders, *([cashier] if cashier is not None else [])]
            expiry = Expiry(shop, journals, lambda: auditor is None or auditor.in_office)
            if with_auditor:
                journals.start()
                for part in (auditor, *offices, expiry if store.holds else None):
                    if part is not None:
                        part.start()
            candidates = (auditor if with_auditor else None, senders, cashier)
            sale = Sale(
                shop, stock, orders, readiness, store, journals, journal, *candidates, settings.refunds is not None
            )
            if metrics is not None:
                _measure(metrics, sale)
            async with AsyncExitStack() as parts:  # if one stop is cancelled, the others are closed all the same
                parts.push_async_callback(journals.close)
                if auditor is not None and with_auditor:
                    parts.push_async_callback(auditor.close)
                parts.push_async_callback(shop.close, within_s=settings.drain_timeout_s)
                parts.push_async_callback(expiry.close)
                for office in offices:
                    parts.push_async_callback(office.close)
                yield sale
        finally:
            await store.close()
    finally:
        await backend.aio.close()


def _offices(
    settings: Settings, backend: LockBackend, journals: Journals, observer: Observer, shop: Shop
) -> "tuple[list[Sender], Cashier | None]":
    """Make the candidates for sender, one for each receiver, and for cashier."""
    senders = _sending(settings, backend, journals, observer)
    return senders, _refunding(settings, backend, journals, observer, shop) if journals.store.holds else None


def _never_paid(settings: Settings) -> Callable[[int, str], str | None]:
    """Return a function that says why the payment providers in use can't charge a price; None if they can."""
    if not settings.callback_secrets:
        return lambda price, currency: None
    from app.payments import registry as providers

    kinds = providers.classes(settings.callback_secrets, settings.providers).values()
    units = [kind.units for kind in kinds if kind.units is not None]
    return lambda price, currency: next(filter(None, (one.why_not(price, currency) for one in units)), None)


def _measure(metrics: "Metrics", sale: Sale) -> None:
    """Let the metrics read the parts of the sale at each scrape."""
    shop, readiness, auditor, senders, cashier = sale.shop, sale.readiness, sale.auditor, sale.senders, sale.cashier
    metrics.watch_queues(lambda: shop.waiting_by_item)
    metrics.watch_blocked(lambda: shop.errors)
    metrics.watch_mode(lambda: readiness.mode)
    metrics.watch_renewal(lambda: readiness.renewing)
    metrics.watch_clock(lambda: readiness.clocks.offset_s, lambda: readiness.clocks.jump_s)
    if auditor is not None:
        metrics.watch_auditor(
            lambda: auditor.in_office, lambda: auditor.violations, lambda: auditor.owed, lambda: auditor.units
        )
    if senders:
        metrics.watch_outbox(lambda: {one.receiver.suffix: one.figures for one in senders})
    if cashier is not None:
        metrics.watch_cashier(lambda: cashier.figures)


def _sending(settings: Settings, backend: LockBackend, journals: Journals, observer: Observer) -> "list[Sender]":
    """Make a candidate for the sender of each receiver."""
    webhooks = webhooks_of(settings)
    if not webhooks:
        return []
    from app.outbox.sender import Sender

    how = {"retry_s": settings.webhook_retry_s, "give_up_s": settings.webhook_give_up_s}
    lock = f"{settings.lock_prefix}/!sender"
    return [
        # Not "/": in etcd the names of locks are no folders of each other.
        Sender(backend.aio, "!".join(filter(None, (lock, one.receiver.suffix))), journals, observer, one, **how)
        for one in webhooks
    ]


def _refunding(
    settings: Settings, backend: LockBackend, journals: Journals, observer: Observer, shop: Shop
) -> "Cashier | None":
    """Make a candidate for cashier, if the settings name who gives money back."""
    provider = refunds_of(settings)
    if provider is None:
        return None
    from app.cashier import Cashier

    lock, per_minute = f"{settings.lock_prefix}/!cashier", settings.refunds_per_minute
    return Cashier(backend.aio, lock, shop, journals, observer, provider, per_minute=per_minute)


def _auditing(
    settings: Settings, backend: LockBackend, journals: Journals, observer: Observer
) -> tuple[Callable[[], Awaitable[None]], Auditor | None]:
    """Make the reader of the auditor's record, and a candidate for auditor, if the lock system has elections."""
    if not backend.guarantees.elects:
        return _nothing_to_learn, None
    election = backend.aio.election(f"{settings.lock_prefix}/!auditor")

    async def learn() -> None:
        await read_record(election, journals.store)

    if not settings.audit_interval_s:
        return learn, None
    name, every_s = settings.instance_name, settings.audit_interval_s
    return learn, Auditor(election, journals, observer, instance=name, every_s=every_s)


async def _nothing_to_learn() -> None:
    pass
