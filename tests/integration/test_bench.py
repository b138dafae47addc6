"""A short run of the benchmarks takes part in everything and writes a complete report. No figure is judged."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import psycopg
import pytest

from loadtest.bench.__main__ import ONE_WOULD_WRITE, ROWS, ROWS_ON_POSTGRES
from loadtest.bench.locks import CONTESTANTS
from loadtest.bench.stand import CONTENDERS, Stand

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def bench(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.exhaustive
def test_the_sale_beside_the_others(tmp_path: Path) -> None:
    """Each contender answers each request with 200; the benchmark writes a table, JSON and a plot."""
    options = ["--rounds", "1", "--seconds", "1", "--connections", "20", "--report", str(tmp_path)]
    done = bench("loadtest.bench", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "bench.json").read_text())
    assert list(figures["rounds"][0]) == list(ROWS)
    assert all(load["requests"] > 0 and load["lost"] == 0 for load in figures["rounds"][0].values())
    assert all(row in (tmp_path / "bench.svg").read_text() for row in ROWS)
    assert "default : nothing" in done.stdout
    assert "A rush of 500 buyers" in done.stdout


@pytest.mark.exhaustive
def test_the_sale_beside_what_one_would_write_on_postgresql(tmp_path: Path) -> None:
    """Each of them is on the same server, which syncs each commit, and answers each request with 200."""
    options = ["--rounds", "1", "--seconds", "1", "--connections", "20", "--report", str(tmp_path)]
    done = bench("loadtest.bench", "--store", "postgres", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "bench.json").read_text())
    assert list(figures["rounds"][0]) == list(ROWS_ON_POSTGRES)
    assert all(load["requests"] > 0 and load["lost"] == 0 for load in figures["rounds"][0].values())
    assert "fsync is on and synchronous_commit is on" in " ".join(done.stdout.split())


@pytest.mark.parametrize("name", ONE_WOULD_WRITE)
def test_what_one_would_write_on_postgresql_sells_what_is_there(name: str) -> None:
    """It is no straw man: all units are sold, none twice, and a key that comes again has its order."""
    with Stand(postgres=True) as stand:
        running = stand.start(replace(CONTENDERS[name], stock=15), instances=1)
        running.fill()
        (url,) = running.urls()

        def buy(number: int) -> int:
            return httpx.post(url, headers={"Idempotency-Key": f"key-{number % 20}"}).status_code

        with ThreadPoolExecutor(10) as crowd:
            assert {*crowd.map(buy, range(40))} == {200}
        with psycopg.connect(running.store_url) as client:
            assert client.execute("SELECT count(*), count(DISTINCT key) FROM orders").fetchone() == (15, 15)
            left = "SELECT count(*) FROM units WHERE NOT sold" if name == "skip-locked" else "SELECT stock FROM items"
            assert client.execute(left.encode()).fetchone() == (0,)


def test_how_cost_grows(tmp_path: Path) -> None:
    """The report has the chosen rows and the first row of their group."""
    options = ["--rounds", "1", "--seconds", "0.5", "--only", "10 items", "--report", str(tmp_path)]
    done = bench("loadtest.bench.growth", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(json.loads((tmp_path / "growth.json").read_text())) == {"1 item, 500 buyers", "10 items, 500 buyers"}


def test_holds_beside_purchases(tmp_path: Path) -> None:
    """Each buyer who holds pays, and each purchase is answered while holds run out."""
    options = ["--rounds", "1", "--seconds", "0.5", "--connections", "20", "--holds", "300", "--report", str(tmp_path)]
    done = bench("loadtest.bench.holds", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    (figures,) = json.loads((tmp_path / "holds.json").read_text())
    assert all(load["requests"] > 0 and load["lost"] == 0 for load in figures.values())
    assert "buyers a second hold and pay" in done.stdout


@pytest.mark.exhaustive
def test_the_locks_beside_their_peers(tmp_path: Path) -> None:
    """Two processes take turns with each lock; ours exclude each other, and leave nothing behind."""
    report = tmp_path / "locks.json"
    options = ["--rounds", "1", "--seconds", "0.3", "--processes", "2", "--hold-ms", "0,5", "--report", str(report)]
    done = bench("loadtest.bench.locks", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    heats = json.loads(report.read_text())
    absent = {name for name in CONTESTANTS if f"{name} did not take part" in done.stdout}
    assert not (absent and os.environ.get("CI"))
    assert {heat["contestant"] for heat in heats} == set(CONTESTANTS) - absent
    ours = [heat for heat in heats if heat["contestant"].startswith("seckill")]
    assert {(heat["overlaps"], heat["left_behind"]) for heat in ours} == {(0, 0)}
    assert all(heat["fewest"] > 0 for heat in ours if heat["contestant"] in ("seckill etcd", "seckill redis-fair"))


def test_a_lock_that_was_asked_for_and_did_not_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit status says so: the table alone would pass for a comparison."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))  # without Java there is no ZooKeeper
    monkeypatch.delenv("JAVA_HOME", raising=False)
    options = ["--rounds", "1", "--seconds", "0.2", "--processes", "2", "--hold-ms", "0", "--only"]
    assert bench("loadtest.bench.locks", *options, "etcd").returncode == 0
    done = bench("loadtest.bench.locks", *options, "etcd,zookeeper")
    assert "seckill zookeeper did not take part" in done.stdout
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["loadtest.bench", "--only", "nobody"], "'nobody' is none of default, asgi-wait"),
        (["loadtest.bench.locks", "--only", "nobody"], "'nobody' is none of etcd"),
        (["loadtest.bench.locks", "--processes", "two"], "'two' is not a list of numbers"),
    ],
)
def test_wrong_options_are_named(argv: list[str], said: str) -> None:
    """A wrong option ends the command before anything is started."""
    done = bench(*argv)
    assert done.returncode == 2
    assert said in done.stderr
