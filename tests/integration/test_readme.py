"""The README's program and its first commands do what they say."""

import re
import subprocess
from pathlib import Path

import pytest

from lab.servers import EtcdMember, Valkey
from tests.harness.command import seckill
from tests.harness.servers import optional_server
from tests.harness.shop import ThreadedInstance, lock_url

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_first_commands(etcd: EtcdMember, valkey: Valkey, name: str) -> None:
    """A newcomer's first commands hold two units, then hold two more and pay them, as printed but for the port."""
    optional_server("curl", "curl")
    blocks = re.findall(r"^```\n(.*?)```", README.with_name(name).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    commands = "".join(re.sub(r"^make .*\n", "", block, flags=re.MULTILINE) for block in blocks[:2])
    where = {"SECKILL_LOCK": lock_url(etcd.endpoint), "SECKILL_STORE": valkey.url}
    seckill("stock", "set", "5", env=where)
    with ThreadedInstance(etcd.endpoint, valkey.url, extension="lab.rehearsal") as instance:
        argv = ["bash", "-euc", commands.replace("localhost:8080", f"127.0.0.1:{instance.port}")]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert '"outcome":"held"' in done.stdout and '"outcome":"confirmed"' in done.stdout, done.stderr
        assert instance.get("/stock")[1]["lucky"] == 2


def test_the_lock_of_the_readme(etcd: EtcdMember, capsys: pytest.CaptureFixture[str]) -> None:
    """The program runs as printed, except for the address of etcd."""
    [program] = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert "etcd://127.0.0.1:2379" in program
    exec(program.replace("etcd://127.0.0.1:2379", lock_url(etcd.endpoint)), {})
    assert re.fullmatch(r"fencing token \d+\n", capsys.readouterr().out)
