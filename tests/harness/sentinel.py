"""A real Sentinel set: a primary, its replicas, and those who watch over them."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import redis.asyncio

from app.embedded import Valkey
from app.embedded.process import Process, free_port
from app.torture.proxy import Proxy
from tests.harness.waiting import eventually


class SentinelSet:
    """`binary` is a redis-server or valkey-server, which is a Sentinel, too. The set is called "shop"."""

    def __init__(self, binary: Path, *, replicas: int = 1, sentinels: int = 3) -> None:
        self._stack = ExitStack()
        self._binary = binary
        self._quorum = sentinels // 2 + 1
        options = ["--repl-diskless-sync-delay", "0"]
        self.primary = Valkey("primary", durable=True, binary=binary, options=options)
        self.paths = [Proxy(self.primary.port) for _ in range(replicas)]  # from each replica to the primary
        self.replicas = [
            Valkey(
                f"replica-{number}",
                durable=True,
                binary=binary,
                options=["--replicaof", "127.0.0.1", str(path.port)],
            )
            for number, path in enumerate(self.paths)
        ]
        self._ports = [free_port() for _ in range(sentinels)]
        self.url = f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in self._ports)}/shop/0"

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            starting.enter_context(self.primary)
            for path in self.paths:
                starting.enter_context(path)
            for replica in self.replicas:
                starting.enter_context(replica)
                eventually(lambda port=replica.port: asyncio.run(_in_sync(port)), "the replica is in sync")
            for port in self._ports:
                starting.enter_context(self._sentinel(port))
            self._stack = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _sentinel(self, port: int) -> Process:
        def argv(folder: Path) -> list[str]:
            config = folder / "sentinel.conf"
            config.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
                f"sentinel monitor shop 127.0.0.1 {self.primary.port} {self._quorum}\n"
                "sentinel down-after-milliseconds shop 500\nsentinel failover-timeout shop 2000\n"
            )
            return [str(self._binary), str(config), "--sentinel"]

        def knows_all() -> bool:
            return asyncio.run(_knows(port, len(self.replicas), len(self._ports) if port == self._ports[-1] else 1))

        sentinel = Process(f"sentinel-{port}", argv, ready=knows_all)
        sentinel.graceful = False
        return sentinel


async def _in_sync(port: int) -> bool:
    client = redis.asyncio.Redis(port=port, decode_responses=True, protocol=2)
    try:
        return bool((await client.info("replication"))["master_link_status"] == "up")
    except redis.exceptions.RedisError:
        return False
    finally:
        await client.aclose()


async def _knows(port: int, replicas: int, sentinels: int) -> bool:
    client = redis.asyncio.Redis(port=port, decode_responses=True, protocol=2)
    try:
        found = await client.execute_command("SENTINEL", "REPLICAS", "shop")
        others = await client.execute_command("SENTINEL", "SENTINELS", "shop")
        return len(found) == replicas and len(others) >= sentinels - 1
    except redis.exceptions.RedisError:
        return False
    finally:
        await client.aclose()
