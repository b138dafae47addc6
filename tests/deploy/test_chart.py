"""The Helm chart and the plain manifests are valid, safe, and fit the settings and the monitoring.

Helm renders them; no cluster is asked. Schemas are those of Kubernetes (kubernetes-validate), of the oldest version
that the chart takes and the newest one that there is.
"""

import base64
import functools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import kubernetes_validate.utils
import pytest
import yaml

from app.settings import PREFIX, Settings
from app.web import catalogue
from app.web.operator_routes import is_hidden
from app.wiring import check_together
from fencelock.url import LockUrl
from tests.harness.monitoring import ALERTS, DASHBOARD, ROOT, generate, used
from tests.harness.servers import optional, optional_server

CHART = ROOT / "deploy" / "helm" / "seckill"
KUBERNETES = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.30", "1.37")
DEFAULT = "default"
CASES = [DEFAULT, *sorted(file.stem for file in (CHART / "examples").glob("*.yaml"))]
PLAIN = ["seckill.yaml", "servers.yaml"]
# Definitions that an operator brings; Kubernetes has no schema of them.
CUSTOM = {"ServiceMonitor", "PrometheusRule", "ScaledObject", "HTTPRoute"}
SECRETS = {
    PREFIX + name.upper() for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation)
}
KNOWN = {PREFIX + name.upper() for name in Settings.model_fields}

Object = dict[str, Any]


def loaded(text: str) -> list[Object]:
    return [one for one in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if one]


