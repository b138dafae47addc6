"""Every setting, with its unit in its name; read from the environment (`SECKILL_...`) and `.env`, checked at start."""

import codecs
import difflib
import ipaddress
import os
import re
import socket
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal, Self

from dotenv import dotenv_values
from pydantic import AwareDatetime, Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from app import moments
from app.errors import ConfigurationError
from app.keyring import check_signing, check_stripes, check_token, each, secrets_of
from app.orders.terms import TERMS

PREFIX = "SECKILL_"
OPERATOR: Final = "operator"  # the name of the operator who has SECKILL_ADMIN_TOKEN
# The settings that take several secrets, and the check of one secret. Alipay's and buyers' are checked by their
# readers.
_SECRETS: Final[dict[str, Callable[[str], object]]] = {
    "webhook_secret": check_signing,
    "payments_secret": check_signing,
    "stripe_secret": check_stripes,
    "shop_token": check_token,
    "alipay_key": str,
    "buyer_key": str,
}
_SEVERAL: Final = "; several, separated by blanks: the new one first"


class Guard(StrEnum):
    """The guard that checks a write to the stock: a fencing token, a comparison with the read, or nothing."""

    FENCE = "fence"
    COMPARE = "compare"
    VERSION = "version"
    TIMESTAMP = "timestamp"
    NONE = "none"


_OF_CLIENTS: Final = "SECKILL_URL"  # a shop's back end reads it, beside ours (docs/shop.md)
_MARKS: Final = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def _term(name: str, usual: float) -> Any:
    """A term of items that name none of their own."""
    term = TERMS[name]
    return Field(usual, **term.limits, description=term.text)


class LogFormat(StrEnum):
    """The format of a log line."""

    HUMAN = "human"
    JSON = "json"


