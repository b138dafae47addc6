"""The effect of a report of money on its payment: pure functions.

A report settles before it adds. It is about the refund with its id, or its name. Without these it is about a known sum,
or a refund that is asked, failed or due: equal amounts first, then the oldest. Only the rest is new. A report that is
old, or known already, changes nothing. So the same facts make the same sums, in whichever order they come;
`lab.model.bank` is the oracle of that.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Final, NamedTuple, TypeAlias

from app.orders.account import OPEN, PROVIDER, Dispute, DisputeState, Payment, PaymentRefund, RefundState, Way, real

Names: TypeAlias = Callable[[], str]  # makes unique names of refunds
_AT_REST: Final = (RefundState.FAILED, RefundState.DUE)  # nobody is making these, so a part of one may be settled
_CLOCKS_S: Final = 60.0  # seconds by which the provider's clock and the store's may differ
_ADDED_UP: Final = 8  # refunds that may be among the parts of a sum
_OVERTAKEN: Final = "told before the refund"


class Given(NamedTuple):
    """A report of money that went back, or came back. Amounts are in the minor unit of `currency`."""

    amount: int | None = None  # of this refund
    so_far: int | None = None  # or of all refunds until `at`; if neither is there, all of the payment went back
    whole: bool = False  # all of the payment, in whichever currency the amount is
    currency: str | None = None  # None: the payment's
    id: str | None = None  # the provider's own name of the refund
    name: str | None = None  # ours, if the provider repeats it
    at: float | None = None  # by the provider's clock, in seconds since 1970
    by: str = ""
    way: Way = Way.PROVIDER
    units: int = 0  # of the order, if it is the price of some


# -- money that is owed ------------------------------------------------------------------------------------------------


def owe(payment: Payment, name: str, amount: int | None, *, by: str = "", why: str = "", units: int = 0) -> Payment:
    """The payment, owing this amount more (None: the rest); unchanged if that is 0."""
    if amount is None and payment.amount is not None:
        amount = payment.left
    if amount == 0:
        return payment
    return payment.having(PaymentRefund(name, RefundState.DUE, amount, by=by, why=why, units=units))


def _owe_less(payment: Payment, amount: int) -> Payment:
    """The payment, owing this amount less, the oldest refund first; a requested refund stays."""
    owed = [one for state in _AT_REST for one in payment.refunds if one.state is state and one.currency is None]
    for one in sorted(owed, key=lambda one: one.amount != amount):
        part = min(amount, one.amount or 0)
        payment, amount = _less(payment, one, part), amount - part
    return payment


def _owe_nothing(payment: Payment) -> Payment:
    return payment.without(*(one for one in payment.refunds if one.state in _AT_REST))


# -- money that went back ----------------------------------------------------------------------------------------------


def give(payment: Payment, given: Given, fresh: Names) -> Payment:  # noqa: PLR0911 - a case each
    """The payment after a report of money that went back."""
    if is_foreign(payment, given.currency):
        if not given.whole and (given.amount is not None or given.so_far is not None):
            return _give_foreign(payment, given, fresh)
        given = given._replace(currency=None, amount=None, so_far=None)
    known = payment.find(given.name, given.id)
    if known is not None and _is_sum(known) and given.amount not in (None, known.amount):
        # A sum of several refunds has settled it.
        payment = payment.without(known).having(known._replace(name=fresh()))
        return _give_named(payment, known._replace(at=None, amount=given.amount), given, fresh)
    if known is not None and known.state in OPEN and given.way is Way.ELSEWHERE:
        # Money that went elsewhere settles no refund that the provider may be about to make.
        amount = known.amount if given.amount is None else given.amount
        part = known.amount or 0 if amount is None else amount
        after = payment.without(known) if known.amount is None or part >= known.amount else _less(payment, known, part)
        return after.having(_as_given(PaymentRefund(fresh()), given, amount))
    if known is not None and known.state not in OPEN:
        return payment if None not in (known.id, given.id) else payment.having(known._replace(id=known.id or given.id))
    if known is not None:
        return _give_named(payment, known, given, fresh)
    if given.amount is None:
        return _give_so_far(payment, given, fresh)
    return _give_sum(payment, given, given.amount, fresh)


def _give_named(payment: Payment, known: PaymentRefund, given: Given, fresh: Names) -> Payment:
    """An owed refund is given under its name; if less was given, the rest stays due under another name."""
    amount = known.amount if given.amount is None else given.amount
    since = None if known.at is None else known.at - _CLOCKS_S
    after = _out_of_sum(payment, amount or 0, since)[0].having(_as_given(known, given, amount))
    if known.amount is None:  # all that was left
        return _owe_nothing(after)
    if amount is None or amount >= known.amount:
        return after
    return after.having(PaymentRefund(fresh(), amount=known.amount - amount, by=known.by, why=known.why))


def _give_so_far(payment: Payment, given: Given, fresh: Names) -> Payment:
    """A sum of all refunds until a moment: the part beyond the known refunds is new."""
    if given.so_far is None and given.way is not Way.PROVIDER:  # a person's "all" is in every currency
        for one in payment.open:
            if one.currency is not None:
                payment = payment.having(_as_given(one, given._replace(id=None), one.amount))
    total = payment.amount if given.so_far is None else given.so_far
    bounced = [one for one in payment.refunds if _may_be_in(one, given.at)] if given.way is Way.PROVIDER else []
    if total is None:  # all of a payment whose amount was never reported
        if payment.given_whole or bounced:
            return payment
        first = next(iter(payment.open), PaymentRefund(given.name or fresh()))
        return payment.without(*payment.open).having(_as_given(first, given, None))
    known = payment.given_back + sum(one.amount or 0 for one in bounced)
    if given.so_far is not None:  # which leaves out money that went back in another way
        known -= payment.given_elsewhere + payment.lost
    more = total - known
    if more > 0 and given.so_far is None and not any(one.amount == more for one in payment.open):
        for one in payment.open:  # all of the payment: each owed refund, and then the rest
            as_one = given.way is Way.NOTED and one.state in _AT_REST
            if one.amount is not None and one.amount <= more and not as_one:
                payment = payment.having(_as_given(one, given._replace(id=None), one.amount))
                more -= one.amount
    return _settle(payment, given, more, fresh) if more > 0 else payment


def _give_sum(payment: Payment, given: Given, amount: int, fresh: Names) -> Payment:
    """One refund, whose name nobody knows yet."""
    alike = _adding_up([one for one in payment.refunds if _may_be(one, given)], amount)
    if alike and alike[0].state is RefundState.BOUNCED:
        return payment.having(alike[0]._replace(why=""))
    if alike and given.way is Way.NOTED:
        for one in alike:  # which an operator may have noted as one refund
            payment = payment.having(one._replace(way=Way.NOTED, units=given.units or one.units))
        return payment
    if alike:  # which an operator may have noted in parts
        one = alike[0]
        own = one._replace(id=one.id or given.id, at=given.at or one.at, units=given.units or one.units)
        return payment.without(*alike[1:]).having(own._replace(amount=amount, way=given.way))
    after, of_sum = _out_of_sum(payment, amount) if given.id is not None else (payment, 0)
    if not of_sum and given.id is not None and given.way is Way.PROVIDER:
        noted = (one for one in payment.refunds if one.way is Way.NOTED and one.id is None and one.currency is None)
        if larger := next((one for one in noted if one.amount is not None and one.amount > amount), None):
            # An operator may have noted several refunds as one: the rest of that is a sum.
            after, of_sum = _less(payment, larger._replace(way=Way.PROVIDER, by=PROVIDER), amount), amount
    if not of_sum:
        return _settle(payment, given, amount, fresh)
    new = PaymentRefund(_name(payment, given, fresh))
    return _owe_less(after, amount - of_sum).having(_as_given(new, given, amount))


def _may_be(one: PaymentRefund, given: Given) -> bool:
    """Whether a known refund may be the one that is reported without a name of ours."""
    if one.currency is not None or Way.ELSEWHERE in (given.way, one.way):
        return False
    match one.state:
        case RefundState.GIVEN if given.way is Way.NOTED:  # the provider was quicker than the operator
            return one.way is Way.PROVIDER and one.by == PROVIDER
        case RefundState.GIVEN:
            return one.id is None and (one.way is Way.NOTED or _is_sum(one))
        case RefundState.BOUNCED:  # this notice was overtaken by the notice of the refund's failure
            return one.id is None and one.why == _OVERTAKEN and given.way is Way.PROVIDER
    return False


def _out_of_sum(payment: Payment, amount: int, since: float | None = None) -> tuple[Payment, int]:
    """The payment without this refund's part in sums of several, and that part.

    `since`: sums that were reported before this are of others.
    """
    more = amount
    for one in payment.refunds:
        if _is_sum(one) and (None in (one.at, since) or (one.at or 0) >= (since or 0)):
            part = min(more, one.amount or 0)
            payment, more = _less(payment, one, part), more - part
    return payment, amount - more


def _settle(payment: Payment, given: Given, amount: int, fresh: Names) -> Payment:
    """So much went back: an owed refund is settled, or a new one made."""
    owed = sorted((one for one in payment.open if one.currency is None), key=lambda one: OPEN.index(one.state))
    some = _adding_up(owed, amount, 1 if given.id is not None else _ADDED_UP)
    as_one = given.way is Way.NOTED and len(some) > 1 and all(one.state in _AT_REST for one in some)
    if some and given.way is not Way.ELSEWHERE and not as_one:
        for one in some:
            payment = payment.having(_as_given(one, given, one.amount))
        return payment
    after = payment.without(*some) if some else _owe_less(payment, amount)
    return after.having(_as_given(PaymentRefund(_name(payment, given, fresh)), given, amount))


def _give_foreign(payment: Payment, given: Given, fresh: Names) -> Payment:
    """An amount in another currency than the payment's: it can't be compared, and stays in its own."""
    alike = [one for one in payment.refunds if one.currency == given.currency]
    before = sum(one.amount or 0 for one in alike if one.state is RefundState.GIVEN or _may_be_in(one, given.at))
    amount = given.amount if given.amount is not None else max(0, (given.so_far or 0) - before)
    known = payment.find(given.name, given.id)
    if not amount or (known is not None and known.state not in OPEN):
        return payment
    owed = known or next((one for one in alike if one.state in OPEN and one.amount == amount), None)
    if owed is not None and owed.currency is None:  # found by its name: it is the whole refund
        return payment.having(_as_given(owed, given, owed.amount))
    new = owed or PaymentRefund(_name(payment, given, fresh), currency=given.currency)
    return payment.having(_as_given(new, given, amount))


# -- money that came back, or was not given ----------------------------------------------------------------------------


def fail(payment: Payment, told: Given, why: str, fresh: Names) -> Payment:
    """The payment after a refund was refused, or came back: it is owed, and an operator has to look."""
    known = payment.find(told.name, told.id)
    if told.by != PROVIDER and told.id is None and (known is None or known.state is not RefundState.ASKED):
        return payment  # it was settled meanwhile
    found = [known] if known is not None else list(_which_failed(payment, told))
    if told.amount is not None and found[1:]:  # one refund, which an operator noted in parts
        found = [found[0]._replace(amount=told.amount), *found[1:]]
        payment = payment.without(*found[1:]).having(found[0])
        del found[1:]
    if not found and (told.amount is not None or told.id is not None):  # it was reported before the refund itself
        amount = told.amount if told.amount is not None else payment.amount
        currency = told.currency if is_foreign(payment, told.currency) else None
        new = PaymentRefund(_name(payment, told, fresh), RefundState.GIVEN, amount, told.id, why=_OVERTAKEN)
        found = [new._replace(currency=currency)]
        if told.id is not None and currency is None:
            payment = _out_of_sum(payment, amount or 0)[0]
        payment = payment.having(found[0])
        if told.name is not None:  # a request that a restore has lost: it owes nothing
            return _fail(payment, found[0], told, why, fresh, owes=False)
    for one in found:
        payment = _fail(payment, one, told, why, fresh)
    return payment


def _which_failed(payment: Payment, told: Given) -> Iterator[PaymentRefund]:
    """The refunds that may have failed, if the report names none: the last of that amount, or of a larger one."""
    currency = told.currency if is_foreign(payment, told.currency) else None
    mine = [one for one in payment.refunds if one.currency == currency and one.way is not Way.ELSEWHERE]
    asked = [one for one in mine if one.state is RefundState.ASKED and told.id is None]
    given = [one for one in reversed(mine) if one.state is RefundState.GIVEN and None in (told.id, real(one.id))]
    given = [one for one in given if None in (one.at, told.at) or (one.at or 0) <= (told.at or 0)]
    if told.amount is None:
        yield from asked[:1] or given
        return
    noted = [one for one in given if one.way is Way.NOTED]
    alike = [one for one in (*given, *asked) if one.amount == told.amount][:1] or _adding_up(noted, told.amount)
    yield from alike or [one for one in given if _is_sum(one) and (one.amount or 0) > told.amount][:1]


def _fail(payment: Payment, one: PaymentRefund, told: Given, why: str, fresh: Names, *, owes: bool = True) -> Payment:
    alike = is_foreign(payment, told.currency) == (one.currency is not None)
    part = one.amount if None in (told.amount, one.amount) or not alike else min(told.amount or 0, one.amount or 0)
    if one.state not in (RefundState.GIVEN, RefundState.ASKED, RefundState.DUE):
        return payment
    if one.state is RefundState.GIVEN or told.id is not None or told.by == PROVIDER:
        # The provider has made it, which is remembered; it may be a part of a reported sum.
        name = one.name if part == one.amount else _name(payment, told, fresh)
        overtaken = one.why == _OVERTAKEN or one.way is Way.NOTED
        gone = one._replace(name=name, amount=part, state=RefundState.BOUNCED, id=told.id or one.id, at=told.at)
        after = _less(payment, one, part or 0) if part != one.amount else payment
        after = after.having(gone._replace(why=_OVERTAKEN if overtaken else why, way=Way.PROVIDER))
        one = one._replace(name=fresh(), id=None, at=None, way=Way.PROVIDER)
    else:
        after = payment.without(one)
    owed = part if payment.amount is None or one.currency is not None else min(part or 0, after.left)
    if owed == 0 or not owes:
        return after
    return after.having(one._replace(state=RefundState.FAILED, amount=owed, why=why, by=told.by))


def dispute(payment: Payment, told: Dispute) -> Payment:
    """The payment after a report of a dispute: an end is final, and a loss is money that went back."""
    own = [one for one in payment.disputes if one.name == told.name]
    if told.state is DisputeState.OPEN:
        return payment if own else payment._replace(disputes=(*payment.disputes, told))
    if own and own[0].state is not DisputeState.OPEN:
        return payment
    # A report without an id may be about any open refund; one with an id is about any refund without one, which gets
    # it.
    unnamed = [
        one for one in payment.disputes if one.state is DisputeState.OPEN and None in map(real, (told.name, one.name))
    ]
    over = own or unnamed or [told]
    if told.amount is not None and not over[1:]:
        over = [over[0]._replace(amount=told.amount)]
    left = None if payment.amount is None else max(0, payment.amount - payment.given_back)
    amounts = [left if one.amount is None and told.state is DisputeState.LOST else one.amount for one in over]
    names = {one.name for one in over}
    ended = [one._replace(state=told.state, amount=amount) for one, amount in zip(over, amounts, strict=True)]
    if len(ended) == 1 and real(told.name) is not None:
        ended = [ended[0]._replace(name=told.name)]
    kept = (one for one in payment.disputes if one.name not in names)
    after = payment._replace(disputes=(*kept, *ended))
    if told.state is DisputeState.WON:
        return after
    return _owe_nothing(after) if None in amounts else _owe_less(after, sum(one or 0 for one in amounts))


# -- small parts -------------------------------------------------------------------------------------------------------


def is_foreign(payment: Payment, currency: str | None) -> bool:
    """Whether an amount is in another currency than the payment's."""
    return None not in (currency, payment.currency) and currency != payment.currency


