"""GitHub's workflows are well-formed, have no more rights than they need, and run what a developer runs."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.servers import optional_tool

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WORKFLOWS: dict[str, dict[Any, Any]] = {file.stem: yaml.safe_load(file.read_text()) for file in FILES}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
JOBS = [(name, job) for name, flow in WORKFLOWS.items() for job in flow["jobs"].values()]


def said(*argv: str | Path) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_actionlint_has_no_complaint() -> None:
    """Keys, expressions, contexts and the needs of jobs are what GitHub knows."""
    said(optional_tool("actionlint", ".ci/tools installs it"), "-no-color", *FILES)


def test_zizmor_has_no_complaint() -> None:
    """No stranger's text gets into a shell, no job keeps credentials, and no action is unpinned."""
    said(optional_tool("zizmor", "make test installs it"), "--offline", "--no-progress", *FILES)


@pytest.mark.parametrize(("name", "job"), JOBS)
def test_every_job_has_an_end_and_names_its_rights(name: str, job: dict[str, Any]) -> None:
    """A job that hangs ends before six hours, and rights are given to single jobs."""
    assert job["timeout-minutes"] <= 240
    assert WORKFLOWS[name]["permissions"] == {}
    assert "permissions" in job
    assert "concurrency" in WORKFLOWS[name]


def test_every_action_is_pinned_by_its_commit() -> None:
    """The comment behind the commit names the version, and a commit has the same version in all workflows."""
    uses = [line for file in FILES for line in re.findall(r"uses: (.+)", file.read_text())]
    pins = {line.partition("@")[0]: line for line in uses}
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line) for line in uses)
    assert set(pins.values()) == set(uses)


