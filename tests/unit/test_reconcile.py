"""The provider's list beside the orders: each difference is a line with its cause, and what agrees is none."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from app.orders import Order, OrderState, Payment, PaymentRefund, Record, RefundState, Way
from app.payments.reconcile import Cause, Movement, MovementKind, reconcile
from app.payments.statement import StatementError, read

CHARGE, REFUND = MovementKind.CHARGE, MovementKind.REFUND


def order(*payments: Payment, number: str = "1-0") -> Order:
    """An order of 5 euros that has these payments."""
    record = Record(number, "s" * 32, OrderState.CONFIRMED, 1, "ann", price=500, currency="EUR", payments=payments)
    return Order("lamp", record, None, "i", 1, "b", 100.0)


def paid(*refunds: tuple[RefundState, int] | tuple[RefundState, int, Way]) -> Order:
    """An order that is paid, with such refunds."""
    given = (
        PaymentRefund(str(n), one[0], one[1], way=one[2] if len(one) > 2 else Way.NOTED)
        for n, one in enumerate(refunds)
    )
    return order(Payment("p", 500, "EUR", refunds=tuple(given)))


DUE, GIVEN = RefundState.DUE, RefundState.GIVEN
PAID = paid()
WHOLE = Payment("p", refunds=(PaymentRefund("0", GIVEN, None),))  # of an amount that nobody told
CHARGED = Movement("p", CHARGE, 500, "EUR", "ch_1")


@pytest.mark.parametrize(
    ("lines", "orders", "cause"),
    [
        ([CHARGED], [PAID], None),
        ([CHARGED], [order(Payment("p"))], None),  # nobody told the amount
        ([CHARGED, Movement("q", CHARGE, 700, "EUR")], [PAID], Cause.NO_ORDER),
        ([Movement("q", CHARGE, 700, "EUR"), Movement("q", REFUND, 700, "EUR")], [], None),
        ([], [PAID], Cause.NO_PAYMENT),
        ([CHARGED._replace(amount=499)], [PAID], Cause.AMOUNT),
        ([CHARGED._replace(currency="USD")], [PAID], Cause.CURRENCY),
        ([CHARGED, CHARGED._replace(name="ch_2")], [PAID], Cause.TWICE),
        ([CHARGED, CHARGED._replace(name="ch_2"), Movement("p", REFUND, 500, "EUR")], [PAID], None),
        ([CHARGED, CHARGED], [PAID], Cause.AMOUNT),
        ([CHARGED, Movement("p", REFUND, 200, "EUR")], [PAID], Cause.GIVEN_BACK_THERE),
        ([CHARGED, Movement("p", REFUND, 200, "EUR")], [paid((GIVEN, 200))], None),
        ([CHARGED], [paid((GIVEN, 500))], Cause.GIVEN_BACK_HERE),
        ([CHARGED], [order(WHOLE)], Cause.GIVEN_BACK_HERE),
        ([CHARGED, Movement("p", REFUND, 500, "EUR")], [order(WHOLE)], None),
        ([CHARGED._replace(amount=900), Movement("p", REFUND, 900, "EUR")], [order(WHOLE), order(Payment("p"))], None),
        ([CHARGED], [paid((GIVEN, 500, Way.ELSEWHERE))], None),  # of which the provider knows nothing
        ([CHARGED], [paid((DUE, 500))], None),
        ([CHARGED], [paid((RefundState.BOUNCED, 100), (RefundState.FAILED, 100))], None),
        ([CHARGED._replace(amount=1000)], [PAID, order(Payment("p", 500, "EUR"), number="2-0")], None),  # one for both
        ([CHARGED._replace(amount=1000)], [order(Payment("p")), PAID], None),  # and a part of it is not known
    ],
)
def test_each_difference_has_its_cause(lines: list[Movement], orders: list[Order], cause: Cause | None) -> None:
    """What agrees is no difference; what differs is one."""
    found = reconcile(lines, orders)
    assert [one.cause for one in found] == ([cause] if cause else [])
    assert all("lamp~" in str(one) or cause is Cause.NO_ORDER for one in found)


def test_what_is_older_than_the_list_is_no_difference() -> None:
    """The list begins at a moment: an order of before may have its charge there, or its refund only."""
    assert not reconcile([], [PAID], since=200.0)
    assert not reconcile([Movement("p", REFUND, 500, "EUR")], [PAID], since=200.0)
    assert reconcile([], [PAID], since=100.0)
    assert reconcile([CHARGED._replace(amount=499)], [PAID], since=200.0)
    for both in ([PAID, replace(PAID, sold_at=300.0)], [replace(PAID, sold_at=300.0), PAID]):
        assert not reconcile([], both, since=200.0)


def test_a_list_of_ours() -> None:
    """Amounts have the decimals of their currency; JSON Lines has whole numbers."""
    text = "payment_ref,kind,amount,currency\np,charge,499.00,eur\nq,refund,500,JPY\n"
    assert list(read(text.splitlines())) == [
        Movement("p", CHARGE, 49_900, "EUR", "line 2"),
        Movement("q", REFUND, 500, "JPY", "line 3"),
    ]
    line = '{"payment_ref": "p", "kind": "charge", "amount": 49900, "currency": "EUR", "name": "x", "at": 12}'
    assert list(read([line], json_lines=True)) == [Movement("p", CHARGE, 49_900, "EUR", "x", 12.0)]


def test_stripes_itemized_report() -> None:
    """Fees and payouts move no payment; what a refund took, and a failed one brought back, is less than 0 there."""
    head = "balance_transaction_id,created_utc,reporting_category,gross,currency,charge_id,payment_intent_id,source_id"
    rows = [
        "txn_1,2026-11-11 20:00:00,charge,499.00,eur,ch_1,pi_1,ch_1",
        "txn_2,2026-11-11 20:01:00,refund,-100.00,eur,ch_1,pi_1,re_1",
        "txn_3,2026-11-11 20:02:00,refund_failure,100.00,eur,ch_1,pi_1,re_1",
        "txn_4,2026-11-11 20:03:00,fee,-0.30,eur,,,",
        "txn_5,2026-11-11 20:03:00,dispute,-499.00,eur,ch_1,pi_1,dp_1",
        "txn_6,2026-11-11 20:04:00,charge_failure,-5.00,eur,py_1,pi_2,pyr_1",
    ]
    local = (f"2026-11-11 12:00:00,{row}" for row in rows)
    movements = list(read([f"created,{head}", *local]))
    assert movements[0].at == datetime(2026, 11, 11, 20, tzinfo=UTC).timestamp()
    found = [(one.kind, one.amount) for one in movements]
    back = [(REFUND, 10_000), (REFUND, -10_000), (MovementKind.DISPUTE, 49_900)]
    assert found == [(CHARGE, 49_900), *back, (CHARGE, -500)]


def test_stripes_report_of_an_account_in_another_currency() -> None:
    """The amounts are those that the buyer paid and got back; the signs are of those in the account's currency."""
    head = (
        "reporting_category,gross,currency,payment_intent_id,source_id,customer_facing_amount,customer_facing_currency"
    )
    rows = [
        "charge,459.08,eur,pi_1,ch_1,499.00,usd",
        "refund,-92.00,eur,pi_1,re_1,100.00,usd",
        "refund,-9.20,eur,pi_1,re_2,-10.00,usd",
        "refund_failure,9.20,eur,pi_1,re_2,10.00,usd",
        "dispute,-3.00,eur,pi_2,du_1,500,jpy",
        "dispute_reversal,3.00,eur,pi_2,du_1,-500,jpy",
        "charge,4.99,eur,pi_3,ch_3,,",
    ]
    dispute = MovementKind.DISPUTE
    assert [(one.kind, one.amount, one.currency) for one in read([head, *rows])] == [
        *((CHARGE, 49_900, "USD"), (REFUND, 10_000, "USD"), (REFUND, 1_000, "USD"), (REFUND, -1_000, "USD")),
        *((dispute, 500, "JPY"), (dispute, -500, "JPY"), (CHARGE, 499, "EUR")),
    ]
    with pytest.raises(StatementError, match="line 2: currency"):
        list(read([head, "charge,459.08,eur,pi_1,ch_1,499.00,dollars"]))


