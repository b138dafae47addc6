"""Real servers for the tests, on free ports, gone afterwards."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.embedded import EtcdMember, etcd_binary


def etcdctl(endpoint: str, *arguments: str) -> str:
    """What etcd's own client prints."""
    done = subprocess.run(
        [str(etcd_binary("etcdctl")), f"--endpoints={endpoint}", *arguments],
        env=os.environ | {"ETCDCTL_API": "3"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout


def leases(member: EtcdMember) -> list[str]:
    """The ids of all leases, in hex."""
    first, *ids = etcdctl(member.endpoint, "lease", "list").splitlines()
    assert first.startswith("found"), first
    return ids


def optional_server(name: str, package: str) -> Path:
    """A server that is not ours to install for a user: skips with the way to get it, and fails in CI."""
    # Not the one in our own virtual environment, which is the embedded one.
    folders = [folder for folder in os.get_exec_path() if not Path(folder).is_relative_to(sys.prefix)]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        reason = f"{name} is not on PATH; on Debian: apt-get install {package}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return Path(found)
