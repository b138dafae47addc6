"""Build the programs in other languages that tests need, and cache them as long as their sources stay as they are.

The real clients are built from go/ and java/ beside this file.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from app.errors import ConfigurationError

_HERE: Final = Path(__file__).parent
_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seckill-interop"
_NO_GO: Final = "the Go clients need Go 1.26 or newer, which is not on PATH; see go.dev/doc/install"
_WITHIN_S: Final = 900  # the first build on a machine downloads its dependencies


def go_program() -> Path:
    """Build the contender in Go. Raises `ConfigurationError` without Go."""
    _need("go", _NO_GO)
    return _built("go", _HERE / "go", _build_go) / "interop"


def java_folder() -> Path:
    """Build the contender in Java: `classes`, and `lib` with all jars. Without Maven or a JDK: `ConfigurationError`."""
    for tool, package in (("mvn", "maven"), ("javac", "default-jdk-headless")):
        _need(tool, f"the Java clients need {tool}, which is not on PATH; on Debian: apt-get install {package}")
    return _built("java", _HERE / "java", _build_java)


def etcd_server(version: str) -> Path:
    """Build an unpackaged etcd, "3.6" or "3.7", from its own modules. Raises `ConfigurationError` without Go."""
    _need("go", _NO_GO)
    return _built(f"etcd-{version}", _HERE / "etcd", partial(_build_etcd, version)) / "etcd"


def _build_go(sources: Path, into: Path) -> None:
    _run(["go", "build", "-trimpath", "-o", str(into / "interop"), "."], sources)


def _build_etcd(version: str, sources: Path, into: Path) -> None:
    modules = f"-modfile=v{version.replace('.', '_')}.mod"
    _run(["go", "build", "-trimpath", modules, "-o", str(into / "etcd"), "."], sources)


def _build_java(sources: Path, into: Path) -> None:
    _run(["mvn", "--batch-mode", "--quiet", "--strict-checksums", "compile"], sources)
    for folder in ("classes", "lib"):
        (sources / "target" / folder).rename(into / folder)


def _need(tool: str, otherwise: str) -> None:
    if shutil.which(tool) is None:
        raise ConfigurationError(otherwise)


def _built(name: str, sources: Path, build: Callable[[Path, Path], None]) -> Path:
    folder = _CACHE / f"{name}-{_digest(sources)}"
    if folder.exists():
        return folder
    _CACHE.mkdir(parents=True, exist_ok=True)
    with _alone(_CACHE / f"{name}.lock"):  # the workers of pytest-xdist may build at once
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=_CACHE) as work:
                copy, into = Path(work) / "sources", Path(work) / "built"
                shutil.copytree(sources, copy)
                into.mkdir()
                build(copy, into)
                into.rename(folder)  # an incomplete build is never seen
    return folder


def _digest(sources: Path) -> str:
    digest = hashlib.sha256(f"{platform.system()} {platform.machine()}".encode())
    for file in sorted(path for path in sources.rglob("*") if path.is_file()):
        digest.update(f"{file.relative_to(sources)} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_WITHIN_S
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")
