"""The sample configurations of examples/ are accepted by their programs, and do what the runbook says."""

import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import uuid
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from app.settings import PREFIX, Settings
from lab.servers import EtcdMember, Valkey
from lab.servers.process import Process, free_port
from tests.harness.servers import optional_server
from tests.harness.shop import TOKEN, lock_url
from tests.harness.waiting import eventually

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


class _Ports(NamedTuple):
    buyers: int
    operator: int


def _unit(ports: _Ports, settings: dict[str, str]) -> Process:
    """An instance as systemd would start it, by the command of the unit."""
    command = re.search(r"^ExecStart=/opt/seckill/bin/seckill (.*)$", (EXAMPLES / "seckill@.service").read_text(), re.M)
    assert command is not None
    words = command[1].replace("1%i", str(ports.operator)).replace("%i", str(ports.buyers))
    argv = [sys.executable, "-m", "app", *shlex.split(words)]
    ready = f"http://127.0.0.1:{ports.operator}/readyz"
    return Process("unit", lambda _: argv, env=os.environ | settings, ready=lambda: _status(ready) == 200)


def _balancer(name: str, port: int, units: list[_Ports]) -> Process:
    """The sample's program with its file, but for the ports, and the folder of a log where a test may not write."""
    binary = str(
        optional_server("nginx", "nginx-light") if name == "nginx.conf" else optional_server("haproxy", "haproxy")
    )
    text = re.sub(r"(bind :|listen )80\b", rf"\g<1>{port}", (EXAMPLES / name).read_text())
    for sample, ports in zip((8080, 8090), units, strict=True):
        text = text.replace(f"port 1{sample}", f"port {ports.operator}").replace(
            f"127.0.0.1:{sample}", f"127.0.0.1:{ports.buyers}"
        )

    def argv(directory: Path) -> list[str]:
        file = directory / name
        if name == "nginx.conf":
            file.write_text(f"daemon off;\npid {directory}/pid;\n{text.replace('/var/log/nginx', str(directory))}")
            return [binary, "-c", str(file), "-p", str(directory)]
        file.write_text(text.replace("maxconn 20000", "maxconn 200"))  # as many files a test may open
        return [binary, "-db", "-f", str(file)]

    return Process(name, argv, ready=lambda: _status(f"http://127.0.0.1:{port}/healthz") == 200)


def _status(url: str) -> int:
    try:
        return httpx.get(url, trust_env=False, timeout=30).status_code
    except httpx.HTTPError:
        return 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nginx.conf", "haproxy.cfg"])
def test_a_sale_behind_the_samples(etcd: EtcdMember, valkey: Valkey, name: str) -> None:
    """Started as the runbook says ("A week before", 2): both instances sell, a crowd of one address has to wait, and
    payments are reported.
    """
    sku = f"behind-{uuid.uuid4().hex[:8]}"
    of_runbook = {"ALLOW_GET": "false", "PROXIES": "127.0.0.1", "DRAIN_DELAY_S": "1"}
    others = {
        "LOCK": lock_url(etcd.endpoint),
        "STORE": valkey.url,
        "ADMIN_TOKEN": TOKEN,
        "PAYMENTS_SECRET": "whsec_" + 32 * "a",
    }
    settings = {PREFIX + key: value for key, value in (of_runbook | others).items()}
    both, port = [_Ports(free_port(), free_port()) for _ in range(2)], free_port()
    with ExitStack() as stack:
        for ports in both:
            stack.enter_context(_unit(ports, settings))
        stack.enter_context(_balancer(name, port, both))
        http = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60))
        assert http.get("/readyz").status_code == 404  # it is at the operator's port
        operator = {"Authorization": f"Bearer {TOKEN}"}
        at = f"http://127.0.0.1:{both[0].operator}/stock?sku={sku}"
        httpx.put(at, json={"stock": 10_000}, headers=operator, trust_env=False, timeout=60).raise_for_status()

        def sellers() -> set[str]:
            answers = [http.post(f"/stock/reduce?sku={sku}", headers={"Accept": "application/json"}) for _ in range(4)]
            return {answer.json().get("instance") for answer in answers if answer.status_code == 200}

        eventually(lambda: len(sellers()) == 2, "both instances sell")
        for spelled in ("/stock/reduce", "/stock/reduc%65"):
            eventually(lambda: 429 in crowd(port, f"{spelled}?sku={sku}"), "they have to wait")  # noqa: B023
        answer = http.post("/payments/webhook", content=b"{}")
        assert (answer.status_code, answer.json()["type"]) == (400, "urn:seckill:not-signed")  # payments come in


def crowd(port: int, path: str) -> set[int]:
    """Send many requests from one address at once, and return the status of their answers."""
    request = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
    with ExitStack() as stack:
        ends = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(200)]
        for end in ends:
            end.sendall(request)
        return {int(end.makefile("rb").readline().split()[1]) for end in ends}


@pytest.mark.parametrize("name", ["nginx.conf", pytest.param("haproxy.cfg", marks=pytest.mark.slow)])
def test_half_a_body_stays_with_the_proxy(name: str) -> None:
    """A body that comes slowly takes none of the places that the service has for the callbacks of payments."""
    heads: list[str] = []

    class Upstream(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            heads.append(self.path)
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ExitStack() as stack:
        upstream = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Upstream))
        serving = threading.Thread(target=upstream.serve_forever)
        serving.start()
        stack.callback(serving.join)
        stack.callback(upstream.shutdown)
        port = free_port()
        stack.enter_context(_balancer(name, port, 2 * [_Ports(upstream.server_port, upstream.server_port)]))
        slow = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        slow.sendall(b"POST /payments/slow HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
        for _ in range(20):
            assert httpx.post(f"http://127.0.0.1:{port}/payments/whole", content=b"{}", trust_env=False).is_success
        assert heads == 20 * ["/payments/whole"]


@pytest.mark.parametrize("name", ["nginx.conf", "haproxy.cfg", "seckill@.service"])
def test_settings_that_are_named_exist(name: str) -> None:
    """Each SECKILL_ variable in a sample is a setting."""
    known = {PREFIX + field.upper() for field in Settings.model_fields}
    assert set(re.findall(r"SECKILL_[A-Z_]+", (EXAMPLES / name).read_text())) <= known


def test_the_image_has_what_the_docs_say() -> None:
    """The image's lock file has the extras: signed buyers, MySQL, ZooKeeper, traces."""
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert {"pyjwt", "cryptography", "sqlalchemy", "asyncmy", "opentelemetry-distro"} <= locked
    assert "*\n!app\n" in (ROOT / ".dockerignore").read_text()