class Settings(BaseSettings):
    """The settings of one instance, in the groups of docs/settings.md."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_file=".env", extra="ignore", hide_input_in_errors=True)

    # -- This instance
    host: str = Field("127.0.0.1", description="the address to listen on; 0.0.0.0 for all")
    port: int = Field(8080, ge=1, le=65535, description="the port to listen on")
    instance: str = Field(
        "",
        max_length=100,
        description="the name of this instance in orders, lock queues and logs; empty: made from the host name",
    )
    secrets_dir: str = Field(
        "",
        description="a folder with files that are named as settings and hold their values, as secrets are mounted; "
        "what the environment or `.env` has takes precedence; empty: none",
    )
    connections_max: int = Field(
        20_000,
        ge=1,
        le=1_000_000,
        description="how many connections may be open at once; more get 503 (fewer if the limit of open files is "
        "lower)",
    )
    request_timeout_ms: int = Field(
        10_000, ge=100, le=600_000, description="a request must arrive completely within this time"
    )
    drain_delay_s: float = Field(
        0.0,
        ge=0,
        le=600,
        description="how long a stopping instance goes on as before while `/readyz` is 503: until the balancer in "
        "front has noticed (5 to 15 behind one); a second SIGTERM skips it",
    )
    drain_timeout_s: float = Field(
        10.0, ge=0, le=600, description="how long a stopping instance goes on serving buyers who wait"
    )
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="debug, info, warning or error")
    log_format: LogFormat = Field(LogFormat.HUMAN, description="human (a line of text) or json (an object per line)")
    request_ids: bool = Field(
        False,
        description="give each purchase an `X-Request-Id`, as holds have one, and keep it with the order; log a line "
        "for each purchase and hold",
    )
    traces: bool = Field(
        False,
        description="record a span for each grant; `opentelemetry-instrument seckill serve` sends them (extra "
        "`traces`)",
    )

    # -- Operators
    operator_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="a port of their own for the operator's endpoints and pages, `/metrics` and `/readyz`, which are "
        "then not on the other one; unset: all are on one port",
    )
    admin_token: SecretStr | None = Field(
        None,
        description="the bearer token of the operator's endpoints, 8 characters or more; unset: they are refused",
    )
    admin_tokens: SecretStr | None = Field(
        None,
        description="more of them, each with the name of its operator, for the log: `ann:token,bob:token`; the one of "
        "SECKILL_ADMIN_TOKEN is called `operator`",
    )
    extension: str = Field(
        "",
        description="a module that adds to the control room: with `lab.rehearsal` buyers can be sent, and the holder "
        "be paused; never where something is really sold",
    )

    # -- Readers
    readers_max: int = Field(
        500,
        ge=1,
        le=100_000,
        description="how many requests that are no purchases may be in hand at once, waiting or being answered; more "
        "get 503",
    )
    listeners_max: int = Field(
        1000, ge=0, le=100_000, description="how many pages get each change pushed at once; more pages poll"
    )

    # -- The lock
    lock: SecretStr = Field(
        SecretStr("etcd://127.0.0.1:2379"),
        description="the lock system: `etcd://host,host`, `etcd+txn://`, `redis://`, `redis+fair://`, "
        "`redlock://a,b,c`, `zookeeper://`, `postgres://`, `mysql+row://`, `mysql+for-update://`, "
        "`file:///folder`, `local://` or `none://`; docs/locks.md has the details",
    )
    lock_prefix: str = Field("/seckill/lock", pattern="^/[^ ]*[^/ ]$", description="the prefix of all lock names")
    lock_groups: int = Field(
        1, ge=1, le=1024, description="how many locks the items share; one grant serves all items of its lock"
    )
    lock_ttl_s: float = Field(
        5.0, ge=1, le=3600, description="the TTL of a lease: a dead holder blocks the others for this long"
    )
    lock_renew_ratio: float = Field(
        0.333, gt=0, lt=1, description="a lease is renewed when this part of its TTL has passed (the articles: 0.8)"
    )
    lock_timeout_ms: int = Field(2000, ge=50, le=60_000, description="the deadline of a call to the lock system")
    lock_fallback: bool = Field(
        False,
        description="sell without a lock while the lock system is away (needs the guard version)",
    )
    lock_fallback_max: int = Field(
        10,
        ge=1,
        le=10_000,
        description="how many grants without a lock an instance gives at once, to protect the store",
    )

    # -- The store
    store: SecretStr = Field(
        SecretStr("redis://127.0.0.1:6379/0"),
        description="the stock: `redis://`, `rediss://`, `unix://`, `redis+sentinel://host,host/master/0`, "
        "`redis+cluster://host` (or Valkey), `mysql://user:password@host:3306/database` (or MariaDB), or "
        "`postgres://user:password@host:5432/database`",
    )
    store_timeout_ms: int = Field(2000, ge=10, le=60_000, description="the deadline of a call to the store")
    store_connections: int = Field(16, ge=2, le=1000, description="how many connections to the store may be open")
    store_wait_replicas: int = Field(
        0,
        ge=0,
        le=100,
        description='how many replicas must have a sale before "sold" is answered (redis only; 0: none)',
    )
    guard: Guard = Field(
        Guard.FENCE,
        description="what checks each write: fence (the grant's token), compare (the stock that was read) or none; "
        "with mysql fence, version or timestamp (of the row that was read)",
    )

    # -- The sale
    sale_starts_at: AwareDatetime | None = Field(
        None,
        description="nothing is sold before this moment, such as `2026-11-11T20:00:00+08:00`; unset: the sale has "
        "started",
    )
    sale_ends_at: AwareDatetime | None = Field(
        None, description="nothing is sold from this moment on; unset: the sale never ends"
    )
    limit_per_buyer: int = _term("limit_per_buyer", 0)
    quantity_max: int = Field(100, ge=1, le=1_000_000, description="how many units one purchase may ask for")
    catalogue: Path | None = Field(
        None,
        description="a TOML file with the shop's name, and with name and picture of what it sells, for each item "
        "(docs/operations.md); unset: the item `default` is a lamp",
    )
    queue_max: int = Field(
        20_000, ge=1, le=1_000_000, description="how many buyers may wait for one lock in this instance; more get 503"
    )
    purchase_timeout_ms: int = Field(
        10_000, ge=100, le=600_000, description="a purchase that is not decided within this time gets 503"
    )
    batch_max: int = Field(
        1000, ge=1, le=100_000, description="how many purchases one grant serves at most (the articles: 1)"
    )
    max_hold_ms: int = Field(10, ge=1, le=10_000, description="a grant starts no new batch after this time")
    sold_out_ttl_ms: int = Field(
        100,
        ge=0,
        le=60_000,
        description='after the last unit "sold out" is answered for this long without asking the store; 0: always ask',
    )
    refusal_ttl_s: int = Field(
        3600,
        ge=1,
        le=31_536_000,
        description='how long an idempotency key remembers "sold out"; it remembers an order for good',
    )
    audit_interval_s: float = Field(
        5.0,
        ge=0,
        le=86_400,
        description="one instance audits the sale this often (needs a lock with elections); 0: none does",
    )

    # -- Payment
    hold_s: float = _term("hold_s", 600.0)
    pay_s: float = _term("pay_s", 900.0)
    grace_s: float = Field(
        60.0, ge=0, le=86_400, description="how much later than the buyer is told a payment may come"
    )
    pay_url: str | None = Field(
        None,
        pattern=r"^https?://[\x21-\x7e]+$",
        description="where the shop page sends a buyer to pay, with the hold and the way back (`?hold=...&back=...`); "
        "with it the page holds each item that has a price until it is paid; unset: the page sells what has no price",
    )
    webhook_url: SecretStr | None = Field(
        None,
        description="where each event of an order is delivered, such as `https://shop.example/events`; several, "
        "separated by blanks: all but the first have a name, as `https://erp.example/in#name=erp` (docs/webhooks.md); "
        "unset: nowhere",
    )
    webhook_secret: SecretStr | None = Field(
        None, description=f"what the events are signed with: `whsec_` and 24 random bytes or more in base64{_SEVERAL}"
    )
    webhook_batch: int = Field(
        1,
        ge=1,
        le=1000,
        description="how many events a request has at most; with more than 1 all come in batches (docs/webhooks.md)",
    )
    webhook_timeout_ms: int = Field(10_000, ge=50, le=60_000, description="an event must be answered within this time")
    webhook_retry_s: float = Field(
        5.0, gt=0, le=3600, description="the wait before a failed event is tried again; it doubles, up to 4 hours"
    )
    webhook_give_up_s: int = Field(
        259_200,
        ge=1,
        le=31_536_000,
        description="for how long an event is tried that is refused while others get through",
    )
    payments_secret: SecretStr | None = Field(
        None,
        description="what the payment provider signs its callbacks to `POST /payments/webhook` with, as "
        f"`whsec_...`{_SEVERAL}; unset: they are refused",
    )
    stripe_secret: SecretStr | None = Field(
        None,
        description="the signing secret of Stripe's endpoint, for `POST /payments/stripe` (extra `stripe`), as "
        f"`whsec_...`{_SEVERAL}; unset: they are refused",
    )
    stripe_test_mode: bool = Field(
        False, description="what Stripe's test mode tells counts, and its keys will do: play money pays for orders"
    )
    stripe_account: str = Field(
        "",
        pattern=r"^(acct_\w+)?$",
        description="the account of Stripe Connect's whose events are taken, as `acct_...`; empty: none but one's own",
    )
    stripe_shared: bool = Field(
        False,
        description="others sell by this account of Stripe's, too: only payments whose metadata have a `hold` are of "
        "this service (docs/payments.md)",
    )
    alipay_key: SecretStr | None = Field(
        None,
        description="the id of the app at Alipay, a colon, and Alipay's public key for it in base64, for "
        "`POST /payments/alipay` (extra `alipay`); unset: they are refused",
    )
    providers: str = Field(
        "",
        description="payment providers of your own, as `name=module:Class`, separated by commas (docs/payments.md): "
        "each takes `POST /payments/NAME`",
    )
    provider_secrets: SecretStr | None = Field(
        None, description="their secrets, as `name:secret`, separated by blanks; of one provider there may be several"
    )
    shop_token: SecretStr | None = Field(
        None,
        description="the bearer token of the shop's back end, 8 characters or more, with which it confirms payments "
        f"(an operator's does, too){_SEVERAL}; unset, without operators: nobody does, except in a rehearsal",
    )

    refunds: SecretStr | None = Field(
        None,
        description="who gives back what is owed: `stripe://sk_live_...` (extra `stripe`), or the shop's own address, "
        "which gets a signed `refund.requested` (docs/refunds.md); unset: an operator does",
    )
    refunds_per_minute: int = Field(60, ge=1, le=100_000, description="how many refunds are made in a minute at most")
    holds_from: Literal["shop", "anybody"] | None = Field(
        None,
        description="who may hold units: the shop's back end alone, by its token, or anybody; unset: the shop, if it "
        "has a token, and neither signs buyers nor has the page hold (`SECKILL_PAY_URL`)",
    )

    # -- Buyers
    allow_get: bool = Field(
        True,
        description="a GET buys, too, as in the articles; false: only a POST, as browsers send GETs by themselves",
    )
    buyer_key: SecretStr | None = Field(
        None,
        description="what the shop in front signs buyers with: a secret of 32 bytes or more without blanks (HS256) or "
        f"a public key in PEM{_SEVERAL}. With it `buyer` is a JSON Web Token with `sub` and `exp` (extra `buyers`); "
        "unset: `buyer` is any text",
    )
    proxies: str = Field(
        "",
        description="whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed: addresses and networks of the "
        "proxies in front, separated by commas; behind HTTPS an operator's cookie is then for HTTPS only",
    )

    @field_validator(
        "host",
        "admin_token",
        "admin_tokens",
        "webhook_url",
        "alipay_key",
        "provider_secrets",
        "pay_url",
        "refunds",
        "holds_from",
        "operator_port",
        "sale_starts_at",
        "sale_ends_at",
        "catalogue",
        mode="before",
    )
    @classmethod
    def _empty_is_unset(cls, value: Any, info: ValidationInfo) -> Any:
        # A line `SECKILL_ADMIN_TOKEN=` in .env or docker-compose means: not set.
        return cls.model_fields[str(info.field_name)].default if value == "" else value

    @field_validator("sale_starts_at", "sale_ends_at", mode="before")
    @classmethod
    def _strictly(cls, value: Any) -> Any:
        # Pydantic takes digits for seconds since 1970: 20271111 would be in that year's August.
        if not value or isinstance(value, datetime):
            return value or None
        try:
            return moments.read(str(value))
        except ValueError:
            raise ValueError(f"not {moments.A_MOMENT}") from None

    @field_validator("admin_token")
    @classmethod
    def _can_be_sent(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            check_token(value.get_secret_value())
        return value

    @field_validator(*_SECRETS)
    @classmethod
    def _are_secrets(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        # Nothing, or nothing but blanks, means: not set.
        return value if each(secrets_of(value), _SECRETS[str(info.field_name)]) else None

    @field_validator("webhook_url", "refunds")
    @classmethod
    def _are_addresses(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        texts = value.get_secret_value().split() if value is not None else []
        if not "".join(texts).isprintable() or (len(texts) > 1 and info.field_name == "refunds"):
            raise ValueError("no address has a blank or an invisible character in it")
        return SecretStr(" ".join(texts)) if texts else None

    @field_validator("provider_secrets")
    @classmethod
    def _have_providers(cls, value: SecretStr | None) -> SecretStr | None:
        entries = value.get_secret_value().split() if value is not None else []
        for number, entry in enumerate(entries, 1):
            if not all(entry.partition(":")):
                raise ValueError(f"entry {number} is not a provider's name, a colon, and its secret")
        return value

    @field_validator("admin_tokens")
    @classmethod
    def _have_names(cls, value: SecretStr | None) -> SecretStr | None:
        for number, entry in enumerate(value.get_secret_value().split(",") if value else (), 1):
            if not re.fullmatch(r"[A-Za-z0-9._-]{1,32}:[\x21-\x7e]{8,}", entry):
                raise ValueError(
                    f"entry {number} is not a name, a colon, and a token of 8 visible ASCII characters or more "
                    "(a name: letters, digits, '.', '_' and '-', 32 at most)"
                )
        return value

    @field_validator("proxies")
    @classmethod
    def _can_be_trusted(cls, value: str) -> str:
        for entry in value.split(",") if value not in ("", "*") else ():
            try:
                ipaddress.ip_network(entry.strip())
            except ValueError as error:
                raise ValueError(f"addresses and networks, separated by commas, or * alone: {error}") from None
        return value

    @property
    def operators(self) -> dict[str, str]:
        """The operators' tokens, by their names."""
        own = [(OPERATOR, self.admin_token.get_secret_value())] if self.admin_token else []
        more = self.admin_tokens.get_secret_value().split(",") if self.admin_tokens else []
        return dict([*own, *((name, token) for name, _, token in (entry.partition(":") for entry in more))])

    @property
    def callback_secrets(self) -> dict[str, list[str]]:
        """The secrets of the payment providers, by the providers' names."""
        named = {"webhook": self.payments_secret, "stripe": self.stripe_secret, "alipay": self.alipay_key}
        found = {name: secrets_of(secret) for name, secret in named.items() if secret}
        for entry in self.provider_secrets.get_secret_value().split() if self.provider_secrets else ():
            name, _, secret = entry.partition(":")
            found.setdefault(name, []).append(secret)
        return found

    @property
    def stripe_options(self) -> dict[str, Any]:
        """The options of Stripe's reader, and of its client."""
        return {"test_mode": self.stripe_test_mode, "account": self.stripe_account, "shared": self.stripe_shared}

    @property
    def only_shop_holds(self) -> bool:
        """True if a hold needs the shop's token."""
        if self.holds_from is not None:
            return self.holds_from == "shop"
        return self.shop_token is not None and self.buyer_key is None and self.pay_url is None

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.lock_fallback and self.guard is not Guard.VERSION:
            raise ValueError(
                "SECKILL_LOCK_FALLBACK needs SECKILL_GUARD=version: without a lock the store alone decides"
            )
        signs = self.webhook_url is not None, self.webhook_secret is not None
        if signs == (True, False) or (signs == (False, True) and self.refunds is None):
            raise ValueError("SECKILL_WEBHOOK_URL and SECKILL_WEBHOOK_SECRET go together")
        if self.pay_s < self.hold_s:
            raise ValueError("SECKILL_PAY_S must not be shorter than SECKILL_HOLD_S")
        if self.holds_from == "shop" and self.pay_url is not None:
            raise ValueError("SECKILL_HOLDS_FROM=shop: with SECKILL_PAY_URL the page holds for buyers; leave one out")
        if self.operator_port == self.port:
            raise ValueError("SECKILL_OPERATOR_PORT must not be SECKILL_PORT")
        given = bool(self.admin_token) + (
            self.admin_tokens.get_secret_value().count(",") + 1 if self.admin_tokens else 0
        )
        if len(self.operators) < given or len(set(self.operators.values())) < given:
            raise ValueError("SECKILL_ADMIN_TOKENS: each operator has a name and a token that no other has")
        if self.sale_starts_at and self.sale_ends_at and self.sale_ends_at <= self.sale_starts_at:
            raise ValueError("SECKILL_SALE_ENDS_AT must be later than SECKILL_SALE_STARTS_AT")
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
    """Read settings from environment, `.env` and `overrides`. `ConfigurationError` has a line for each wrong one."""
    given = {**_of_file(), **os.environ}
    _mounted(given)
    try:
        named = {name: value for name, value in overrides.items() if value is not None}
        return Settings(_secrets_dir=given.get(f"{PREFIX}SECRETS_DIR") or None, **named)
    except SettingsError as error:  # which names the setting, and not the contents of its file
        raise ConfigurationError(f"{PREFIX}SECRETS_DIR: {error}") from None
    except ValidationError as error:
        raise ConfigurationError("\n".join(_line(part) for part in error.errors(include_input=False))) from None


