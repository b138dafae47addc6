"""docker-compose.yml has the shape that the README promises. No container is started here."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from app.main import check_together
from app.settings import PREFIX, Settings
from fencelock.url import LockUrl

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
INSTANCES = ("seckill-8080", "seckill-8090")


def test_the_services() -> None:
    """Three etcd members, Redis, two instances; Locust, Prometheus and Grafana only when asked for."""
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert profiles == {"loadtest": ["loadtest"], "prometheus": ["monitoring"], "grafana": ["monitoring"]}
    assert set(SERVICES) - set(profiles) == {"etcd1", "etcd2", "etcd3", "valkey", *INSTANCES}


def test_ports_are_published_on_loopback_only() -> None:
    """The instances listen on 8080 and 8090, beside what one looks at; the servers behind them have no port here."""
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {
        "seckill-8080": ["127.0.0.1:8080:8080"],
        "seckill-8090": ["127.0.0.1:8090:8090"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }
    for name in INSTANCES:
        port = name.removeprefix("seckill-")
        assert SERVICES[name]["environment"]["SECKILL_PORT"] == port


def test_every_variable_is_a_setting() -> None:
    """Each variable exists, their values go together, and the servers that they name are services."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in INSTANCES:
        variables = SERVICES[name]["environment"]
        assert set(variables) <= known
        values: dict[str, Any] = {
            name.removeprefix(PREFIX).lower(): re.sub(r"\$\{\w+:-(.*)\}", r"\1", value)
            for name, value in variables.items()
        }
        settings = Settings(_env_file=None, **values)
        check_together(settings)
        lock = LockUrl.parse(settings.lock.get_secret_value())
        assert set(lock.hosts) == {f"{member}:2379" for member in ("etcd1", "etcd2", "etcd3")}
        store = urlsplit(settings.store.get_secret_value())
        assert (store.scheme, store.netloc) == ("redis", "valkey:6379")


def test_images_are_pinned() -> None:
    """Each has a tag with a full version, never `latest`."""
    for service in SERVICES.values():
        assert re.search(r":v?\d+\.\d+\.\d+", service["image"]), service["image"]
    base = re.search(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert base is not None
    assert re.search(r":\d+\.\d+\.\d+", base[1])


def test_health_comes_before_dependants() -> None:
    """Servers have health checks, and those that need them wait until they are healthy."""
    for name in ("etcd1", "etcd2", "etcd3", "valkey", "prometheus", "grafana"):
        assert SERVICES[name]["healthcheck"]["test"]
    assert "HEALTHCHECK" in (ROOT / "Dockerfile").read_text()
    for service in SERVICES.values():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in SERVICES
            assert how == {"condition": "service_healthy"}


def test_the_store_keeps_what_it_said() -> None:
    """Every write is on disk before it is answered; data lives in named volumes."""
    command = SERVICES["valkey"]["command"]
    assert command[command.index("--appendonly") + 1] == "yes"
    assert command[command.index("--appendfsync") + 1] == "always"
    for name in ("etcd1", "etcd2", "etcd3", "valkey"):
        assert SERVICES[name]["volumes"][0].split(":")[0] in COMPOSE["volumes"]


def test_etcd_members_name_each_other() -> None:
    """They are one cluster of three, each under its own name."""
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
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    assert re.search(r"^STOPSIGNAL SIGTERM$", text, re.MULTILINE)


def mounts(name: str) -> dict[str, str]:
    """Each path in the container at which something is mounted, and what that is."""
    return {
        target: source for source, target, *_ in (volume.split(":") for volume in SERVICES[name].get("volumes", []))
    }


def seen(name: str, path: str) -> Path:
    """The file of ours that a service finds under that path; an error if it finds none."""
    for target, source in mounts(name).items():
        if path == target or path.startswith(target + "/"):
            return ROOT / source / path[len(target) + 1 :]
    raise AssertionError(f"{name} finds nothing under {path}")


def test_what_it_mounts_exists() -> None:
    """Files of ours are there, and read-only; everything else is a volume that is declared."""
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source, _, *options = volume.split(":")
            if source.startswith("./"):
                assert (ROOT / source).exists(), source
                assert options == ["ro"], volume
            else:
                assert source in COMPOSE["volumes"]
    assert "/loadtest/locustfile.py" in SERVICES["loadtest"]["command"]
    assert seen("loadtest", "/loadtest/locustfile.py").is_file()


# -- the profile `monitoring` ----------------------------------------------------------------------------------------


def test_prometheus_finds_its_config_and_whom_to_scrape() -> None:
    """Both files are where it looks, and each target is a service of ours, on the port that this one listens on."""
    options = dict(option.removeprefix("--").split("=", 1) for option in SERVICES["prometheus"]["command"])
    assert options["storage.tsdb.path"] in mounts("prometheus")
    config_file = options["config.file"]
    config = yaml.safe_load(seen("prometheus", config_file).read_text())
    for rules in config["rule_files"]:
        assert seen("prometheus", str(Path(config_file).parent / rules)).is_file()
    targets = {
        job["job_name"]: {target for group in job["static_configs"] for target in group["targets"]}
        for job in config["scrape_configs"]
    }
    assert targets == {
        "seckill": {f"{name}:{SERVICES[name]['environment']['SECKILL_PORT']}" for name in INSTANCES},
        "etcd": {
            option.removeprefix("--advertise-client-urls=http://")
            for name in ("etcd1", "etcd2", "etcd3")
            for option in SERVICES[name]["command"]
            if option.startswith("--advertise-client-urls=")
        },
    }


def test_grafana_finds_its_dashboard_and_prometheus() -> None:
    """Its folder and the home dashboard are mounted; the data source is the service, at the pace of its scrapes."""
    provisioning = "/etc/grafana/provisioning"
    [provider] = yaml.safe_load(seen("grafana", f"{provisioning}/dashboards/seckill.yml").read_text())["providers"]
    assert seen("grafana", f"{provider['options']['path']}/seckill.json").is_file()
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/seckill.json"
    [source] = yaml.safe_load(seen("grafana", f"{provisioning}/datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    config = yaml.safe_load((ROOT / "monitoring" / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]


def test_nobody_can_log_in_to_grafana() -> None:
    """Whoever reaches the port may look; there is no administrator, so none with a password that everybody knows."""
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"
