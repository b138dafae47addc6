"""Builds and wires the objects of an instance; the only place that does."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, SecretStr
from pydantic.json_schema import models_json_schema
from starlette.types import Receive, Scope, Send

from app.errors import ConfigurationError
from app.locks import LockBackend
from app.locks.fallback import FallbackBackend
from app.locks.registry import backend_class
from app.sale import Auditor, ControlRoom, Rules, Shop, Stats
from app.settings import Guard, LockName, Settings, StoreName, load, unknown_variables
from app.stock import StockStore
from app.stock.mysql.guards import MySqlStockStore, TimestampedStockStore, VersionedStockStore
from app.stock.redis.bare import BareStockStore
from app.stock.redis.store import ComparingStockStore, RedisStockStore
from app.telemetry import logs
from app.telemetry.metrics import Metrics
from app.web import admin as operator
from app.web import dashboard as control
from app.web import health, pages, problems
from app.web import stock as sale
from app.web.auth import Door
from app.web.limits import BodyLimit
from app.web.short_way import ShortWay
from app.web.sse import Feeds
from app.web.state import State

if TYPE_CHECKING:
    from app.telemetry.traces import Traces

_log = logging.getLogger(__name__)

_OPERATORS_MAX: Final = 100  # control rooms that are open at once

_STORES: Final = {
    (StoreName.REDIS, Guard.FENCE): RedisStockStore,
    (StoreName.REDIS, Guard.COMPARE): ComparingStockStore,
    (StoreName.REDIS, Guard.NONE): BareStockStore,
    (StoreName.MYSQL, Guard.FENCE): MySqlStockStore,
    (StoreName.MYSQL, Guard.VERSION): VersionedStockStore,
    (StoreName.MYSQL, Guard.TIMESTAMP): TimestampedStockStore,
}


def open_backend(settings: Settings, metrics: Metrics) -> LockBackend:
    """The lock backend that the settings name. Doesn't connect yet."""
    name = settings.lock_backend
    common = {"ttl_s": settings.lock_ttl_s, "instance": settings.instance_name, "told": metrics.renewal}
    remote = common | {"renew_ratio": settings.lock_renew_ratio, "timeout_s": settings.lock_timeout_ms / 1000}
    about, options = "SECKILL_LOCK_BACKEND", {}
    match name:
        case LockName.LOCAL:
            options = common
        case LockName.ETCD | LockName.ETCD_TXN:
            about, options = "SECKILL_ETCD_...", remote | _etcd_options(settings)
        case LockName.REDIS | LockName.REDIS_FAIR:
            about = "SECKILL_LOCK_REDIS_URL" if settings.lock_redis_url else "SECKILL_REDIS_URL (for the locks)"
            options = remote | {"url": (settings.lock_redis_url or settings.redis_url).get_secret_value()}
        case LockName.REDLOCK:
            about, options = "SECKILL_REDLOCK_URLS", remote | {"urls": _revealed(settings.redlock_urls)}
        case LockName.ZOOKEEPER:
            about = "SECKILL_ZOOKEEPER_..."
            options = remote | {"hosts": settings.zookeeper_hosts, "auth": _revealed(settings.zookeeper_auth)}
        case LockName.MYSQL_ROW | LockName.MYSQL_FOR_UPDATE:
            about, options = "SECKILL_MYSQL_URL", remote | {"url": settings.mysql_url.get_secret_value()}
    kind: Any = backend_class(name)
    with _about(about):
        backend: LockBackend = kind(**options)
    if settings.lock_fallback:
        return FallbackBackend(backend, most=settings.lock_fallback_max, told=metrics.fallback)
    return backend


def _etcd_options(settings: Settings) -> dict[str, Any]:
    return {
        "endpoints": settings.etcd_endpoints,
        "timeout_s": settings.etcd_timeout_ms / 1000,
        "user": settings.etcd_user,
        "password": _revealed(settings.etcd_password),
        "ca_file": settings.etcd_ca_file,
        "cert_file": settings.etcd_cert_file,
        "key_file": settings.etcd_key_file,
    }


