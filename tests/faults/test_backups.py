"""The runbook's commands make backups of the servers, and restore them."""

import asyncio
import json
import os
import re
import shutil
import subprocess
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

import fencelock
from lab.servers import EtcdMember, MariaDB, Postgres, Valkey, etcd_binary, postgres_folder
from tests.harness.monitoring import ROOT
from tests.harness.servers import optional, optional_server
from tests.harness.shop import buy, shop
from tests.harness.waiting import eventually_async

pytestmark = pytest.mark.slow

RESTORED = "pg_restore --clean --if-exists --single-transaction --dbname"
RESTORED_STOCK = "pg_restore --clean --if-exists --single-transaction --use-list"


def type_in(folder: Path, beginnings: list[str], places: dict[str, str]) -> None:
    """Type the runbook's commands that begin so, in a folder, with the test's places instead of its own."""
    text = (ROOT / "docs" / "operations.md").read_text().partition("## Backups")[2].partition("\n## ")[0]
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)).replace("\\\n", "")
    lines = [line for begin in beginnings for line in blocks.splitlines() if line.startswith(begin)]
    assert len(lines) == len(beginnings)
    script = "\n".join(lines)
    for name, place in places.items():
        script = script.replace(name, place)
    folders = [str(etcd_binary().parent), str(optional(postgres_folder)), os.environ["PATH"]]
    env = os.environ | {"PATH": os.pathsep.join(folders), "ETCDCTL_API": "3"}
    done = subprocess.run(["sh", "-ec", script], cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, script + done.stdout + done.stderr


def in_redis(server: Valkey) -> dict[str, str]:
    return {"redis-cli": f"redis-cli -p {server.port}", "/var/lib/redis": str(server.directory)}


async def test_etcd_and_redis(tmp_path: Path) -> None:
    """Both come back as they were, the store from its snapshot or its log; sales go on when the fence has been told."""
    optional_server("redis-cli", "redis-tools")
    binary = optional_server("redis-server", "redis-server")
    with EtcdMember() as etcd, Valkey(durable=True, binary=binary) as store:
        async with shop(etcd.endpoint, store.url) as one:
            await one.set_stock("default", 10)
            await buy(one, 3)
        type_in(tmp_path, ["etcdctl"], {"http://127.0.0.1:2379": etcd.endpoint})
        saving = [
            "redis-cli --rdb",
            "redis-cli CONFIG SET auto-aof-rewrite-percentage 0",
            "until",
            "tar -C /var/lib/redis -cf",
        ]
        type_in(tmp_path, [*saving, "redis-cli CONFIG SET auto-aof-rewrite-percentage 100"], in_redis(store))
    etcd = EtcdMember("m1")
    places = {"http://127.0.0.1:2380": etcd.peer_url, "/var/lib/etcd": str(etcd.directory / "data")}
    type_in(tmp_path, ["etcdutl"], places)
    snapshot, log = Valkey(binary=binary), Valkey(durable=True, binary=binary)
    type_in(tmp_path, ["cp dump.rdb"], in_redis(snapshot))
    type_in(tmp_path, ["tar -C /var/lib/redis -xf"], in_redis(log))
    with etcd, snapshot, log:
        type_in(tmp_path, ["redis-cli CONFIG SET appendonly"], in_redis(snapshot))
        for restored in (snapshot, log):
            async with shop(etcd.endpoint, restored.url) as one:
                assert (await one.audit("default")).violations == []
                await one.unfence("default")
                await buy(one, 1)
                assert (await one.level("default")).lucky == 4


async def test_mysql(tmp_path: Path, etcd: EtcdMember) -> None:
    """The tables come back as they were, and sales go on."""
    if not shutil.which("mysqldump") or not shutil.which("mysql"):
        pytest.skip("mysqldump is not on PATH; on Debian: apt-get install mariadb-client")

    def login(server: MariaDB) -> dict[str, str]:
        return {" shop ": f" -h 127.0.0.1 -P {server.port} -u {server.user} -p{server.password} {server.database} "}

    with optional(lambda: MariaDB(durable=True)) as store, MariaDB(durable=True) as restored:
        async with shop(etcd.endpoint, store.url) as one:
            await one.set_stock("default", 10)
            await buy(one, 3)
        type_in(tmp_path, ["mysqldump"], login(store))
        type_in(tmp_path, ["mysql shop"], login(restored))
        async with shop(etcd.endpoint, restored.url) as one:
            assert (await one.audit("default")).violations == []
            await buy(one, 1)
            assert (await one.level("default")).lucky == 4


async def test_lock_and_stock_in_one_postgresql(tmp_path: Path) -> None:
    """Both come back as of one moment: nothing is to be unfenced, as no token is known that was not given."""
    with optional(lambda: Postgres(durable=True)) as server, Postgres(durable=True) as restored:
        async with shop("", server.url, lock=server.url) as one:
            await one.set_stock("default", 10)
            await buy(one, 3)
            type_in(tmp_path, ["pg_dump"], {" shop ": f" {server.url} "})
            for _ in range(3):
                await buy(one, 1)  # under further tokens
        type_in(tmp_path, [RESTORED], {"=shop": f"={restored.url}"})
        async with shop("", restored.url, lock=restored.url) as one:
            assert (await one.audit("default")).violations == []
            await buy(one, 1)
            assert (await one.level("default")).lucky == 4
            assert await one.behind() == []  # nobody knows better


async def test_a_postgresql_whose_locks_are_whole_names_lost_orders(tmp_path: Path) -> None:
    """If only the tables of the stock are restored, the record beside the locks has what is missing."""
    with optional(lambda: Postgres(durable=True)) as server:
        async with shop("", server.url, lock=server.url, with_auditor=True, audit_interval_s=0.2) as one:
            await one.set_stock("default", 10)
            await buy(one, 3)
            type_in(tmp_path, ["pg_dump"], {" shop ": f" {server.url} "})
            await buy(one, 1)
            with closing(fencelock.connect(server.url)) as locks:
                election = locks.election(f"{one.lock_prefix}!auditor")
                recorded = partial(asyncio.to_thread, election.recorded)
                await eventually_async(recorded, until=lambda text: json.loads(text or "{}") == one.store.marks())
        type_in(tmp_path, ["pg_restore --list", RESTORED_STOCK], {"=shop": f"={server.url}"})
        async with shop("", server.url, lock=server.url) as one:
            assert await one.behind() == ["default"]
