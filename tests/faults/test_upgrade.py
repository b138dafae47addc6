"""A rolling upgrade: instances of the last release and of this one sell one stock, side by side, forth and back."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from lab.servers import EtcdMember, MariaDB, Valkey
from tests.harness.monitoring import ROOT
from tests.harness.servers import optional
from tests.harness.shop import TOKEN, Instance, shop

pytestmark = pytest.mark.slow

# The last state that users could install; a tag, once there is one.
LAST_RELEASE = "649b3d68760e1ab8620f1339d594e693cb18da5a"
_SERVE = """
import sys; sys.path.insert(0, {packages!r})
import app; print(app.__file__, flush=True)
from app.server import prepare
from app.settings import load
server, listeners = prepare(load(port=int(sys.argv[-1])))
server.run(listeners)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the wheels of the last release, and install them into a folder; what they need is there anyway."""
    folder = tmp_path_factory.mktemp("release")
    source, installed = folder / "source", folder / "installed"
    source.mkdir()
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", LAST_RELEASE], capture_output=True)
    if archive.returncode:
        pytest.skip(f"the last release is not in this clone, of which it needs all: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = [*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(source / "fencelock"), str(source)]
    subprocess.run(wheels, check=True)
    built = map(str, folder.glob("*.whl"))
    subprocess.run([*pip, "install", "--no-deps", "--target", str(installed), *built], check=True)
    return str(installed)


@pytest.fixture(params=[Valkey, pytest.param(MariaDB, marks=pytest.mark.exhaustive)])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    """Start a store."""
    with optional(request.param) as server:
        yield server.url


def ask(instance: Instance, path: str, body: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
    """Send a command, and return its answer, which must be one."""
    about = {"Accept": "application/json", "Authorization": f"Bearer {TOKEN}"}
    about |= {name.replace("_", "-"): value for name, value in headers.items()}
    method = "PUT" if path.partition("?")[0] == "/stock" else "POST"
    answer = httpx.request(method, instance.url + path, json=body, headers=about, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def look(instance: Instance, path: str) -> dict[str, Any]:
    """Read something as the operator, and return the answer."""
    answer = httpx.get(instance.url + path, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def buy(instance: Instance, key: str, sku: str = "default") -> dict[str, Any]:
    return ask(instance, f"/stock/reduce?sku={sku}&buyer=ann", idempotency_key=key)


async def test_two_releases_sell_side_by_side(etcd: EtcdMember, store: str, packages: str) -> None:
    """Each answers for what the other has sold and held in a sale that the old one began, and the way back is open.

    A sale that this release begins has a layout of its own: the last release leaves it alone.
    """

    def of_release() -> Instance:
        run = (sys.executable, "-c", _SERVE.format(packages=packages))
        return Instance(etcd.endpoint, store, under=run)

    with ExitStack() as running:
        old, other = (running.enter_context(of_release()) for _ in range(2))
        for one in (old, other):
            assert (one.directory / "output.log").read_text().startswith(packages)
        ask(old, "/stock", {"stock": 1000, "new_sale": True, "forget_orders": 0})
        first = buy(old, "of-the-old-one")
        held = ask(other, "/holds", {"quantity": 2, "buyer": "ann"})
        new = running.enter_context(Instance(etcd.endpoint, store))
        assert buy(new, "of-the-old-one")["order"] == first["order"]
        once, again = (ask(one, f"/holds/{held['id']}/extend", {}, **{"Idempotency-Key": "e"}) for one in (new, old))
        assert (once["outcome"], once["replayed"]) == ("extended", False)
        assert (again["outcome"], again["replayed"], again["pay_by"]) == ("extended", True, once["pay_by"])
        ask(new, f"/holds/{held['id']}/confirm", {"payment_ref": "p-1"})
        assert ask(old, f"/holds/{held['id']}/confirm", {"payment_ref": "p-2"})["refund"] == "p-2"
        paid = ask(new, f"/holds/{held['id']}/confirm", {"payment_ref": "p-2"})
        assert (paid["outcome"], paid["refunds_due"]) == ("duplicate_payment", ["p-2"])
        kept = ask(new, "/holds", {"quantity": 1, "buyer": "bob"})
        assert ask(old, f"/holds/{kept['id']}/cancel", {})["outcome"] == "cancelled"
        name = held["id"].rpartition("~")[0]
        assert ask(new, f"/orders/{name}/refund", {"restock": False, "payment_ref": "p-2"})["outcome"] == "refunded"
        life = [step["kind"] for step in look(new, f"/orders/{name}/history")["steps"]]
        assert life == ["held", "extended", "confirmed", "refund_due", "refunded"]
        assert [step["kind"] for step in look(old, f"/orders/{name}/history")["steps"]] == life
        name = first["order"].rpartition("~")[0]
        assert ask(new, f"/orders/{name}/refund", {"restock": True})["outcome"] == "refunded"
        assert [step["kind"] for step in look(old, f"/orders/{name}/history")["steps"]] == ["sold", "refunded"]
        bought = buy(new, "of-the-new-one")
        assert buy(old, "of-the-new-one")["order"] == bought["order"]
        for number in range(20):
            buy((old, other, new)[number % 3], f"of-all-{number}")
        other.terminate()
        other = running.enter_context(Instance(etcd.endpoint, store))
        async with shop(etcd.endpoint, store) as sale:
            audit = await sale.audit("default")
            assert (audit.violations, audit.stock, audit.held, audit.lucky) == ([], 977, 0, 23)
            await sale.set_stock("default", 500, new_sale=True)
        with pytest.raises(AssertionError, match="503"):
            buy(old, "of-the-old-one-again")
        for number in range(20):
            buy((other, new)[number % 2], f"of-both-{number}")
        async with shop(etcd.endpoint, store) as sale:
            audit = await sale.audit("default")
            assert (audit.violations, audit.stock, audit.lucky, audit.orders) == ([], 480, 20, 20)
