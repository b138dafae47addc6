"""Schemathesis runs in all its phases: examples, coverage, fuzzing, and stateful requests that follow links."""

import subprocess
import sys
from pathlib import Path

import pytest

from lab.servers import EtcdMember, Valkey
from tests.harness.shop import TOKEN, ThreadedInstance

# These never end, have effects after their answer, or read a file.
LEFT_OUT = r"^/(stock/live|stock/list/live|control/live|control/rush|control/pause|orders/reconcile)$"
# tests/integration/test_openapi.py judges these by the store's data.
NOT_ASKED = "positive_data_acceptance"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "examples"),
    [(20261122, 5), *(pytest.param(seed, 20, marks=pytest.mark.exhaustive) for seed in (1, 101, 20261122))],
)
def test_nothing_is_found(etcd: EtcdMember, valkey: Valkey, tmp_path: Path, seed: int, examples: int) -> None:
    """There is no 5xx, no undocumented answer, and no accepted invalid request, with or without rights."""
    with ThreadedInstance(etcd.endpoint, valkey.url) as instance:
        argv = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{instance.url}/openapi.json"]
        argv += ["--phases", "examples,coverage,fuzzing,stateful", "--seed", str(seed), "--max-examples", str(examples)]
        argv += [
            "--exclude-path-regex",
            LEFT_OUT,
            "--exclude-checks",
            NOT_ASKED,
            "--header",
            f"Authorization: Bearer {TOKEN}",
        ]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        assert "Stateful" in done.stdout