def helm(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return optional(lambda: generate.helm(*arguments))


def template(*arguments: str | Path, release: str = "seckill") -> list[Object]:
    done = helm("template", release, CHART, "--namespace", "shop", *arguments)
    assert done.returncode == 0, done.stderr
    return loaded(done.stdout)


def refused(*arguments: str | Path) -> str:
    done = helm("template", "seckill", CHART, *arguments)
    assert done.returncode != 0
    return done.stderr


def values_of(case: str) -> list[str | Path]:
    return [] if case == DEFAULT else ["--values", CHART / "examples" / f"{case}.yaml"]


@functools.cache
def rendered(case: str) -> list[Object]:
    if case in PLAIN:
        return loaded((KUBERNETES / case).read_text())
    return template(*values_of(case))


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [one for one in objects if one["kind"] == kind]


def pod_of(one: Object) -> Object | None:
    """Return the pod that an object makes, as metadata and spec."""
    if one["kind"] == "Pod":
        return one
    found: Object | None = one.get("spec", {}).get("template") if one["kind"] in ("Deployment", "StatefulSet") else None
    return found


def pods(case: str) -> Iterator[Object]:
    yield from filter(None, map(pod_of, rendered(case)))


def instance(objects: list[Object]) -> tuple[Object, Object]:
    """Return the deployment and its container."""
    [deployment] = of_kind(objects, "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return deployment, container


def environment(objects: list[Object], *, more: dict[str, str] | None = None) -> dict[str, str]:
    """Return what an instance finds in its environment; `more`: what a Secret has that is not the chart's."""
    _, container = instance(objects)
    found: dict[str, str] = {}
    for source in container["envFrom"]:
        kind, name = (
            ("ConfigMap", source.get("configMapRef"))
            if "configMapRef" in source
            else ("Secret", source.get("secretRef"))
        )
        named = [one for one in of_kind(objects, kind) if one["metadata"]["name"] == name["name"]]
        assert named or more is not None, f"nothing makes the {kind} {name}"
        for one in named:
            decoded = {
                key: base64.b64decode(value).decode() if kind == "Secret" else value
                for key, value in one["data"].items()
            }
            found |= decoded
    found |= more or {}
    for entry in container["env"]:
        found[entry["name"]] = entry.get("value", "seckill-7d4b9c-x2x4z")
    return found


def settings_of(found: dict[str, str]) -> Settings:
    ours = {name.removeprefix(PREFIX).lower(): value for name, value in found.items() if name.startswith(PREFIX)}
    return Settings(_env_file=None, **ours)  # type: ignore[arg-type]


# The contents of the Secrets that the examples name.
OF_OTHERS = {
    "mysql": {
        "SECKILL_LOCK": "mysql+row://seckill:p@mysql.databases:3306/shop",
        "SECKILL_STORE": "mysql://seckill:p@mysql.databases:3306/shop",
    },
    "ingress-tls": {
        "SECKILL_ADMIN_TOKENS": "ann:long-enough,bob:long-enough-2",
        "SECKILL_BUYER_KEY": "0123456789abcdef0123456789abcdef",
        "SECKILL_SHOP_TOKEN": "of-the-back-end",
        "SECKILL_PAYMENTS_SECRET": "whsec_" + base64.b64encode(b"x" * 24).decode(),
        "SECKILL_WEBHOOK_URL": "https://shop.example/events",
        "SECKILL_WEBHOOK_SECRET": "whsec_" + base64.b64encode(b"y" * 24).decode(),
    },
}


# -- they are valid --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schemas() -> Iterator[None]:
    """Read each file of schemas once: one of them has megabytes, and is read for each object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            kubernetes_validate.utils, "schema_contents", functools.cache(kubernetes_validate.utils.schema_contents)
        )
        yield


@pytest.mark.parametrize("case", CASES)
def test_helm_has_no_complaint(case: str) -> None:
    """Helm's own checker finds nothing, not even something to warn of."""
    done = helm("lint", "--strict", CHART, *values_of(case))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", [*CASES, *PLAIN])
def test_kubernetes_knows_every_field(case: str, version: str, schemas: None) -> None:
    """Each object is one of Kubernetes with known fields only, or of a kind that the tests below look at."""
    assert rendered(case)
    for one in rendered(case):
        if one["kind"] not in CUSTOM:
            kubernetes_validate.validate(one, version, strict=True)


def test_the_oldest_version_is_the_one_that_is_tested() -> None:
    """The chart asks for the version whose schemas are the oldest here, and Helm refuses one before it."""
    wanted = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert wanted["kubeVersion"] == f">={VERSIONS[0]}.0-0"
    assert "incompatible with Kubernetes v1.29.0" in refused("--kube-version", "1.29.0")
    assert template("--kube-version", "v1.30.5-gke.100")


def test_a_package_has_all_that_it_needs(tmp_path: Path) -> None:
    """A package renders the same as the folder, and has the version of the service."""
    assert helm("package", CHART, "--destination", tmp_path).returncode == 0
    [package] = tmp_path.iterdir()
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert package.name == f"seckill-{version[1]}.tgz"
    done = helm("template", "seckill", package, "--namespace", "shop", *values_of("monitoring-keda"))
    assert loaded(done.stdout) == rendered("monitoring-keda")


def test_another_release_is_beside_it() -> None:
    """A second release in the namespace has no name and no selector of the first."""
    ours, theirs = rendered(DEFAULT), template(release="autumn")
    names = [{(one["kind"], one["metadata"]["name"]) for one in objects} for objects in (ours, theirs)]
    assert not names[0] & names[1]
    assert ("Service", "autumn-seckill-operator") in names[1]
    assert instance(ours)[0]["spec"]["selector"] != instance(theirs)[0]["spec"]["selector"]


# -- nobody has more rights than needed ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*CASES, *PLAIN])
def test_every_pod_is_restricted(case: str) -> None:
    """Each keeps Kubernetes' "restricted" standard, and has a read-only root and no token of the API server."""
    for pod in pods(case):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert {kind for volume in spec.get("volumes", []) for kind in volume} <= {
            "name",
            "emptyDir",
            "configMap",
            "secret",
        }
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}
            assert "cpu" not in container["resources"]["limits"]  # a throttled holder stands still with the lock
            assert not container["image"].endswith(":latest")
            assert re.search(r":[^/]+$", container["image"])


@pytest.mark.parametrize("case", [*CASES, *PLAIN])
def test_no_pod_gets_variables_of_services(case: str) -> None:
    """A Service called seckill would set SECKILL_PORT to an URL, which ends the start."""
    assert all(pod["spec"]["enableServiceLinks"] is False for pod in pods(case))


def test_the_user_is_the_one_of_the_image() -> None:
    """Instances run as the user of the Dockerfile."""
    [pod, *_] = pods(DEFAULT)
    context = pod["spec"]["securityContext"]
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}\n" in (ROOT / "Dockerfile").read_text()


