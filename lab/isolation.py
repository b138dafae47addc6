"""`python -m lab.isolation`: which isolation levels are safe, for each SQL server and guard, by trying to break them.

Several instances sell the same item at once, and nothing keeps them apart: each has a lock of its own, whose tokens can
be compared, as if every lease had ended while its holder went on. All that is left is the store's guard. Buyers come to
all instances, with one key and with another one; at the end no unit, buyer or key may have too many orders.

The control is no store of ours: it reads how many are left, and writes one less, in a transaction. Where it is safe
the level does it alone; where nothing breaks it the run has proved nothing. Our own storage asks for READ COMMITTED,
whatever the server's default is; here it is made to use each level.
"""

import argparse
import asyncio
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeGuard
from unittest.mock import patch

from rich.console import Console
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from app.orders import DEFAULT_SKU, Answer, Purchase
from app.settings import Settings
from app.stock.sql.mysql import MySqlServer
from app.stock.sql.postgres import PostgresServer
from app.wiring import open_sale
from lab.servers import MariaDB, Postgres
from lab.torture.books import journal_of

LEVELS: Final = ("READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
GUARDS: Final = ("fence", "version", "timestamp")
CONTROL: Final = "none of ours"
_OURS: Final = "READ COMMITTED"
_DIRTY: Final = LEVELS[0]  # where a guard may read what is never written
_MUST_BE_SAFE: Final = ("fence", "version")
_MUST_BREAK_AT: Final = _OURS  # the control
SERVERS: Final[dict[str, Callable[[], Postgres | MariaDB]]] = {
    "PostgreSQL": lambda: Postgres(durable=True),
    "MariaDB": lambda: MariaDB(durable=True, options=["--loose-innodb-snapshot-isolation=OFF"]),
    "MariaDB (snapshots)": lambda: MariaDB(durable=True, options=["--loose-innodb-snapshot-isolation=ON"]),
}
PAGE: Final = Path(__file__).parents[1] / "docs" / "stores.md"
_MARKS: Final = ("<!-- isolation: written by python -m lab.isolation --write -->\n", "<!-- end of isolation -->\n")
_INSTANCES: Final = 4
_UNITS: Final = 20
_BUYERS: Final = 30
_PATIENT: Final = {"store_timeout_ms": 20_000, "purchase_timeout_ms": 60_000}  # on a busy machine, too
_BATCH_MAX: Final = 2  # many small batches meet more often


@dataclass(slots=True)
class Verdict:
    """What became of the sales on a server, at a level, with a guard. `wrong`: what was broken, and how often."""

    server: str
    level: str
    guard: str
    sold: int = 0
    wrong: Counter[str] = field(default_factory=Counter)

    def note(self, broken: Mapping[str, bool]) -> None:
        """Note what a sale has broken."""
        self.wrong.update(what for what, is_broken in broken.items() if is_broken)

    @property
    def said(self) -> str:
        """Return it in a few words."""
        return ", ".join(sorted(self.wrong)) or "safe"


def main(words: Sequence[str] | None = None) -> int:
    """Run what the command line says; return the exit status: 1 if a guard failed that must not, or nothing did."""
    parser = argparse.ArgumentParser(prog="python -m lab.isolation", description="Which isolation levels are safe.")
    parser.add_argument("--servers", default=",".join(SERVERS), help=f"some of {', '.join(SERVERS)}")
    parser.add_argument("--mysqld", type=Path, metavar="FILE", help="try this MySQL, too")
    parser.add_argument("--rounds", type=int, default=5, help="sales of each guard at each level (5)")
    parser.add_argument("--write", action="store_true", help="write the table into docs/stores.md")
    options = parser.parse_args(words)
    names = options.servers.split(",")
    if unknown := [name for name in names if name not in SERVERS]:
        parser.error(f"there is no server {unknown[0]!r}; there are {', '.join(SERVERS)}")
    servers = {name: SERVERS[name] for name in names}
    if options.mysqld:
        servers["MySQL"] = lambda: MariaDB("mysql", durable=True, binary=options.mysqld)
    console = Console(highlight=False, soft_wrap=True)
    verdicts: list[Verdict] = []
    for name, start in servers.items():
        with start() as server:
            for verdict in verdicts_on(name, server, options.rounds):
                console.print(f"{name}, {verdict.level}, {verdict.guard}: {verdict.said} ({verdict.sold} sold)")
                verdicts.append(verdict)
    if options.write:
        before, _, rest = PAGE.read_text().partition(_MARKS[0])
        PAGE.write_text(f"{before}{_MARKS[0]}{table(verdicts)}{_MARKS[1]}{rest.partition(_MARKS[1])[2]}")
    failed = [one for one in verdicts if one.guard in _MUST_BE_SAFE and one.level != _DIRTY and one.wrong]
    tame = [one for one in verdicts if (one.guard, one.level) == (CONTROL, _MUST_BREAK_AT) and not one.wrong]
    for one in (*failed, *tame):
        what = one.said if one.wrong else "nothing broke it, so this run has proved nothing"
        console.print(f"✗ {one.server}, {one.level}, {one.guard}: {what}", style="red")
    return 1 if failed or tame else 0


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as a table in Markdown."""
    said = {(one.server, one.level, one.guard): one.said for one in verdicts}
    columns = (CONTROL, *GUARDS)
    lines = [f"| server | level | {' | '.join(columns)} |", "|---|---" + "|---" * len(columns) + "|"]
    for server, level in dict.fromkeys((one.server, one.level) for one in verdicts):
        found = " | ".join(said[server, level, guard] for guard in columns)
        lines.append(f"| {server} | {level.lower()} | {found} |")
    return "\n".join(lines) + "\n"


def verdicts_on(name: str, server: Postgres | MariaDB, rounds: int) -> Iterator[Verdict]:
    """Yield what becomes of the control and of each guard, at each level."""
    driver = "postgresql+psycopg" if isinstance(server, Postgres) else "mysql+pymysql"
    url = f"{driver}://{server.url.partition('://')[2]}"
    with ExitStack() as opened:
        engine = create_engine(url)
        opened.callback(engine.dispose)
        for level in LEVELS:
            _make_default(engine, server, level)
            own = create_engine(url, isolation_level=level)
            opened.callback(own.dispose)
            for guard in (CONTROL, *GUARDS):
                verdict = Verdict(name, level, guard)
                for number in range(rounds):
                    if guard == CONTROL:
                        _control(own, verdict)
                    else:
                        with _at(level):
                            asyncio.run(_sale(server.url, guard, f"/{level.split()[-1]}/{guard}/{number}", verdict))
                yield verdict


def _make_default(engine: Engine, server: Postgres | MariaDB, level: str) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if isinstance(server, Postgres):
            default = f"ALTER DATABASE {server.database} SET default_transaction_isolation = '{level.lower()}'"
        else:
            default = f"SET GLOBAL TRANSACTION ISOLATION LEVEL {level}"
        connection.execute(text(default))


# -- the control -------------------------------------------------------------------------------------------------------


def _control(engine: Engine, verdict: Verdict) -> None:
    with engine.begin() as connection:
        for statement in (
            "DROP TABLE IF EXISTS control, control_orders",
            "CREATE TABLE control (units integer)",
            "CREATE TABLE control_orders (number integer)",
            "INSERT INTO control VALUES (:units)",
        ):
            connection.execute(text(statement), {"units": _UNITS})
    with ThreadPoolExecutor(_INSTANCES) as crowd:
        sold = sum(crowd.map(_buy_until_none_is_left, [engine] * _INSTANCES))
    verdict.sold += sold
    verdict.note({"oversold": sold > _UNITS})


def _buy_until_none_is_left(engine: Engine) -> int:
    sold = 0
    while True:
        try:
            with engine.begin() as connection:
                left = connection.execute(text("SELECT units FROM control")).scalar_one()
                if left <= 0:
                    return sold
                connection.execute(text("UPDATE control SET units = :left"), {"left": left - 1})
                connection.execute(text("INSERT INTO control_orders VALUES (:left)"), {"left": left})
            sold += 1
        except DBAPIError:
            pass  # somebody was faster, and the server has noticed it


@contextmanager
def _at(level: str) -> Iterator[None]:
    """Have our own storage at that level, too: it asks for READ COMMITTED, whatever the server's default is."""
    to_postgres, to_mysql = PostgresServer.__init__, MySqlServer.connect

    def made(self: PostgresServer, *args: Any) -> None:
        to_postgres(self, *args)
        assert _OURS in self.begin  # noqa: S101 - else nothing is tried
        self.begin = self.begin.replace(_OURS, level)

    async def connect(self: MySqlServer) -> Any:
        connection = await to_mysql(self)
        await connection.query(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        return connection

    with patch.object(PostgresServer, "__init__", made), patch.object(MySqlServer, "connect", connect):
        yield


# -- the store ---------------------------------------------------------------------------------------------------------


async def _sale(url: str, guard: str, name: str, verdict: Verdict) -> None:
    """Sell all units through several instances at once, and note what is wrong."""
    async with AsyncExitStack() as opened:
        sales = []
        for number in range(_INSTANCES):
            own = {"lock_prefix": f"{name}/{number}", "instance": f"i{number}", "store": url, "guard": guard}
            rules = {"limit_per_buyer": 1, "batch_max": _BATCH_MAX, **_PATIENT}
            settings = Settings(_env_file=None, lock="local://", **own, **rules)  # type: ignore[arg-type]
            sales.append(await opened.enter_async_context(open_sale(settings, with_auditor=False)))
        await sales[0].stock.set_stock(DEFAULT_SKU, _UNITS, new_sale=True)
        asks = [
            (sale, Purchase(1, DEFAULT_SKU, f"buyer-{buyer}", f"key-{buyer}-{key}"))
            for buyer, key, sale in product(range(_BUYERS), range(2), sales)
        ]
        random.Random(name).shuffle(asks)  # noqa: S311 - no secret
        told = await asyncio.gather(*(sale.shop.submit(ask) for sale, ask in asks), return_exceptions=True)
        found = await journal_of(sales[0].store, DEFAULT_SKU)
        audit = await sales[0].audit(DEFAULT_SKU)
    sold = {(ask.key, str(one.order)) for (_, ask), one in zip(asks, told, strict=True) if _is_order(one)}
    verdict.sold += len(found)
    verdict.note(
        {
            "oversold": len(found) > _UNITS,
            "a buyer above the limit": len({one.buyer for one in found}) < len(found),
            "two orders for a key": len({key for key, _ in sold}) < len(sold),
            "an order is lost": not {order for _, order in sold} <= {one.order for one in found},
            "numbers and orders differ": bool(audit.violations),
        }
    )


def _is_order(answer: Answer | BaseException) -> TypeGuard[Answer]:
    return isinstance(answer, Answer) and answer.order is not None


if __name__ == "__main__":
    logging.disable()  # that they are refused again and again is what is wanted here
    sys.exit(main())
