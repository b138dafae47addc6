"""The README's program does what it says."""

import re
from pathlib import Path

import pytest

from lab.servers import EtcdMember
from tests.harness.shop import lock_url

README = Path(__file__).parents[2] / "README.md"


def test_the_lock_of_the_readme(etcd: EtcdMember, capsys: pytest.CaptureFixture[str]) -> None:
    """The program runs as printed, except for the address of etcd."""
    [program] = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert "etcd://127.0.0.1:2379" in program
    exec(program.replace("etcd://127.0.0.1:2379", lock_url(etcd.endpoint)), {})
    assert re.fullmatch(r"fencing token \d+\n", capsys.readouterr().out)
