"""The stage: embedded servers, a store, and instances of the service on their ports, started and ended together."""

import fcntl
import os
import secrets
import signal
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dotenv import dotenv_values
from rich.console import Console
from rich.status import Status

from app.combination import best_guard
from app.errors import ConfigurationError
from app.orders import DEFAULT_SKU, TermsChange
from app.settings import PREFIX, Guard, Settings, load
from app.stock.registry import MYSQL, POSTGRES, REDIS, check_guard
from app.wiring import Sale, open_sale, open_store
from fencelock.registry import CLASSES, backend_class
from lab.servers import LockServers, MariaDB, Postgres, Valkey
from lab.servers.process import Process, port_is_free

LockName = StrEnum("LockName", [(name.upper().replace("-", "_"), name) for name in CLASSES])  # type: ignore[misc]


class StoreName(StrEnum):
    """The stores that a stage can have."""

    REDIS = REDIS
    MYSQL = MYSQL
    POSTGRES = POSTGRES


# In a database lock and stock can be side by side; a Redis for the stock keeps to itself.
_SHARED: Final[dict[StoreName, type[MariaDB] | type[Postgres]]] = {
    StoreName.MYSQL: MariaDB,
    StoreName.POSTGRES: Postgres,
}


@dataclass(frozen=True, slots=True)
class StageOptions:
    """Command-line options for the stage. `stock`: units to be sold; `batch_max` None: the setting's own default."""

    stock: int
    instances: int
    ports: tuple[int, ...]
    batch_max: int | None
    lock: LockName
    store: StoreName
    guard: Guard | None
    ttl_s: int

    @property
    def chosen_guard(self) -> Guard:
        """Return the guard that was asked for, or the one that checks writes as well as the lock and the store allow.

        Raises `ConfigurationError` if the guard that was asked for doesn't go with them.
        """
        best = best_guard(backend_class(self.lock).guarantees, self.store)
        if self.guard is Guard.FENCE and best is not Guard.FENCE:
            raise ConfigurationError(f"--lock {self.lock} gives no fencing tokens; say --guard {best}")
        guard = self.guard or best
        check_guard(self.store, guard)
        return guard


