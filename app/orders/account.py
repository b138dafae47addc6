"""An order's money as an account: its payments, and their refunds. All sums are made here.

    due --the cashier asks--> asked --the provider gives--> given --the bank sends it back--> bounced
     ^                          |                             ^                                  |
     | an operator has it       v                             |  given by hand, in the          |
     +------tried again------ failed --------------------------+  provider's dashboard           |
                                ^                                                                |
                                +--------------------- as a refund of another name --------------+

Each cent that goes back is in one refund; `settle` finds which one a report is about.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

_ANY: Final = 10**18  # more than any payment has, for a payment whose amount was never reported


class PaymentState(StrEnum):
    """The role of a payment in its order."""

    COUNTS = "counts"
    WRONG = "wrong"  # its amount or currency is not the price's; an operator has to look while the order is held
    SECOND = "second"  # another one counts
    LATE = "late"  # the order had ended


class RefundState(StrEnum):
    """The state of a refund. See the picture above."""

    DUE = "due"
    ASKED = "asked"  # the provider is asked for it
    FAILED = "failed"  # an operator has to look
    GIVEN = "given"
    BOUNCED = "bounced"  # the money was given, and came back; another refund is owed for it
    SETTLED = "settled"  # not owed under this name any more; in events only


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
    """The source of the news that a refund was given."""

    PROVIDER = "provider"  # by the provider's report
    NOTED = "noted"  # an operator noted the provider's refund; the provider may report it itself
    ELSEWHERE = "elsewhere"  # an operator noted money that went back in another way, which the provider doesn't know


class DisputeState(StrEnum):
    """How a dispute stands."""

    OPEN = "open"
    WON = "won"
    LOST = "lost"  # the bank has taken the money back


class PaymentRefund(NamedTuple):
    """Money of a payment that went back, or is to go back. Amounts are in the minor unit of `currency`."""

    # random, from when it became due, so that no restored store gives it twice; or the provider's, if nobody asked
    # for it
    name: str
    state: RefundState = RefundState.DUE
    amount: int | None = None  # None: all that is left of a payment whose amount was never reported
    id: str | None = None  # the provider's own
    way: Way = Way.PROVIDER
    by: str = ""  # an operator, or the cashier
    why: str = ""  # the reason, of a refund that has failed
    # when it was given, asked for or came back, in seconds since 1970; by the provider's clock, when asked by the
    # store's
    at: float | None = None
    units: int = 0  # units of the order, if the refund is the price of some
    currency: str | None = None  # None: the payment's


class Dispute(NamedTuple):
    """A buyer wants a payment back from their bank. `amount`: None if it was never reported."""

    name: str
    amount: int | None = None
    state: DisputeState = DisputeState.OPEN


class Sums(NamedTuple):
    """An order's sums in one currency, in its minor unit."""

    currency: str | None
    paid: int = 0
    given_back: int = 0
    owed: int = 0  # due, asked for, or failed
    disputed: int = 0  # the part of `paid` that a bank may still take back
    unknown: bool = False  # some amounts were never reported, and are not in the sums

    @property
    def kept(self) -> int:
        """Paid, less given back: the money in the till, of which some may be owed."""
        return self.paid - self.given_back

    def plus(self, other: "Sums", sign: int = 1) -> "Sums":
        """The sum of both, or the difference from the other (`sign` -1)."""
        paid, given_back, owed, disputed = (mine + sign * its for mine, its in zip(self[1:5], other[1:5], strict=True))
        return Sums(self.currency, paid, given_back, owed, disputed, self.unknown or other.unknown)

    def said(self) -> dict[str, Any]:
        """The sums as programs get them."""
        return self._asdict() | {"kept": self.kept}

    def said_change(self) -> dict[str, Any]:
        """A change of sums as programs get it: only the sums that have changed."""
        return {name: one for name, one in self._asdict().items() if name == "currency" or (one and name != "unknown")}


