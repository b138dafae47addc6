"""The Helm chart and the plain manifests are valid, and keep five promises to those who operate them.

Helm renders them; no cluster is asked. Schemas are those of Kubernetes (kubernetes-validate), of the oldest version
that the chart takes and the newest one that there is. The chart's own schema refuses most mistakes by itself.
"""

import base64
import functools
import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import kubernetes_validate
import kubernetes_validate.utils
import pytest
import yaml

from app.errors import ConfigurationError
from app.keyring import secrets_of
from app.settings import PREFIX, Settings
from app.web.operator_routes import is_hidden
from app.wiring import check_together
from tests.harness.monitoring import ROOT, generate
from tests.harness.servers import optional, where_installed

CHART = ROOT / "deploy" / "helm" / "seckill"
VERSIONS = ("1.30", "1.37")
CASES = ["default", *sorted(file.stem for file in (CHART / "examples").glob("*.yaml"))]
PLAIN = ["seckill.yaml", "servers.yaml"]
# Definitions that an operator brings; Kubernetes has no schema of them.
CUSTOM = {"ServiceMonitor", "PrometheusRule", "ScaledObject", "HTTPRoute"}
SECRETS = {
    PREFIX + name.upper() for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation)
}
# What is in the Secret that an example names: as is said in its first lines.
OF_OTHERS = {
    "ingress-tls": {
        "SECKILL_BUYER_KEY": "0123456789abcdef0123456789abcdef",
        "SECKILL_SHOP_TOKEN": "of-the-back-end",
        "SECKILL_PAYMENTS_SECRET": "whsec_" + base64.b64encode(b"x" * 24).decode(),
        "SECKILL_WEBHOOK_URL": "https://shop.example/events",
        "SECKILL_WEBHOOK_SECRET": "whsec_" + base64.b64encode(b"y" * 24).decode(),
    },
    "secrets-as-files": {"SECKILL_LOCK": "etcd://etcd.etcd:2379", "SECKILL_STORE": "redis://:p@valkey.valkey:6379/0"},
    "mysql": {
        "SECKILL_LOCK": "mysql+row://u:p@mysql.databases/shop",
        "SECKILL_STORE": "mysql://u:p@mysql.databases/shop",
    },
    "postgres": {
        "SECKILL_LOCK": "postgres://u:p@postgres.databases/shop",
        "SECKILL_STORE": "postgres://u:p@postgres.databases/shop",
    },
}
# Read once: one of these files has megabytes, and is read for each object.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)

Object = dict[str, Any]


def loaded(text: str) -> list[Object]:
    return [one for one in yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if one]


