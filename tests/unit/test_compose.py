"""docker-compose.yml has the shape that the README promises. No container is started here."""

import re
from pathlib import Path
from typing import Any

import yaml

from app.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_the_services() -> None:
    """Three etcd members, Redis, two instances; Locust only when asked for."""
    assert set(SERVICES) == {"etcd1", "etcd2", "etcd3", "redis", "seckill-8080", "seckill-8090", "loadtest"}
    assert SERVICES["loadtest"]["profiles"] == ["loadtest"]
    assert not any("profiles" in service for name, service in SERVICES.items() if name != "loadtest")


def test_ports_are_published_on_loopback_only() -> None:
    """The instances on 8080 and 8090; the servers behind them on no port of the host."""
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"seckill-8080": ["127.0.0.1:8080:8080"], "seckill-8090": ["127.0.0.1:8090:8090"]}
    for name in published:
        port = name.removeprefix("seckill-")
        assert SERVICES[name]["environment"]["SECKILL_PORT"] == port


def test_every_variable_is_a_setting() -> None:
    """What is set exists, and is valid."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for service in SERVICES.values():
        variables = service.get("environment", {})
        assert set(variables) <= known
        values = {
            name.removeprefix(PREFIX).lower(): re.sub(r"\$\{\w+:-(.*)\}", r"\1", value)
            for name, value in variables.items()
        }
        Settings(_env_file=None, **values)


def test_images_are_pinned() -> None:
    """A tag with a full version, never `latest`."""
    for service in SERVICES.values():
        assert re.search(r":v?\d+\.\d+\.\d+", service["image"]), service["image"]
    base = re.search(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert base is not None
    assert re.search(r":\d+\.\d+\.\d+", base[1])


def test_health_comes_before_dependants() -> None:
    """Servers have health checks, and who needs them waits until they are healthy."""
    for name in ("etcd1", "etcd2", "etcd3", "redis"):
        assert SERVICES[name]["healthcheck"]["test"]
    assert "HEALTHCHECK" in (ROOT / "Dockerfile").read_text()
    for service in SERVICES.values():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in SERVICES
            assert how == {"condition": "service_healthy"}


def test_the_store_keeps_what_it_said() -> None:
    """Every write is on disk before it is answered; data lives in named volumes."""
    command = SERVICES["redis"]["command"]
    assert command[command.index("--appendonly") + 1] == "yes"
    assert command[command.index("--appendfsync") + 1] == "always"
    for name in ("etcd1", "etcd2", "etcd3", "redis"):
        assert SERVICES[name]["volumes"][0].split(":")[0] in COMPOSE["volumes"]


def test_etcd_members_name_each_other() -> None:
    """One cluster of three, each under its own name."""
    clusters = set()
    for name in ("etcd1", "etcd2", "etcd3"):
        options = dict(option.removeprefix("--").split("=", 1) for option in SERVICES[name]["command"][1:])
        assert options["name"] == name
        assert name in options["advertise-client-urls"]
        clusters.add(options["initial-cluster"])
    assert len(clusters) == 1


def test_the_container_is_an_ordinary_user() -> None:
    """The image doesn't run as root, and stops with the signal that drains."""
    text = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^USER seckill$", text, re.MULTILINE)
    assert re.search(r"^STOPSIGNAL SIGTERM$", text, re.MULTILINE)


def test_files_that_it_mounts_exist() -> None:
    """The load test's profile runs our own file."""
    assert SERVICES["loadtest"]["volumes"] == ["./loadtest:/loadtest:ro"]
    assert "/loadtest/locustfile.py" in SERVICES["loadtest"]["command"]
    assert (ROOT / "loadtest" / "locustfile.py").is_file()