def _name(payment: Payment, told: Given, fresh: Names) -> str:
    """The name for a new refund: ours, or else the provider's, if no refund here has it."""
    taken = {one.name for one in payment.refunds}
    return next((name for name in (told.name, told.id) if name is not None and name not in taken), None) or fresh()


def _less(payment: Payment, one: PaymentRefund, amount: int) -> Payment:
    if not amount or one.amount is None:  # None, which means the rest of the payment, stays None
        return payment
    rest = one.amount - amount
    return payment.having(one._replace(amount=rest)) if rest else payment.without(one)


def _as_given(one: PaymentRefund, given: Given, amount: int | None) -> PaymentRefund:
    told = one._replace(state=RefundState.GIVEN, amount=amount, id=given.id, way=given.way, at=given.at)
    return told._replace(by=given.by, why="", units=given.units or one.units)


def _adding_up(those: Sequence[PaymentRefund], amount: int, most: int = _ADDED_UP) -> Sequence[PaymentRefund]:
    """The fewest of these refunds that add up to an amount, earlier ones preferred; empty if no small number does."""
    few = those[:_ADDED_UP]
    some = (chosen for count in range(1, min(most, len(few)) + 1) for chosen in combinations(few, count))
    return next((chosen for chosen in some if sum(one.amount or 0 for one in chosen) == amount), ())


def _is_sum(one: PaymentRefund) -> bool:
    """Whether it is known only from a provider's sum, which may be of several refunds, or of another one."""
    told = one.state is RefundState.GIVEN and one.way is Way.PROVIDER and one.by == PROVIDER
    return told and one.id is None and one.currency is None


def _may_be_in(one: PaymentRefund, at: float | None) -> bool:
    """Whether a refund that came back may be in a sum of this moment."""
    return one.state is RefundState.BOUNCED and (None in (one.at, at) or (one.at or 0) >= (at or 0))