def test_targets_and_scripts_that_are_run_exist() -> None:
    """Each `make` target is in the Makefile, and each script of .ci is there."""
    runs = "\n".join(step.get("run", "") for _, job in JOBS for step in job["steps"])
    targets = set(re.findall(r"^(\S+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets.add(".venv/.dev")
    assert set(re.findall(r"\bmake ([\w./-]+)", runs)) <= targets
    assert all((ROOT / script).is_file() for script in re.findall(r"\.ci/\w+", runs))


def test_a_pull_request_gets_no_secret() -> None:
    """The workflow of pull requests knows no secret, and may only read."""
    assert "pull_request" in WORKFLOWS["ci"][True]  # YAML 1.1 reads `on` so
    assert "secrets." not in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert all(job["permissions"] == {"contents": "read"} for job in WORKFLOWS["ci"]["jobs"].values())


def test_jobs_that_build_an_earlier_state_have_it() -> None:
    """Where the slow tests run the clone has its history: tests/faults/test_upgrade.py builds an older commit."""
    slow = {name: job for name, job in JOBS if re.search(r"\.ci/run|make test-all", str(job["steps"]))}
    assert set(slow) == {"ci", "nightly"}
    assert [job["steps"][0]["with"].get("fetch-depth") for job in slow.values()] == [0, 0]


def test_all_pythons_that_are_promised_are_tested() -> None:
    """The classifiers name the Pythons of the Linux jobs."""
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert WORKFLOWS["ci"]["jobs"]["linux"]["strategy"]["matrix"]["python"] == promised


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """Copy what a release looks at, as it is when a version is ready: with its heading, and a digest for each image."""
    names = (
        *(
            "pyproject.toml",
            "fencelock/pyproject.toml",
            "docker-compose.yml",
            "CITATION.cff",
            "Dockerfile",
            "CHANGELOG.md",
        ),
        *(
            "deploy/helm/seckill/Chart.yaml",
            "deploy/kubernetes/servers.yaml",
            ".github/workflows/release.yml",
            ".ci/release",
        ),
    )
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("docker-compose.yml", "deploy/kubernetes/servers.yaml"):
        text = re.sub(
            r"(image: (?!seckill)[^@\n]+)$", rf"\1@sha256:{64 * '0'}", (tmp_path / name).read_text(), flags=re.M
        )
        (tmp_path / name).write_text(text)
    (tmp_path / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## {VERSION} — 2026-01-02\n\n- New\n\n## 0.0.1 — 2025-01-02\n\n- Old\n"
    )
    return tmp_path


def test_a_release_is_made_of_its_tag(released: Path) -> None:
    """`.ci/release` prints the CHANGELOG's section if all versions are the tag's, and else names what is not."""
    script = (sys.executable, released / ".ci" / "release")
    assert said(*script, f"v{VERSION}") == "- New\n"
    other = subprocess.run([*script, "v99.0.0"], capture_output=True, text=True)
    assert other.returncode == 1
    assert other.stdout == ""
    for part in ("pyproject.toml", "fencelock", "docker-compose.yml", "CITATION.cff", "Chart.yaml", "CHANGELOG.md"):
        assert part in other.stderr


@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("Dockerfile", "python"),
        ("docker-compose.yml", "valkey/valkey"),
        ("deploy/kubernetes/servers.yaml", "quay.io/coreos/etcd"),
        (".github/workflows/release.yml", "docker.io/docker/buildkit-syft-scanner"),
        (".github/workflows/release.yml", "docker.io/moby/buildkit"),
        (".github/workflows/release.yml", "docker.io/tonistiigi/binfmt"),
    ],
)
def test_a_release_pulls_nothing_without_a_digest(released: Path, name: str, image: str) -> None:
    """`.ci/release` refuses a version that is built from, or runs beside, an image that may be another one tomorrow."""
    text = (released / name).read_text()
    assert f"{image}:" in text
    (released / name).write_text(re.sub(rf"({image}:[^@\s]+)@sha256:\w+", r"\1", text))
    done = subprocess.run([sys.executable, released / ".ci/release", f"v{VERSION}"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(rf"digests \(@sha256:\.\.\.\) of {image}:\S+$", done.stderr)


@pytest.mark.parametrize(
    ("tag", "kind"), [("v1.2.3", "--latest"), ("v1.2.3-rc.1", "--prerelease"), ("v1.2.3rc1", "--prerelease")]
)
def test_a_prerelease_is_never_the_latest(tmp_path: Path, tag: str, kind: str) -> None:
    """Neither the image nor the release; names of images are in lower case."""
    steps = {name: job["steps"] for name, job in WORKFLOWS["release"]["jobs"].items()}
    [naming] = [step["run"] for step in steps["image"] if step.get("id") == "name"]
    (tmp_path / "gh").write_text('#!/bin/sh\necho "$@"\n')  # what it is called with is what is looked at
    (tmp_path / "gh").chmod(0o755)
    given = {"GITHUB_REPOSITORY": "Me/Shop", "GITHUB_REF_NAME": tag, "GITHUB_OUTPUT": str(tmp_path / "output")}
    env = os.environ | given | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-euc", naming], env=env, check=True, timeout=30)
    image = f"ghcr.io/me/shop:{tag.removeprefix('v')}\n"
    latest = "ghcr.io/me/shop:latest\n" if kind == "--latest" else ""
    assert f"tags<<END\n{image}{latest}END\n" in (tmp_path / "output").read_text()
    called = subprocess.check_output(["bash", "-euc", steps["release"][-1]["run"]], env=env, text=True, timeout=30)
    assert f"create {tag} " in called
    assert f" {kind} " in called


def test_the_sdist_is_of_a_clean_checkout() -> None:
    """Nothing is written into the checkout before the distributions are built, as the sdist has all that is there."""
    runs = [step.get("run", "") for step in WORKFLOWS["release"]["jobs"]["build"]["steps"]]
    built = runs.index(".ci/distributions dist")
    assert not re.search(r">|mkdir|make |pip ", "\n".join(runs[:built]))


def test_only_the_locks_go_to_the_index() -> None:
    """One job may speak for the repository at PyPI, in its own environment, and gives it fencelock's folder alone."""
    release = WORKFLOWS["release"]["jobs"]
    uploads = [(name, step) for name, job in release.items() for step in job["steps"] if "pypi" in step.get("uses", "")]
    [(name, step)] = uploads
    assert step["with"]["packages-dir"] == "dist/fencelock"
    assert (release[name]["environment"]["name"], release[name]["permissions"]) == ("pypi", {"id-token": "write"})
    assert [other for other, job in release.items() if name in job.get("needs", ())] == ["release"]


def test_all_that_is_published_is_attested() -> None:
    """Distributions and the chart's file as files; image and chart by the digests under which they were pushed."""
    attested = {
        step["with"].get("subject-path") or step["with"]["subject-digest"]
        for job in WORKFLOWS["release"]["jobs"].values()
        for step in job["steps"]
        if "actions/attest@" in step.get("uses", "")
    }
    pushed = "${{ steps.push.outputs.digest }}"
    assert attested == {"dist/*/*", pushed, "${{ steps.push.outputs.file }}"}