def test_secrets_are_in_the_secret_only() -> None:
    """A password in any value that is a secret appears in the Secret, and in no other object, plain or encoded."""
    marks = {name: f"{name.lower()}-a-secret-of-ours" for name in SECRETS}
    arguments = [
        f"--set=secrets.{name}={mark}" for name, mark in marks.items() if name not in ("SECKILL_LOCK", "SECKILL_STORE")
    ]
    arguments.append(f"--set=lock.url=etcd://u:{marks['SECKILL_LOCK']}@etcd:2379")
    arguments.append(f"--set=store.url=redis://u:{marks['SECKILL_STORE']}@valkey:6379/0")
    objects = template(*values_of("monitoring-keda"), *arguments)
    [secret] = of_kind(objects, "Secret")
    kept = {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}
    assert all(mark in kept[name] for name, mark in marks.items())
    others = json.dumps([one for one in objects if one is not secret])
    for name, mark in marks.items():
        assert mark not in others, name
        assert secret["data"][name] not in others, name


@pytest.mark.parametrize("case", [*CASES, "seckill.yaml"])
def test_no_setting_that_is_a_secret_is_elsewhere(case: str) -> None:
    """Neither a ConfigMap nor a container's own variables have a setting whose value the service hides."""
    objects = rendered(case)
    named = {name for one in of_kind(objects, "ConfigMap") for name in one["data"]}
    named |= {
        entry["name"]
        for pod in pods(case)
        for container in pod["spec"]["containers"]
        for entry in container.get("env", [])
    }
    assert not named & SECRETS


# -- the ports -------------------------------------------------------------------------------------------------------


def service_behind(objects: list[Object], name: str, port: str | int) -> int:
    """Return the container's port behind a port of a Service."""
    [service] = [one for one in of_kind(objects, "Service") if one["metadata"]["name"] == name]
    deployment, container = instance(objects)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    [target] = [one["targetPort"] for one in service["spec"]["ports"] if port in (one["name"], one["port"])]
    [number] = [one["containerPort"] for one in container["ports"] if one["name"] == target]
    return int(number)


@pytest.mark.parametrize("case", [*CASES, "seckill.yaml"])
def test_buyers_reach_their_own_port_only(case: str) -> None:
    """Ingress, HTTPRoute and the Service that may be public lead to the buyers' port; the other one is internal."""
    objects = rendered(case)
    found = environment(objects, more=OF_OTHERS.get(case, {}))
    buyers, operator = int(found["SECKILL_PORT"]), int(found["SECKILL_OPERATOR_PORT"])
    assert buyers != operator
    backends = [
        (path["backend"]["service"]["name"], path["backend"]["service"]["port"]["name"])
        for one in of_kind(objects, "Ingress")
        for rule in one["spec"]["rules"]
        for path in rule["http"]["paths"]
    ]
    backends += [
        (backend["name"], backend["port"])
        for one in of_kind(objects, "HTTPRoute")
        for rule in one["spec"]["rules"]
        for backend in rule["backendRefs"]
    ]
    assert len(backends) == {"ingress-tls": 1, "monitoring-keda": 1}.get(case, 0)
    for name, port in backends:
        assert service_behind(objects, name, port) == buyers
    for service in of_kind(objects, "Service"):
        name = service["metadata"]["name"]
        numbers = {service_behind(objects, name, port["name"]) for port in service["spec"]["ports"]}
        assert numbers == ({operator} if name.endswith("-operator") else {buyers})
        assert service["spec"]["type"] == "ClusterIP"
    public = template("--set=service.type=LoadBalancer")
    assert [one["metadata"]["name"] for one in of_kind(public, "Service") if one["spec"]["type"] != "ClusterIP"] == [
        "seckill"
    ]


