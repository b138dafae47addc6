"""A new lock is one file and one line: this one keeps the contract, and is opened by its URL like all others."""

import asyncio
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencelock import Grant, LockBackend, connect
from fencelock.connection import Terms
from fencelock.registry import CLASSES
from tests.contract.lock_contract import LockContract, LockSystem
from tests.contract.toy_lock import ToyBackend, ToyConnection

THE_LINE = {"toy": "tests.contract.toy_lock:ToyBackend"}


class ToySystem(LockSystem):
    backend = THE_LINE["toy"]

    def __init__(self, folder: Path) -> None:
        self._file = folder / "locks"
        self._file.touch()

    def options(self, ttl_s: float) -> dict[str, Any]:
        return {"file": str(self._file), "ttl_s": ttl_s}

    def open(self, ttl_s: float, **more: Any) -> LockBackend:
        return connect(f"toy://{self._file}", ttl_s=ttl_s, **more)

    def delete_key(self, key: str) -> None:
        async def delete() -> None:
            async with ToyConnection(Terms("toy", {}), self._file).table(1) as table:
                table["held"] = {name: line for name, line in table["held"].items() if line["key"] != key}

        asyncio.run(delete())

    def end_lease(self, grant: Grant) -> None:
        self.delete_key(grant.key)

    def leftovers(self) -> list[str]:
        async def look() -> list[str]:
            async with ToyConnection(Terms("toy", {}), self._file).table(1) as table:
                return list(table["held"])

        return asyncio.run(look())

    def restart(self) -> None:
        json.loads(self._file.read_text())  # there is no server, and all is on disk

    def pause(self) -> None:
        self._paused = self._file.open()
        fcntl.flock(self._paused, fcntl.LOCK_EX)

    def resume(self) -> None:
        self._paused.close()


class TestToyLock(LockContract):
    guarantees = ToyBackend.guarantees

    @pytest.fixture(autouse=True)
    def registered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, where in THE_LINE.items():
            monkeypatch.setitem(CLASSES, name, where)

    @pytest.fixture
    def system(self, tmp_path: Path) -> LockSystem:
        return ToySystem(tmp_path)

    @pytest.fixture
    def own_system(self, tmp_path: Path) -> Iterator[LockSystem]:
        (tmp_path / "own").mkdir()
        yield ToySystem(tmp_path / "own")
