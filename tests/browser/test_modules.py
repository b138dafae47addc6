"""The pages' modules without a page: `node --test` runs the files beside this one."""

import shutil
import subprocess
from pathlib import Path

from app.web import pages
from lab.rehearsal import Extension
from tests.harness.servers import optional_server

HERE = Path(__file__).parent


def test_the_modules_in_node(tmp_path: Path) -> None:
    """All of their tests pass, in a copy of the tree that says what Node needs to know: these are ES modules."""
    node = optional_server("node", "nodejs")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    for folder in (Path(pages.__file__).parent / "static", Extension.folder):
        shutil.copytree(folder, tmp_path / "static", dirs_exist_ok=True)
    for file in HERE.glob("*.mjs"):
        shutil.copy(file, tmp_path)
    tests = sorted(file.name for file in tmp_path.glob("*.test.mjs"))
    done = subprocess.run([node, "--test", *tests], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