def helm(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return optional(lambda: generate.helm(*arguments))


def values_of(case: str) -> list[str | Path]:
    return [] if case == "default" else ["--values", CHART / "examples" / f"{case}.yaml"]


def template(*arguments: str | Path) -> list[Object]:
    done = helm("template", "seckill", CHART, "--namespace", "shop", *arguments)
    assert done.returncode == 0, done.stderr
    return loaded(done.stdout)


@functools.cache
def rendered(case: str) -> list[Object]:
    if case in PLAIN:
        return loaded((ROOT / "deploy" / "kubernetes" / case).read_text())
    return template(*values_of(case))


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [one for one in objects if one["kind"] == kind]


def instance(objects: list[Object]) -> tuple[Object, Object]:
    """Return the deployment's spec and its container."""
    [deployment] = of_kind(objects, "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return deployment["spec"], container


def environment(objects: list[Object], *, more: dict[str, str] | None = None) -> dict[str, str]:
    """Return what an instance finds in its environment; `more`: what a Secret has that is not the chart's."""
    _, container = instance(objects)
    made = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    found: dict[str, str] = {}
    for source in container["envFrom"]:
        [(ref, name)] = source.items()
        one = made.get(("ConfigMap" if ref == "configMapRef" else "Secret", name["name"]))
        assert one or more is not None, f"nothing makes {source}"
        for key, value in (one["data"] or {}).items() if one else ():
            found[key] = base64.b64decode(value).decode() if ref == "secretRef" else value
    found |= more or {}
    return found | {entry["name"]: entry.get("value", "seckill-7d4b9c-x2x4z") for entry in container["env"]}


def rolls(objects: list[Object], what: str) -> bool:
    """Return whether other values than the default ones make other pods, which Kubernetes then starts."""
    one, other = (instance(of)[0]["template"]["metadata"]["annotations"] for of in (objects, rendered("default")))
    return bool(one[f"checksum/{what}"] != other[f"checksum/{what}"])


def settings_of(found: dict[str, str]) -> Settings:
    ours = {name.removeprefix(PREFIX).lower(): value for name, value in found.items() if name.startswith(PREFIX)}
    return Settings(_env_file=None, **ours)  # type: ignore[arg-type]


# -- they are valid --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_helm_has_no_complaint(case: str) -> None:
    """Helm's own checker finds nothing, not even something to warn of; it asks the schema of the values, too."""
    done = helm("lint", "--strict", CHART, *values_of(case))
    assert done.returncode == 0, done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES)
def test_helm_4_makes_the_same(case: str) -> None:
    """Where there is a `helm4`, it has no complaint either, and makes the objects that Helm 3 makes."""

    def helm4() -> str:
        if found := shutil.which("helm4"):
            return found
        raise ConfigurationError("helm4 is not on PATH: go install helm.sh/helm/v4/cmd/helm")

    program = where_installed(helm4)
    lint = subprocess.run([program, "lint", "--strict", CHART, *values_of(case)], capture_output=True, text=True)
    assert lint.returncode == 0, lint.stdout
    argv = [program, "template", "seckill", CHART, "--namespace", "shop", *values_of(case)]
    assert loaded(subprocess.check_output(argv, text=True, timeout=60)) == rendered(case)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", [*CASES, *PLAIN])
def test_kubernetes_knows_every_field(case: str, version: str) -> None:
    """Each object is one of Kubernetes with known fields only, or of a kind that an operator brings."""
    for one in rendered(case):
        if one["kind"] not in CUSTOM:
            kubernetes_validate.validate(one, version, strict=True)


# -- the promises ----------------------------------------------------------------------------------------------------


def test_secrets_are_in_the_secret_only() -> None:
    """The value of each setting that the service hides appears in the Secret, and in no other object in any form."""
    marks = {name: f"{name.lower()}-a-secret-of-ours" for name in SECRETS}
    urls = {"SECKILL_LOCK": "lock.url=etcd://u:{}@etcd:2379", "SECKILL_STORE": "store.url=redis://u:{}@valkey:6379/0"}
    urls["SECKILL_REFUNDS"] = "secrets.SECKILL_REFUNDS=https://u:{}@shop"
    given = [f"--set={urls.get(name, f'secrets.{name}={{}}').format(mark)}" for name, mark in marks.items()]
    objects = template(*values_of("monitoring-keda"), *given)
    [secret] = of_kind(objects, "Secret")
    others = json.dumps([one for one in objects if one is not secret])
    for name, mark in marks.items():
        assert mark in base64.b64decode(secret["data"][name]).decode()
        assert mark not in others, name
        assert secret["data"][name] not in others, name
    assert rolls(objects, "secret")


def test_several_secrets_arrive_as_they_were_given(tmp_path: Path) -> None:
    """While a secret follows another both are in one value, with blanks or line breaks; the pods are others then."""
    pem = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA\n-----END PUBLIC KEY-----\n"
    given = {"SECKILL_SHOP_TOKEN": "the-new-token the-old-token", "SECKILL_BUYER_KEY": f"{pem}{32 * 'k'}\n"}
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"secrets": given}))
    objects = template("--values", values)
    found = environment(objects)
    assert {name: found[name] for name in given} == given
    assert secrets_of(settings_of(found).shop_token) == ["the-new-token", "the-old-token"]
    assert rolls(objects, "secret")


