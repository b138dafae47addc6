"""GitHub's workflows are well-formed, have no more rights than they need, and run what a developer runs."""

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


def test_jobs_that_build_the_last_release_have_it() -> None:
    """Where the slow tests run the clone has its history: tests/faults/test_upgrade.py builds an older commit."""
    slow = {name: job for name, job in JOBS if re.search(r"\.ci/run|make test-all", str(job["steps"]))}
    assert set(slow) == {"ci", "nightly"}
    assert [job["steps"][0]["with"].get("fetch-depth") for job in slow.values()] == [0, 0]


def test_all_pythons_that_are_promised_are_tested() -> None:
    """The classifiers name the Pythons of the Linux jobs."""
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert WORKFLOWS["ci"]["jobs"]["linux"]["strategy"]["matrix"]["python"] == promised


def test_a_release_is_made_of_its_tag(tmp_path: Path) -> None:
    """`.ci/release` prints the CHANGELOG's section if all versions are the tag's, and else names what is not."""
    names = ("pyproject.toml", "fencelock/pyproject.toml", "docker-compose.yml", "CITATION.cff", ".ci/release")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    chart = tmp_path / "deploy" / "helm" / "seckill" / "Chart.yaml"
    chart.parent.mkdir(parents=True)
    now = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart.write_text(f"name: seckill\nversion: {now}\nappVersion: {now}\n")
    (tmp_path / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## {now} — 2026-01-02\n\n- New\n\n## 0.0.1 — 2025-01-02\n\n- Old\n"
    )
    script = (sys.executable, tmp_path / ".ci" / "release")
    assert said(*script, f"v{now}") == "- New\n"
    other = subprocess.run([*script, "v99.0.0"], capture_output=True, text=True)
    assert other.returncode == 1
    assert other.stdout == ""
    for part in ("pyproject.toml", "fencelock", "docker-compose.yml", "CITATION.cff", "Chart.yaml", "CHANGELOG.md"):
        assert part in other.stderr
