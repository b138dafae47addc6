"""Instances start and stop well: behind a balancer whose checks lag, as PID 1, and without standard streams."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.settings import PREFIX
from lab.servers import EtcdMember, Valkey
from lab.servers.process import Process, free_port
from tests.harness.servers import optional_server
from tests.harness.shop import Instance, lock_url
from tests.harness.waiting import eventually, eventually_async

Balancer = Callable[[list[Instance]], Any]

_HAPROXY = """\
defaults
    mode http
    timeout connect 10s
    timeout check 10s
    timeout client 30s
    timeout server 30s
    retries 0
frontend shop
    bind 127.0.0.1:{port}
    default_backend instances
backend instances
    option httpchk GET /readyz
    default-server check inter 1s fall 2 rise 1
{servers}
"""
_NGINX = """\
daemon off;
pid {directory}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}; proxy_temp_path {directory}; fastcgi_temp_path {directory};
    uwsgi_temp_path {directory}; scgi_temp_path {directory};
    upstream instances {{
{servers}
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://instances; }}
    }}
}}
"""


@contextmanager
def haproxy(instances: list[Instance]) -> Iterator[str]:
    """Run HAProxy, which asks /readyz each second and believes the second answer."""
    port, binary = free_port(), str(optional_server("haproxy", "haproxy"))
    servers = "\n".join(f"    server s{one.port} 127.0.0.1:{one.port}" for one in instances)

    def argv(directory: Path) -> list[str]:
        (directory / "haproxy.cfg").write_text(_HAPROXY.format(port=port, servers=servers))
        return [binary, "-db", "-f", str(directory / "haproxy.cfg")]

    with Process("haproxy", argv, ready=lambda: _answers(port)):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def nginx(instances: list[Instance]) -> Iterator[str]:
    """Run nginx, with a script that asks /readyz each second, marks unready servers down, and reloads nginx."""
    port, binary, over = free_port(), str(optional_server("nginx", "nginx-light")), threading.Event()

    def write(directory: Path) -> bool:
        lines = [f"server 127.0.0.1:{one.port}{'' if one.get('/readyz')[0] == 200 else ' down'};" for one in instances]
        text = _NGINX.format(directory=directory, port=port, servers="\n".join(lines))
        changed = not (file := directory / "nginx.conf").exists() or file.read_text() != text
        file.write_text(text)
        return changed

    def argv(directory: Path) -> list[str]:
        write(directory)
        return [binary, "-c", str(directory / "nginx.conf"), "-p", str(directory)]

    with Process("nginx", argv, ready=lambda: _answers(port)) as process:

        def look() -> None:
            while not over.wait(1):
                if write(process.directory):
                    process.signal(signal.SIGHUP)

        looking = threading.Thread(target=look)
        looking.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            over.set()
            looking.join()


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.exhaustive  # test_cluster.py does it with HAProxy, too
@pytest.mark.parametrize("balancer", [haproxy, nginx])
async def test_a_rolling_restart_behind_a_balancer_refuses_nobody(
    etcd: EtcdMember, valkey: Valkey, balancer: Balancer
) -> None:
    """Although the balancer's checks lag, every buyer gets an answer at the first try."""
    others: dict[str, Any] = {"drain_delay_s": 8}
    instances = [Instance(etcd.endpoint, valkey.url, **others) for _ in range(2)]
    told: Counter[str] = Counter()
    over = False
    with instances[0], instances[1], balancer(instances) as url:

        async def buy() -> None:
            async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
                while not over:
                    try:
                        key = {"Idempotency-Key": uuid.uuid4().hex}
                        answer = await http.post(f"{url}/stock/reduce?sku=rolling", headers=key)
                        told[str(answer.status_code)] += 1
                    except httpx.RemoteProtocolError:
                        told["idle connection closed"] += 1  # as a request came; browsers repeat it
                    except httpx.HTTPError as error:
                        told[repr(error)] += 1
                    await asyncio.sleep(0.01)

        async with httpx.AsyncClient(trust_env=False) as http:
            operator = {"Authorization": "Bearer open-sesame"}
            set_to = await http.put(f"{url}/stock?sku=rolling", json={"stock": 100_000}, headers=operator)
            assert set_to.status_code == 200
        buyers = [asyncio.create_task(buy()) for _ in range(8)]
        for instance in instances:
            seen = told.total()
            await eventually_async(lambda: told.total() > seen + 100, "they buy")  # noqa: B023
            instance.signal(signal.SIGTERM)
            await eventually_async(partial(asyncio.to_thread, instance.get, "/readyz"), until=lambda it: it[0] == 503)
            await eventually_async(lambda: not instance.running, "it has ended", 60)  # noqa: B023
            await asyncio.to_thread(instance.start)
            async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
                await eventually_async(
                    partial(http.get, f"{url}/readyz"),
                    "the balancer takes it back",
                    until=lambda it: it.status_code == 200 and it.json()["instance"] == str(instance.port),  # noqa: B023
                    despite=httpx.RemoteProtocolError,  # nginx reads its configuration anew
                )
        over = True
        await asyncio.gather(*buyers)
    assert told.pop("idle connection closed", 0) <= 2 * len(buyers)
    assert set(told) == {"200"}, told


