"""The articles' store in Redis or Valkey, without any check."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from typing_extensions import override

from app.errors import StockError
from app.stock.batch import Batch, Fence
from app.stock.redis.client import Script
from app.stock.redis.keys import fields_of, keys_of
from app.stock.redis.storage import RedisStorage
from app.stock.storage import raise_if_none_was_reached
from app.stock.store import StockStore


class BareStockStore(StockStore):
    """The articles' store: read, decrement, write, without any check. It is right only while the lock is held.

    It is for `--guard none`, which shows the use of the guard. Nothing stops a write that is still on its way.
    """

    storage: RedisStorage
    _write: Final = Script("bare.lua")

    @override
    async def commit(
        self, fence: Fence, batches: Mapping[str, Batch], together: Sequence[set[str]] = ()
    ) -> dict[str, list[str] | StockError]:
        """Write the stock that was computed from an earlier read."""
        found: dict[str, list[str] | StockError] = {}
        for sku, batch in batches.items():
            put = self._put(sku, batch, fence)
            request = {
                "stock": str((put.found.head.stock or 0) + put.units.stock),
                "lucky": str(put.units.lucky),
                "entries": [fields_of(event) for event in put.entries],
                "buyers": [[name, str(units)] for name, units in put.bought.items()],
                "keys": [[e.key or "", put.keys[e.key].removeprefix(e.entry) if e.key else ""] for e in put.entries],
            }
            try:
                found[sku] = await self.storage.run(self._write, keys_of(sku), json.dumps(request))
            except StockError as error:
                found[sku] = error
        raise_if_none_was_reached(found)
        return found
