"""Builds and wires the objects of an instance; the only place that does."""

import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, SecretStr
from pydantic.json_schema import models_json_schema
from starlette.types import Receive, Scope, Send

from app.errors import ConfigurationError
from app.locks import EtcdBackend, LockBackend, NoBackend
from app.locks.etcd_txn import EtcdTxnBackend
from app.locks.local import LocalBackend
from app.locks.redis import RedisBackend
from app.locks.redis_fair import RedisFairBackend
from app.locks.redlock import RedlockBackend
from app.metrics import Metrics
from app.sale import Rules, Shop
from app.settings import Guard, LockName, Settings, load, unknown_variables
from app.stock import StockStore
from app.stock.redis import BareStockStore, ComparingStockStore, RedisStockStore
from app.web import health, operator, problems, sale
from app.web.limits import BodyLimit
from app.web.short_way import ShortWay
from app.web.state import State

_log = logging.getLogger(__name__)


def open_backend(settings: Settings, metrics: Metrics) -> LockBackend:  # noqa: PLR0911 - one for each
    """The lock backend that the settings name. Doesn't connect yet."""
    common: dict[str, Any] = {
        "ttl_s": settings.lock_ttl_s,
        "instance": settings.instance_name,
        "told": metrics.renewal,
    }
    remote = common | {"renew_ratio": settings.lock_renew_ratio, "timeout_s": settings.lock_timeout_ms / 1000}
    match settings.lock_backend:
        case LockName.NONE:
            return NoBackend()
        case LockName.LOCAL:
            return LocalBackend(**common)
        case LockName.ETCD | LockName.ETCD_TXN:
            kind = EtcdBackend if settings.lock_backend is LockName.ETCD else EtcdTxnBackend
            with _about("SECKILL_ETCD_..."):
                return kind(
                    settings.etcd_endpoints,
                    user=settings.etcd_user,
                    password=_revealed(settings.etcd_password),
                    ca_file=settings.etcd_ca_file,
                    cert_file=settings.etcd_cert_file,
                    key_file=settings.etcd_key_file,
                    **remote | {"timeout_s": settings.etcd_timeout_ms / 1000},
                )
        case LockName.REDIS | LockName.REDIS_FAIR:
            with _about("SECKILL_LOCK_REDIS_URL" if settings.lock_redis_url else "SECKILL_REDIS_URL (for the locks)"):
                url = (settings.lock_redis_url or settings.redis_url).get_secret_value()
                return (RedisBackend if settings.lock_backend is LockName.REDIS else RedisFairBackend)(url, **remote)
        case LockName.REDLOCK:
            with _about("SECKILL_REDLOCK_URLS"):
                return RedlockBackend(_revealed(settings.redlock_urls) or "", **remote)
        case LockName.MYSQL_ROW:
            # Its client is an extra.
            from app.locks.mysql_row import MySqlRowBackend

            with _about("SECKILL_MYSQL_URL"):
                return MySqlRowBackend(settings.mysql_url.get_secret_value(), **remote)
        case LockName.MYSQL_FOR_UPDATE:
            from app.locks.mysql_for_update import MySqlForUpdateBackend

            with _about("SECKILL_MYSQL_URL"):
                return MySqlForUpdateBackend(settings.mysql_url.get_secret_value(), **remote)


def _revealed(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None


def open_store(settings: Settings) -> StockStore:
    """The stock store that the settings name. Doesn't connect yet."""
    kinds = {Guard.FENCE: RedisStockStore, Guard.COMPARE: ComparingStockStore, Guard.NONE: BareStockStore}
    with _about("SECKILL_REDIS_URL"):
        return kinds[settings.guard](
            settings.redis_url.get_secret_value(),
            timeout_s=settings.redis_timeout_ms / 1000,
            connections=settings.redis_connections,
            instance=settings.instance_name,
            refusal_ttl_s=settings.refusal_ttl_s,
            wait_replicas=settings.redis_wait_replicas,
        )


@contextmanager
def _about(variables: str) -> Iterator[None]:
    """Name the setting that is wrong; the parts know nothing of settings."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{variables}: {error}") from None


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
    )
    backend = open_backend(settings, metrics)
    try:
        store = open_store(settings)
        try:
            prefix, groups = settings.lock_prefix, settings.lock_groups
            shop = Shop(backend, store, rules, metrics, lock_prefix=prefix, lock_groups=groups)
            metrics.watch_queues(lambda: shop.waiting)
            try:
                yield shop
            finally:
                await shop.close(within_s=settings.drain_timeout_s)
        finally:
            await store.close()
    finally:
        backend.close()


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
    configure_logging(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        metrics = Metrics()
        async with open_shop(settings, metrics) as shop:
            token = settings.admin_token.get_secret_value() if settings.admin_token else None
            _log.info("%s is open, lock: %s, guard: %s", settings.instance_name, settings.lock_backend, settings.guard)
            yield {"seckill": State(shop, metrics.render, settings.instance_name, settings.quantity_max, token)}

    app = _App(
        title="seckill",
        summary="A flash sale that never oversells, undersells or loses an order.",
        version=_version(),
        lifespan=lifespan,
    )
    problems.install(app)
    app.add_middleware(BodyLimit, timeout_s=settings.request_timeout_ms / 1000)
    for part in (sale, operator, health):
        app.include_router(part.router)
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


class OneLine(logging.Formatter):
    """A record is one line of printable text, whatever a buyer has put into it; a stack trace has lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging gives it
        """The line, with what can't be printed as escapes."""
        return _printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """The stack trace, indented: none of its lines can pass for a record."""
        return "\n".join("    " + _printable(line) for line in super().formatException(ei).split("\n"))


def _printable(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def configure_logging(settings: Settings) -> None:
    """Human-readable lines on standard error; the libraries below us only when something is wrong."""
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("app").setLevel(settings.log_level.upper())
    for line in unknown_variables():
        _log.warning("%s", line)


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
