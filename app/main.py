"""Builds the web service of an instance, over the sale that `app.wiring` opens."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from fastapi import FastAPI
from pydantic import SecretStr

import fencelock
from app import combination
from app.dashboard.picture import Picture
from app.dashboard.room import ControlRoom
from app.errors import ConfigurationError
from app.forever import run_forever
from app.keyring import secrets_of
from app.locks import name_of
from app.outbox.pull import Pull
from app.payments import registry as providers
from app.payments.tally import Tally
from app.settings import Settings, doubtful, load, unknown_variables
from app.stock import registry
from app.telemetry import logs
from app.telemetry.metrics import Metrics
from app.web import (
    admin,
    dashboard,
    events,
    health,
    holds,
    orders,
    pages,
    payments,
    problems,
    purchase,
    purchase_route,
    reconcile,
    report,
    stock,
    undelivered,
)
from app.web.application import Application
from app.web.auth import AdminAuth
from app.web.coalesce import TtlCache
from app.web.dashboard import Control
from app.web.extension import extension
from app.web.identity import BUYER_MAX, TOKEN_MAX, SignedBuyers
from app.web.parameters import KNOWN_PARAMETERS
from app.web.sse import Feeds
from app.web.state import Ready, State
from app.wiring import about, catalogue_of, check_together, open_sale, refunds_of, traces_of, webhooks_of
from fencelock.kit import LockUrl

_log = logging.getLogger(__name__)

_WATCH_S: Final = 5.0
_OPERATORS_MAX: Final = 100  # live control rooms at once
_FOLLOWERS_MAX: Final = 20  # streams of events at once


def signed_buyers(settings: Settings) -> SignedBuyers | None:
    """The reader of signed buyers, if the settings have a key for that."""
    if settings.buyer_key is None:
        return None
    with about("SECKILL_BUYER_KEY"):
        return SignedBuyers(secrets_of(settings.buyer_key))


def _methods(settings: Settings) -> tuple[str, ...]:
    return purchase.METHODS if settings.allow_get else ("POST",)


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
    traces_of(settings)
    signed = signed_buyers(settings)
    shown = catalogue_of(settings)
    webhooks_of(settings)
    refunds_of(settings)
    callbacks = providers.readers(settings.callback_secrets, settings.providers, stripe=settings.stripe_options)
    lab = extension(settings.extension)
    anybody_confirms = lab is not None and lab.anybody_confirms
    pages.load(lab.folder if lab else None)
    logs.configure(level=settings.log_level, form=settings.log_format, instance=settings.instance_name)
    for line in (*unknown_variables(), *doubtful(settings), *not_promised):
        _log.warning("%s", line)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        metrics = Metrics()
        lock, store = name_of(settings.lock.get_secret_value()), registry.system_of(settings.store.get_secret_value())
        metrics.begin_callbacks(providers.providers(settings.providers))
        metrics.describe(name=settings.instance_name, version=_version(), lock=lock, store=store, guard=settings.guard)
        async with open_sale(settings, metrics, with_auditor=True, **({"wrap": lab.wrap} if lab else {})) as sale:
            ready = health.ready(sale.readiness)

            async def lacks() -> list[str]:
                checks, _ = await ready.at()
                return [name for name, check in checks.items() if check not in ("ok", "away")]

            async def picture(sku: str) -> Picture:
                verdict = sale.auditor.fresh_verdict if sale.auditor else None
                return await room.picture(sku, auditor=verdict.auditor if verdict else None)

            room = ControlRoom(
                sale.shop,
                sale.readiness,
                sale.store,
                sale.journal,
                instance=settings.instance_name,
                lease_ttl_s=settings.lock_ttl_s,
                lacks=lacks,
                port=settings.port,
            )
            if lab is not None:
                lab.enter(room, sale.shop, sale.readiness, sale.journal)
            room.start()
            stands_on = _where(settings.lock), _where(settings.store), settings.guard
            _log.info("open, lock: %s, store: %s, guard: %s", *stands_on)
            watching = asyncio.create_task(_watch(ready))
            state = State(
                shop=sale.shop,
                stock=sale.stock,
                orders=sale.orders,
                readiness=sale.readiness,
                instance=settings.instance_name,
                quantity_max=settings.quantity_max,
                operator_port=settings.operator_port,
                buying=_methods(settings),
                buyer_max=TOKEN_MAX if signed else BUYER_MAX,
                signed=signed,
                catalogue=shown,
                pay_url=settings.pay_url or "",
                request_ids=settings.request_ids and sale.store.holds,
                only_shop_holds=settings.only_shop_holds,
                auth=AdminAuth(
                    settings.operators,
                    shop_tokens=secrets_of(settings.shop_token),
                    anybody_confirms=anybody_confirms,
                ),
                buyers=Feeds(settings.listeners_max),
                operators=Feeds(_OPERATORS_MAX),
                followers=Feeds(_FOLLOWERS_MAX),
                store=sale.store,
                pull=Pull(sale.journals),
                items=TtlCache(lambda _: sale.store.items()),
                looks=stock.looks_at(sale.shop, sale.auditor),
                scrape=health.scrape(metrics),
                ready=ready,
                unpriced=health.unpriced(sale.stock),
                locks=TtlCache(lambda _: sale.readiness.contenders()),
                reports=report.reports(sale.orders),
                warnings=not_promised,
                callbacks=callbacks,
                tally=Tally(metrics.called_back),
                unclaimed=metrics.unclaimed,
                auditor=sale.auditor,
                senders=sale.senders,
                cashier=sale.cashier,
            )
            try:
                yield {"seckill": state, "control": Control(room, TtlCache(picture))}
            finally:
                watching.cancel()
                state.close_feeds()
                await room.close()

    app = Application(
        buying=_methods(settings),
        port=settings.port,
        operator_port=settings.operator_port,
        readers_max=settings.readers_max,
        body_timeout_s=settings.request_timeout_ms / 1000,
        title="seckill",
        summary="A flash sale that never oversells, undersells or loses an order.",
        version=_version(),
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,  # to an address with a host that the client chose
        docs_url=None,  # see app.web.pages
        redoc_url=None,
    )
    problems.install(app, pages.missing)
    most = {"quantity_max": settings.quantity_max, "buyer_max": TOKEN_MAX if signed else BUYER_MAX}
    buying = purchase_route.router(_methods(settings), **most)
    holding = holds.router(**most, shop_holds=settings.only_shop_holds, anybody_confirms=anybody_confirms)
    for router in (
        holding,
        orders.router,
        report.router,
        stock.router,
        events.router,
        admin.router,
        dashboard.router,
        undelivered.router,
        reconcile.router,
        *([lab.router] if lab else []),
        health.router,
    ):
        app.include_router(router, dependencies=[KNOWN_PARAMETERS])
    # A purchase refuses unknown parameters by itself; links to the pages may have parameters of their own.
    for router in (
        buying,
        payments.router(callbacks.keys()),
        pages.router,
        dashboard.pages,
        orders.pages,
        reconcile.pages,
    ):
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
    """Check the dependencies, at the start and now and then; changes are logged."""
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
