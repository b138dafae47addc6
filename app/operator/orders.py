"""Orders, for operators: find, show, cancel and refund them, and erase a buyer's name."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING

from app.errors import ItemNotPossible, UnknownItem
from app.operator.stock import tell, under
from app.orders import (
    Answer,
    Cancel,
    CancelOutcome,
    Event,
    Order,
    OrderState,
    Refund,
    RefundOutcome,
    RefundState,
    RequestOutcome,
    RequestRefund,
)
from app.orders.commands import AnyOutcome
from app.orders.refunds import meant
from app.sale.find import EVERYTHING, FoundOrders, Wanted, find, is_newest, named, newest, pages, refuse_gaps, whole
from app.sale.shop import Shop
from app.stock import Fence, StockStore
from fencelock import AsyncLocks

if TYPE_CHECKING:
    from app.operator.report import Report


class OrderAdmin:
    """The operator's side of orders. It lives on the shop's event loop; `by` is the operator's name."""

    def __init__(self, shop: Shop, locks: AsyncLocks, store: StockStore) -> None:
        self._shop = shop
        self._locks = locks
        self._store = store

    async def find(
        self, sku: str | None, wanted: Wanted, *, after: str | None = None, limit: int = 100, newest_first: bool = False
    ) -> FoundOrders:
        """Find orders of an item, or of all. Raises `ValueError` if `after` is no order of these, and `UnknownItem`.

        `newest_first`: if there are not too many; else item by item, oldest first.
        """
        skus = await self.named(sku)
        whole = is_newest(after) or (newest_first and after is None)
        found = await newest(self._store, skus, wanted, after=after, limit=limit) if whole else None
        return found or await find(self._store, skus, wanted, after=after, limit=limit)

    async def pages(self, sku: str | None, wanted: Wanted) -> AsyncIterator[FoundOrders]:
        """All orders of an item, or of all items, that are wanted, page by page. Raises `UnknownItem`."""
        async for page in pages(self._store, await self.named(sku), wanted):
            yield page

    async def report(
        self,
        sku: str | None = None,
        since: datetime | None = None,
        zone: tzinfo | None = None,
        *,
        looked: Callable[[int], object] = lambda _: None,
    ) -> "Report":
        """Add up the orders of an item, or of all; see `Report`. `looked`: called with the number of orders read.

        Raises `UnknownItem`, and `StockCorrupt` if orders can't be read.
        """
        from app.operator.report import Report  # an instance and the commands begin without it

        found, clock = Report(since, zone, sku), asyncio.get_running_loop().time
        async for page in self.pages(sku, EVERYTHING):
            refuse_gaps(page)
            began = clock()
            for order in page.orders:
                found.add(order)
            looked(page.looked)
            await asyncio.sleep(clock() - began)  # this loop also serves buyers, so it rests between the orders
        return found

    async def named(self, sku: str | None) -> list[str]:
        """The item of this name, or all of them. Raises `UnknownItem` for a misspelt item."""
        if sku is None:
            return await self._store.items()
        found = (await self._store.levels([sku]))[sku]
        if isinstance(found, UnknownItem | ItemNotPossible):
            raise found
        return [sku]

    async def numbered(self, number: str) -> Order | None:
        """An order by its number, with or without the secret."""
        return await whole(self._store, await named(self._store, number))

    async def history(self, order: Order) -> list[Event]:
        """All events of an order, oldest first."""
        return await self._store.history(order.sku, order.record.number)

    async def since(self, order: Order) -> float:
        """When an order got its present state, in seconds since 1970."""
        if order.record.events == 1 or (order.state is OrderState.HELD and not order.record.waited):
            return order.sold_at
        at, state = order.sold_at, ""
        for event in await self.history(order):
            before, state = state, str(event.facts.get("state", event.kind))
            at = event.at if state != before else at
        return at

    async def cancel(
        self, order: Order, *, by: str, units: int | None = None, message: str | None = None, line: str | None = None
    ) -> Answer:
        """Give back the units that an order holds, or some of them (see `Cancel`). Raises what `Shop.submit` raises."""
        answer = await self._shop.submit(Cancel(*order.id, by, units=units, message=message, line=line))
        return await self._told(answer, CancelOutcome.CANCELLED, CancelOutcome.PARTLY_CANCELLED)

    async def refund(self, order: Order, wish: Refund, currency: str | None = None) -> Answer:
        """Note that money was given back, perhaps with the currency of the amount.

        Raises the errors of `Shop.submit`, and `ValueError` if the payment is in another currency.
        """
        if currency is not None:
            payment = meant(order.record, wish.payment_ref, wish.name)
            its = payment.currency if payment is not None else order.record.currency
            if currency != its:
                raise ValueError(f"the payment is in {its or 'no currency'}")
        answer = await self._shop.submit(wish)
        return await self._told(answer, RefundOutcome.REFUNDED, RefundOutcome.PARTLY_REFUNDED)

    async def retry(self, order: Order, name: str | None = None, *, by: str) -> dict[str, RequestOutcome]:
        """Request failed refunds again: this one, or all. Raises what `Shop.submit` raises."""
        found: dict[str, RequestOutcome] = {}
        failed = [one.name for _, one in order.record.refunds if one.state is RefundState.FAILED]
        for one in failed if name is None else (name,):
            answer = await self._shop.submit(RequestRefund(*order.id, one, by, again=True))
            await self._told(answer, RequestOutcome.REQUESTED)
            found[one] = RequestOutcome(answer.outcome)
        return found

    async def _told(self, answer: Answer, *done: AnyOutcome) -> Answer:
        """Write the change to this process's log, too."""
        if answer.outcome in done and answer.order is not None:
            await tell(self._store, answer.order.sku)
        return answer

    async def erase(self, sku: str, buyer: str, *, by: str = "", wait_s: float = 10.0) -> int:
        """Remove a buyer's name from an item, and keep the numbers. Returns how many entries of the journal had it."""

        @contextlib.asynccontextmanager
        async def fenced() -> AsyncIterator[Fence]:
            async with under(self._locks.lock(self._shop.lock_name(sku)), wait_s) as grant:
                grant.ensure_held()
                yield Fence(grant.token, grant.source)

        found = await self._store.erase(sku, buyer, fenced, by=by)
        if found:
            await tell(self._store, sku)
        return found
