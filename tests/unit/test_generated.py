"""What is generated from the code is in step with it: .env.example, and tables in docs."""

import os
import re
from pathlib import Path

import pytest

from app.settings import PREFIX, Settings, load
from tests.harness.monitoring import ROOT, generate


def test_env_example_gives_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """.env.example is what `make docs` writes, names each setting once, and read as it is gives the defaults."""
    text = (ROOT / ".env.example").read_text()
    assert text == generate.env_example()
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(re.sub(r"^#(SECKILL_)", r"\1", text, flags=re.MULTILINE))
    assert load() == Settings(_env_file=None)


@pytest.mark.parametrize("path", generate.documents(), ids=lambda path: path.name)
def test_the_documents_are_in_step(path: Path) -> None:
    """The tables of settings (in both languages), guarantees, metrics and alerts are what `make docs` writes."""
    assert path.read_text() == generate.documents()[path]


@pytest.mark.parametrize(
    ("described", "kept", "said"),
    [
        ({"A": "a"}, {}, "A has no translation"),
        ({"A": "a"}, {"A": {"en": "a", "zh": ""}}, "A has no translation"),
        ({}, {"A": {"en": "a", "zh": "甲"}}, "A is not a setting"),
        ({"A": "b"}, {"A": {"en": "a", "zh": "甲"}}, 'A was translated from "a", and is now "b"'),
    ],
)
def test_a_translation_keeps_up_with_its_setting(
    described: dict[str, str], kept: dict[str, dict[str, str]], said: str
) -> None:
    """None is without the other, and a description that has changed since it was translated is noticed."""
    with pytest.raises(LookupError) as error:
        generate.translated(described, kept)
    assert str(error.value) == f"docs/settings.zh-CN.toml: {said}"