@pytest.mark.parametrize("case", [*CASES, "seckill.yaml"])
def test_an_update_or_a_drain_refuses_nobody(case: str) -> None:
    """A new instance is ready before an old one leaves, nodes give up one at a time, and who leaves has the time."""
    objects = rendered(case)
    deployment, container = instance(objects)
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    labels = deployment["selector"]["matchLabels"]
    assert labels.items() <= deployment["template"]["metadata"]["labels"].items()
    budgets = [one["spec"] for one in of_kind(objects, "PodDisruptionBudget")]
    assert len(budgets) == (0 if deployment.get("replicas") == 1 else 1)
    assert all((one["maxUnavailable"], one["selector"]["matchLabels"]) == (1, labels) for one in budgets)
    probes = {name: container[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}
    paths = {name: (probe["httpGet"]["path"], probe["httpGet"]["port"]) for name, probe in probes.items()}
    alive = ("/healthz", "operator")
    assert paths == {"startup": alive, "readiness": ("/readyz", "operator"), "liveness": alive}
    assert not any(is_hidden("GET", path, from_operator=True) for path, _ in paths.values())
    settings = settings_of(environment(objects, more=OF_OTHERS.get(case, {})))
    seen_after_s = probes["readiness"]["periodSeconds"] * probes["readiness"]["failureThreshold"]
    assert settings.drain_delay_s > seen_after_s
    grace_s = deployment["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s >= settings.drain_delay_s + settings.drain_timeout_s + 5


@pytest.mark.parametrize("case", [*CASES, *PLAIN])
def test_every_pod_is_restricted(case: str) -> None:
    """Each keeps Kubernetes' "restricted" standard, and has a read-only root and no token of the API server."""
    for one in rendered(case):
        if one["kind"] not in ("Pod", "Deployment", "StatefulSet"):
            continue
        spec = one["spec"] if one["kind"] == "Pod" else one["spec"]["template"]["spec"]
        assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        kinds = {kind for volume in spec.get("volumes", []) for kind in volume}
        assert kinds <= {"name", "emptyDir", "configMap", "secret", "csi"}
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}
            assert set(container["resources"]["limits"]) == {"memory"}  # a throttled holder stands still with the lock


@pytest.mark.parametrize("case", [*CASES, "seckill.yaml"])
def test_only_buyers_doors_are_open(case: str) -> None:
    """Ingress, HTTPRoute and the public Service lead to the buyers' port; the policy closes all that is not needed."""
    objects = rendered(case)
    deployment, container = instance(objects)
    found = environment(objects, more=OF_OTHERS.get(case, {}))
    ports = {"buyers": int(found["SECKILL_PORT"]), "operator": int(found["SECKILL_OPERATOR_PORT"])}
    assert (
        {one["name"]: one["containerPort"] for one in container["ports"]} == ports == {"buyers": 8080, "operator": 8081}
    )
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(objects, "Service")}
    doors = {name: [port["targetPort"] for port in one["ports"]] for name, one in services.items()}
    assert doors == {"seckill": ["buyers"], "seckill-operator": ["operator"]}
    assert services["seckill-operator"]["type"] == "ClusterIP"
    assert all(one["selector"] == deployment["selector"]["matchLabels"] for one in services.values())
    for one in [*of_kind(objects, "Ingress"), *of_kind(objects, "HTTPRoute")]:
        assert "seckill-operator" not in json.dumps(one["spec"])
    for spec in (one["spec"] for one in of_kind(objects, "NetworkPolicy")):
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        assert spec["podSelector"] == deployment["selector"]
        assert [[port["port"] for port in rule["ports"]] for rule in spec["ingress"]] == [[8080], [8081]]
        assert spec["ingress"][1]["from"]
        allowed = {port["port"] for rule in spec["egress"] for port in rule["ports"]}
        hosts = (found.get(name, "") for name in ("SECKILL_LOCK", "SECKILL_STORE", "OTEL_EXPORTER_OTLP_ENDPOINT"))
        assert {int(port) for url in hosts for port in re.findall(r":(\d+)(?=[,/?]|$)", url)} | {53} <= allowed
    assert len(of_kind(objects, "NetworkPolicy")) == (case != "minimal")


@pytest.mark.parametrize(
    ("lock", "store", "ports"),
    [
        ("etcd://a,b:2380", "redis+sentinel://u:p%40@a,b:26380/m/0?password=x:1", {2379, 2380, 6379, 26379, 26380}),
        ("zookeeper://a/x", "mysql://u:p@db/shop", {2181, 3306}),
        ("postgres://u:p@db/locks?sslmode=require", "mysql://u:p@db/shop", {5432, 3306}),
        ("etcd://etcd", "postgresql://u:p@db:6432/shop", {2379, 6432}),
        ("mysql+for-update://u:p@db:3307/s", "mariadb://u:p@[::1]/s", {3306, 3307}),
    ],
)
def test_an_instance_reaches_its_servers(lock: str, store: str, ports: set[int]) -> None:
    """Without rules of one's own the policy allows the ports that the URLs name, or the usual ones of their systems."""
    [policy] = of_kind(
        template(f"--set-json=lock.url={json.dumps(lock)},store.url={json.dumps(store)}"), "NetworkPolicy"
    )
    assert {port["port"] for port in policy["spec"]["egress"][1]["ports"]} == ports


