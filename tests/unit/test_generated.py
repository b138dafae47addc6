"""Generated files match the code: .env.example, tables in docs, and the reference of fencelock."""

import os
import re
from pathlib import Path

import pytest

from app.settings import PREFIX, Settings, load
from tests.harness.monitoring import ROOT, generate


def test_env_example_gives_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """.env.example is the output of `make docs`, names each setting once, and gives the defaults when read."""
    text = (ROOT / ".env.example").read_text()
    assert text == generate.env_example()
    assert sorted(re.findall(rf"^#{PREFIX}(\w+)=", text, re.MULTILINE)) == sorted(map(str.upper, Settings.model_fields))
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(re.sub(r"^#(SECKILL_)", r"\1", text, flags=re.MULTILINE))
    assert load() == Settings(_env_file=None)


def test_the_documents_are_in_step() -> None:
    """The reference of fencelock and the tables in docs are the output of `make docs`."""
    for path, text in generate.documents().items():
        assert path.read_text() == text, path.name
