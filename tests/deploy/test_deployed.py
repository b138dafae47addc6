"""The servers and an instance run with the commands and the environment of the manifests, but on loopback."""

import json
import re
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from app.settings import PREFIX
from lab.servers import etcd_binary, valkey_binary
from lab.servers.process import Process, free_port
from tests.deploy.test_chart import environment, of_kind, rendered
from tests.harness.shop import Instance
from tests.harness.waiting import eventually

pytestmark = pytest.mark.slow  # it starts five servers
MEMBERS = range(3)


@cache
def port_of(pod: object, number: int) -> int:
    """Return the port of this machine that stands for a pod's."""
    return free_port()


def here(text: str, directory: Path | None = None, pod: int | None = None) -> str:
    """Return a URL, or an argument of a pod's command, with ports of this machine for the hosts of the cluster."""
    text = text.replace("$(POD)", f"seckill-etcd-{pod}").replace("/var/lib/etcd", str(directory))
    text = re.sub(
        r"seckill-etcd-(\d)\.seckill-etcd:(\d+)", lambda at: f"127.0.0.1:{port_of(int(at[1]), int(at[2]))}", text
    )
    text = re.sub(r"0\.0\.0\.0:(\d+)", lambda at: f"127.0.0.1:{port_of(pod, int(at[1]))}", text)
    return text.replace("seckill-valkey:6379", f"127.0.0.1:{port_of('valkey', 6379)}")


def command_of(name: str) -> list[str]:
    [spec] = [
        one["spec"] for one in of_kind(rendered("servers.yaml"), "StatefulSet") if one["metadata"]["name"] == name
    ]
    [container] = spec["template"]["spec"]["containers"]
    return list(container["command"])


def member(pod: int) -> Process:
    """Make a member of etcd, which is ready as soon as it knows a leader."""

    def argv(directory: Path) -> list[str]:
        return [str(etcd_binary()), *(here(argument, directory, pod) for argument in command_of("seckill-etcd")[1:])]

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port_of(pod, 2381)}/metrics", timeout=5) as metrics:
                return b"\netcd_server_has_leader 1\n" in metrics.read()
        except OSError:
            return False

    return Process(f"etcd{pod}", argv, ready=is_ready, ready_within_s=90)


def valkey() -> Process:
    def argv(directory: Path) -> list[str]:
        options = [str(directory) if argument == "/data" else argument for argument in command_of("seckill-valkey")[1:]]
        return [str(valkey_binary()), "--port", str(port_of("valkey", 6379)), *options]

    return Process("valkey", argv)


def test_a_sale_runs_as_it_is_deployed() -> None:
    """etcd's members find each other, an instance is ready as `helm test` asks, and buyers see no operator's page."""
    objects, operator = rendered("default"), free_port()
    [test] = of_kind(objects, "Pod")
    program = test["spec"]["containers"][0]["args"][0].replace('"seckill-operator", 8081', f'"127.0.0.1", {operator}')
    found = environment(objects) | {"SECKILL_OPERATOR_PORT": str(operator)}
    given = {name.removeprefix(PREFIX).lower(): here(value) for name, value in found.items()}
    given |= {"host": "127.0.0.1"}
    del given["port"]

    def asked() -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    with ExitStack() as stack:
        stack.enter_context(valkey())
        members = [member(pod) for pod in MEMBERS]
        for one in members:
            stack.callback(one.stop)
            one.start(wait=False)
        for one in members:
            one.wait_ready()
        instance = stack.enter_context(Instance("", "", wait_ready=False, **given))
        eventually(lambda: asked().returncode == 0, "ready")
        told = json.loads(asked().stdout)
        assert (told["ready"], told["instance"]) == (True, given["instance"])
        assert instance.get("/healthz") == (200, "ok")
        assert {instance.get(path)[0] for path in ("/readyz", "/metrics", "/control", "/orders")} == {404}
        exec_ = subprocess.run(
            [sys.executable, "-m", "app", "stock", "set", "3"],
            env={PREFIX + name.upper(): value for name, value in given.items()},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert exec_.returncode == 0, exec_.stdout + exec_.stderr
        status, level = instance.get("/stock")
        assert (status, level["stock"]) == (200, 3)
        instance.kill()  # or else it goes on for as long as a balancer needs to notice
