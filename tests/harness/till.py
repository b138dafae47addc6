"""A shop on a store in memory that decides each command at once: nobody else is there, and nobody waits."""

from concurrent.futures import Future
from itertools import count
from typing import Any

from app.orders import Answer, Command, Order, OrderId, Terms
from app.sale.batch import Clocked, ask, decide_parts
from app.sale.queue import Entry, Item
from app.stock import Fence
from tests.harness.memory_store import MemoryServer, MemoryStockStore

FENCE = Fence(1, "memory")
_batches = count(1)  # of all shops: the store writes a batch once


class Till:
    """What the offices ask of a `Shop`. `store`: its own way to the server."""

    def __init__(self, server: MemoryServer) -> None:
        self.store = MemoryStockStore(server)
        self._clock = server.clock

    async def submit(self, command: Command) -> Answer:
        """Decide a command. Raises what `Shop.submit` raises."""
        item, batch_id, unanswered = Item(command.sku), f"b{next(_batches)}", Future[Answer]()
        entries = [Entry(command, item, unanswered, 0.0, bool)]  # type: ignore[arg-type]
        entries[0].came_at = self._clock()
        [snapshot] = (await self.store.prepare(FENCE, batch_id, {command.sku: ask(entries)})).values()
        if isinstance(snapshot, Exception):
            raise snapshot
        (part,) = decide_parts(batch_id, {item: snapshot}, entries, Clocked(Terms()))
        [numbers] = (await self.store.commit(FENCE, {command.sku: part.write})).values()
        if isinstance(numbers, Exception):
            raise numbers
        [(_, answer)] = part.answers(numbers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def order(self, order: OrderId) -> Order | None:
        """An order by its id."""
        return await self.store.order(order.sku, order.number)

    async def paid_with(self, payment_ref: str) -> list[Order]:
        """The orders that have a payment."""
        return await self.store.paid_with(payment_ref, await self.store.items())

    async def set_stock(self, sku: str, **how: Any) -> None:
        """Begin an item, or a new sale of it, with plenty of units."""
        await self.store.set_stock(sku, FENCE, 1000, **how)
