"""docker-compose.yml is valid, and fits the settings and files of the checkout. No container is started here."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from app.settings import PREFIX, Settings
from app.wiring import check_together
from fencelock.url import LockUrl

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
INSTANCES = ("seckill-8080", "seckill-8090")
ON_POSTGRES = ("postgres-8081", "postgres-8091")  # started in place of these


def test_every_variable_is_a_setting() -> None:
    """Each variable exists, their values fit together, and the servers that they name are services."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in (*INSTANCES, *ON_POSTGRES):
        variables = SERVICES[name]["environment"]
        assert set(variables) <= known
        values: dict[str, Any] = {
            name.removeprefix(PREFIX).lower(): re.sub(r"\$\{\w+:-(.*)\}", r"\1", value)
            for name, value in variables.items()
        }
        settings = Settings(_env_file=None, **values)
        check_together(settings)
        named = [
            *LockUrl.parse(settings.lock.get_secret_value()).hosts,
            urlsplit(settings.store.get_secret_value()).netloc.rpartition("@")[2],
        ]
        assert {host.partition(":")[0] for host in named} <= set(SERVICES)


def test_ports_are_published_on_loopback_only() -> None:
    """Nothing can be reached from another machine, and the servers behind the instances publish no port at all."""
    published = {name: port for name, service in SERVICES.items() for port in service.get("ports", [])}
    assert all(port.startswith("127.0.0.1:") for port in published.values())
    assert set(published) == {*INSTANCES, *ON_POSTGRES, "prometheus", "grafana"}


def test_the_store_keeps_what_it_said() -> None:
    """Every write is on disk before it is answered."""
    command = SERVICES["valkey"]["command"]
    assert command[command.index("--appendonly") + 1] == "yes"
    assert command[command.index("--appendfsync") + 1] == "always"


def test_a_sale_on_postgresql_starts_nothing_else() -> None:
    """Its instances wait for the PostgreSQL alone, and none of them is started with the others."""
    for name in ON_POSTGRES:
        assert set(SERVICES[name]["depends_on"]) == {"postgres"}
    assert all(SERVICES[name]["profiles"] == ["postgres"] for name in ("postgres", *ON_POSTGRES))


def test_what_it_refers_to_exists() -> None:
    """Our files are there and mounted read-only, volumes are declared, and dependencies have a health check."""
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source, _, *options = volume.split(":")
            if source.startswith("./"):
                assert (ROOT / source).exists(), source
                assert options == ["ro"], volume
            else:
                assert source in COMPOSE["volumes"]
        for needed, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[needed] or needed in INSTANCES  # the image has a health check


def test_prometheus_scrapes_the_services() -> None:
    """Each target of Prometheus' config is a service, and each instance is scraped at the port on which it listens."""
    config = yaml.safe_load((ROOT / "monitoring" / "prometheus.yml").read_text())
    targets = {target for job in config["scrape_configs"] for one in job["static_configs"] for target in one["targets"]}
    assert {target.partition(":")[0] for target in targets} <= set(SERVICES)
    assert {f"{name}:{SERVICES[name]['environment']['SECKILL_PORT']}" for name in INSTANCES} <= targets


def test_nobody_has_more_rights_than_needed() -> None:
    """The image doesn't run as root, and Grafana, which anybody on this machine can open, has no administrator."""
    assert re.search(r"^USER 10001:10001$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
