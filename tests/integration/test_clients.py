"""Clients that are made from /openapi.json compile, and hold, confirm, look and refund at a real instance."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lab.servers import EtcdMember, Valkey
from tests.harness.command import seckill
from tests.harness.servers import optional_tool
from tests.harness.shop import TOKEN, ThreadedInstance

# Each starts an instance, and fetches what makes the client; a compiler on a busy machine takes its time.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "examples" / "clients"
SAID = ["held", "confirmed", "already_confirmed", "already_confirmed", "confirmed 998", "refunded refunded"]
SAID += ["urn:seckill:unknown-item"]


@pytest.fixture
def instance(etcd: EtcdMember, valkey: Valkey) -> Iterator[ThreadedInstance]:
    """Start an instance that sells 5 units at 4.99 EUR."""
    env = {"SECKILL_LOCK": f"etcd://{etcd.endpoint.partition('://')[2]}", "SECKILL_STORE": valkey.url}
    assert seckill("stock", "set", "5", "--new-sale", "--yes", "--price", "4.99EUR", env=env).returncode == 0
    with ThreadedInstance(etcd.endpoint, valkey.url) as one:
        yield one


def run(*argv: str | Path, at: Path) -> str:
    done = subprocess.run([str(one) for one in argv], cwd=at, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def documented(language: str, url: str) -> list[list[str]]:
    """The commands that docs/shop.md gives for a language, at this instance."""
    text = (ROOT / "docs" / "shop.md").read_text()
    block = re.search(rf"```bash\n# {language}\n(.+?)```", text, re.DOTALL)
    assert block is not None
    return [line.replace("http://localhost:8080", url).split() for line in block[1].splitlines()]


def is_sold_and_given_back(instance: ThreadedInstance) -> bool:
    stock = httpx.get(f"{instance.url}/stock").json()
    return (stock["stock"], stock["held"], stock["lucky"]) == (5, 0, 0)


def test_a_client_in_python(instance: ThreadedInstance, tmp_path: Path) -> None:
    """It is made without a warning, passes mypy's strict checks, and works."""
    uv = optional_tool("uv", "pip install uv")
    run(uv, "venv", "--quiet", "--python", sys.executable, "env", at=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    run(uv, "pip", "install", "--quiet", "--python", python, "--group", f"{ROOT}/pyproject.toml:clients", at=tmp_path)
    [[_, _, *generate]] = documented("Python", instance.url)
    said = run(tmp_path / "env" / "bin" / "openapi-python-client", *generate, at=tmp_path)
    assert "Warning" not in said, said
    shutil.copy(CLIENTS / "flow.py", tmp_path)
    run(sys.executable, "-m", "compileall", "-q", "seckill_client", at=tmp_path)
    run(
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--python-executable",
        python,
        "flow.py",
        at=tmp_path,
    )
    assert run(python, "flow.py", instance.url, TOKEN, at=tmp_path).splitlines() == SAID
    assert is_sold_and_given_back(instance)


def test_a_client_in_typescript(instance: ThreadedInstance, tmp_path: Path) -> None:
    """It passes TypeScript's strict checks, and works."""
    npm, node = (optional_tool(name, "https://nodejs.org") for name in ("npm", "node"))
    for name in ("package.json", "package-lock.json", "flow.ts"):
        shutil.copy(CLIENTS / name, tmp_path)
    install, generate, build = documented("TypeScript", instance.url)
    assert install == ["npm", "ci"]
    run(npm, "ci", "--no-audit", "--no-fund", at=tmp_path)
    for command in (generate, build):
        assert command[0] == "npx"
        run(npm, "exec", "--offline", "--", *command[1:], at=tmp_path)
    assert run(node, "flow.js", instance.url, TOKEN, at=tmp_path).splitlines() == SAID
    assert is_sold_and_given_back(instance)


def test_the_versions_are_pinned() -> None:
    """What makes a client, and what it needs, is one version each: another one may make another client."""
    found = json.loads((CLIENTS / "package.json").read_text())
    for version in {**found["dependencies"], **found["devDependencies"]}.values():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    [[_, python, *_]] = documented("Python", "")
    assert f'"{python.replace("@", "==")}"' in (ROOT / "pyproject.toml").read_text()
