"""Start a real Sentinel set, whose path from each replica to the primary can be cut."""

from pathlib import Path
from typing import Self

import lab.servers
from lab.torture.proxy import Proxy


class SentinelSet(lab.servers.SentinelSet):
    """A Sentinel set called "shop"; `binary` is a redis-server or valkey-server, which can be a Sentinel, too."""

    def __init__(self, binary: Path, *, replicas: int = 1, sentinels: int = 3) -> None:
        self.paths: list[Proxy] = []  # from each replica to the primary
        super().__init__(replicas=replicas, sentinels=sentinels, binary=binary, path=self._path, down_after_ms=500)

    def _path(self, port: int) -> int:
        self.paths.append(Proxy(port))
        return self.paths[-1].port

    def __enter__(self) -> Self:
        try:
            return super().__enter__()
        except BaseException:
            self._close_paths()
            raise

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._close_paths()

    def _close_paths(self) -> None:
        for path in self.paths:
            path.close()
