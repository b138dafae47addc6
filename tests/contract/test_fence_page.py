"""The programs of docs/fence.md do what they say. Each runs as printed, except for the addresses of the servers.

They import `fencelock`, as its users do. Here the same modules are in `fencelock`: tests/integration/test_fencelock.py
has the package itself.
"""

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psycopg
import redis
from sqlalchemy import Column, Integer, MetaData, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from fencelock.fence import fence_columns
from lab.servers import MariaDB, Postgres, Valkey
from tests.harness.asgi import serving
from tests.harness.servers import ask, optional

PAGE = (Path(__file__).parents[2] / "docs" / "fence.md").read_text(encoding="utf-8")


def run(heading: str, number: int, *addresses: tuple[str, str]) -> dict[str, Any]:
    """Run the program under this heading and return its names. `addresses`: the printed ones, and ours."""
    [section] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    program = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[number]
    for printed, ours in addresses:
        assert printed in program
        program = program.replace(printed, ours)
    left: dict[str, Any] = {}
    exec(program, left)
    return left


def in_redis(valkey: Valkey) -> tuple[str, str]:
    return "redis://127.0.0.1:6379/0", valkey.url


def test_the_value_in_redis(valkey: Valkey) -> None:
    for balance in (b"5", b"10"):
        token = run("Redis, Valkey", 0, in_redis(valkey))["grant"].token
        with redis.Redis.from_url(valkey.url) as client:
            assert client.hmget("balance", "value", "token") == [balance, str(token).encode()]


def test_the_script(valkey: Valkey) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        client.set("{phone}:units", 3)
        left = run("Redis, Valkey", 1, in_redis(valkey))
        assert left["left"] == 2
        assert client.hget("{phone}:fence", "token") == str(left["grant"].token).encode()


def test_the_row_in_sql(mariadb: MariaDB) -> None:
    ours = mariadb.url.partition("://")[2]
    left = run("SQL", 0, ("user:password@127.0.0.1:3306/shop", ours))
    assert ask(mariadb, "SELECT balance, fence FROM accounts WHERE id = 1") == ((5, left["grant"].token),)
    ask(mariadb, "CREATE TABLE there (id INT PRIMARY KEY)")
    [alter] = re.findall(r"`(ALTER TABLE [^`]*)`", PAGE)
    ask(mariadb, alter.replace("accounts", "there"))

    def columns(table: str) -> list[Any]:
        return [column for column in ask(mariadb, f"SHOW COLUMNS FROM {table}") if column[0].startswith("fence")]

    assert columns("there") == columns("accounts")


def test_the_row_in_postgresql() -> None:
    with optional(Postgres) as server, psycopg.connect(server.url, autocommit=True) as connection:
        table = Table("accounts", MetaData(), Column("id", Integer, primary_key=True), Column("balance", Integer))
        for column in fence_columns():
            table.append_column(column)
        connection.execute(str(CreateTable(table).compile(dialect=postgresql.dialect())).encode())  # type: ignore[no-untyped-call]
        connection.execute("INSERT INTO accounts VALUES (1, 0)")
        address = "postgres://user:password@127.0.0.1:5432/shop", server.url
        first = run("PostgreSQL without SQLAlchemy", 0, address)
        left = run("PostgreSQL without SQLAlchemy", 0, address)
        for statement in ("READ", "WRITE"):  # of who had it before
            assert connection.execute(left[statement], first["mine"] | {"balance": 1}).fetchone() is None
        assert connection.execute("SELECT balance, fence FROM accounts").fetchone() == (10, left["grant"].token)


def test_server_and_client(valkey: Valkey) -> None:
    server = run("HTTP", 0, in_redis(valkey))
    with serving(server["app"]) as url, closing(server["client"]) as client:
        headers = [run("HTTP", 1, in_redis(valkey), ("http://127.0.0.1:8080", url))["headers"] for _ in range(2)]
        assert client.hget("balance:ann", "value") == b"10"
        for method, sent, status in (("PUT", headers[0], 412), ("GET", headers[0], 412), ("PUT", {}, 422)):
            assert httpx.request(method, f"{url}/balances/ann?balance=1", headers=sent).status_code == status
        assert client.hget("balance:ann", "value") == b"10"
