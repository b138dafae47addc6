"""Secrets stay in, and attacks stay out: secrets, log lines made by buyers, listeners beyond loopback."""

import re
import socket
from pathlib import Path
from typing import Any

import httpx
import psutil

from lab.servers import EtcdCluster, EtcdMember, Valkey
from tests.harness.servers import etcdctl
from tests.harness.shop import Instance
from tests.harness.waiting import eventually

SECRETS = {"admin": "admin-swordfish", "lock": "etcd-swordfish", "store": "redis-swordfish"}


def test_secrets_stay_secret() -> None:
    """Through start, sales, refusals and lost servers no secret is in a log, an answer or /metrics."""
    with EtcdMember() as etcd, Valkey(options=["--requirepass", SECRETS["store"]]) as valkey:
        for command in (
            ["user", "add", f"root:{SECRETS['lock']}"],
            ["user", "grant-role", "root", "root"],
            ["auth", "enable"],
        ):
            etcdctl(etcd.endpoint, *command)
        lock = etcd.endpoint.replace("http://", f"root:{SECRETS['lock']}@")
        store = f"redis://:{SECRETS['store']}@127.0.0.1:{valkey.port}/0"
        options: dict[str, Any] = {"admin_token": SECRETS["admin"], "log_level": "debug", "purchase_timeout_ms": 500}
        with Instance(lock, store, **options) as instance:
            operator = {"Authorization": f"Bearer {SECRETS['admin']}"}
            said: list[httpx.Response] = []

            def ask(method: str, path: str, **more: object) -> httpx.Response:
                said.append(httpx.request(method, instance.url + path, timeout=30, **more))  # type: ignore[arg-type]
                return said[-1]

            def ask_everything() -> None:
                for path in ("/stock/reduce", "/stock", "/readyz", "/metrics", "/nowhere", "/openapi.json"):
                    ask("GET", path)
                for path in ("/orders", "/locks"):
                    for headers in (operator, {"Authorization": "Bearer wrong"}, {}):
                        ask("GET", path, headers=headers)
                ask("PUT", "/stock", headers=operator, json={"stock": "x"})

            assert ask("PUT", "/stock", headers=operator, json={"stock": 3}).status_code == 200
            assert ask("GET", "/stock/reduce").headers["x-seckill-outcome"] == "sold"
            ask_everything()
            valkey.kill()
            ask_everything()
            etcd.kill()
            ask_everything()
            log = (instance.directory / "output.log").read_text()
        assert "not ready" in log
        everything = log + "".join(f"{answer.headers} {answer.text}" for answer in said)
        assert [name for name, secret in SECRETS.items() if secret in everything] == []
        assert len({answer.status_code for answer in said}) > 4


def test_an_orders_id_stays_out_of_the_log(etcd: EtcdMember) -> None:
    """An order's id gives access to the order, so the log names the route instead."""
    with Valkey() as valkey, Instance(etcd.endpoint, valkey.url) as instance:
        valkey.kill()
        assert instance.get("/orders/default~1-1~" + 32 * "a")[0] == 503
        eventually(
            lambda: "GET /orders/{order_id}: the store can't be reached" in instance.last_lines(100), "it is said"
        )
        log = instance.last_lines(100)
        assert 32 * "a" not in log


def test_buyers_can_not_write_into_the_log(etcd: EtcdMember, valkey: Valkey) -> None:
    """Line breaks and escapes in sku, buyer, key, path and headers forge no log record."""
    nasty = "x%0a2026-01-01 00:00:00,000 INFO    app: forged%1b[31m"
    with Instance(etcd.endpoint, valkey.url, log_level="debug") as instance:
        instance.get("/stock/reduce")
        valkey_away = f"sku={nasty}", f"buyer={nasty}", f"quantity={nasty}"
        for query in valkey_away:
            instance.get(f"/stock/reduce?{query}".replace(" ", "%20"))
        for path in (f"/orders/{nasty}", f"/{nasty}", f"/orders/default~1-1~{'0' * 32}%0aforged"):
            instance.get(path.replace(" ", "%20"))
        for header in ("Idempotency-Key", "Accept", "Host"):
            with socket.create_connection(("127.0.0.1", instance.port), timeout=10) as raw:
                raw.sendall(f"GET /stock/reduce HTTP/1.0\r\n{header}: a\x1b[31m forged\r\n\r\n".encode())
                raw.recv(1000)
        log = (instance.directory / "output.log").read_text()
    lines = log.splitlines()
    assert lines
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} \w+ +(app|uvicorn)\S*: ", line) for line in lines), log
    assert not any(re.match(r"2026-01-01 00:00:00,000", line) for line in lines)
    assert "\x1b" not in log


def test_embedded_servers_listen_on_loopback_only() -> None:
    """etcd, its peers and the store listen on loopback only."""
    with EtcdCluster(3) as cluster, Valkey() as valkey:
        for process in (*cluster.members, valkey):
            listening = [
                one.laddr.ip
                for one in psutil.Process(process.pid).net_connections(kind="inet")
                if one.status == psutil.CONN_LISTEN
            ]
            assert listening
            assert set(listening) <= {"127.0.0.1", "::1"}, process.name


def test_the_lock_file_covers_what_is_declared() -> None:
    """requirements.lock pins, with hashes, every dependency of pyproject.toml, and names no registry."""
    import tomllib

    root = Path(__file__).parents[2]
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]["dependencies"]
    locked = (root / "requirements.lock").read_text()
    locks = tomllib.loads((root / "fencelock" / "pyproject.toml").read_text())["project"]
    declared += [
        *locks["dependencies"],
        *(one for extra in ("etcd", "redis") for one in locks["optional-dependencies"][extra]),
    ]
    names = {re.split(r"[^A-Za-z0-9-]", line)[0].lower() for line in declared} - {"fencelock"}  # of the checkout
    pinned = {match[1].lower() for match in re.finditer(r"^([A-Za-z0-9_.-]+)==", locked, re.MULTILINE)}
    assert names <= pinned
    assert locked.count("==") <= locked.count("--hash=sha256:")
    assert "://" not in locked