@pytest.mark.parametrize("case", CASES)
def test_probes_ask_where_the_paths_are(case: str) -> None:
    """Each probe, and `helm test`, asks the operator's port, which has its path; the buyers' port has no /readyz."""
    objects = rendered(case)
    _, container = instance(objects)
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startup": "/healthz",
        "readiness": "/readyz",
        "liveness": "/healthz",
    }
    for probe in probes.values():
        assert probe["port"] == "operator"
        assert not is_hidden("GET", probe["path"], from_operator=True)
    assert is_hidden("GET", "/readyz", from_operator=False)
    [test] = of_kind(objects, "Pod")
    [program] = test["spec"]["containers"][0]["args"]
    compile(program, "the test", "exec")
    assert '"seckill-operator", 8081' in program
    selector = instance(objects)[0]["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= test["metadata"]["labels"].items()  # or else buyers were sent to it


@pytest.mark.parametrize("case", [case for case in CASES if case != "minimal"])
def test_the_network_policy_lets_instances_reach_their_servers(case: str) -> None:
    """Lock, store, webhook, traces and DNS are allowed; the operator's port is not open to everybody."""
    objects = rendered(case)
    [policy] = of_kind(objects, "NetworkPolicy")
    spec = policy["spec"]
    allowed = {port["port"] for rule in spec["egress"] for port in rule["ports"]}
    found = environment(objects, more=OF_OTHERS.get(case, {}))
    urls = [
        found[name]
        for name in ("SECKILL_LOCK", "SECKILL_STORE", "SECKILL_WEBHOOK_URL", "OTEL_EXPORTER_OTLP_ENDPOINT")
        if name in found
    ]
    for url in urls:
        for host in re.split("[/?]", url.partition("://")[2].rpartition("@")[2])[0].split(","):
            port = host.rpartition(":")[2]
            assert int(port if port.isdigit() else {"https": 443}[url.partition(":")[0]]) in allowed, url
    assert 53 in allowed
    of_operator = [rule for rule in spec["ingress"] if {"protocol": "TCP", "port": 8081} in rule["ports"]]
    assert all(rule["from"] for rule in of_operator)
    assert {port["port"] for rule in spec["ingress"] for port in rule["ports"]} == {8080, 8081}
    assert spec["podSelector"]["matchLabels"] == instance(objects)[0]["spec"]["selector"]["matchLabels"]


@pytest.mark.parametrize(
    ("lock", "store", "ports"),
    [
        ("etcd://a,b:2380", "redis+sentinel://u:p%40@a,b:26380/m/0?password=x:1", {2379, 2380, 6379, 26379, 26380}),
        ("etcds://a", "rediss://[fd00::1]:7000/0", {2379, 7000}),
        ("zookeeper://a/x", "mysql://u:p@db/shop", {2181, 3306}),
        ("redlock://a,b:6380", "redis+cluster://a:7001", {6379, 6380, 7001}),
        ("mysql+for-update://u:p@db:3307/s", "mariadb://u:p@[::1]/s", {3306, 3307}),
    ],
)
def test_ports_are_read_from_urls(lock: str, store: str, ports: set[int]) -> None:
    """Without rules of one's own the policy allows the ports that the URLs name, or the usual ones of their systems."""
    objects = template(f"--set-json=lock={json.dumps({'url': lock})}", f"--set-json=store={json.dumps({'url': store})}")
    [policy] = of_kind(objects, "NetworkPolicy")
    assert {port["port"] for port in policy["spec"]["egress"][1]["ports"]} == ports


def test_live_pages_are_not_buffered() -> None:
    """ingress-nginx is told so, beside annotations of one's own, and waits longer than a purchase does."""
    [ingress] = of_kind(rendered("ingress-tls"), "Ingress")
    said = ingress["metadata"]["annotations"]
    assert said["cert-manager.io/cluster-issuer"] == "letsencrypt"
    assert said["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert (
        int(said["nginx.ingress.kubernetes.io/proxy-read-timeout"])
        > Settings.model_fields["purchase_timeout_ms"].default / 1000
    )
    assert ingress["spec"]["tls"] == [{"secretName": "sale-shop-example-tls", "hosts": ["sale.shop.example"]}]


# -- the settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*CASES, "seckill.yaml"])
def test_every_variable_is_a_setting_with_a_possible_value(case: str) -> None:
    """Each variable exists, the values fit together, and an instance that stops is given time."""
    found = environment(rendered(case), more=OF_OTHERS.get(case, {}))
    assert {name for name in found if name.startswith(PREFIX)} <= KNOWN
    assert not [name for name in found if not name.startswith((PREFIX, "OTEL_"))]
    settings = settings_of(found)
    if "ca_file" not in found["SECKILL_LOCK"]:
        check_together(settings)
    assert settings.host == "0.0.0.0"
    assert settings.allow_get is False
    assert settings.log_format == "json"
    assert settings.instance.startswith("seckill-")
    deployment, container = instance(rendered(case))
    spec = deployment["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] >= settings.drain_delay_s + settings.drain_timeout_s + 5
    probe = container["readinessProbe"]
    assert settings.drain_delay_s > probe["periodSeconds"] * probe["failureThreshold"]


def test_the_schema_has_every_setting() -> None:
    """Each setting is the chart's own, a secret, or one of the others; what the service hides is a secret."""
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    plain, secret = (set(schema[part]["properties"]) for part in ("settings", "secrets"))
    own = {PREFIX + name.upper() for name in generate.OF_THE_CHART}
    assert plain | secret | own == KNOWN
    assert not plain & secret
    assert secret | {"SECKILL_LOCK", "SECKILL_STORE"} == SECRETS


def test_the_schema_is_strict_everywhere() -> None:
    """Each object of the schema names what it may have, or is a map of texts, or is as Kubernetes has it."""
    as_kubernetes_has_it = {"resources", "tolerations", "parentRefs", "buyersFrom", "operatorsFrom", "egress", "global"}

    def look(name: str, schema: Object) -> None:
        if schema.get("type") == "object" and name not in as_kubernetes_has_it:
            assert schema.get("additionalProperties") in (False, {"type": "string"}), name
        for part, below in schema.get("properties", {}).items():
            look(part, below)
        if "items" in schema:
            look(name, schema["items"])

    schema = json.loads((CHART / "values.schema.json").read_text())
    look("", schema)
    given = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(given) == set(schema["properties"]) - {"global"}


def test_numbers_are_written_as_the_service_reads_them() -> None:
    """A million is not 1e+06, a part is not rounded, and a time of day stays a text."""
    given = {
        "SECKILL_CONNECTIONS_MAX": 1_000_000,
        "SECKILL_WEBHOOK_GIVE_UP_S": 31_536_000,
        "SECKILL_LOCK_RENEW_RATIO": 0.25,
        "SECKILL_DRAIN_DELAY_S": 7.5,
        "SECKILL_REQUEST_IDS": True,
        "SECKILL_SALE_STARTS_AT": "2027-11-11T20:00:00+08:00",
    }
    objects = template(f"--set-json=settings={json.dumps(given)}")
    found = settings_of(environment(objects))
    assert (found.connections_max, found.webhook_give_up_s, found.lock_renew_ratio) == (1_000_000, 31_536_000, 0.25)
    assert (found.request_ids, found.drain_delay_s) == (True, 7.5)
    assert found.sale_starts_at
    assert (
        instance(objects)[0]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 28
    )  # 7.5, 10 and 10, rounded up


@pytest.mark.parametrize(
    "change",
    ["settings.SECKILL_BATCH_MAX=7", "secrets.SECKILL_ADMIN_TOKEN=another-one", "catalogue.files.catalogue\\.toml=#"],
)
def test_a_change_of_the_configuration_rolls(change: str) -> None:
    """Another setting, secret or catalogue makes another pod; the same values make the same."""
    before = instance(template())[0]["spec"]["template"]
    assert before == instance(rendered(DEFAULT))[0]["spec"]["template"]
    assert (
        before["metadata"]["annotations"]
        != instance(template("--set", change))[0]["spec"]["template"]["metadata"]["annotations"]
    )


def test_the_catalogue_is_read_as_it_is_mounted(tmp_path: Path) -> None:
    """The service reads the file that the variable names, with the picture beside it, through the links of a mount."""
    objects = rendered("ingress-tls")
    deployment, container = instance(objects)
    [mount] = [one for one in container["volumeMounts"] if one["name"] == "catalogue"]
    assert mount["readOnly"] is True
    [volume] = [one for one in deployment["spec"]["template"]["spec"]["volumes"] if one["name"] == "catalogue"]
    [files] = [one for one in of_kind(objects, "ConfigMap") if one["metadata"]["name"] == volume["configMap"]["name"]]
    # As the kubelet does: files in a folder of its own, and links to them.
    folder = tmp_path / "..data"
    folder.mkdir()
    for name, text in files["data"].items():
        (folder / name).write_text(text)
        (tmp_path / name).symlink_to(folder / name)
    named = environment(objects, more={})["SECKILL_CATALOGUE"]
    read = catalogue.read(tmp_path / Path(named).relative_to(mount["mountPath"]))
    assert set(read.told) == {"phone"}
    assert len(read.pictures) == 1


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("replica=2", "Additional property replica is not allowed"),
        ("image.repo=x", "image: Additional property repo is not allowed"),
        ("settings.SECKILL_BATCHMAX=3", "settings: Additional property SECKILL_BATCHMAX is not allowed"),
        ("settings.SECKILL_ADMIN_TOKEN=x", "settings: Additional property SECKILL_ADMIN_TOKEN is not allowed"),
        ("settings.SECKILL_OPERATOR_PORT=80", "settings: Additional property SECKILL_OPERATOR_PORT is not allowed"),
        ("secrets.SECKILL_BATCH_MAX=x", "secrets: Additional property SECKILL_BATCH_MAX is not allowed"),
        (
            "settings.SECKILL_BATCH_MAX=many",
            "settings.SECKILL_BATCH_MAX: Invalid type. Expected: integer, given: string",
        ),
        ("settings.SECKILL_LOCK_TTL_S=0", "settings.SECKILL_LOCK_TTL_S: Must be greater than or equal to 1"),
        ("settings.SECKILL_GUARD=fense", "settings.SECKILL_GUARD must be one of the following"),
        ("replicas=0", "replicas: Must be greater than or equal to 1"),
        ("image.repository=", "image.repository: String length must be greater than or equal to 1"),
        ("lock.url=etcd", "lock.url: Does not match pattern"),
        ("monitoring.interval=15s", "monitoring.interval: Does not match pattern"),
        ("ingress.enabled=true", "ingress.hosts: Array must have at least 1 items"),
        ("gateway.enabled=true", "gateway.parentRefs: Array must have at least 1 items"),
        ("autoscaling.enabled=true,monitoring.enabled=true", "autoscaling.prometheus: String length must be"),
        ("autoscaling.enabled=true,autoscaling.prometheus=http://p", "autoscaling.enabled needs monitoring.enabled"),
        (
            "autoscaling.enabled=true,monitoring.enabled=true,autoscaling.prometheus=http://p,autoscaling.minReplicas=9",
            "autoscaling.minReplicas is greater than autoscaling.maxReplicas",
        ),
        ("settings.SECKILL_DRAIN_DELAY_S=3", "settings.SECKILL_DRAIN_DELAY_S is 3: it must be 7 or more"),
        ("settings.SECKILL_DRAIN_DELAY_S=null", "settings.SECKILL_DRAIN_DELAY_S is 0: it must be 7 or more"),
        ("lock.url=local://", "lock.url is local://, which keeps only the threads of one process apart"),
        ("secrets.SECKILL_WEBHOOK_URL=https://x", "SECKILL_WEBHOOK_URL and secrets.SECKILL_WEBHOOK_SECRET go together"),
        ("catalogue.files.lamp\\.svg=<svg/>", "catalogue.files has no catalogue.toml"),
        ("catalogue.files.catalogue\\.toml=#,catalogue.existingConfigMap=x", "exclude each other"),
    ],
)
def test_a_mistake_is_named(values: str, said: str) -> None:
    """A typing error is refused with its name, and values that don't go together with a sentence."""
    assert said in refused("--set", values)