class Payment(NamedTuple):
    """A payment of an order."""

    ref: str  # the provider's name of it
    amount: int | None = None  # in the minor unit of `currency`; None: never reported
    currency: str | None = None
    state: PaymentState = PaymentState.COUNTS  # whether it counts, or is wrong, second or late
    refunds: tuple[PaymentRefund, ...] = ()
    disputes: tuple[Dispute, ...] = ()

    # -- sums --------------------------------------------------------------------------------------------------------

    @property
    def given_back(self) -> int:
        """The known sum that went back, also through a bank."""
        given = (one.amount or 0 for one in self.refunds if one.state is RefundState.GIVEN and one.currency is None)
        return sum(given) + self.lost

    @property
    def lost(self) -> int:
        """The sum that banks have taken back."""
        return sum(one.amount or 0 for one in self.disputes if one.state is DisputeState.LOST)

    @property
    def given_elsewhere(self) -> int:
        """The part of `given_back` that the provider knows nothing of."""
        return sum(one.amount or 0 for one in self.refunds if one.way is Way.ELSEWHERE)

    @property
    def open(self) -> tuple[PaymentRefund, ...]:
        """The refunds that are owed."""
        return tuple(one for one in self.refunds if one.state in OPEN)

    @property
    def owed(self) -> int:
        """The known sum that is owed."""
        return sum(one.amount or 0 for one in self.open if one.currency is None)

    @property
    def unknown(self) -> bool:
        """Whether some of its amounts were never reported."""
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
        """All known facts of its refunds, to compare."""
        return self.given_whole, tuple(one.given_back for one in self.sums() if one.given_back)

    @property
    def left(self) -> int:
        """The sum that is neither given back nor owed; more than any payment, if its amount was never reported."""
        if self.amount is not None:
            return max(0, self.amount - self.given_back - self.owed)
        return 0 if self.given_whole or any(one.amount is None for one in self.open) else _ANY

    @property
    def waits(self) -> bool:
        """Whether it is of a wrong amount, and an operator has to look."""
        return self.state is PaymentState.WRONG and self.left > 0

    def sums(self) -> Iterator[Sums]:
        """Yield its sums, first those of its own currency."""
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
        """The refund with this id of the provider, or with this name, if it has no other id."""
        by_id = (one for one in self.refunds if own is not None and one.id == own)
        named = (one for one in self.refunds if name is not None and one.name == name)
        return next(by_id, next((one for one in named if None in (real(one.id), real(own))), None))

    def having(self, refund: PaymentRefund) -> Self:
        """The payment with this refund, in the place of the refund with its name, if any."""
        return self._replace(refunds=_put(self.refunds, refund))

    def without(self, *gone: PaymentRefund) -> Self:
        """Without refunds of these names."""
        names = {one.name for one in gone}
        return self._replace(refunds=tuple(one for one in self.refunds if one.name not in names))


PROVIDER: Final = "payment provider"  # `by`, if the provider says so; no operator's name has a blank
NOTICE: Final = "notice "  # the beginning of an id that is made of the notice's name, if the provider reports none


def real(own: str | None) -> str | None:
    """An id, if it is the provider's own of a refund."""
    return None if own is None or own.startswith(NOTICE) else own


def _put(those: tuple[PaymentRefund, ...], new: PaymentRefund) -> tuple[PaymentRefund, ...]:
    if any(one.name == new.name for one in those):
        return tuple(new if one.name == new.name else one for one in those)
    return *those, new


# -- an account is its payments ----------------------------------------------------------------------------------------


def sums(payments: Sequence[Payment], currency: str | None = None) -> dict[str | None, Sums]:
    """The sums of some payments by currency; the order's own `currency` comes first."""
    found: dict[str | None, Sums] = {currency: Sums(currency)} if payments else {}
    for payment in payments:
        for one in payment.sums():
            found[one.currency] = found.get(one.currency, Sums(one.currency)).plus(one)
    return {name: one for name, one in found.items() if any(one[1:])} or dict(list(found.items())[:1])


def add_up(totals: dict[str, Sums], more: Iterable[Sums]) -> None:
    """Add sums to others, by their currency ("": none)."""
    for one in more:
        name = one.currency or ""
        totals[name] = totals.get(name, Sums(one.currency)).plus(one)


def changes(before: Mapping[str | None, Sums], after: Mapping[str | None, Sums]) -> list[Sums]:
    """The differences between two sets of sums, by currency."""
    currencies = dict.fromkeys((*after, *before))  # a payment may be reported again, in another currency
    moved = (after.get(one, Sums(one)).plus(before.get(one, Sums(one)), -1) for one in currencies)
    return [one for one in moved if any(one[1:5])]


def differences(before: Sequence[PaymentRefund], after: Sequence[PaymentRefund]) -> list[PaymentRefund]:
    """The refunds that are new or have changed; a refund that has vanished is settled."""
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
