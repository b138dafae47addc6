"""An upgrade to a new layout: instances of the state before and of this one, beside each other on one stock."""

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

# The last state of layout 2; the tag of a release, once there is one.
BEFORE = "3b494b2108ddf30f0ecf8c910381485b8ab87c59"
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
    """Build the wheels of that state, and install them into a folder; what they need is there anyway."""
    folder = tmp_path_factory.mktemp("release")
    source, installed = folder / "source", folder / "installed"
    source.mkdir()
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", BEFORE], capture_output=True)
    if archive.returncode:
        pytest.skip(f"the state before is not in this clone, of which it needs all: {archive.stderr.decode().strip()}")
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


def send(instance: Instance, path: str, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
    """Send a command, and return its answer."""
    about = {"Accept": "application/json", "Authorization": f"Bearer {TOKEN}"}
    about |= {name.replace("_", "-"): value for name, value in headers.items()}
    method = "PUT" if path.partition("?")[0] == "/stock" else "POST"
    return httpx.request(method, instance.url + path, json=body, headers=about, timeout=60)


def buy(instance: Instance, key: str) -> httpx.Response:
    return send(instance, "/stock/reduce?buyer=ann", idempotency_key=key)


async def test_each_leaves_alone_what_the_other_has_begun(etcd: EtcdMember, store: str, packages: str) -> None:
    """Neither sells in the other's layout, and nothing of it changes; a new sale passes an item on to this state."""
    run = (sys.executable, "-c", _SERVE.format(packages=packages))
    with ExitStack() as running:
        old = running.enter_context(Instance(etcd.endpoint, store, under=run))
        assert (old.directory / "output.log").read_text().startswith(packages)
        assert send(old, "/stock", {"stock": 9, "new_sale": True, "forget_orders": 0}).status_code == 200
        assert buy(old, "a").json()["outcome"] == "sold"
        new = running.enter_context(Instance(etcd.endpoint, store))
        for refused in (buy(new, "a"), buy(new, "b"), send(new, "/stock", {"stock": 5})):
            assert refused.status_code == 503, refused.text
        assert buy(old, "b").json()["outcome"] == "sold"
        begun = send(new, "/stock", {"stock": 5, "new_sale": True, "forget_orders": 2})
        assert (begun.status_code, begun.json()["stock"]) == (200, 5), begun.text
        for refused in (buy(old, "c"), send(old, "/stock", {"stock": 5})):
            assert refused.status_code == 503, refused.text
        assert buy(new, "c").json()["outcome"] == "sold"
        async with shop(etcd.endpoint, store) as sale:
            audit = await sale.audit("default")
            assert (audit.violations, audit.stock, audit.lucky, audit.orders) == ([], 4, 1, 1)
