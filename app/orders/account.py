"""An order's money as an account: its payments, and of each what went back, or is to. All sums are made here.

    due --the cashier asks--> asked --the provider gives--> given --the bank sends it back--> bounced
     ^                          |                             ^                                  |
     | an operator has it       v                             |  given by hand, in the          |
     +------tried again------ failed --------------------------+  provider's dashboard           |
                                ^                                                                |
                                +--------------------- as a refund of another name --------------+

Each cent that goes back is in one refund; `settle` says which one, as something is told of it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

_ANY: Final = 10**18  # more than any payment, where nobody has said how much it was


class PaymentState(StrEnum):
    """What a payment is to its order."""

    COUNTS = "counts"
    WRONG = "wrong"  # of another amount or currency than the price; an operator has to look while the order is held
    SECOND = "second"  # another one counts
    LATE = "late"  # the order had ended


class RefundState(StrEnum):
    """How a refund of a payment stands. See the picture above."""

    DUE = "due"
    ASKED = "asked"  # the provider is asked for it
    FAILED = "failed"  # an operator has to look
    GIVEN = "given"
    BOUNCED = "bounced"  # it was given, and came back; what is owed again is another refund
    SETTLED = "settled"  # it is not owed under this name any more; in events only


OPEN: Final = (RefundState.ASKED, RefundState.FAILED, RefundState.DUE)  # it is owed
# Which states a refund may have next, by its state (None: it is new).
NEXT: Final[Mapping[RefundState | None, frozenset[RefundState]]] = {
    None: frozenset(RefundState) - {RefundState.ASKED, RefundState.SETTLED},
    RefundState.DUE: frozenset(RefundState),
    RefundState.ASKED: frozenset(RefundState) - {RefundState.DUE},
    RefundState.FAILED: frozenset(RefundState) - {RefundState.ASKED, RefundState.DUE},
    RefundState.GIVEN: frozenset((RefundState.GIVEN, RefundState.BOUNCED, RefundState.SETTLED)),
    RefundState.BOUNCED: frozenset((RefundState.BOUNCED,)),
}


class Way(StrEnum):
    """How it is known that a refund was given."""

    PROVIDER = "provider"  # the provider has said so
    NOTED = "noted"  # an operator has, of money that the provider gave back: it may say so itself
    ELSEWHERE = "elsewhere"  # an operator has, of money that went back in another way: the provider knows nothing of it


class DisputeState(StrEnum):
    """How a dispute stands."""

    OPEN = "open"
    WON = "won"
    LOST = "lost"  # the bank has taken the money back


class PaymentRefund(NamedTuple):
    """Money of a payment that went back, or is to.

    `name`: made when it becomes due, at random, so that no restore from a backup deals it out again; of one that nobody
    had asked for, what the provider calls it. `amount`: in the minor unit of `currency` (None: the payment's); None:
    all that is left, of a payment whose amount nobody has said. `id`: the provider's own. `units`: of the order, those
    of which it is the price. `at`: when it was given, or came back, by the provider's clock, or when the provider was
    asked, by the store's; in seconds since 1970.
    """

    name: str
    state: RefundState = RefundState.DUE
    amount: int | None = None
    id: str | None = None
    way: Way = Way.PROVIDER
    by: str = ""
    why: str = ""
    at: float | None = None
    units: int = 0
    currency: str | None = None


class Dispute(NamedTuple):
    """A buyer wants a payment back from their bank. `amount`: None if nobody has said it."""

    name: str
    amount: int | None = None
    state: DisputeState = DisputeState.OPEN


class Sums(NamedTuple):
    """Sums of one currency, in its minor unit. `unknown`: nobody has said some of the amounts, which are not in them.

    `disputed`: of what was paid, what a bank may still take back.
    """

    currency: str | None
    paid: int = 0
    given_back: int = 0
    owed: int = 0
    disputed: int = 0
    unknown: bool = False

    @property
    def kept(self) -> int:
        """What the till keeps, or has still to give back."""
        return self.paid - self.given_back

    def plus(self, other: "Sums", sign: int = 1) -> "Sums":
        """Both together, or the change from the other one (`sign` -1)."""
        paid, given_back, owed, disputed = (mine + sign * its for mine, its in zip(self[1:5], other[1:5], strict=True))
        return Sums(self.currency, paid, given_back, owed, disputed, self.unknown or other.unknown)

    def said(self) -> dict[str, Any]:
        """As programs are told them."""
        return self._asdict() | {"kept": self.kept}

    def said_change(self) -> dict[str, Any]:
        """As programs are told a change: without what is as it was."""
        return {name: one for name, one in self._asdict().items() if name == "currency" or (one and name != "unknown")}


class Payment(NamedTuple):
    """A payment of an order. `amount`: in the minor unit of `currency`; None if nobody has said it."""

    ref: str
    amount: int | None = None
    currency: str | None = None
    state: PaymentState = PaymentState.COUNTS
    refunds: tuple[PaymentRefund, ...] = ()
    disputes: tuple[Dispute, ...] = ()

    # -- sums --------------------------------------------------------------------------------------------------------

    @property
    def given_back(self) -> int:
        """What was given back of it, as far as that is known, or was taken by a bank."""
        given = (one.amount or 0 for one in self.refunds if one.state is RefundState.GIVEN and one.currency is None)
        return sum(given) + self.lost

    @property
    def lost(self) -> int:
        """What banks have taken back."""
        return sum(one.amount or 0 for one in self.disputes if one.state is DisputeState.LOST)

    @property
    def given_elsewhere(self) -> int:
        """What of that went back in another way than by the provider, which knows nothing of it."""
        return sum(one.amount or 0 for one in self.refunds if one.way is Way.ELSEWHERE)

    @property
    def open(self) -> tuple[PaymentRefund, ...]:
        """The refunds that are owed."""
        return tuple(one for one in self.refunds if one.state in OPEN)

    @property
    def owed(self) -> int:
        """What is to be given back, as far as it is known."""
        return sum(one.amount or 0 for one in self.open if one.currency is None)

    @property
    def unknown(self) -> bool:
        """Whether nobody has said some of its amounts."""
        counted = (one for one in self.refunds if one.state in (*OPEN, RefundState.GIVEN))
        return self.amount is None or any(one.amount is None for one in counted)

    @property
    def given_whole(self) -> bool:
        """Whether all of it was given back."""
        if self.amount is None:
            whole = any(one.state is RefundState.GIVEN and one.amount is None for one in self.refunds)
            return whole or any(one.state is DisputeState.LOST and one.amount is None for one in self.disputes)
        return self.given_back >= self.amount

    @property
    def went_back(self) -> tuple[bool, tuple[int, ...]]:
        """All that is known of what was given back of it, to compare."""
        return self.given_whole, tuple(one.given_back for one in self.sums() if one.given_back)

    @property
    def left(self) -> int:
        """What is neither given back nor owed; more than any payment has, if nobody has said its amount."""
        if self.amount is not None:
            return max(0, self.amount - self.given_back - self.owed)
        return 0 if self.given_whole or any(one.amount is None for one in self.open) else _ANY

    @property
    def waits(self) -> bool:
        """Whether it is of a wrong amount, and an operator has to look."""
        return self.state is PaymentState.WRONG and self.left > 0

    def sums(self) -> Iterator[Sums]:
        """Yield its sums, those of its own currency first."""
        rest = max(0, (self.amount or 0) - self.given_back)
        open_ones = (one for one in self.disputes if one.state is DisputeState.OPEN)
        disputed = sum(rest if one.amount is None else one.amount for one in open_ones)
        paid = self.given_back if self.amount is None else self.amount  # so much at least
        yield Sums(self.currency, paid, self.given_back, self.owed, disputed, self.unknown)
        for one in self.refunds:
            if one.currency is not None and one.state in (*OPEN, RefundState.GIVEN):
                amount, given = one.amount or 0, one.state is RefundState.GIVEN
                yield Sums(one.currency, given_back=amount * given, owed=amount * (not given))

    def find(self, name: str | None, own: str | None = None) -> PaymentRefund | None:
        """The refund with that id of the provider's own, or of that name, if it has no other id."""
        by_id = (one for one in self.refunds if own is not None and one.id == own)
        named = (one for one in self.refunds if name is not None and one.name == name)
        return next(by_id, next((one for one in named if None in (real(one.id), real(own))), None))

    def having(self, refund: PaymentRefund) -> Self:
        """With a refund, or with the one of its name as it stands now."""
        return self._replace(refunds=_put(self.refunds, refund))

    def without(self, *gone: PaymentRefund) -> Self:
        """Without refunds of these names."""
        names = {one.name for one in gone}
        return self._replace(refunds=tuple(one for one in self.refunds if one.name not in names))


PROVIDER: Final = "payment provider"  # `by`, if the provider says so; no operator's name has a blank
NOTICE: Final = "notice "  # with the name of the notice, in the place of an id that the provider doesn't tell


def real(own: str | None) -> str | None:
    """An id, if it is the provider's own of a refund."""
    return None if own is None or own.startswith(NOTICE) else own


def _put(those: tuple[PaymentRefund, ...], new: PaymentRefund) -> tuple[PaymentRefund, ...]:
    if any(one.name == new.name for one in those):
        return tuple(new if one.name == new.name else one for one in those)
    return *those, new


# -- an account is its payments ----------------------------------------------------------------------------------------


def sums(payments: Sequence[Payment], currency: str | None = None) -> dict[str | None, Sums]:
    """The sums of each currency of some payments, those of the order's own `currency` first."""
    found: dict[str | None, Sums] = {currency: Sums(currency)} if payments else {}
    for payment in payments:
        for one in payment.sums():
            found[one.currency] = found.get(one.currency, Sums(one.currency)).plus(one)
    return {name: one for name, one in found.items() if any(one[1:])} or dict(list(found.items())[:1])


def add_up(totals: dict[str, Sums], more: Iterable[Sums]) -> None:
    """Add sums to others, by their currency; "" is that of none."""
    for one in more:
        name = one.currency or ""
        totals[name] = totals.get(name, Sums(one.currency)).plus(one)


def changes(before: Mapping[str | None, Sums], after: Mapping[str | None, Sums]) -> list[Sums]:
    """By how much the sums of each currency are others now."""
    currencies = dict.fromkeys((*after, *before))  # a payment may be told again, in another one
    moved = (after.get(one, Sums(one)).plus(before.get(one, Sums(one)), -1) for one in currencies)
    return [one for one in moved if any(one[1:5])]


def differences(before: Sequence[PaymentRefund], after: Sequence[PaymentRefund]) -> list[PaymentRefund]:
    """The refunds that are new or others now; one that is gone is settled."""
    was = {one.name: one for one in before}
    left = {one.name for one in after}
    gone = [one._replace(state=RefundState.SETTLED) for one in before if one.name not in left]
    return [*(one for one in after if was.get(one.name) != one), *gone]


def applied(those: tuple[PaymentRefund, ...], told: Iterable[PaymentRefund]) -> tuple[PaymentRefund, ...]:
    """Some refunds after these differences."""
    for one in told:
        if one.state is RefundState.SETTLED:
            those = tuple(other for other in those if other.name != one.name)
        else:
            those = _put(those, one)
    return those
