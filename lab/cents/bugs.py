"""Bugs of the cashier, to be planted in an instance: each must be found by the books at the end."""

import itertools
from collections.abc import Callable
from typing import Any, Final

from app.cashier import cashier
from app.cashier.provider import Became, RefundWish, Result
from app.cashier.stripe import StripeRefunds
from app.orders import GivenBack, Order, RefundState
from app.sale.shop import Shop

_tries = itertools.count()


def _keys_of_a_try() -> None:
    """Each try has a key of its own, and nobody looks at what was made."""
    StripeRefunds.made = _nobody_looks  # type: ignore[method-assign]
    RefundWish.key = property(lambda self: f"refund-{self.order.number}-{id(_tries)}-{next(_tries)}")  # type: ignore[assignment,method-assign]


async def _nobody_looks(self: StripeRefunds, payment_ref: str) -> None:
    return None


def _notes_before_it_asks() -> None:
    """It notes the refund, and then asks."""
    _asks(became=lambda result: result._replace(became=Became.DONE))


def _silence_is_done() -> None:
    """A refund without an answer counts as made."""
    _asks(became=lambda result: result._replace(became=Became.DONE) if result.became is Became.UNKNOWN else result)


def _silence_is_refused() -> None:
    """A refund without an answer counts as refused."""
    _asks(became=lambda result: result._replace(became=Became.REFUSED) if result.became is Became.UNKNOWN else result)


def _gives_all_back() -> None:
    """A part that is owed is given back as the whole payment."""
    _asks(lambda wish: wish._replace(amount=None))


def _gives_too_little() -> None:
    """The amounts are in another unit than the provider's, there and back."""
    _asks(
        lambda wish: wish._replace(amount=wish.amount and max(1, wish.amount // 100)),
        lambda result: result._replace(amount=None),
    )


def _asks(
    wished: Callable[[RefundWish], RefundWish] = lambda wish: wish,
    became: Callable[[Result], Result] = lambda result: result,
) -> None:
    refund = StripeRefunds.refund

    async def patched(self: StripeRefunds, wish: RefundWish) -> Result:
        return became(await refund(self, wished(wish)))

    StripeRefunds.refund = patched  # type: ignore[method-assign]


def _forgets_parts() -> None:
    """What operators want to have given back is nobody's business; it may be a part."""
    cashier._is_to_make = lambda one: not one.by and one.state in (RefundState.DUE, RefundState.ASKED)


def _counts_parts_twice() -> None:
    """A part that was made is noted as another one than the part that was owed."""
    submit = Shop.submit

    async def patched(self: Any, command: Any, **how: Any) -> Any:
        if isinstance(command, GivenBack) and command.by == cashier.BY and command.name is not None:
            command = command._replace(name=None, amount=100, refund_id=f"other-{next(_tries)}")
        return await submit(self, command, **how)

    Shop.submit = patched  # type: ignore[method-assign]


def _first_payment_only() -> None:
    """An order is looked at once: what is owed of it later is never given back."""
    done, look = set[str](), cashier._Refunding._order

    async def patched(self: cashier._Refunding, order: Order) -> float:
        if order.id.number in done:
            return cashier._ASK_AGAIN_S
        done.add(order.id.number)
        return await look(self, order)

    cashier._Refunding._order = patched  # type: ignore[method-assign]


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