@pytest.mark.parametrize(
    ("refunds", "port"), [("stripe://sk_live_1", 443), ("https://shop.example:8443/refunds", 8443)]
)
def test_an_instance_reaches_who_gives_money_back(refunds: str, port: int) -> None:
    """Stripe, or the shop's own address."""
    [policy] = of_kind(template(f"--set=secrets.SECKILL_REFUNDS={refunds}"), "NetworkPolicy")
    assert port in {port["port"] for port in policy["spec"]["egress"][1]["ports"]}


def test_an_instance_reaches_all_receivers() -> None:
    """Each of several URLs has its port; what stands behind the # is none."""
    urls = "https://shop/events http://u:p@erp:8443/in#name=erp&types=order.held\n  http://mail#name=a:1"
    secret = "whsec_" + base64.b64encode(b"y" * 24).decode()
    given = {"secrets": {"SECKILL_WEBHOOK_URL": urls, "SECKILL_WEBHOOK_SECRET": secret}}
    [policy] = of_kind(
        template(*(f"--set-json={name}={json.dumps(value)}" for name, value in given.items())), "NetworkPolicy"
    )
    assert {80, 443, 8443} <= {port["port"] for port in policy["spec"]["egress"][1]["ports"]}
    assert 1 not in {port["port"] for port in policy["spec"]["egress"][1]["ports"]}


@pytest.mark.parametrize("case", [*CASES, "seckill.yaml"])
def test_every_variable_is_a_setting_with_a_possible_value(case: str) -> None:
    """Each variable is a setting, and the service would start with their values."""
    found = environment(rendered(case), more=OF_OTHERS.get(case, {}))
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    assert {name for name in found if not name.startswith("OTEL_")} <= known
    settings = settings_of(found)
    if "ca_file" not in found["SECKILL_LOCK"]:
        check_together(settings)
    assert (settings.host, settings.allow_get, settings.log_format) == ("0.0.0.0", False, "json")


