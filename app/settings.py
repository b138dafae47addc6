"""Every knob, with its unit in its name; read from the environment (`SECKILL_...`) and `.env`, checked at start."""

import difflib
import os
import re
import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import AwareDatetime, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.errors import ConfigurationError

PREFIX = "SECKILL_"


class LockName(StrEnum):
    """The lock backends."""

    ETCD = "etcd"
    ETCD_TXN = "etcd-txn"
    REDIS = "redis"
    REDIS_FAIR = "redis-fair"
    REDLOCK = "redlock"
    ZOOKEEPER = "zookeeper"
    MYSQL_ROW = "mysql-row"
    MYSQL_FOR_UPDATE = "mysql-for-update"
    LOCAL = "local"
    NONE = "none"


class StoreName(StrEnum):
    """The stock stores."""

    REDIS = "redis"
    MYSQL = "mysql"


class Guard(StrEnum):
    """What checks a write to the stock: a fencing token; that it is what was read; or nothing."""

    FENCE = "fence"
    COMPARE = "compare"
    VERSION = "version"
    TIMESTAMP = "timestamp"
    NONE = "none"


# What is said of a guard that a store doesn't have.
NOT_THERE: Final = {
    (StoreName.REDIS, Guard.VERSION): "SECKILL_GUARD=version needs SECKILL_STORE=mysql",
    (StoreName.REDIS, Guard.TIMESTAMP): "SECKILL_GUARD=timestamp needs SECKILL_STORE=mysql",
    (StoreName.MYSQL, Guard.COMPARE): "SECKILL_GUARD=compare is not for SECKILL_STORE=mysql: version compares better",
    (StoreName.MYSQL, Guard.NONE): "SECKILL_GUARD=none is not for SECKILL_STORE=mysql: it writes nothing unchecked",
}


class LogFormat(StrEnum):
    """What a log line looks like."""

    HUMAN = "human"
    JSON = "json"