@pytest.mark.slow
def test_a_second_signal_skips_the_delay(etcd: EtcdMember, valkey: Valkey) -> None:
    """After the first signal /readyz is 503 and buyers are served; after the second the exit follows, with status 0."""
    with Instance(etcd.endpoint, valkey.url, drain_delay_s=600) as instance:
        instance.signal(signal.SIGTERM)
        eventually(lambda: instance.get("/readyz")[0] == 503, "it is not ready")
        assert instance.get("/readyz")[1]["checks"]["shop"] == "closing"
        assert instance.get("/stock/reduce?sku=nope")[0] == 404  # as before
        instance.signal(signal.SIGTERM)
        eventually(lambda: not instance.running, "it has ended")
        assert instance._child is not None
        assert instance._child.returncode == 0


def test_what_it_stands_on_is_said() -> None:
    """The log has the addresses, the servers used, and the unreachable ones: once, whoever asks, without a password."""
    store = f"redis://:swordfish@127.0.0.1:{free_port()}/0"
    etcd = f"127.0.0.1:{free_port()}"
    with Instance(f"http://{etcd}", store, wait_ready=False) as instance:
        log = instance.directory / "output.log"
        eventually(lambda: "checked: " in log.read_text(), "it says what it has checked")
        for _ in range(5):
            assert instance.get("/readyz")[0] == 503
        said = log.read_text()
    assert f"serving buyers on http://127.0.0.1:{instance.port}/, the operator on " in said
    assert f"open, lock: etcd://{etcd}, store: redis://{store.rpartition('@')[2]}, guard: fence" in said
    assert said.count("not ready, store: ") == said.count("not ready, etcd: ") == 1
    assert "swordfish" not in said


@pytest.mark.slow
def test_it_says_when_it_can_reach_it_again(etcd: EtcdMember) -> None:
    """Each change is a log line, even without requests."""
    with Valkey() as own_valkey, Instance(etcd.endpoint, own_valkey.url) as instance:
        log = instance.directory / "output.log"
        own_valkey.kill()
        eventually(lambda: "not ready, store: " in log.read_text(), "it says so")
        own_valkey.start()
        eventually(lambda: "ready again: store" in log.read_text(), "it says so")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root, and Linux's unshare")
@pytest.mark.parametrize("after_s", [0, 1.0])
def test_as_pid_1_it_ends_from_the_first_moment(after_s: float) -> None:
    """The kernel drops a signal that PID 1 does not handle, so it is handled before the libraries are there."""
    env = os.environ | {f"{PREFIX}LOCK": "local://", f"{PREFIX}PORT": str(free_port())}
    argv = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", "app", "serve"]
    child = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        init = int(eventually(children.read_text, "it has a child").split()[0])
        status = Path(f"/proc/{init}/cmdline")
        eventually(lambda: b"serve" in status.read_bytes() and b"unshare" not in status.read_bytes(), "it runs")
        eventually(lambda: _catches(init, signal.SIGTERM), "it handles the signal")
        assert after_s or "pydantic_core" not in Path(f"/proc/{init}/maps").read_text()
        threading.Event().wait(after_s)
        os.kill(init, signal.SIGTERM)
        child.wait(60)
    finally:
        child.kill()
        child.wait()


_IN_A_FINALIZER = """
    type("Odd", (), {"__del__": lambda _: os.kill(os.getpid(), signal.SIGTERM)})()
    time.sleep(600)
"""
_CAUGHT_BY_A_LIBRARY = """
    with contextlib.suppress(BaseException):
        os.kill(os.getpid(), signal.SIGTERM)
    server.run(settings.load(lock="local://", port=PORT))
"""


@pytest.mark.parametrize("run", [_IN_A_FINALIZER, _CAUGHT_BY_A_LIBRARY], ids=["a finalizer", "a library"])
def test_a_signal_while_it_starts_is_not_lost(run: str) -> None:
    """Python ignores all errors in a finalizer, and a library may catch some: the exit that a signal asks for, too."""
    before = (
        f"import contextlib, os, signal, time\nfrom app import __main__, cli, server, settings\nPORT = {free_port()}\n"
    )
    argv = [sys.executable, "-c", f"{before}def run():{run}\ncli.main = run\n__main__.main()"]
    assert subprocess.run(argv, timeout=200).returncode == 128 + signal.SIGTERM


def _catches(pid: int, number: signal.Signals) -> bool:
    caught = re.search(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_abort(etcd: EtcdMember, valkey: Valkey, closed: str) -> None:
    """An instance without standard streams sells, and ends with status 0."""
    port = free_port()
    env = os.environ | {f"{PREFIX}LOCK": lock_url(etcd.endpoint), f"{PREFIX}STORE": valkey.url}
    command = f'exec "$0" -m app serve --port {port} {closed}'
    child = subprocess.Popen(["/bin/sh", "-c", command, sys.executable], env=env)
    try:
        eventually(lambda: _answers(port), "it answers")
        assert httpx.post(f"http://127.0.0.1:{port}/stock/reduce?sku=nope", trust_env=False).status_code == 404
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
