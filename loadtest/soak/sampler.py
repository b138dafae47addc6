"""Asks the processes, etcd and the store for the quantities. Missing answers, as in a fault, are left out."""

import asyncio
import base64
import re
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException
from typing import Final

import psutil
import redis.asyncio
from redis.exceptions import RedisError

from app.settings import Settings
from app.stock.redis.keys import keys_of
from lab.demo.stage import Stage
from lab.servers import EtcdMember
from lab.servers.process import ProcessFailed

Sample = dict[str, float | None]

_MIB: Final = 2**20
_NOTICES: Final = "seckill:notices"
_ORDERS_MIN: Final = 1000  # below that most of the memory divided is the store's own
_DEADLINE_S: Final = 2.0
_GAUGES: Final = {
    "etcd_watchers": "etcd_debugging_mvcc_watcher_total",
    "etcd_open_files": "process_open_fds",
    "etcd_bytes": "etcd_mvcc_db_total_size_in_use_in_bytes",
}


class Sampler:
    """Looks at a stage. `skus`: the items on sale; `names`: the names of its instances here."""

    def __init__(self, stage: Stage, skus: Sequence[str]) -> None:
        self._stage = stage
        (etcd,) = stage.locks.processes
        assert isinstance(etcd, EtcdMember)
        self._etcd = etcd
        self.names = [f"instance-{number}" for number in range(1, len(stage.instances) + 1)]
        self._processes = [psutil.Process(one.pid) for one in stage.instances]
        url = stage.variables["STORE"]
        self._redis = redis.asyncio.Redis.from_url(
            url,
            decode_responses=True,
            max_connections=1,
            socket_timeout=_DEADLINE_S,
            socket_connect_timeout=_DEADLINE_S,
        )
        self._keys = [keys_of(sku) for sku in skus]
        self._orders: list[int] = []  # of each item, at the last look
        self._ordered = 0  # since the beginning
        self._looked_at = time.monotonic()

    async def sample(self) -> Sample:
        """Return the present values. Raises `ProcessFailed` if an instance has ended."""
        found: Sample = {}
        for name, process, instance in zip(self.names, self._processes, self._stage.instances, strict=True):
            try:
                with process.oneshot():
                    found[f"{name} rss_mib"] = round(process.memory_info().rss / _MIB, 2)
                    found[f"{name} open_files"] = process.num_fds()
                    found[f"{name} threads"] = process.num_threads()
            except (psutil.NoSuchProcess, psutil.AccessDenied):  # the latter: for a process that has just ended
                raise ProcessFailed(f"{name} has ended:\n{instance.last_lines()}") from None
        with suppress(OSError, HTTPException):
            found |= await asyncio.to_thread(self._ask_etcd)
        with suppress(OSError, RedisError):
            found |= await self._ask_store()
        if (size := found.pop("etcd_bytes", None)) is not None and self._ordered:
            found["etcd_bytes_per_order"] = round(size / self._ordered, 1)
        return found

    def _ask_etcd(self) -> Sample:
        prefix = Settings.model_fields["lock_prefix"].default
        first, end = (base64.b64encode(f"{prefix}{one}".encode()).decode() for one in "/0")  # "0" comes after "/"
        keys = self._etcd.ask("kv/range", key=first, range_end=end, count_only=True)
        with urllib.request.urlopen(f"{self._etcd.endpoint}/metrics", timeout=_DEADLINE_S) as answer:
            text = answer.read().decode()
        gauges = {name: re.search(rf"^{gauge} (\S+)$", text, re.MULTILINE) for name, gauge in _GAUGES.items()}
        return {
            "etcd_leases": len(self._etcd.leases()),
            "etcd_lock_keys": int(keys.get("count", 0)),
            **{name: float(match[1]) for name, match in gauges.items() if match is not None},
        }

    async def _ask_store(self) -> Sample:
        growing = [key for one in self._keys for key in (one.orders, one.settled, one.buyers)]
        refusals = [key for one in self._keys for key in one.all if ":refused" in key]
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.info("clients")
            pipe.info("memory")
            pipe.dbsize()
            pipe.hlen(_NOTICES)
            for key in refusals:
                pipe.hlen(key)
            for one in self._keys:
                pipe.xlen(one.orders)
            for key in growing:
                pipe.memory_usage(key)
            clients, memory, keys, notices, *counts = await pipe.execute()
        now = time.monotonic()
        orders = counts[len(refusals) : -len(growing)]
        # After a new sale of an item all its orders are new.
        new = sum(is_ - was if is_ >= was else is_ for is_, was in zip(orders, self._orders or orders, strict=True))
        found: Sample = {
            "store_clients": clients["connected_clients"] - 1,  # without our own
            "store_keys": keys,
            "store_notices": notices,
            "store_refusals": sum(counts[: len(refusals)]),
            "store_mib": round(memory["used_memory"] / _MIB, 2),
            "orders_per_s": round(new / max(now - self._looked_at, 0.001), 1),
        }
        if sum(orders) >= _ORDERS_MIN:
            found["store_bytes_per_order"] = round(sum(size or 0 for size in counts[-len(growing) :]) / sum(orders), 1)
        self._ordered += new
        self._orders, self._looked_at = orders, now
        return found

    @property
    def ordered(self) -> int:
        """Return the number of orders since the beginning."""
        return self._ordered

    async def close(self) -> None:
        """Close the connection to the store."""
        await self._redis.aclose()
