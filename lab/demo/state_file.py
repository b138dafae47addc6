"""The whereabouts of a `seckill up`: each running one keeps a small file, by which other terminals find its sale.

The process that wrote a file holds a lock on it. The kernel ends that lock with the process, however it ends, so a
file without a lock was left behind.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dotenv import dotenv_values

from app.settings import PREFIX, Settings, load

_LEADING: Final = ("LOCK", "STORE")  # a user who has set one of these has a sale of their own in mind
# The settings that another process needs to see the same sale.
_NEEDED: Final = ("lock", "store", "guard", "lock_prefix", "lock_groups", "lock_ttl_s")


@dataclass(frozen=True, slots=True)
class StageFile:
    """The content of such a file. `settings`: by their names in `Settings`; `instances`: their URLs."""

    pid: int
    settings: dict[str, Any]
    instances: list[str]


def of(settings: Settings, instances: list[str]) -> StageFile:
    """Return the whereabouts of this process's sale."""
    plain = settings.model_dump(mode="json", include=set(_NEEDED))
    secret = {name: getattr(settings, name).get_secret_value() for name in ("lock", "store")}
    return StageFile(os.getpid(), {**plain, **secret}, instances)


@contextlib.contextmanager
def told(where: StageFile) -> Iterator[Path]:
    """Keep the file while the context lasts, readable by this user only. Raises `OSError` if it can't be written."""
    file = _folder() / f"up-{where.pid}.json"
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = file.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        json.dump(asdict(where), writing, indent=2)
        writing.flush()
        unfinished.rename(file)  # so nobody sees the file without its lock
        try:
            yield file
        finally:
            file.unlink(missing_ok=True)


def find(say: Callable[[str], object]) -> StageFile | None:
    """Return the latest file whose process still runs. Remove files that dead processes have left, and say so."""
    found: list[StageFile] = []
    try:
        files = sorted(_folder().glob("up-*.json"), key=_written_at, reverse=True)
    except OSError:
        return None
    for file in files:
        with contextlib.suppress(OSError), file.open() as reading:
            try:
                fcntl.flock(reading, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                with contextlib.suppress(ValueError, TypeError):  # written by another version
                    found.append(StageFile(**json.load(reading)))
            else:
                file.unlink(missing_ok=True)
                say(f"a `seckill up` was killed and has left {file}, which is removed")
    if not found:
        return None
    where, others = found[0], "" if len(found) == 1 else f", the latest of {len(found)}"
    say(f"using the sale of `seckill up` (process {where.pid}, {where.instances[0]}{others})")
    return where


def settings(say: Callable[[str], object]) -> tuple[Settings, str]:
    """Return the user's settings, or those of a `seckill up` that runs here if the user has set neither lock nor store.

    Also return a hint for the case that nobody answers there; it is empty if a setting has to say that.
    """
    if leads_elsewhere():
        return load(), ""
    where = find(say)
    if where is None:
        return load(), f"start a sale with `seckill up`, or set {PREFIX}LOCK and {PREFIX}STORE"
    own = set_by_user()
    return load(**{name: value for name, value in where.settings.items() if name.upper() not in own}), (
        "look at what `seckill up` says"
    )


def set_by_user() -> set[str]:
    """Return the settings that the environment or .env has."""
    given = {**dotenv_values(".env"), **os.environ}
    return {name.removeprefix(PREFIX) for name, value in given.items() if value and name.startswith(PREFIX)}


def leads_elsewhere() -> bool:
    """Return whether the user has said where the sale is."""
    return not set_by_user().isdisjoint(_LEADING)


def _folder() -> Path:
    """Return the state folder of the XDG Base Directory Specification. Raises `OSError` for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(state) if state.startswith("/") else Path.home() / ".local" / "state") / "seckill"
    except RuntimeError as homeless:
        raise OSError(str(homeless)) from None


def _written_at(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0