def _of_file() -> dict[str, str | None]:
    if Path(".env").is_dir():
        raise ConfigurationError(".env is a folder; the settings are read from a file of that name")
    try:
        found = dotenv_values(".env")
    except UnicodeDecodeError:
        raise ConfigurationError(".env is not UTF-8") from None
    if empty := [name for name, value in found.items() if value is None and name.startswith(PREFIX)]:
        raise ConfigurationError(f".env: {empty[0]} has no value; write {empty[0]}=...")
    return found


def _mounted(given: Mapping[str, str | None]) -> list[str]:
    """Names of the files in SECKILL_SECRETS_DIR."""
    folder = given.get(f"{PREFIX}SECRETS_DIR")
    try:
        files = list(Path(folder).iterdir()) if folder else []
        for file in files:
            if file.name.upper().startswith(PREFIX) and file.read_bytes().startswith(_MARKS):
                raise ConfigurationError(f"{file} begins with a byte order mark; save it as UTF-8 without one")
    except OSError as error:
        raise ConfigurationError(f"{PREFIX}SECRETS_DIR: {error.strerror}: {folder}") from None
    return [file.name for file in files]


def unknown_variables() -> list[str]:
    """Variables and mounted files that look like settings and are none, each with the setting that may be meant."""
    known = {_OF_CLIENTS, *(PREFIX + name.upper() for name in Settings.model_fields)}
    given = {**_of_file(), **os.environ}
    lines, mounted = [], _mounted(given)
    for name in sorted({*given, *mounted}):
        if name in mounted and PREFIX + name.upper() in known:
            lines.append(f"the file {name} of {PREFIX}SECRETS_DIR is no setting; it is named {PREFIX}{name.upper()}")
        elif name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            lines.append(f"{name} is not a setting" + (f"; did you mean {near[0]}?" if near else ""))
    return lines


def doubtful(settings: Settings) -> list[str]:
    """Settings that are valid but probably a mistake, in sentences for the operator."""
    start, found = settings.sale_starts_at, []
    if start is not None and moments.long_past(start):
        found.append(f"SECKILL_SALE_STARTS_AT is before this year: the sale has started ({start.isoformat()})")
    if settings.stripe_test_mode:
        found.append("SECKILL_STRIPE_TEST_MODE is on: play money pays for orders")
    return found


def _line(error: Any) -> str:
    if not error["loc"]:
        return str(error["msg"]).removeprefix("Value error, ")
    name = PREFIX + str(error["loc"][0]).upper()
    return f"{name}: {str(error['msg']).removeprefix('Value error, ')}"
