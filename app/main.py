"""Builds and wires the objects of an instance; the only place that does."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from fastapi import FastAPI
from pydantic import SecretStr

import fencelock
from app import combination
from app.audit import Audit, Auditor, audit, audit_items
from app.audit.record import read_record
from app.dashboard import ControlRoom, DelayingStore, Journal, Picture
from app.errors import ConfigurationError
from app.forever import run_forever
from app.outbox import Sender, Webhook
from app.outbox.sender import AT_ONCE
from app.sale import Admin, Rules, Shop
from app.sale.expiry import Expiry
from app.settings import Settings, doubtful, load, unknown_variables
from app.stock import StockStore, Terms, registry
from app.telemetry import logs
from app.telemetry.metrics import Metrics
from app.telemetry.observer import Observer, Observers
from app.web import (
    admin,
    catalogue,
    dashboard,
    health,
    holds,
    orders,
    pages,
    payments,
    problems,
    purchase,
    purchase_route,
    stock,
)
from app.web.application import Application
from app.web.auth import AdminAuth
from app.web.catalogue import Catalogue
from app.web.coalesce import TtlCache
from app.web.dashboard import Control
from app.web.identity import BUYER_MAX, TOKEN_MAX, SignedBuyers
from app.web.parameters import KNOWN_PARAMETERS
from app.web.rates import Rates, rate
from app.web.sse import Feeds
from app.web.state import Ready, State
from fencelock import Guarantees, LockBackend
from fencelock.fallback import FallbackBackend
from fencelock.url import LockUrl

_log = logging.getLogger(__name__)

_WATCH_S: Final = 5.0
_OPERATORS_MAX: Final = 100  # live control rooms at once


@dataclass(frozen=True, slots=True)
class Sale:
    """A sale and all that it stands on. `auditor` and `sender`: the candidates for these offices, if we are one."""

    shop: Shop
    admin: Admin
    store: StockStore
    journal: Journal
    delaying: DelayingStore | None
    auditor: Auditor | None
    sender: Sender | None = None

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
    with _about("SECKILL_LOCK"):
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
    with _about("SECKILL_STORE"):
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


def signed_buyers(settings: Settings) -> SignedBuyers | None:
    """The reader of signed buyers, if the settings have a key for that."""
    if settings.buyer_key is None:
        return None
    with _about("SECKILL_BUYER_KEY"):
        return SignedBuyers(settings.buyer_key.get_secret_value())


def rates_of(settings: Settings) -> Rates | None:
    """The rate limits, if the settings have a rate."""
    given = {"SECKILL_RATE_PER_BUYER": settings.rate_per_buyer, "SECKILL_RATE_PER_ADDRESS": settings.rate_per_address}
    for variable, text in given.items():
        if text is not None:
            with _about(variable):
                rate(text)
    if not any(given.values()):
        return None
    with _about(", ".join(name for name, text in given.items() if text)):
        store = settings.store.get_secret_value()
        return Rates(
            store,
            timeout_s=settings.store_timeout_ms / 1000,
            per_buyer=settings.rate_per_buyer,
            per_address=settings.rate_per_address,
        )


def catalogue_of(settings: Settings) -> Catalogue:
    """The catalogue that the settings name, or the built-in one."""
    if settings.catalogue is None:
        return catalogue.built_in()
    with _about("SECKILL_CATALOGUE"):
        return catalogue.read(settings.catalogue)


def webhook_of(settings: Settings) -> Webhook | None:
    """Where events are delivered, if the settings name it."""
    if settings.webhook_url is None or settings.webhook_secret is None:
        return None
    url, secret = settings.webhook_url.get_secret_value(), settings.webhook_secret.get_secret_value()
    return Webhook(url, secret, timeout_s=settings.webhook_timeout_ms / 1000, at_once=AT_ONCE)


def _methods(settings: Settings) -> tuple[str, ...]:
    return purchase.METHODS if settings.allow_get else ("POST",)


@contextmanager
def _about(variable: str) -> Iterator[None]:
    """Name the setting that is wrong; the parts know nothing of settings."""
    try:
        yield
    except (ConfigurationError, fencelock.ConfigurationError) as error:
        raise ConfigurationError(f"{variable}: {error}") from None


def _traces(settings: Settings) -> list[Observer]:
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
    settings: Settings, metrics: Metrics | None = None, *, with_auditor: bool = False
) -> AsyncIterator[Sale]:
    """A sale and all that it stands on; closed in order: buyers first, then locks, then the store."""
    metrics, journal = metrics or Metrics(), Journal()
    observer = Observers([metrics, journal, *_traces(settings)])
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
        store = open_store(settings)
        delaying = DelayingStore(store) if settings.rehearsal else None
        store = delaying.as_store if delaying else store
        try:
            learn, auditor = _auditing(settings, backend, store, observer, lambda: shop.buyers_waiting > 0)
            shop = Shop(
                backend.aio,
                store,
                rules,
                observer,
                lock_prefix=settings.lock_prefix,
                lock_groups=settings.lock_groups,
                **({"halted": auditor.halted} if auditor else {}),
            )
            listed = catalogue_of(settings).told.keys() if settings.catalogue else None
            operator = Admin(shop, backend.aio, store, learn=learn, catalogue=listed)
            metrics.watch_queues(lambda: shop.waiting_by_item)
            metrics.watch_blocked(lambda: shop.errors)
            metrics.watch_mode(lambda: operator.mode)
            metrics.watch_renewal(lambda: operator.renewing)
            if auditor is not None and with_auditor:
                metrics.watch_auditor(lambda: auditor.leads, lambda: auditor.violations, lambda: auditor.units)
                auditor.start()
            expiry = Expiry(shop, store, lambda: auditor is None or auditor.leads)
            if with_auditor and store.holds:
                expiry.start()
            sender = (
                _sending(settings, backend, store, observer, lambda: shop.buyers_waiting > 0) if with_auditor else None
            )
            if sender is not None:
                metrics.watch_outbox(lambda: sender.figures)
                sender.start()
            try:
                yield Sale(shop, operator, store, journal, delaying, auditor if with_auditor else None, sender)
            finally:
                if sender is not None:
                    await sender.close()
                await expiry.close()
                await shop.close(within_s=settings.drain_timeout_s)
                if auditor is not None and with_auditor:
                    await auditor.close()
        finally:
            await store.close()
    finally:
        await backend.aio.close()


def _sending(
    settings: Settings, backend: LockBackend, store: StockStore, observer: Observer, busy: Callable[[], bool]
) -> Sender | None:
    """Make a candidate for sender, if there is somebody to send to."""
    webhook = webhook_of(settings)
    if webhook is None:
        return None
    return Sender(
        backend.aio,
        f"{settings.lock_prefix}/!sender",
        store,
        observer,
        webhook,
        retry_s=settings.webhook_retry_s,
        give_up_s=settings.webhook_give_up_s,
        busy=busy,
    )


def _auditing(
    settings: Settings, backend: LockBackend, store: StockStore, observer: Observer, busy: Callable[[], bool]
) -> tuple[Callable[[], Awaitable[None]], Auditor | None]:
    """Make the reader of the auditor's record, and a candidate for auditor, if the lock system has elections."""
    if not backend.guarantees.elects:
        return _nothing_to_learn, None
    election = backend.aio.election(f"{settings.lock_prefix}/!auditor")

    async def learn() -> None:
        await read_record(election, store)

    if not settings.audit_interval_s:
        return learn, None
    name, every_s = settings.instance_name, settings.audit_interval_s
    return learn, Auditor(election, store, observer, instance=name, every_s=every_s, busy=busy)


