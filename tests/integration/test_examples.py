"""The clients of examples/ each buy one unit, once, whatever is lost on the way."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.errors import ConfigurationError
from lab.servers import EtcdMember, Valkey
from lab.servers.process import free_port
from lab.torture.proxy import Proxy
from tests.harness.command import seckill
from tests.harness.servers import optional
from tests.harness.shop import ThreadedInstance

pytestmark = pytest.mark.slow  # each starts an instance
EXAMPLES = Path(__file__).parents[2] / "examples"
CLIENTS = ["buy.py", "buy.mjs", "buy.go"]


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the client's command; Go's is built once."""
    source = str(EXAMPLES / request.param)
    if request.param == "buy.py":
        return [sys.executable, source]
    if request.param == "buy.mjs":
        return [optional(lambda: program("node", "Node.js")), source]
    go, built = optional(lambda: program("go", "Go")), str(tmp_path_factory.mktemp("go") / "buy")
    subprocess.run([go, "build", "-o", built, source], check=True, timeout=240)
    return [built]


def program(name: str, language: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ConfigurationError(f"{language} is not installed: there is no {name} on PATH")
    return found


@pytest.fixture
def instance(etcd: EtcdMember, valkey: Valkey) -> Iterator[ThreadedInstance]:
    """Start an instance that sells from a stock of 5."""
    env = {"SECKILL_LOCK": f"etcd://{etcd.endpoint.partition('://')[2]}", "SECKILL_STORE": valkey.url}
    assert seckill("stock", "set", "5", "--new-sale", "--yes", env=env).returncode == 0
    with ThreadedInstance(etcd.endpoint, valkey.url) as one:
        yield one


@contextmanager
def running(client: list[str], *urls: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen([*client, *urls], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as buying:
        try:
            yield buying
        finally:
            buying.kill()


def test_it_buys_one_and_prints_the_order(client: list[str], instance: ThreadedInstance) -> None:
    """The client buys one unit, and the order that it prints exists."""
    with running(client, instance.url) as buying:
        printed, complaints = buying.communicate(timeout=60)
    assert (buying.returncode, complaints) == (0, "")
    answer = json.loads(printed)
    assert (answer["outcome"], answer["quantity"], answer["replayed"]) == ("sold", 1, False)
    status, order = instance.get(f"/orders/{answer['order']}")
    assert (status, order["quantity"]) == (200, 1)


def test_a_lost_answer_does_not_buy_twice(client: list[str], instance: ThreadedInstance) -> None:
    """The unit was sold and the answer lost: the client retries with the same key, and gets the first order."""
    with Proxy(instance.port) as path:
        path.lose_answer_to(b"POST /stock/reduce")
        with running(client, f"http://127.0.0.1:{path.port}") as buying:
            assert path.struck.wait(60)
            path.restore()
            printed, complaints = buying.communicate(timeout=60)
    assert buying.returncode == 0, complaints
    assert "asking again in 1 s" in complaints
    answer = json.loads(printed)
    assert (answer["outcome"], answer["replayed"]) == ("sold", True)
    status, level = instance.get("/stock")
    assert (status, level["stock"], level["lucky"]) == (200, 4, 1)


def test_it_waits_as_long_as_a_503_says(client: list[str], etcd: EtcdMember, valkey: Valkey) -> None:
    """While the store is away the answer is 503 with `Retry-After`; when it is back one unit is bought, and no more."""
    env = {"SECKILL_LOCK": f"etcd://{etcd.endpoint.partition('://')[2]}", "SECKILL_STORE": valkey.url}
    assert seckill("stock", "set", "5", "--new-sale", "--yes", env=env).returncode == 0
    with (
        Proxy(valkey.port) as path,
        ThreadedInstance(
            etcd.endpoint,
            valkey.url.replace(str(valkey.port), str(path.port)),
            purchase_timeout_ms=500,
            audit_interval_s=0,
        ) as one,
    ):
        path.cut()
        with running(client, one.url) as buying:
            assert buying.stderr is not None
            refused = buying.stderr.readline()
            path.restore()
            printed, _ = buying.communicate(timeout=60)
        assert "503" in refused
        assert "asking again in" in refused
        assert json.loads(printed)["outcome"] == "sold"
        status, level = one.get("/stock")
        assert (status, level["stock"], level["lucky"]) == (200, 4, 1)


def test_it_gives_up_where_asking_again_does_not_help(client: list[str], instance: ThreadedInstance) -> None:
    """A wrong address is reported at once, with an exit status other than 0."""
    with running(client, f"{instance.url}/nowhere") as buying:
        _, complaints = buying.communicate(timeout=60)
    assert buying.returncode == 1
    assert "asking again" not in complaints
    assert "refused" in complaints


def test_it_goes_on_at_another_instance(client: list[str], instance: ThreadedInstance) -> None:
    """At an address without a server nothing is bought; the next of the client's URLs sells."""
    with running(client, f"http://127.0.0.1:{free_port()}", instance.url) as buying:
        printed, complaints = buying.communicate(timeout=60)
    assert (buying.returncode, json.loads(printed)["outcome"]) == (0, "sold")
    assert complaints.count("asking again") == 1