# -- it stays up -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*CASES, "seckill.yaml"])
def test_an_update_refuses_nobody(case: str) -> None:
    """A new instance is ready before an old one leaves, nodes give up one at a time, and instances are spread."""
    objects = rendered(case)
    deployment, _ = instance(objects)
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    labels = deployment["spec"]["selector"]["matchLabels"]
    budgets = of_kind(objects, "PodDisruptionBudget")
    assert len(budgets) == (0 if deployment["spec"].get("replicas") == 1 else 1)
    for budget in budgets:
        assert budget["spec"]["maxUnavailable"] == 1
        assert budget["spec"]["selector"]["matchLabels"] == labels
    spread = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert {one["topologyKey"] for one in spread} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
    assert all(one["labelSelector"]["matchLabels"] == labels for one in spread)


def test_the_queue_decides_how_many_there_are() -> None:
    """KEDA asks for a metric that exists, with the labels that the ServiceMonitor makes, and owns the number."""
    objects = rendered("monitoring-keda")
    [scaler] = of_kind(objects, "ScaledObject")
    deployment, _ = instance(objects)
    spec = scaler["spec"]
    assert scaler["apiVersion"] == "keda.sh/v1alpha1"
    assert spec["scaleTargetRef"] == {"name": deployment["metadata"]["name"]}
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (2, 6)
    assert "replicas" not in deployment["spec"]
    queue, clock = spec["triggers"]
    assert (queue["type"], clock["type"]) == ("prometheus", "cron")
    asked = queue["metadata"]
    assert used(asked["query"]) == [("seckill_queue_buyers", {"job", "namespace"})]
    assert 'job="seckill",namespace="shop"' in asked["query"]
    assert "seckill_queue_buyers" in generate.families()
    assert asked["threshold"] == "5000"
    assert clock["metadata"] == {
        "timezone": "Asia/Shanghai",
        "start": "50 19 * * *",
        "end": "30 20 * * *",
        "desiredReplicas": "6",
    }


