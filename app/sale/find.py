"""To find orders among many: by state, buyer, the shop's own number, or their own."""

import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from typing import Final, Literal, NamedTuple

from app.errors import StockCorrupt
from app.orders import Order, OrderId, OrderState
from app.stock import StockStore

ATTENTION: Final = "attention"
WantedState = OrderState | Literal["attention"]

_PAGE: Final = 1000
_AT_ONCE: Final = 100  # items
_NUMBER: Final = re.compile("[0-9]{10,}-[0-9]+")  # a number that can't be anything else, without its item
_SHORT: Final = re.compile(
    "[0-9a-f]{4}(?:-?[0-9a-f]{4})+"
)  # the head of a secret, as the shop's pages show it to buyers
LOOK_MAX: Final = 5000  # orders that a request looks at
_NEWEST: Final = "newest "


class Wanted(NamedTuple):
    """A search for orders, which must match each field that is not None."""

    state: WantedState | None = None  # "attention": the orders that need an operator
    buyer: str | None = None
    ref: str | None = None
    number: str | None = None
    # the number (or id), the short number on the shop's page, or a part of the buyer's, a payment's or the shop's name
    # for it; large and small letters are the same
    text: str | None = None

    def has(self, order: Order) -> bool:
        """Return whether an order is one of them."""
        if self.buyer is not None and order.buyer != self.buyer:
            return False
        if self.ref is not None and order.record.ref != self.ref:
            return False
        if self.text is not None and not self._is_about(order):
            return False
        if self.state is None:
            return True
        return order.record.needs_attention if self.state == ATTENTION else order.state == self.state

    def is_just(self, order: Order) -> bool:
        """Return whether the text is a whole name or number of it, or the short number."""
        text = (self.text or "").casefold()
        is_short = _SHORT.fullmatch(text) is not None and order.record.secret.startswith(text.replace("-", ""))
        return is_short or text in (order.record.number, *_names(order))

    def _is_about(self, order: Order) -> bool:
        text = (self.text or "").casefold()
        return any(text in name for name in _names(order)) or self.is_just(order)


EVERYTHING: Final = Wanted()


def _is_at(order: Order, skus: Sequence[str]) -> bool:
    return order.sku in skus or any(line.sku in skus for line in order.record.lines)


def _names(order: Order) -> list[str]:
    known = (order.buyer, order.record.ref, *(one.ref for one in order.record.payments))
    return [one.casefold() for one in known if one]


class FoundOrders(NamedTuple):
    """The orders that were found, oldest first; with a text, exact matches first."""

    orders: list[Order]
    next: str | None  # continue behind the order of this name; None: that was all
    looked: int  # orders that were read
    until: float | None  # when the last read order began, in seconds since 1970
    unread: Sequence[str] = ()  # items with damaged data, whose orders (or the rest of them) are missing here


async def named(store: StockStore, text: str) -> Order | None:
    """An order by its name, or its id, whose secret must then be the right one."""
    wanted = OrderId.parse_name(text)
    found = await store.order(wanted.sku, wanted.number) if wanted else None
    return found if wanted and found and (not wanted.secret or wanted.opens(found.record.secret)) else None


async def whole(store: StockStore, found: Order | None) -> Order | None:
    """The order of which this one is a line, or the order itself."""
    return await named(store, found.record.part_of) if found is not None and found.record.part_of else found


async def _known_by(store: StockStore, skus: Sequence[str], text: str) -> list[Order]:
    """The orders that have this number, or a payment of this name, found without reading all orders."""
    if OrderId.parse_name(text):
        names = [text]
    else:
        names = [OrderId(sku, text).name for sku in skus] if _NUMBER.fullmatch(text) else []
    there = [await whole(store, await named(store, name)) for name in names]
    found = list({one.id: one for one in there if one and _is_at(one, skus)}.values())
    for first in range(0, len(skus), _AT_ONCE):
        with contextlib.suppress(StockCorrupt):  # the search names the item
            found += await store.paid_with(text, skus[first : first + _AT_ONCE])
    return found