class Settings(BaseSettings):
    """The settings of one instance."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_file=".env", extra="ignore", hide_input_in_errors=True)

    # -- This instance
    host: str = Field("127.0.0.1", description="address to listen on (0.0.0.0: all)")
    port: int = Field(8080, ge=1, le=65535, description="port to listen on")
    connections_max: int = Field(
        20_000, ge=1, le=1_000_000, description="buyers who may be connected at once; more get 503 (open files: fewer)"
    )
    request_timeout_ms: int = Field(
        10_000, ge=100, le=600_000, description="a request that has not arrived whole within that time is given up"
    )
    instance: str = Field(
        "", max_length=100, description="name in orders, lock queues and logs (empty: made of the host name)"
    )
    listeners_max: int = Field(
        1000, ge=0, le=100_000, description="shop pages that are told of each change at once; more ask now and then"
    )
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="debug, info, warning or error")
    log_format: LogFormat = Field(LogFormat.HUMAN, description="human (a line of text) or json (an object a line)")
    traces: bool = Field(
        False,
        description="send a trace of each grant to where `OTEL_EXPORTER_OTLP_ENDPOINT` says (needs the extra `traces`)",
    )
    admin_token: SecretStr | None = Field(
        None, min_length=8, description="bearer token of the operator's endpoints (unset: they are refused)"
    )

    # -- The lock
    lock_backend: LockName = Field(
        LockName.ETCD,
        description="etcd, etcd-txn, redis, redis-fair, redlock, zookeeper, mysql-row, mysql-for-update, local or none",
    )
    lock_prefix: str = Field(
        "/seckill/lock", pattern="^/[^ ]*[^/ ]$", description="what the names of all locks begin with"
    )
    lock_groups: int = Field(
        1,
        ge=0,
        le=10_000,
        description="locks that the items share; a grant serves all of a lock's (0: one for each item)",
    )
    lock_ttl_s: float = Field(
        5.0, ge=1, le=3600, description="lease of a lock: a dead holder stands in the way this long"
    )
    lock_renew_ratio: float = Field(
        0.333, gt=0, lt=1, description="a lease is renewed each such part of its TTL (the articles: 0.8)"
    )
    lock_timeout_ms: int = Field(
        2000, ge=50, le=60_000, description="deadline of a call to the lock system (etcd has one of its own)"
    )
    lock_fallback: bool = Field(
        False,
        description="go on without locks while the lock system is away, and with them when it is back "
        "(needs guard version)",
    )
    lock_fallback_max: int = Field(
        10, ge=1, le=10_000, description="grants without a lock at once in this instance, so that the store survives it"
    )
    etcd_endpoints: Annotated[list[str], NoDecode] = Field(
        ["http://127.0.0.1:2379"], min_length=1, description="URLs of the etcd members, separated by commas"
    )
    etcd_timeout_ms: int = Field(2000, ge=50, le=60_000, description="deadline of a call to etcd, over all members")
    etcd_user: str | None = Field(None, description="etcd user, if it asks for one")
    etcd_password: SecretStr | None = Field(None, description="etcd password")
    etcd_ca_file: Path | None = Field(None, description="CA certificate, for https:// endpoints")
    etcd_cert_file: Path | None = Field(None, description="client certificate")
    etcd_key_file: Path | None = Field(None, description="the client certificate's key")
    lock_redis_url: SecretStr | None = Field(
        None, description="`redis://`, `rediss://` or `unix://`, for redis and redis-fair (unset: the store's)"
    )
    redlock_urls: SecretStr | None = Field(
        None, description="for redlock: URLs of three or more independent servers, separated by commas"
    )
    zookeeper_hosts: str = Field("127.0.0.1:2181", description="for zookeeper: host:port,host:port,...")
    zookeeper_auth: SecretStr | None = Field(None, description="for zookeeper: user:password, if it asks for one")
    mysql_url: SecretStr = Field(
        SecretStr("mysql://root@127.0.0.1:3306/seckill"),
        description="for the store mysql, and for mysql-row and mysql-for-update: `mysql://user:password@host:3306/database`",
    )

    # -- The store
    store: StoreName = Field(StoreName.REDIS, description="where the stock is: redis (or Valkey) or mysql (or MariaDB)")
    redis_url: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379/0"),
        description="`redis://`, `rediss://`, `unix://`, `redis+sentinel://host,host/master/0` or `redis+cluster://host`",
    )
    redis_timeout_ms: int = Field(2000, ge=10, le=60_000, description="deadline of a call to the store, if it is redis")
    redis_connections: int = Field(16, ge=2, le=1000, description="connections to the store at most, if it is redis")
    redis_wait_replicas: int = Field(
        0, ge=0, le=100, description='replicas that must have a sale before "sold" is said (0: none; needs replicas)'
    )
    mysql_timeout_ms: int = Field(2000, ge=50, le=60_000, description="deadline of a call to the store, if it is mysql")
    mysql_connections: int = Field(
        8, ge=1, le=1000, description="connections to the store at most, if it is mysql; each has a thread"
    )
    guard: Guard = Field(
        Guard.FENCE,
        description="what checks each write: fence (the grant's token), compare (what was read) or none; with mysql "
        "fence, version or timestamp (of what was read)",
    )

    # -- The sale
    sale_starts_at: AwareDatetime | None = Field(
        None, description="`2026-11-11T20:00:00+08:00`: before that nothing is sold (unset: it has started)"
    )
    sale_ends_at: AwareDatetime | None = Field(None, description="from then on nothing is sold (unset: never)")
    batch_max: int = Field(
        1000, ge=1, le=100_000, description="purchases that one lock grant serves at most (the articles: 1)"
    )
    max_hold_ms: int = Field(50, ge=1, le=10_000, description="a grant begins no new batch after that long")
    queue_max: int = Field(
        20_000, ge=1, le=1_000_000, description="buyers who may wait for one lock in this instance; more get 503"
    )
    purchase_timeout_ms: int = Field(
        10_000, ge=100, le=600_000, description="a purchase's own deadline; then it gets 503"
    )
    quantity_max: int = Field(100, ge=1, le=1_000_000, description="units in one purchase at most")
    limit_per_buyer: int = Field(0, ge=0, le=1_000_000, description="units that one buyer may have (0: no limit)")
    refusal_ttl_s: int = Field(
        3600, ge=1, le=31_536_000, description='how long an idempotency key remembers "sold out" (an order: for good)'
    )
    sold_out_ttl_ms: int = Field(
        100,
        ge=0,
        le=60_000,
        description='after the last unit "sold out" is said so long without asking the store (0: always ask)',
    )
    audit_interval_s: float = Field(
        5.0,
        ge=0,
        le=86_400,
        description="one instance looks so often whether numbers and orders agree (0: none does; needs etcd's locks)",
    )
    drain_timeout_s: float = Field(10.0, ge=0, le=600, description="how long a stopping instance serves those who wait")

    @field_validator("etcd_endpoints", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator(
        "admin_token",
        "etcd_user",
        "etcd_password",
        "etcd_ca_file",
        "etcd_cert_file",
        "etcd_key_file",
        "lock_redis_url",
        "redlock_urls",
        "sale_starts_at",
        "sale_ends_at",
        "zookeeper_auth",
        mode="before",
    )
    @classmethod
    def _empty_is_unset(cls, value: Any) -> Any:
        # A line `SECKILL_ADMIN_TOKEN=` in .env or docker-compose means: not set.
        return None if value == "" else value

    @field_validator("admin_token")
    @classmethod
    def _can_be_sent(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not re.fullmatch(r"[\x21-\x7e]+", value.get_secret_value()):
            raise ValueError("visible ASCII characters only: it is sent in a header")
        return value

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if why := NOT_THERE.get((self.store, self.guard)):
            raise ValueError(why)
        if self.store is StoreName.MYSQL and self.redis_wait_replicas:
            raise ValueError("SECKILL_REDIS_WAIT_REPLICAS is not for SECKILL_STORE=mysql")
        mysql = self.store is StoreName.MYSQL
        if self.lock_backend is LockName.NONE and self.guard in (Guard.FENCE, Guard.COMPARE):
            other = Guard.VERSION if mysql else Guard.NONE
            raise ValueError(f"SECKILL_LOCK_BACKEND=none gives no fencing tokens; it needs SECKILL_GUARD={other}")
        if self.lock_backend is LockName.REDLOCK and self.guard is Guard.FENCE:
            other = Guard.VERSION if mysql else Guard.COMPARE
            raise ValueError(f"SECKILL_LOCK_BACKEND=redlock gives no fencing tokens; it needs SECKILL_GUARD={other}")
        if self.lock_backend is LockName.REDLOCK and self.redlock_urls is None:
            raise ValueError("SECKILL_LOCK_BACKEND=redlock needs SECKILL_REDLOCK_URLS")
        if self.lock_fallback and self.guard is not Guard.VERSION:
            raise ValueError(
                "SECKILL_LOCK_FALLBACK needs SECKILL_GUARD=version: without a lock the store alone decides"
            )
        if self.lock_fallback and self.lock_backend in (LockName.NONE, LockName.LOCAL):
            raise ValueError(f"SECKILL_LOCK_FALLBACK: SECKILL_LOCK_BACKEND={self.lock_backend} is never away")
        if self.sale_starts_at and self.sale_ends_at and self.sale_ends_at <= self.sale_starts_at:
            raise ValueError("SECKILL_SALE_ENDS_AT must be later than SECKILL_SALE_STARTS_AT")
        if bool(self.etcd_user) != bool(self.etcd_password):
            raise ValueError("SECKILL_ETCD_USER and SECKILL_ETCD_PASSWORD go together")
        if bool(self.etcd_cert_file) != bool(self.etcd_key_file):
            raise ValueError("SECKILL_ETCD_CERT_FILE and SECKILL_ETCD_KEY_FILE go together")
        return self

    @property
    def instance_name(self) -> str:
        """The name of this instance; without one, host name and process: uvicorn alone knows its port."""
        return self.instance or f"{socket.gethostname()}/{os.getpid()}"

    @property
    def instance_on_port(self) -> str:
        """The name of an instance that is known to listen on `port`."""
        return self.instance or f"{socket.gethostname()}:{self.port}"


def load(**overrides: Any) -> Settings:
    """The settings from the environment, `.env` and `overrides`; `ConfigurationError` has a line for each wrong one."""
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        raise ConfigurationError("\n".join(_line(part) for part in error.errors(include_input=False))) from None


def unknown_variables() -> list[str]:
    """Variables that look like ours and are not, each with what may have been meant."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    lines = []
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            lines.append(f"{name} is not a setting" + (f"; did you mean {near[0]}?" if near else ""))
    return lines


def _line(error: Any) -> str:
    if not error["loc"]:
        return str(error["msg"]).removeprefix("Value error, ")
    name = PREFIX + str(error["loc"][0]).upper()
    return f"{name}: {str(error['msg']).removeprefix('Value error, ')}"