def test_what_a_cluster_wants_of_pods_and_services_is_passed_on(tmp_path: Path) -> None:
    """Affinity, environment, volumes and the balancer's policy; a variable that the chart sets stays the chart's."""
    affinity: Object = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    env = [{"name": "SSL_CERT_FILE", "value": "/ca/ca.crt"}, {"name": "SECKILL_PORT", "value": "1"}]
    mount = {"name": "ca", "mountPath": "/ca"}
    values: Object = {
        "pod": {"affinity": affinity, "env": env, "volumes": [{"name": "ca", "emptyDir": {}}], "volumeMounts": [mount]},
        "service": {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "loadBalancerClass": "example.com/l4"},
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    objects = template("--values", tmp_path / "values.yaml")
    for one in objects:
        kubernetes_validate.validate(one, VERSIONS[-1], strict=True)
    spec, container = instance(objects)
    pod = spec["template"]["spec"]
    assert pod["affinity"] == affinity
    assert mount in container["volumeMounts"]
    assert values["pod"]["volumes"][0] in pod["volumes"]
    found = {entry["name"]: entry.get("value") for entry in container["env"]}  # the last one counts
    assert (found["SSL_CERT_FILE"], found["SECKILL_PORT"]) == ("/ca/ca.crt", "8080")
    buyers, operator = (one["spec"] for one in of_kind(objects, "Service"))
    assert {key: buyers[key] for key in values["service"]} == values["service"]
    assert operator["type"] == "ClusterIP"


def test_an_alert_leads_to_a_page() -> None:
    """With the address of the pages an alert has a link that can be clicked; without one it names the page."""
    where = "monitoring.enabled=true,monitoring.documentation=https://docs.example/seckill/"
    for given, expected in (
        (where, "runbook_url: https://docs.example/seckill/docs/operations.html#while-it-runs"),
        ("monitoring.enabled=true", "runbook: docs/operations.md#while-it-runs"),
    ):
        [rules] = of_kind(template("--set", given), "PrometheusRule")
        texts = [rule["annotations"] for rule in rules["spec"]["groups"][0]["rules"]]
        name, _, link = expected.partition(": ")
        assert link in [text.get(name) for text in texts]
        assert all(name in text for text in texts)


def test_a_trial_fits_a_cluster_of_four_processors() -> None:
    """Servers and instances, with the one more of an update, ask for less than a node of four has left: about three."""
    asked = 0.0
    for one in [*rendered("default"), *rendered("servers.yaml")]:
        if one["kind"] in ("Deployment", "StatefulSet"):
            spec = one["spec"]
            pods = spec["replicas"] + spec.get("strategy", {}).get("rollingUpdate", {}).get("maxSurge", 0)
            asked += pods * sum(
                int(container["resources"]["requests"]["cpu"].removesuffix("m")) / 1000
                for container in spec["template"]["spec"]["containers"]
            )
    assert asked == 1.75  # as docs/kubernetes.md says
    assert "1.75 CPUs" in (ROOT / "docs" / "kubernetes.md").read_text()


def test_secrets_of_files_go_with_values(tmp_path: Path) -> None:
    """A receiver in the values may have its secret in a file, and the notes count on a token and URLs there."""
    url, files = "https://shop.example/events", "settings.SECKILL_SECRETS_DIR=/etc/seckill/secrets"
    found = environment(template("--set", f"{files},secrets.SECKILL_WEBHOOK_URL={url}"))
    assert found["SECKILL_WEBHOOK_URL"] == url
    shutil.copytree(CHART, tmp_path, dirs_exist_ok=True)
    said = (tmp_path / "templates/NOTES.txt").read_text()  # which Helm renders where it has a cluster
    as_object = '{{ define "notes" }}' + said + '{{ end }}\nkind: Notes\ntext: {{ include "notes" . | quote }}'
    (tmp_path / "templates/notes.yaml").write_text(as_object)
    [notes] = [one["text"] for one in loaded(helm("template", "s", tmp_path, "--set", files).stdout) if "text" in one]
    assert "Nobody can open the control room" not in notes
    assert "if /etc/seckill/secrets names servers with others, say networkPolicy.egress" in notes


def test_two_releases_scale_by_their_own_queues() -> None:
    """The autoscaler asks for the queue of its release, by the service by which Prometheus has found it."""
    [scaled] = of_kind(rendered("monitoring-keda"), "ScaledObject")
    [service] = [
        one["metadata"]["name"]
        for one in of_kind(rendered("monitoring-keda"), "Service")
        if one["metadata"]["labels"].get("app.kubernetes.io/component") == "operator"
    ]
    assert f'service="{service}"' in scaled["spec"]["triggers"][0]["metadata"]["query"]


def test_numbers_are_written_as_the_service_reads_them() -> None:
    """A million is not 1e+06, a part is not rounded, and the grace period is rounded up."""
    given = {"SECKILL_CONNECTIONS_MAX": 1_000_000, "SECKILL_LOCK_RENEW_RATIO": 0.25, "SECKILL_DRAIN_DELAY_S": 7.5}
    objects = template(f"--set-json=settings={json.dumps(given)}")
    found = settings_of(environment(objects))
    assert (found.connections_max, found.lock_renew_ratio, found.drain_delay_s) == (1_000_000, 0.25, 7.5)
    assert instance(objects)[0]["template"]["spec"]["terminationGracePeriodSeconds"] == 28
    assert rolls(objects, "config")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("replica=2", "Additional property replica is not allowed"),
        ("settings.SECKILL_ADMIN_TOKEN=x", "settings: Additional property SECKILL_ADMIN_TOKEN is not allowed"),
        (
            "settings.SECKILL_BATCH_MAX=many",
            "settings.SECKILL_BATCH_MAX: Invalid type. Expected: integer, given: string",
        ),
        ("settings.SECKILL_LOCK_TTL_S=0", "settings.SECKILL_LOCK_TTL_S: Must be greater than or equal to 1"),
        ("settings.SECKILL_GUARD=fense", "settings.SECKILL_GUARD must be one of the following"),
        ("secrets.SECKILL_ADMIN_TOKEN=abc", "SECKILL_ADMIN_TOKEN: String length must be greater than or equal to 8"),
        ("secrets.SECKILL_WEBHOOK_SECRET=whsec_c2hvcnQ=", "String length must be greater than or equal to 32"),
        ("lock.url=u:sesame@etcd:2379", "lock.url is no URL of a system"),
        ("ingress.enabled=true", "ingress.hosts: Array must have at least 1 items"),
        ("autoscaling.enabled=true,autoscaling.prometheus=http://p", "autoscaling.enabled needs monitoring.enabled"),
        ("settings.SECKILL_DRAIN_DELAY_S=null", "settings.SECKILL_DRAIN_DELAY_S is 0: it must be 7 or more"),
        ("lock.url=local://", "lock.url is local://, which keeps only the threads of one process apart"),
        ("lock.url=file://./locks", "lock.url is file://, which keeps only the processes of one pod apart"),
        ("store.url=valkey://sesame@x", "store.url is no URL of a system that is known"),
        ("secrets.SECKILL_REFUNDS=strpe://sesame", "secrets.SECKILL_REFUNDS is no URL of a system that is known"),
        ("lock.url=,existingSecret=of-vault", "networkPolicy.egress is empty, and so is lock.url or store.url"),
        ("store.url=,settings.SECKILL_SECRETS_DIR=/etc/s", "networkPolicy.egress is empty, and so is lock.url"),
        ("secrets.SECKILL_WEBHOOK_URL=https://x", "SECKILL_WEBHOOK_URL and secrets.SECKILL_WEBHOOK_SECRET go together"),
        ("lock.url=", "lock.url or store.url is empty: then existingSecret"),
        ("service.externalTrafficPolicy=Local", "externalTrafficPolicy is of NodePort and LoadBalancer"),
        ("service.type=NodePort,service.loadBalancerClass=x", "loadBalancerClass is of a LoadBalancer"),
        ("catalogue.files.lamp\\.svg=<svg/>", "catalogue.files has no catalogue.toml"),
    ],
)
def test_a_mistake_is_named(values: str, said: str) -> None:
    """A typing error is refused with its name, and values that don't go together with a sentence."""
    done = helm("template", "seckill", CHART, "--set", values)
    assert done.returncode != 0
    assert said in done.stderr
    assert "sesame" not in done.stderr


