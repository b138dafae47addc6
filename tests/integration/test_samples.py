"""The sample configurations of examples/ are accepted by their programs."""

import re
import subprocess
from pathlib import Path

import pytest

from app.settings import PREFIX, Settings
from tests.harness.servers import optional_server

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def checked(*argv: str | Path) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_nginx(tmp_path: Path) -> None:
    """nginx accepts its file, but for the folder of its log, where a test may not write."""
    text = (EXAMPLES / "nginx.conf").read_text().replace("/var/log/nginx", str(tmp_path))
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/pid;\nerror_log {tmp_path}/error.log;\n{text}")
    checked(optional_server("nginx", "nginx-light"), "-t", "-p", tmp_path, "-c", tmp_path / "nginx.conf")


def test_haproxy() -> None:
    """HAProxy accepts its file without a warning."""
    said = checked(optional_server("haproxy", "haproxy"), "-c", "-f", EXAMPLES / "haproxy.cfg")
    assert "WARNING" not in said


def test_systemd(tmp_path: Path) -> None:
    """systemd knows every directive of the unit, whose program is installed at its path."""
    program = tmp_path / "seckill"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "seckill@.service"
    unit.write_text((EXAMPLES / unit.name).read_text().replace("/opt/seckill/bin/seckill", str(program)))
    said = checked(optional_server("systemd-analyze", "systemd"), "verify", "--man=no", unit)
    assert "Unknown" not in said


@pytest.mark.parametrize("name", ["nginx.conf", "haproxy.cfg", "seckill@.service"])
def test_settings_that_are_named_exist(name: str) -> None:
    """Each SECKILL_ variable in a sample is a setting."""
    known = {PREFIX + field.upper() for field in Settings.model_fields}
    assert set(re.findall(r"SECKILL_[A-Z_]+", (EXAMPLES / name).read_text())) <= known


def test_the_image_has_what_the_docs_say() -> None:
    """The image's lock file has the extras: signed buyers, rates, MySQL, ZooKeeper, traces."""
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert {"pyjwt", "cryptography", "limits", "sqlalchemy", "asyncmy", "opentelemetry-distro"} <= locked
    assert "*\n!app\n" in (ROOT / ".dockerignore").read_text()
