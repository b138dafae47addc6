"""A buyer's name is removed from an item in Redis or Valkey, while it is being sold: see erase.lua."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import cache
from typing import Any, Final
from uuid import uuid4

from app.errors import StockChanged
from app.stock.redis.client import RedisClient, Script
from app.stock.redis.keys import Keys, refusal_of, token_of
from app.stock.store import Fence

Under = Callable[[], AbstractAsyncContextManager[Fence]]
_COUNT: Final = 500  # entries that a call copies
_TRIES: Final = 3  # a new sale may begin meanwhile, or another name be erased


async def erase(client: RedisClient, keys: Keys, sku: str, buyer: str, under: Under, by: str) -> int:
    """See `StockStore.erase`."""
    forms = [json.dumps(buyer, ensure_ascii=ascii_only) for ascii_only in (True, False)]
    copy = f"{keys.orders}-copy-{uuid4().hex}"  # two may be erased at once; what is left of it expires
    everywhere = {"buyer": buyer, "forms": forms, "by": by, "what": "erase a buyer"}

    async def call(step: str, fence: Fence | None = None, **more: object) -> list[Any]:
        request = json.dumps({**everywhere, "step": step, **more})
        names = (*keys.all, keys.log, copy)
        answer = await client.run(_script(), names, request, durable=fence is not None)
        if answer[0] != "ok":
            raise refusal_of(sku, fence, answer)
        return list(answer[1:])

    for last_try in (False,) * (_TRIES - 1) + (True,):
        there, generation, erasures = await call("look")
        if not there:
            return 0
        last, copied, numbers, names = "", _COUNT, [], []
        while copied == _COUNT:
            last, copied, some, their_keys = await call("copy", after=last, count=_COUNT)
            numbers += some
            names += their_keys
        try:
            async with under() as fence:
                own = {"source": fence.source, "token": token_of(fence), "generation": generation, "erasures": erasures}
                *_, found, _ = await call("end", fence, after=last, numbers=numbers, keys=names, **own)
                return len(found)
        except StockChanged:
            if last_try:
                raise
    raise AssertionError


@cache
def _script() -> Script:
    return Script("erase.lua")