async def _nothing_to_learn() -> None:
    pass


def create_app(settings: Settings | None = None) -> FastAPI:
    """The web service. Without `settings` they come from the environment: `uvicorn app.main:create_app --factory`.

    With a wrong setting that ends the process with a line that names it; given ones raise `ConfigurationError`.
    """
    if settings is None:
        try:
            return create_app(load())
        except ConfigurationError as error:
            sys.exit(f"seckill: {error}")
    # URLs and certificates, which only the parts can check, are checked now, not when the first buyer comes.
    not_promised = combination.warnings(check_together(settings), settings)
    _traces(settings)
    signed, rates = signed_buyers(settings), rates_of(settings)
    shown = catalogue_of(settings)
    webhook_of(settings)
    callbacks = payments.callbacks(
        *(one.get_secret_value() if one else None for one in (settings.payments_secret, settings.stripe_secret))
    )
    pages.load()
    logs.configure(level=settings.log_level, form=settings.log_format, instance=settings.instance_name)
    for line in (*unknown_variables(), *doubtful(settings), *not_promised):
        _log.warning("%s", line)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        metrics = Metrics()
        lock, store = settings.lock.get_secret_value(), settings.store.get_secret_value()
        lock, store = fencelock.name_of(lock.partition("://")[0]), registry.system_of(store)
        metrics.describe(name=settings.instance_name, version=_version(), lock=lock, store=store, guard=settings.guard)
        async with open_sale(settings, metrics, with_auditor=True) as sale:
            ready = health.ready(sale.admin)

            async def lacks() -> list[str]:
                checks, _ = await ready.at()
                return [name for name, check in checks.items() if check not in ("ok", "away")]

            async def picture(sku: str) -> Picture:
                verdict = sale.auditor.fresh_verdict if sale.auditor else None
                return await room.picture(sku, auditor=verdict.auditor if verdict else None)

            room = ControlRoom(
                sale.shop,
                sale.admin,
                sale.journal,
                sale.delaying,
                instance=settings.instance_name,
                lease_ttl_s=settings.lock_ttl_s,
                lacks=lacks,
                port=settings.port,
            )
            room.start()
            stands_on = _where(settings.lock), _where(settings.store), settings.guard
            _log.info("open, lock: %s, store: %s, guard: %s", *stands_on)
            watching = asyncio.create_task(_watch(ready))
            state = State(
                shop=sale.shop,
                admin=sale.admin,
                instance=settings.instance_name,
                quantity_max=settings.quantity_max,
                operator_port=settings.operator_port,
                buying=_methods(settings),
                buyer_max=TOKEN_MAX if signed else BUYER_MAX,
                signed=signed,
                rates=rates,
                catalogue=shown,
                pay_url=settings.pay_url or "",
                auth=AdminAuth(
                    settings.operators,
                    shop_token=settings.shop_token.get_secret_value() if settings.shop_token else None,
                    anybody_confirms=settings.rehearsal,
                ),
                buyers=Feeds(settings.listeners_max),
                operators=Feeds(_OPERATORS_MAX),
                looks=stock.looks_at(sale.shop, sale.auditor),
                scrape=health.scrape(metrics),
                ready=ready,
                locks=TtlCache(lambda _: sale.admin.contenders()),
                warnings=not_promised,
                callbacks=callbacks,
                auditor=sale.auditor,
                sender=sale.sender,
            )
            try:
                yield {"seckill": state, "control": Control(room, TtlCache(picture))}
            finally:
                watching.cancel()
                state.close_feeds()
                await room.close()
                if rates is not None:
                    await rates.close()

    app = Application(
        buying=_methods(settings),
        operator_port=settings.operator_port,
        readers_max=settings.readers_max,
        body_timeout_s=settings.request_timeout_ms / 1000,
        title="seckill",
        summary="A flash sale that never oversells, undersells or loses an order.",
        version=_version(),
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,  # to an address with a host that the client chose
        docs_url=None,  # see app.web.docs
        redoc_url=None,
    )
    problems.install(app)
    most = {"quantity_max": settings.quantity_max, "buyer_max": TOKEN_MAX if signed else BUYER_MAX}
    buying = purchase_route.router(_methods(settings), **most)
    rehearsing = (dashboard.rehearsal,) if settings.rehearsal else ()
    holding = holds.router(**most)
    for router in (holding, orders.router, stock.router, admin.router, dashboard.router, *rehearsing, health.router):
        app.include_router(router, dependencies=[KNOWN_PARAMETERS])
    # A purchase refuses unknown parameters by itself; links to the pages may have parameters of their own.
    for router in (buying, payments.router(), pages.router, dashboard.pages, orders.pages):
        app.include_router(router)
    return app


def _where(url: SecretStr) -> str:
    """The address in a URL, without user, password and options."""
    text = url.get_secret_value()
    try:
        found = LockUrl.parse(text)
    except fencelock.ConfigurationError:  # unescaped, a password may be anywhere
        return text.partition("://")[0]
    return f"{found.scheme}://{','.join(found.hosts)}{found.path}"


async def _watch(ready: TtlCache[Ready]) -> None:
    """Check what can be reached, at the start and now and then; changes are logged."""
    first = True

    async def check() -> None:
        nonlocal first
        checks, _ = await ready.at()
        if first:
            _log.info("checked: %s", ", ".join(f"{name} {check}" for name, check in checks.items()))
            first = False

    await run_forever(check, every_s=_WATCH_S, log=_log, what="a check of lock and store")


def _version() -> str:
    try:
        return version("seckill")
    except PackageNotFoundError:
        return "0"