def _revealed(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None


def open_store(settings: Settings) -> StockStore:
    """The stock store that the settings name. Doesn't connect yet."""
    common = {"instance": settings.instance_name, "refusal_ttl_s": settings.refusal_ttl_s}
    match settings.store:
        case StoreName.REDIS:
            about, url = "SECKILL_REDIS_URL", settings.redis_url
            options = common | {
                "timeout_s": settings.redis_timeout_ms / 1000,
                "connections": settings.redis_connections,
                "wait_replicas": settings.redis_wait_replicas,
            }
        case StoreName.MYSQL:
            about, url = "SECKILL_MYSQL_URL", settings.mysql_url
            options = common | {
                "timeout_s": settings.mysql_timeout_ms / 1000,
                "connections": settings.mysql_connections,
            }
    kind: Any = _STORES[settings.store, settings.guard]
    with _about(about):
        store: StockStore = kind(url.get_secret_value(), **options)
    return store


@contextmanager
def _about(variables: str) -> Iterator[None]:
    """Name the setting that is wrong; the parts know nothing of settings."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{variables}: {error}") from None


def _open_traces(settings: Settings, metrics: Metrics) -> "Traces":
    try:
        from app.telemetry.traces import Traces
    except ImportError:
        raise ConfigurationError("SECKILL_TRACES needs OpenTelemetry: pip install 'seckill[traces]'") from None
    return Traces(metrics, instance=settings.instance_name, version=_version())


@asynccontextmanager
async def _reporting(settings: Settings, metrics: Metrics) -> AsyncIterator[Stats]:
    """What cashiers report to."""
    if not settings.traces:
        yield metrics
        return
    traces = _open_traces(settings, metrics)
    try:
        yield traces
    finally:
        await asyncio.to_thread(traces.close)


@asynccontextmanager
async def open_shop(settings: Settings, metrics: Metrics | None = None) -> AsyncIterator[Shop]:
    """A shop and all that it stands on; closed in order: buyers first, then locks, then the store."""
    metrics = metrics or Metrics()
    rules = Rules(
        batch_max=settings.batch_max,
        max_hold_s=settings.max_hold_ms / 1000,
        queue_max=settings.queue_max,
        purchase_timeout_s=settings.purchase_timeout_ms / 1000,
        limit_per_buyer=settings.limit_per_buyer,
        sold_out_ttl_s=settings.sold_out_ttl_ms / 1000,
        starts_at=settings.sale_starts_at.timestamp() if settings.sale_starts_at else None,
        ends_at=settings.sale_ends_at.timestamp() if settings.sale_ends_at else None,
    )
    async with _reporting(settings, metrics) as stats:
        backend = open_backend(settings, metrics)
        try:
            store = open_store(settings)
            try:
                prefix, groups = settings.lock_prefix, settings.lock_groups
                shop = Shop(backend, store, rules, stats, lock_prefix=prefix, lock_groups=groups)
                metrics.watch_queues(lambda: shop.waiting)
                metrics.watch_way(lambda: shop.way)
                metrics.watch_renewal(lambda: shop.renewing)
                try:
                    yield shop
                finally:
                    await shop.close(within_s=settings.drain_timeout_s)
            finally:
                await store.close()
        finally:
            backend.close()


@asynccontextmanager
async def _auditing(shop: Shop, settings: Settings, metrics: Metrics) -> AsyncIterator[Auditor | None]:
    """Stand for auditor, if there is to be one."""
    every_s = settings.audit_interval_s
    auditor = shop.auditor(metrics, instance=settings.instance_name, every_s=every_s) if every_s else None
    if auditor is None:
        yield None
        return
    auditor.start()
    try:
        yield auditor
    finally:
        await auditor.close()


def create_app(settings: Settings | None = None) -> FastAPI:
    """The web service. Without `settings` they come from the environment: `uvicorn app.main:create_app --factory`.

    With a wrong setting that ends the process with a line that names it; given ones raise `ConfigurationError`.
    """
    if settings is None:
        try:
            return create_app(load())
        except ConfigurationError as error:
            sys.exit(f"seckill: {error}")
    # What only the parts can judge (URLs, certificates) is judged now, not when the first buyer comes.
    open_backend(settings, Metrics()).close()
    open_store(settings)
    if settings.traces:
        _open_traces(settings, Metrics()).close()
    logs.configure(level=settings.log_level, form=settings.log_format, instance=settings.instance_name)
    for line in unknown_variables():
        _log.warning("%s", line)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        metrics = Metrics()
        metrics.describe(
            name=settings.instance_name,
            version=_version(),
            lock=settings.lock_backend,
            store=settings.store,
            guard=settings.guard,
        )
        async with open_shop(settings, metrics) as shop, _auditing(shop, settings, metrics) as auditor:
            room = ControlRoom(shop, instance=settings.instance_name, lease_ttl_s=settings.lock_ttl_s)
            room.start()
            _log.info("open, lock: %s, guard: %s", settings.lock_backend, settings.guard)
            state = State(
                shop=shop,
                scrape=metrics.render,
                instance=settings.instance_name,
                quantity_max=settings.quantity_max,
                door=Door(_revealed(settings.admin_token)),
                control=room,
                buyers=Feeds(settings.listeners_max),
                operators=Feeds(_OPERATORS_MAX),
                auditor=auditor,
            )
            try:
                yield {"seckill": state}
            finally:
                state.close_feeds()
                await room.close()

    app = _App(
        title="seckill",
        summary="A flash sale that never oversells, undersells or loses an order.",
        version=_version(),
        lifespan=lifespan,
    )
    problems.install(app)
    app.add_middleware(BodyLimit, timeout_s=settings.request_timeout_ms / 1000)
    for router in (sale.router, operator.router, control.router, health.router, pages.router, control.pages):
        app.include_router(router)
    app.openapi = lambda: _openapi(app, settings.quantity_max)  # type: ignore[method-assign]
    return app


class _App(FastAPI):
    """FastAPI, and a short way around it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.long_way = super().__call__
        self._short_way = ShortWay(self.long_way)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._short_way(scope, receive, send)


def _openapi(app: FastAPI, quantity_max: int) -> dict[str, Any]:
    """FastAPI's document, the models that only our responses refer to, and the bound that is a setting."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        models: list[tuple[type[BaseModel], Literal["serialization"]]] = [
            (problems.Problem, "serialization"),
            (sale.PurchaseView, "serialization"),
        ]
        _, extra = models_json_schema(models, ref_template="#/components/schemas/{model}")
        document.setdefault("components", {}).setdefault("schemas", {}).update(extra["$defs"])
        for operation in document["paths"]["/stock/reduce"].values():
            for parameter in operation["parameters"]:
                if parameter["name"] == "quantity":
                    parameter["schema"]["maximum"] = quantity_max
        app.openapi_schema = document
    return app.openapi_schema


def _version() -> str:
    try:
        return version("seckill")
    except PackageNotFoundError:
        return "0"