@pytest.mark.parametrize(("name", "least"), generate.LEAST.items())
def test_a_secret_that_is_too_short_for_the_service_is_too_short_for_the_chart(name: str, least: int) -> None:
    """And what the service takes the chart takes, too."""
    text = (("a:" if name == "ADMIN_TOKENS" else "") + 32 * "x")[:least]
    more = {"WEBHOOK_URL": "https://shop.example/events"} if name == "WEBHOOK_SECRET" else {}

    def rendered_with(secret: str) -> "subprocess.CompletedProcess[str]":
        given = [f"--set=secrets.{PREFIX}{key}={value}" for key, value in (more | {name: secret}).items()]
        return helm("template", "seckill", CHART, *given)

    settings_of({PREFIX + key: value for key, value in (more | {name: text}).items()})
    with pytest.raises(ValueError, match=name.lower()):
        settings_of({PREFIX + key: value for key, value in (more | {name: text[:-1]}).items()})
    assert rendered_with(text).returncode == 0
    done = rendered_with(text[:-1])
    assert f"SECKILL_{name}: String length must be greater than or equal to {least}" in done.stderr
    assert text[:-1] not in done.stderr


# -- what a release makes of it --------------------------------------------------------------------------------------


def test_the_released_chart_installs_the_released_image(tmp_path: Path) -> None:
    """`.ci/chart` packs a chart that names the image by its digest, also on its page; the rest is the checkout's."""
    digest = f"sha256:{64 * 'a'}"
    helm("version")  # or it is skipped
    pack: list[str | Path] = [sys.executable, ROOT / ".ci" / "chart", tmp_path, "ghcr.io/me/shop", digest]
    done = subprocess.run(pack, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    archive = tmp_path / done.stdout.strip()
    objects = loaded(helm("template", "seckill", archive).stdout)
    images = [
        container["image"] for container in [instance(objects)[1], *of_kind(objects, "Pod")[0]["spec"]["containers"]]
    ]
    assert images == 2 * [f"ghcr.io/me/shop@{digest}"]
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    assert (
        "helm install seckill oci://ghcr.io/me/charts/seckill -n shop --wait\n"
        in (tmp_path / "seckill/README.md").read_text()
    )
    for file in (tmp_path / "seckill").rglob("*.*"):
        if file.name not in ("values.yaml", "README.md", "Chart.yaml"):
            assert file.read_bytes() == (CHART / file.relative_to(tmp_path / "seckill")).read_bytes()


def test_a_chart_is_not_packed_without_a_digest(tmp_path: Path) -> None:
    """An image's tag is no digest."""
    pack: list[str | Path] = [sys.executable, ROOT / ".ci" / "chart", tmp_path, "ghcr.io/me/shop", "0.1.0"]
    done = subprocess.run(pack, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "not a digest: '0.1.0'\n")
    assert not list(tmp_path.iterdir())
