"""The payments, for operators: the provider's list beside the orders."""

import asyncio
import time
from collections.abc import AsyncIterable

from app.operator.orders import OrderAdmin
from app.payments.reconcile import Movement, Reconciliation
from app.sale.find import EVERYTHING, refuse_gaps


async def reconcile(orders: OrderAdmin, lines: AsyncIterable[Movement], since: float = 0.0) -> Reconciliation:
    """Take the provider's lines, and then all orders, page by page. `since`: see `Reconciliation`.

    Raises `StockCorrupt` if an item can't be read, and what `lines` raises.
    """
    found = Reconciliation(since)
    async for line in lines:
        found.add_movement(line)
    async for page in orders.pages(None, EVERYTHING):
        began = time.monotonic()
        refuse_gaps(page)
        for order in page.orders:
            found.add_order(order)
        await asyncio.sleep(time.monotonic() - began)  # it rests for as long as it has worked
    return found