class Instance(Process):
    """An instance of the service, ready when it can sell. `env`: environment of its process, with its settings."""

    def __init__(self, port: int, env: Mapping[str, str]) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        argv = [sys.executable, "-m", "app", "serve", "--port", str(port)]
        own = {f"{PREFIX}INSTANCE": str(port)}
        super().__init__(f"instance-{port}", lambda _: argv, ready=self._sells, env={**env, **own}, ready_within_s=30)

    def _sells(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class Stage:
    """All running processes. `variables`: the instances' settings, without their prefix."""

    guard: Guard
    variables: Mapping[str, str]
    locks: LockServers
    store: Process
    instances: list[Instance]

    @property
    def ports(self) -> list[int]:
        """Return the ports on loopback where the instances listen."""
        return [instance.port for instance in self.instances]

    @property
    def processes(self) -> list[Process]:
        """Return the servers, then the instances."""
        return [*dict.fromkeys((*self.locks.processes, self.store)), *self.instances]

    @property
    def settings(self) -> Settings:
        """Return the settings of a process beside the instances."""
        return _settings({**self.variables, "INSTANCE": "stage"})

    @property
    def admin_token(self) -> str:
        """Return the token of the operator's endpoints."""
        return self.variables["ADMIN_TOKEN"]

    def open_sale(self) -> AbstractAsyncContextManager[Sale]:
        """Open a sale of this process on the same servers: it sells nothing, but sets the stock and audits."""
        return open_sale(self.settings)

    async def begin_sale(
        self,
        units: int,
        terms: TermsChange | None = None,
        beside: Mapping[str, tuple[int, TermsChange]] | None = None,
    ) -> None:
        """Discard the sales so far, and put new units of the default item on sale, on these terms, and other items."""
        async with self.open_sale() as sale:
            for sku, (stock, own) in {DEFAULT_SKU: (units, terms or {}), **(beside or {})}.items():
                await sale.stock.set_stock(sku, stock, new_sale=True, terms=own)


def _strays(settings: Mapping[str, str]) -> list[str]:
    """Return the names of the user's settings that also reach the instances: the stage doesn't set them."""
    given = {name for name, value in {**dotenv_values(".env"), **os.environ}.items() if value}
    ours = {*settings, "PORT", "INSTANCE"}
    known = {PREFIX + name.upper() for name in Settings.model_fields if name.upper() not in ours}
    return sorted(given & known)


@contextmanager
def set_up(options: StageOptions, console: Console, variables: Mapping[str, str] | None = None) -> Iterator[Stage]:
    """Start the whole stage, and end it, also when it was half started; `variables` are further settings.

    SIGTERM meanwhile acts like Ctrl-C, as a `KeyboardInterrupt`. Before anything is started, raises
    `ConfigurationError` for options that don't go together or a server that isn't installed. Raises `ProcessFailed`.
    """
    guard = options.chosen_guard
    locks = LockServers(options.lock)
    store, store_url = _store(options.store, locks)
    settings = {
        "LOCK": locks.url,
        "STORE": store_url,
        "GUARD": guard.value,
        "LOCK_TTL_S": str(options.ttl_s),
        "EXTENSION": "lab.rehearsal",
        "ADMIN_TOKEN": secrets.token_urlsafe(16),
        **({} if options.batch_max is None else {"BATCH_MAX": str(options.batch_max)}),
        **(variables or {}),
    }
    open_store(_settings(settings))  # raises for settings that don't go together
    env = {**os.environ, **{PREFIX + name: value for name, value in settings.items()}}
    strays = _strays(settings)
    if strays:
        console.print(f"Settings of the environment or .env count here, too: {', '.join(strays)}", style="yellow")
    with ExitStack() as running:
        running.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, signal.default_int_handler))
        with console.status("") as status:
            _say(console, status, f"Starting the store and what the lock needs: {options.lock}")
            running.enter_context(locks)
            if store not in locks.processes:
                running.enter_context(store)
            _say(console, status, f"Starting {options.instances} instances")
            with _alone():
                instances = [running.enter_context(Instance(port, env)) for port in _choose_ports(options, console)]
        yield Stage(guard, settings, locks, store, instances)


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other stages from choosing ports: until an instance listens, its port looks free to them."""
    folder = os.open(tempfile.gettempdir(), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # the kernel ends it with the process, however that ends
        yield
    finally:
        os.close(folder)


def _say(console: Console, status: Status, what: str) -> None:
    """Print a line if there is no terminal, as a status shows only there: readers of a pipe or a file need it, too."""
    status.update(what)
    if not console.is_terminal:
        console.print(what, highlight=False)


def _settings(variables: Mapping[str, str]) -> Settings:
    return load(**{name.lower(): value for name, value in variables.items()})


def _store(name: StoreName, locks: LockServers) -> tuple[Process, str]:
    """Return the store's server, which may be the lock's, and its URL."""
    if name is StoreName.REDIS:
        valkey = Valkey(durable=True)
        return valkey, valkey.url
    kind = _SHARED[name]
    server = next((one for one in locks.processes if isinstance(one, kind)), None) or kind(durable=True)
    return server, server.url


def _choose_ports(options: StageOptions, console: Console) -> list[int]:
    """Return the wanted ports, ten apart when more are needed; replace one in use by the next free one, and say so."""
    wanted = list(options.ports[: options.instances])
    while len(wanted) < options.instances:
        wanted.append(wanted[-1] + 10)
    chosen: list[int] = []
    for port in wanted:
        free = next((other for other in range(port, 65536) if other not in chosen and port_is_free(other)), None)
        if free is None:
            raise ConfigurationError(f"no free port from {port} on")
        if free != port:
            console.print(f"Port {port} is in use; taking {free}.")
        chosen.append(free)
    return chosen