def test_what_was_never_captured_was_not_charged() -> None:
    """Stripe's report has all that was reserved, and then takes back what was released."""
    head = "reporting_category,gross,currency,charge_id,payment_intent_id,source_id"
    rows = ["charge,10.00,eur,ch_1,pi_1,ch_1", "partial_capture_reversal,-4.00,eur,ch_1,pi_1,re_1"]
    found = list(read([head, *rows]))
    assert [(one.kind, one.amount) for one in found] == [(CHARGE, 1_000), (CHARGE, -400)]
    assert not reconcile(found, [order(Payment("pi_1", 600))])
    assert [one.cause for one in reconcile(found, [order(Payment("pi_1", 500))])] == [Cause.AMOUNT]  # of one charge


def test_what_others_sell_is_left_out() -> None:
    """A report with the holds has no other product's payments, nor their refunds."""
    head = "reporting_category,gross,currency,payment_intent_id,source_id,payment_metadata[hold]"
    rows = ["charge,4.99,eur,pi_1,ch_1,lamp~1", "charge,9.00,eur,pi_2,ch_2,", "refund,-9.00,eur,pi_2,re_2,"]
    assert [one.payment_ref for one in read([head, *rows])] == ["pi_1"]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["a,b", "1,2"], "line 1: no column 'payment_ref'"),
        (["payment_ref,kind,amount,currency", "p,charge,4.999,EUR"], "line 2: amount"),
        (["payment_ref,kind,amount,currency", "p,charge,NaN,EUR"], "line 2: amount"),
        (["payment_ref,kind,amount,currency", "p,charge,9e999999,EUR"], "line 2: amount"),
        (["payment_ref,kind,amount,currency", "p,charge,1e14,EUR"], "line 2: amount"),
        (["payment_ref,kind,amount,currency", "p" * 200_000 + ",charge,4,EUR"], "line 2: field larger"),
        (["payment_ref,kind,amount,currency", "p\x07,charge,4,EUR"], "line 2: payment_ref"),
        (["payment_ref,kind,amount,currency", "p,gift,4,EUR"], "line 2: kind"),
        (["payment_ref,kind,amount,currency", ",charge,4,EUR"], "line 2: payment_ref"),
        (["payment_ref,kind,amount,currency,at", "p,charge,4,EUR,noon"], "line 2: at"),
    ],
)
def test_what_is_no_list_is_named(lines: list[str], why: str) -> None:
    """The error has the line and the field."""
    with pytest.raises(StatementError, match=why):
        list(read(lines))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[" * 100_000, "not an object"),
        ('{"payment_ref": ["p"], "kind": "charge", "amount": 4, "currency": "EUR"}', "payment_ref"),
        ('{"payment_ref": "p", "kind": "charge", "amount": 4, "currency": "EUR", "at": 1' + "0" * 400 + "}", "at"),
        ('{"payment_ref": "p", "kind": "charge", "amount": 4, "currency": "EUR", "at": NaN}', "at"),
        ('{"payment_ref": "p", "kind": "charge", "amount": true, "currency": "EUR"}', "amount"),
        ('{"payment_ref": "p", "kind": "charge", "amount": -1000000000000001, "currency": "EUR"}', "amount"),
    ],
)
def test_what_is_no_line_of_json_is_named(line: str, why: str) -> None:
    """Whatever is in it, it is an error of that line."""
    with pytest.raises(StatementError, match=f"line 1: {why}"):
        list(read([line], json_lines=True))


def test_a_report_without_some_columns_names_each_charge() -> None:
    """Two charges of a payment are two, also where the report does not name them."""
    head = "reporting_category,gross,currency,payment_intent_id"
    first, second = read([head, "charge,4.00,eur,pi_1", "charge,4.00,eur,pi_1"])
    assert first.name != second.name
    with pytest.raises(StatementError, match="line 2: currency"):
        list(read([head, "charge,4.00,,pi_1"]))
