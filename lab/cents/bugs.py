"""Bugs of the cashier, to be planted in an instance: each must be found by the books at the end."""

import itertools
from collections.abc import Callable
from typing import Any, Final

from app.cashier import cashier, provider
from app.cashier.provider import Became, Result, Wish
from app.orders import Refund

_tries = itertools.count()


def _keys_of_a_try() -> None:
    """Each try has a key of its own."""
    Wish.key = property(lambda self: f"refund-{self.order.number}-{id(_tries)}-{next(_tries)}")  # type: ignore[assignment,method-assign]


def _notes_before_it_asks() -> None:
    """It notes the refund, and then asks."""
    _became(lambda result: result._replace(became=Became.DONE))


def _silence_is_done() -> None:
    """A refund without an answer counts as made."""
    _became(lambda result: result._replace(became=Became.DONE) if result.became is Became.UNKNOWN else result)


def _silence_is_refused() -> None:
    """A refund without an answer counts as refused."""
    _became(lambda result: result._replace(became=Became.REFUSED) if result.became is Became.UNKNOWN else result)


def _became(change: Callable[[Result], Result]) -> None:
    from app.cashier.stripe import Stripe

    refund = Stripe.refund

    async def patched(self: Any, wish: Wish, *, again: bool) -> Result:
        return change(await refund(self, wish, again=again))

    Stripe.refund = patched  # type: ignore[method-assign]


def _gives_all_back() -> None:
    """A part that is owed is given back as the whole payment."""
    _request(lambda request: request._replace(amount=None))


def _gives_too_little() -> None:
    """The amount is in another unit than the provider's."""
    _request(lambda request: request._replace(amount=request.amount and max(1, request.amount // 100)))


def _request(change: Callable[[Any], Any]) -> None:
    from app.cashier.stripe import Stripe

    refund = Stripe.refund

    async def patched(self: Any, wish: Wish, *, again: bool) -> Result:
        asked = provider.Wish(wish.order, change(wish.request), wish.shop_ref)
        return await refund(self, asked, again=again)

    Stripe.refund = patched  # type: ignore[method-assign]


def _forgets_parts() -> None:
    """Parts that are owed are nobody's business."""
    cashier.names = lambda record: list(record.refunds_due)


def _counts_parts_twice() -> None:
    """A part that was made is noted as another one than the part that was owed."""
    from app.sale.shop import Shop

    submit = Shop.submit

    async def patched(self: Any, command: Any, **how: Any) -> Any:
        if isinstance(command, Refund) and command.by == cashier.BY and command.of_part:
            command = command._replace(of_part=None, amount=100, message=f"other-{next(_tries)}")
        return await submit(self, command, **how)

    Shop.submit = patched  # type: ignore[method-assign]


def _first_payment_only() -> None:
    """Of an order only the first thing that is owed is given back, ever."""
    done: set[str] = set()

    def names(record: Any) -> list[str]:
        found = [*record.refunds_due, *record.parts_due]
        if not found or record.number in done:
            return []
        done.add(record.number)
        return found[:1]

    cashier.names = names


BUGS: Final[dict[str, Callable[[], None]]] = {
    "keys-of-a-try": _keys_of_a_try,
    "notes-before-it-asks": _notes_before_it_asks,
    "silence-is-done": _silence_is_done,
    "silence-is-refused": _silence_is_refused,
    "gives-all-back": _gives_all_back,
    "gives-too-little": _gives_too_little,
    "forgets-parts": _forgets_parts,
    "counts-parts-twice": _counts_parts_twice,
    "first-payment-only": _first_payment_only,
}
