"""The documentation as a site, as `make site` makes it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make_site(folder: Path, url: str = "") -> Path:
    """Make the site in a folder, with the packages of this Python, and return where its pages are."""
    programs = Path(sys.executable).parent
    command = ["make", "-C", str(ROOT), "-o", ".venv/.dev", "site", f"BIN={programs}", f"INTO={folder}", f"SITE_URL={url}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"