async def find(
    store: StockStore,
    skus: Sequence[str],
    wanted: Wanted,
    *,
    after: str | None = None,
    limit: int = 100,
    look_max: int = LOOK_MAX,
) -> FoundOrders:
    """Find orders, item by item, up to `limit` or until `look_max` were looked at.

    An item that can't be read hides no orders of other items: it is named. A search in one item raises the error.
    `after`: the name of an order, or a `next`. Raises `ValueError` if it is neither.
    """
    if wanted.number is not None:
        one = await whole(store, await named(store, wanted.number))  # which names its item
        found = [one] if one and _is_at(one, skus) and wanted.has(one) else []
        return FoundOrders(found, None, len(found), found[0].sold_at if found else None)
    if wanted.text is not None and after is None:
        known = [one for one in await _known_by(store, skus, wanted.text) if wanted._replace(text=None).has(one)]
        if known:
            return FoundOrders(known, None, len(known), known[-1].sold_at)
    begin = OrderId("", "") if after is None else OrderId.parse_place(after)
    if begin is None or (begin.number and begin.sku not in skus):
        raise ValueError(f"not an order of item{f' {skus[0]!r}' if len(skus) == 1 else 's here'}: {after!r}")
    left = [sku for sku in sorted(skus) if sku > begin.sku or (sku == begin.sku and begin.number)]
    found, looked, until, unread = list[Order](), 0, None, list[str]()
    for n, sku in enumerate(left):
        most = {"limit": limit - len(found), "look_max": look_max - looked}
        try:
            after = begin.number if sku == begin.sku else None
            page = await _of_item(store, sku, wanted, alone=len(skus) == 1, after=after, **most)
        except StockCorrupt:
            if len(skus) == 1:
                raise
            unread.append(sku)
            page = FoundOrders([], None, 0, None)
        found, looked, until = found + page.orders, looked + page.looked, page.until or until
        on = page.next or (OrderId(sku, "").name if sku != left[-1] else None)
        # To look at an item costs as much as to look at some orders, even if it has none.
        if on is None or page.next or len(found) == limit or looked + n >= look_max:
            return FoundOrders(_just_first(found, wanted), on, looked, until, unread)
    return FoundOrders(found, None, looked, until, unread)


def _just_first(found: list[Order], wanted: Wanted) -> list[Order]:
    return found if wanted.text is None else sorted(found, key=lambda order: not wanted.is_just(order))


async def _of_item(
    store: StockStore, sku: str, wanted: Wanted, *, alone: bool, after: str | None, limit: int, look_max: int
) -> FoundOrders:
    """Find orders of an item; `alone`: also those that stand at other items, and have a line here."""
    size = limit if wanted == EVERYTHING else _PAGE
    found: list[Order] = []
    looked, until = 0, None
    while looked < look_max:
        page = await store.orders(sku, after=after, limit=size, lines=alone)
        for one in page:
            looked, after, until = looked + 1, one.record.number, one.sold_at
            order = await whole(store, one)
            if order is not None and wanted.has(order):
                found.append(order)
                if len(found) == limit:
                    is_last = one is page[-1] and len(page) < size
                    return FoundOrders(found, None if is_last else OrderId(sku, after).name, looked, until)
        if len(page) < size:
            return FoundOrders(found, None, looked, until)
    return FoundOrders(found, OrderId(sku, after).name if after else None, looked, until)


async def newest(
    store: StockStore, skus: Sequence[str], wanted: Wanted, *, after: str | None = None, limit: int = 100
) -> FoundOrders | None:
    """Find orders of several items, newest first; None if there are too many to read all of them for each page.

    `after`: a `next` of this function. Raises `ValueError` if the order of that name is there no more.
    """
    if after is None:
        left = LOOK_MAX
        for sku in skus:
            left -= 1 + await store.count_orders(sku)
            if left < 0:
                return None
    found, looked, unread = list[Order](), 0, list[str]()
    async for page in pages(store, skus, wanted):
        found += page.orders
        looked, unread = looked + page.looked, [*unread, *page.unread]
    found.sort(key=lambda order: (wanted.text is None or not wanted.is_just(order), -order.sold_at, order.id))
    names = [order.id.name for order in found]
    if after is not None and after.removeprefix(_NEWEST) not in names:
        raise ValueError(f"not an order of items here: {after!r}")
    first = 0 if after is None else names.index(after.removeprefix(_NEWEST)) + 1
    shown, more = found[first : first + limit], len(found) > first + limit
    on = _NEWEST + shown[-1].id.name if more else None
    return FoundOrders(shown, on, looked, shown[-1].sold_at if shown else None, unread)


def is_newest(after: str | None) -> bool:
    """Return whether this is a `next` of `newest`."""
    return after is not None and after.startswith(_NEWEST)


def refuse_gaps(page: FoundOrders) -> None:
    """Raise `StockCorrupt` if orders are missing: a file must not look as if it had them all."""
    if page.unread:
        raise StockCorrupt(f"the orders of {', '.join(page.unread)} can't be read; choose items one by one")


async def pages(store: StockStore, skus: Sequence[str], wanted: Wanted) -> AsyncIterator[FoundOrders]:
    """Look at all orders of some items, page by page; a page may have none that is wanted."""
    after = None
    while True:
        page = await find(store, skus, wanted, after=after, limit=_PAGE, look_max=_PAGE)
        yield page
        if (after := page.next) is None:
            return