# -- the monitoring --------------------------------------------------------------------------------------------------


def test_prometheus_finds_every_instance() -> None:
    """The ServiceMonitor selects the operator's Service, and makes the labels that the alerts use."""
    objects = rendered("monitoring-keda")
    [monitor] = of_kind(objects, "ServiceMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    wanted = monitor["spec"]["selector"]["matchLabels"]
    [service] = [one for one in of_kind(objects, "Service") if wanted.items() <= one["metadata"]["labels"].items()]
    [endpoint] = monitor["spec"]["endpoints"]
    assert service_behind(objects, service["metadata"]["name"], endpoint["port"]) == 8081
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert not is_hidden("GET", "/metrics", from_operator=True)
    assert {one["targetLabel"]: one.get("replacement") for one in endpoint["relabelings"]} == {
        "job": "seckill",
        "instance": None,
    }
    # An alert that looks at the last ten seconds needs two samples in them, and one may be late.
    assert int(endpoint["interval"].removesuffix("s")) * 2 < 10


def test_alerts_and_dashboard_are_the_originals(tmp_path: Path) -> None:
    """The PrometheusRule has the alerts of monitoring, which promtool accepts, and Grafana gets its dashboard."""
    objects = rendered("monitoring-keda")
    [rule] = of_kind(objects, "PrometheusRule")
    assert rule["apiVersion"] == "monitoring.coreos.com/v1"
    assert rule["metadata"]["labels"]["release"] == "kube-prometheus-stack"
    [group] = rule["spec"]["groups"]
    assert group["rules"] == ALERTS
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rule["spec"]))
    done = subprocess.run(
        [
            optional_server("promtool", "prometheus"),
            "check",
            "rules",
            "--lint=all",
            "--lint-fatal",
            tmp_path / "rules.yml",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [dashboard] = [
        one for one in of_kind(objects, "ConfigMap") if one["metadata"]["labels"].get("grafana_dashboard") == "1"
    ]
    assert json.loads(dashboard["data"]["seckill.json"]) == DASHBOARD


# -- the servers -----------------------------------------------------------------------------------------------------


def test_the_defaults_name_the_servers() -> None:
    """The hosts of the chart's lock and store are pods and Services of servers.yaml, which let seckill in."""
    servers = rendered("servers.yaml")
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(servers, "Service")}
    sets = {one["metadata"]["name"]: one["spec"] for one in of_kind(servers, "StatefulSet")}
    settings = settings_of(environment(rendered(DEFAULT)))
    members = [host.partition(":") for host in LockUrl.parse(settings.lock.get_secret_value()).hosts]
    assert {host for host, _, _ in members} == {
        f"seckill-etcd-{number}.seckill-etcd" for number in range(sets["seckill-etcd"]["replicas"])
    }
    assert {port for _, _, port in members} == {"2379"}
    assert services["seckill-etcd"]["clusterIP"] == "None"
    assert settings.store.get_secret_value() == "redis://seckill-valkey:6379/0"
    assert {2379, 2380} <= {port["port"] for port in services["seckill-etcd"]["ports"]}
    assert [port["port"] for port in services["seckill-valkey"]["ports"]] == [6379]
    labels = instance(rendered(DEFAULT))[0]["spec"]["template"]["metadata"]["labels"]
    for policy in of_kind(servers, "NetworkPolicy"):
        peers = [peer for rule in policy["spec"]["ingress"] for peer in rule["from"]]
        admitted = [peer["podSelector"]["matchLabels"] for peer in peers if "podSelector" in peer]
        assert any(wanted.items() <= labels.items() for wanted in admitted)


def test_the_servers_are_those_of_compose() -> None:
    """Images, and options that keep what was acknowledged, are those of docker-compose.yml; each has a disk."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    sets = {one["metadata"]["name"]: one["spec"] for one in of_kind(rendered("servers.yaml"), "StatefulSet")}
    commands = {}
    for name, spec in sets.items():
        [container] = spec["template"]["spec"]["containers"]
        beside = compose["etcd1" if name == "seckill-etcd" else "valkey"]
        assert container["image"] == beside["image"]
        commands[name] = container["command"]
        [claim] = spec["volumeClaimTemplates"]
        assert [one["name"] for one in container["volumeMounts"]] == [claim["metadata"]["name"]]
    assert re.search("--appendonly yes --appendfsync always", " ".join(commands["seckill-valkey"]))
    assert (
        f"--dir {sets['seckill-valkey']['template']['spec']['containers'][0]['volumeMounts'][0]['mountPath']}"
        in " ".join(commands["seckill-valkey"])
    )
    of_etcd = dict(one.removeprefix("--").split("=", 1) for one in commands["seckill-etcd"][1:])
    of_compose = dict(one.removeprefix("--").split("=", 1) for one in compose["etcd1"]["command"][1:])
    assert set(of_compose) <= set(of_etcd)
    assert of_etcd["auto-compaction-retention"] == of_compose["auto-compaction-retention"]
    assert of_etcd["data-dir"].startswith(
        sets["seckill-etcd"]["template"]["spec"]["containers"][0]["volumeMounts"][0]["mountPath"]
    )
    advertised = {
        of_etcd["initial-advertise-peer-urls"].replace("$(POD)", f"seckill-etcd-{number}") for number in range(3)
    }
    assert {one.partition("=")[2] for one in of_etcd["initial-cluster"].split(",")} == advertised
    assert sets["seckill-etcd"]["podManagementPolicy"] == "Parallel"


# -- what to type next -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_the_notes_name_what_is_there(case: str, tmp_path: Path) -> None:
    """Each Service and Deployment in the notes exists, and they warn of what is missing."""
    shutil.copytree(CHART, tmp_path / "seckill")
    (tmp_path / "seckill" / "templates" / "notes.yaml").write_text(
        'notes: {{ include (print $.Template.BasePath "/NOTES.txt") . | toJson }}\n'
    )
    done = helm(
        "template",
        "seckill",
        tmp_path / "seckill",
        "--namespace",
        "shop",
        "-s",
        "templates/notes.yaml",
        *values_of(case),
    )
    [notes] = [one["notes"] for one in loaded(done.stdout)]
    objects = rendered(case)
    there = {f"{one['kind'].lower()}/{one['metadata']['name']}" for one in objects}
    short = {"svc": "service", "deploy": "deployment", "deployment": "deployment"}
    for kind, name in re.findall(r"\b(svc|deploy|deployment)/([\w-]+)", notes):
        assert f"{short[kind]}/{name}" in there
    assert all("-n shop" in line for line in notes.splitlines() if re.match(" +(kubectl|helm) ", line))
    assert ("Nobody can open the control room" in notes) == (case not in ("minimal", "ingress-tls", "mysql"))
    assert ("image.repository names no registry" in notes) == (case in (DEFAULT, "minimal"))
    assert ("A rehearsal" in notes) == (case == "minimal")
    assert ("https://sale.shop.example/" in notes) == (case == "ingress-tls")
