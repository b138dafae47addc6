"""What GitHub and other services read of the repository is what they understand."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_renovate_understands_its_file() -> None:
    """Each key and value is in the schema of Renovate."""
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.renovate", ".github/renovate.json"]
    done = subprocess.run(check, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", [form for form in FORMS if form.stem != "config"], ids=lambda file: file.stem)
def test_an_issue_form_has_what_github_wants(file: Path) -> None:
    """A form has a name and a description; each field has a label and an id that no other field has."""
    form = yaml.safe_load(file.read_text())
    assert set(form) == {"name", "description", "labels", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert all(field["type"] in {"input", "textarea", "dropdown", "checkboxes"} for field in fields)
    assert all(set(field) <= {"type", "id", "attributes", "validations"} for field in fields)
    assert all(isinstance(field["attributes"]["label"], str) for field in fields)
    assert all(isinstance(option, str) for field in fields for option in field["attributes"].get("options", []))
    assert len({field["id"] for field in fields}) == len(fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_the_citation_is_of_this_project() -> None:
    """CITATION.cff has the fields of its format that must be there, and the licence of pyproject.toml."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    assert cited["license"] == PROJECT["license"]
    assert cited["version"] == PROJECT["version"]


def test_hooks_are_the_commands_of_make_check() -> None:
    """A hook before a commit runs what `make check` runs, by the same programs."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    programs = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks}
    assert programs == set(re.findall(r"\$\(BIN\)/(ruff|mypy|lint-imports)", (ROOT / "Makefile").read_text()))


def test_links_of_githubs_pages_lead_somewhere() -> None:
    """Links between the pages of .github, and to docs, are to files that exist."""
    for page in (ROOT / ".github").glob("*.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
