"""The judge against forged histories: one that is right, and one for each thing that it must not let pass."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.torture.history import (
    Attempt,
    Belief,
    Count,
    End,
    Fault,
    History,
    Item,
    Left,
    Look,
    Recorder,
    Restock,
    Setup,
    SoldOrder,
    load,
    parse,
)
from lab.torture.judge import judge
from lab.torture.picture import draw


def attempt(
    key: str,
    outcome: str | None,
    *,
    at: float = 1.0,
    status: int = 200,
    quantity: int = 1,
    sku: str = "default",
    keyless: bool = False,
) -> Attempt:
    sold = outcome == "sold"
    return Attempt(
        wish=key,
        key=None if keyless else key,
        sku=sku,
        buyer=f"buyer of {key}",
        quantity=quantity,
        instance="one",
        sent_at=at - 0.1,
        done_at=at,
        status=status,
        outcome=outcome,
        granted=quantity if outcome else None,
        order=f"order of {key}" if sold else None,
        retry_after="1" if status == 503 else None,
    )


def order(key: str, *, token: int = 1, instance: str = "one", quantity: int = 1) -> SoldOrder:
    return SoldOrder(f"order of {key}", quantity, f"buyer of {key}", key, instance, token, f"batch {token}")


KEYLESS = SoldOrder("order of k", 1, "buyer of k", None, "one", 5, "batch 5")
MUGS = SoldOrder("order of m", 2, "buyer of m", "m", "one", 6, "batch 6", "mug")
PROMISES = ("fair", "fencing", "survives_silence", "survives_restart", "survives_cut", "everybody")
SALE = "/seckill/lock/all"


def history() -> History:
    """Of three units a, b and c got one each (b was told twice, c after a 503 and a lost answer); d was refused.

    Then a fourth one was added, which k got, who has no key. Of the mugs m got two, and was refused a third.
    """
    items = (Item("default", 3), Item("mug", 5, limit=2))
    made = History(Setup(items, 2, 2.0, 4.0, "etcd", "redis", "fence", 1, ("pause",), PROMISES))
    made.attempts = [
        attempt("a", "sold", at=1.0),
        attempt("b", "sold", at=1.5),
        replace(attempt("b", "sold", at=2.0), replayed=True),
        attempt("c", None, at=3.0, status=503),
        replace(attempt("c", None, at=4.0, status=0), instance="two"),
        replace(attempt("c", "sold", at=5.0), replayed=True),
        attempt("d", "sold_out", at=6.0),
        attempt("k", "sold", at=8.0, keyless=True),
        attempt("m", "sold", at=8.2, quantity=2, sku="mug"),
        replace(attempt("n", "limit_reached", at=8.4, sku="mug"), buyer="buyer of m"),
    ]
    made.looks = [Look(0.4, 0.5, 3, 0), Look(1.6, 1.7, 1, 2), Look(6.9, 7.0, 0, 3), Look(8.5, 8.6, 0, 4)]
    made.restocks = [Restock(7.2, 7.4, 1)]
    made.beliefs = [
        Belief("one", SALE, 1, 0.9, 1.6),
        Belief("one", SALE, 2, 2.1, 4.2, lost=True),
        Belief("two", SALE, 4, 4.3, 4.9),
        Belief("one", SALE, 5, 7.9, 8.3),
        Belief("one", "/long", 9, 9.5, 12.5),
    ]
    made.counts = [Count(2.0, 4.0, "one", "fenced_writes_total", 1)]
    made.faults = [Fault("pause", "one", True, 2.0, 5.0, 2.0, 8.45)]
    orders = (order("a", token=1), order("b", token=1), order("c", token=4, instance="two"), KEYLESS, MUGS)
    made.end = End((Left(0, 4, 4), Left(3, 2, 5, "mug")), orders)
    return made


def verdicts(made: History) -> dict[str, tuple[str, ...]]:
    """The violations of each promise that was not kept."""
    return {finding.promise: finding.violations for finding in judge(made) if not finding.holds}


def test_a_good_history_is_let_pass() -> None:
    """All promises are kept."""
    assert verdicts(history()) == {}


Forgery = Callable[[History], None]


def at_end(made: History) -> End:
    assert made.end is not None
    return made.end


def left(made: History, **changes: int) -> None:
    default, *others = at_end(made).left
    made.end = replace(at_end(made), left=(replace(default, **changes), *others))


def with_more_units(made: History, units: int) -> None:
    """So many from the beginning that some are left at the end, and that nobody has looked."""
    default, *others = made.setup.items
    made.setup = replace(made.setup, items=(replace(default, initial=default.initial + units), *others))
    made.looks = []
    left(made, stock=units, initial=4 + units)


def a_look_that_does_not_add_up(made: History) -> None:
    made.looks[1] = Look(1.6, 1.7, 1, 1)


def a_negative_stock(made: History) -> None:
    made.looks[1] = Look(1.6, 1.7, -1, 4)


def sales_undone(made: History) -> None:
    made.looks.append(Look(7.9, 8.0, 2, 1))


def an_end_that_does_not_add_up(made: History) -> None:
    left(made, stock=1)


def another_beginning(made: History) -> None:
    left(made, initial=5)


def lucky_without_an_order(made: History) -> None:
    made.end = replace(at_end(made), orders=(*at_end(made).orders[:2], KEYLESS, MUGS))
    made.attempts = [one for one in made.attempts if one.key != "c"]


def oversold(made: History) -> None:
    made.attempts.append(attempt("e", "sold"))
    made.end = replace(at_end(made), orders=(*at_end(made).orders, order("e", token=9)))
    left(made, lucky=5)


def two_orders_for_a_key(made: History) -> None:
    again = replace(order("c", token=9), id="another")
    made.end = replace(at_end(made), orders=(*at_end(made).orders, again))


def an_order_that_is_there_twice(made: History) -> None:
    made.end = replace(at_end(made), orders=(*at_end(made).orders, at_end(made).orders[-1]))


def refused_what_was_there(made: History) -> None:
    with_more_units(made, 1)
    made.restocks = [replace(made.restocks[0], asked_at=5.0, done_at=5.1)]


def refused_three_when_three_were_left(made: History) -> None:
    with_more_units(made, 4)
    made.attempts[6] = attempt("d", "sold_out", at=6.0, quantity=3)


def nobody_was_refused(made: History) -> None:
    with_more_units(made, 1)
    made.attempts.pop(6)


def told_sold_without_an_order(made: History) -> None:
    made.attempts.append(attempt("e", "sold"))


def told_another_order(made: History) -> None:
    made.attempts[2] = replace(made.attempts[2], order="order of a")


def told_sold_then_sold_out(made: History) -> None:
    made.attempts[2] = attempt("b", "sold_out", at=2.0)


def refused_and_has_an_order(made: History) -> None:
    made.attempts = [one for one in made.attempts if one.key != "a"] + [attempt("a", "sold_out")]


def told_another_quantity(made: History) -> None:
    made.attempts[0] = attempt("a", "sold", quantity=2)


def an_order_that_nobody_asked_for(made: History) -> None:
    made.attempts = [one for one in made.attempts if one.key != "a"]


def an_order_without_a_key(made: History) -> None:
    orders = at_end(made).orders
    made.end = replace(at_end(made), orders=(replace(orders[0], key=None), *orders[1:]))


def an_order_of_somebody_else(made: History) -> None:
    orders = at_end(made).orders
    made.end = replace(at_end(made), orders=(replace(orders[0], buyer="mallory"), *orders[1:]))


def a_token_that_went_back(made: History) -> None:
    made.end = replace(
        at_end(made), orders=(order("a", token=2), order("b", token=1), order("c", token=4), KEYLESS, MUGS)
    )


def a_grant_of_two_instances(made: History) -> None:
    made.end = replace(
        at_end(made), orders=(order("a"), order("b", instance="two"), order("c", token=4), KEYLESS, MUGS)
    )


def an_order_without_a_grant(made: History) -> None:
    made.end = replace(at_end(made), orders=(order("a", token=0), order("b"), order("c", token=4), KEYLESS, MUGS))


def a_key_left_in_the_queue(made: History) -> None:
    made.end = replace(at_end(made), queue=("/seckill/lock/default/1",))


def a_lease_left(made: History) -> None:
    made.end = replace(at_end(made), leases=("1",))


def an_internal_error(made: History) -> None:
    made.attempts.insert(0, attempt("a", None, status=500))


def a_503_that_says_not_when(made: History) -> None:
    made.attempts[3] = replace(made.attempts[3], retry_after=None)


def a_buyer_who_was_never_told(made: History) -> None:
    made.attempts.append(attempt("e", None, status=0))


def silence_after_a_fault(made: History) -> None:
    made.faults = [Fault("pause", "one", True, 6.0, 6.5, 6.0, 14.0)]


def silence_that_ends_after_the_watch(made: History) -> None:
    made.attempts.append(attempt("e", "sold_out", at=60.0))


def silence_over_several_faults(made: History) -> None:
    times = (6.0, 9.0, 12.0)
    made.faults = [Fault("pause", "one", True, at, at + 0.1, at, at + 3.0) for at in times]
    made.attempts.append(attempt("e", "sold_out", at=15.0))


def silence_of_one_item(made: History) -> None:
    made.attempts += [attempt(f"e{n}", "sold_out", at=8.5 + n) for n in range(1, 8)]
    made.faults = [Fault("pause", "one", True, 9.0, 9.1, 9.0, 14.0)]


def an_item_that_nobody_gets(made: History) -> None:
    made.attempts.append(attempt("e", None, at=1.0, status=503, sku="cup"))
    made.attempts.append(attempt("e", "sold_out", at=8.4, sku="cup"))


def an_instance_that_stays_silent(made: History) -> None:
    made.attempts += [replace(attempt("e", None, at=5.0 + n, status=503), instance="two") for n in range(1, 8)]
    made.attempts += [attempt("e", "sold_out", at=5.0 + n) for n in range(1, 8)]
    made.faults = [Fault("pause", "one", True, 2.0, 5.0, 2.0, 11.0)]


def refused_what_was_sold_later(made: History) -> None:
    made.attempts.append(attempt("e", "sold_out", at=0.6))


def said_before_it_was_so(made: History) -> None:
    made.looks[1] = Look(1.6, 1.7, 2, 1)


def another_outcome(made: History) -> None:
    made.attempts[6] = replace(made.attempts[6], outcome="perhaps")


def an_answer_about_another_quantity(made: History) -> None:
    made.attempts[0] = replace(made.attempts[0], granted=2)


def told_nothing_was_sold_but_it_was(made: History) -> None:
    made.attempts.pop(4)  # now all that c was told before is a 503


def told_twice_as_if_anew(made: History) -> None:
    made.attempts[2] = replace(made.attempts[2], replayed=False)


def told_again_at_the_first_time(made: History) -> None:
    made.attempts[0] = replace(made.attempts[0], replayed=True)


def an_instance_that_was_not_asked(made: History) -> None:
    orders = at_end(made).orders
    made.end = replace(at_end(made), orders=(*orders[:2], replace(orders[2], instance="three"), KEYLESS, MUGS))


def a_batch_of_two_grants(made: History) -> None:
    orders = at_end(made).orders
    made.end = replace(at_end(made), orders=(*orders[:2], replace(orders[2], batch=orders[1].batch), KEYLESS, MUGS))


def fenced_off_in_peace(made: History) -> None:
    made.counts.append(Count(9.5, 9.7, "one", "fenced_writes_total", 1))


def no_faults(made: History) -> None:
    made.faults = []


def faults_that_missed(made: History) -> None:
    made.faults = [replace(made.faults[0], struck=False)]


def nobody_looked(made: History) -> None:
    made.looks = []


def late_commits_that_nobody_noticed(made: History) -> None:
    made.counts = []


def nothing_sold(made: History) -> None:
    made.attempts = made.attempts[6:7]
    made.end = replace(at_end(made), orders=())


def units_from_nowhere(made: History) -> None:
    made.restocks = []


def more_than_the_limit(made: History) -> None:
    again = replace(MUGS, id="another", key="n", quantity=1)
    made.end = replace(at_end(made), orders=(*at_end(made).orders, again))


def refused_below_the_limit(made: History) -> None:
    made.attempts[-1] = replace(made.attempts[-1], buyer="buyer of x")


def a_purchase_without_a_key_that_was_written_twice(made: History) -> None:
    made.end = replace(at_end(made), orders=(*at_end(made).orders, replace(KEYLESS, id="another")))
    left(made, lucky=5, initial=5)
    made.restocks = [replace(made.restocks[0], added=2)]


def refused_without_a_key_and_sold(made: History) -> None:
    made.attempts[7] = attempt("k", None, at=8.0, status=503, keyless=True)


def sold_out_and_then_sold_of_nothing(made: History) -> None:
    made.attempts.append(attempt("d", "sold", at=6.8))


def two_owners_at_once(made: History) -> None:
    made.beliefs[2] = replace(made.beliefs[2], since=4.1)


def a_lost_grant_that_was_believed_in(made: History) -> None:
    made.beliefs[1] = replace(made.beliefs[1], lost=False, until=5.0)


def an_owner_for_ever(made: History) -> None:
    made.beliefs[0] = replace(made.beliefs[0], until=9.0)


def a_token_that_does_not_grow(made: History) -> None:
    made.beliefs[2] = replace(made.beliefs[2], token=2)


def a_grant_lost_in_peace(made: History) -> None:
    made.beliefs[-1] = replace(made.beliefs[-1], lost=True, until=11.6)


def no_long_hold(made: History) -> None:
    made.beliefs.pop()


def a_connection_cut_in_peace(made: History) -> None:
    cut = replace(attempt("k", None, at=1.0, status=0, keyless=True), error="ReadError")
    made.attempts.insert(0, cut)


def a_long_wait_in_peace(made: History) -> None:
    made.attempts.append(attempt("e", None, at=9.2, status=503))
    made.attempts.append(attempt("e", "sold_out", at=12.0))


def nobody_asked_again(made: History) -> None:
    made.attempts.pop(2)


def another_fault_that_was_asked_for(made: History) -> None:
    made.setup = replace(made.setup, nemeses=("pause", "kill"))


@pytest.mark.parametrize(
    ("forgery", "promise"),
    [
        (a_look_that_does_not_add_up, "stock + lucky"),
        (a_negative_stock, "stock + lucky"),
        (sales_undone, "stock + lucky"),
        (an_end_that_does_not_add_up, "stock + lucky"),
        (another_beginning, "stock + lucky"),
        (lucky_without_an_order, "add up to"),
        (oversold, "add up to"),
        (two_orders_for_a_key, "add up to"),
        (an_order_that_is_there_twice, "add up to"),
        (refused_what_was_there, "left unsold"),
        (refused_three_when_three_were_left, "left unsold"),
        (nobody_was_refused, "left unsold"),
        (told_sold_without_an_order, "has that order"),
        (told_another_order, "has that order"),
        (told_sold_then_sold_out, "no answer was untrue"),
        (refused_and_has_an_order, "has that order"),
        (told_another_quantity, "has that order"),
        (an_order_that_nobody_asked_for, "without a request"),
        (an_order_without_a_key, "without a request"),
        (an_order_of_somebody_else, "without a request"),
        (a_token_that_went_back, "never decrease"),
        (a_grant_of_two_instances, "an order has a grant"),
        (an_order_without_a_grant, "an order has a grant"),
        (a_key_left_in_the_queue, "nothing is left in"),
        (a_lease_left, "nothing is left in"),
        (an_internal_error, "answers are"),
        (a_503_that_says_not_when, "answers are"),
        (a_buyer_who_was_never_told, "answers are"),
        (silence_after_a_fault, "sales go on"),
        (silence_that_ends_after_the_watch, "sales go on"),
        (silence_over_several_faults, "sales go on"),
        (silence_of_one_item, "sales go on"),
        (an_item_that_nobody_gets, "sales go on"),
        (an_instance_that_stays_silent, "each sells again"),
        (refused_what_was_sold_later, "left unsold"),
        (said_before_it_was_so, "what is seen"),
        (another_outcome, "answers are"),
        (an_answer_about_another_quantity, "answers are"),
        (told_nothing_was_sold_but_it_was, "no answer was untrue"),
        (told_twice_as_if_anew, "no answer was untrue"),
        (told_again_at_the_first_time, "no answer was untrue"),
        (an_instance_that_was_not_asked, "without a request"),
        (a_batch_of_two_grants, "an order has a grant"),
        (fenced_off_in_peace, "nobody is fenced off"),
        (no_faults, "a test of all this"),
        (faults_that_missed, "a test of all this"),
        (nobody_looked, "a test of all this"),
        (late_commits_that_nobody_noticed, "a test of all this"),
        (nothing_sold, "a test of all this"),
        (units_from_nowhere, "stock + lucky"),
        (more_than_the_limit, "more than the limit"),
        (refused_below_the_limit, "more than the limit"),
        (a_purchase_without_a_key_that_was_written_twice, "has that order"),
        (refused_without_a_key_and_sold, "has that order"),
        (sold_out_and_then_sold_of_nothing, "has that order"),
        (two_owners_at_once, "two never believe"),
        (a_lost_grant_that_was_believed_in, "two never believe"),
        (an_owner_for_ever, "two never believe"),
        (a_token_that_does_not_grow, "token is higher"),
        (a_grant_lost_in_peace, "nobody loses a lock"),
        (no_long_hold, "a test of all this"),
        (a_connection_cut_in_peace, "no connection is cut"),
        (a_long_wait_in_peace, "nobody waits"),
        (nobody_asked_again, "a test of all this"),
        (another_fault_that_was_asked_for, "a test of all this"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_forged_history_is_rejected(forgery: Forgery, promise: str) -> None:
    """Each forgery breaks the promise that it is about, and the judge says so."""
    made = history()
    forgery(made)
    assert [name for name in verdicts(made) if promise in name], verdicts(made)


OLDER = Fault("lock-older", "all of its servers", True, 5.5, 7.7, 7.7, 8.45, hit_at=7.0)


def older_tokens(made: History) -> None:
    """As the copy knew only one token, 2 and 3 are given again; the operator has unfenced the item before."""
    made.beliefs[3] = replace(made.beliefs[3], token=3)
    *before, _, mugs = at_end(made).orders
    made.end = replace(at_end(made), orders=(*before, replace(KEYLESS, token=3, batch="batch 3", epoch=1), mugs))


def a_token_that_was_given_again(made: History) -> None:
    """Of the last grant before and of one after, to another instance; what it sold was never sold before."""
    made.beliefs.append(Belief("one", SALE, 4, 8.35, 8.4))
    *before, mugs = at_end(made).orders
    made.end = replace(at_end(made), orders=(*before, replace(mugs, token=4, batch="another")))
    made.beliefs[3] = replace(made.beliefs[3], token=3)
    older_tokens(made)


def a_grant_that_was_forgotten(made: History) -> None:
    """Its holder hears of it at the deadline."""
    made.beliefs[2] = replace(made.beliefs[2], until=8.9, lost=True)


def a_grant_that_was_forgotten_and_renewed(made: History) -> None:
    made.beliefs[2] = replace(made.beliefs[2], until=9.1, lost=True)


def older_tokens_twice(made: History) -> None:
    made.beliefs += [Belief("two", SALE, 2, 8.31, 8.32)]
    older_tokens(made)


def unfenced_twice(made: History) -> None:
    older_tokens(made)
    *before, mugs = at_end(made).orders
    made.end = replace(at_end(made), orders=(*before, replace(mugs, epoch=2)))


def older_tokens_without_a_word(made: History) -> None:
    older_tokens(made)
    *before, keyless, mugs = at_end(made).orders
    made.end = replace(at_end(made), orders=(*before, replace(keyless, epoch=0), mugs))


def a_token_of_two_that_was_given_once(made: History) -> None:
    a_token_that_was_given_again(made)
    made.beliefs.pop()


@pytest.mark.parametrize(
    ("consequence", "promises"),
    [
        (older_tokens, ("never decrease", "token is higher")),
        (a_token_that_was_given_again, ("an order has a grant",)),
        (a_grant_that_was_forgotten, ("two never believe",)),
    ],
)
def test_a_lock_that_came_back_older_explains_what_it_must(consequence: Forgery, promises: tuple[str, ...]) -> None:
    """Tokens that are given again and a grant that is forgotten, but only if that is what has happened."""
    made = history()
    consequence(made)
    assert all(any(promise in name for name in verdicts(made)) for promise in promises), verdicts(made)
    made.faults.append(OLDER)
    assert verdicts(made) == {}


@pytest.mark.parametrize(
    ("forgery", "promise"),
    [
        (a_token_that_does_not_grow, "token is higher"),
        (a_token_that_went_back, "never decrease"),
        (two_owners_at_once, "two never believe"),
        (older_tokens_twice, "token is higher"),
        (older_tokens_without_a_word, "never decrease"),
        (unfenced_twice, "never decrease"),
        (a_grant_that_was_forgotten_and_renewed, "two never believe"),
        (a_token_of_two_that_was_given_once, "an order has a grant"),
        (oversold, "add up to"),
    ],
)
def test_a_lock_that_came_back_older_explains_nothing_else(forgery: Forgery, promise: str) -> None:
    """Not what was before, nor what happens twice, nor what an operator has not said."""
    made = history()
    made.faults.append(OLDER)
    forgery(made)
    assert [name for name in verdicts(made) if promise in name], verdicts(made)


def test_a_run_without_an_end_is_not_judged() -> None:
    """A run that was not finished proves nothing."""
    made = history()
    made.end = None
    with pytest.raises(ValueError, match="no end"):
        judge(made)


def test_a_history_survives_being_written_down(tmp_path: Path) -> None:
    """A history that was written line by line and read again is the same, and gets the same verdict."""
    made = history()
    file = tmp_path / "history.jsonl"
    with file.open("w") as written:
        recorder = Recorder(History(made.setup), written)
        for event in (
            *made.attempts,
            *made.looks,
            *made.restocks,
            *made.beliefs,
            *made.counts,
            *made.faults,
            at_end(made),
        ):
            recorder.note(event)
    assert load(file) == made == recorder.history
    with pytest.raises(ValueError, match="not a line of a history"):
        parse(io.StringIO('{"kind": "attempt"}'))
    with pytest.raises(ValueError, match="empty"):
        parse([])


def test_the_picture_shows_faults_and_verdict() -> None:
    """Grants, faults, answers and verdicts are in the page; nothing is loaded from elsewhere, or escapes its place."""
    made = history()
    made.faults = [replace(made.faults[0], target="</script><script>one")]
    a_lease_left(made)
    page = draw(made, judge(made))
    assert '"label":"pause"' in page
    assert '"label":"503, try again"' in page
    assert page.count('"token":') == len(made.beliefs)
    assert "lease 1 is still there" in page
    assert "<script>one" not in page
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(?!data:)""", page)


TAKEN = Fault("holder-key", "one, a holder", True, 4.1, 4.2, 4.2, 8.45, hit_at=4.2)


@pytest.mark.parametrize(
    ("late", "promise"),
    [
        (Belief("one", SALE, 3, 5.0, 5.2, waited_s=0.9), "token is higher"),
        (Belief("one", SALE, 3, 4.85, 4.95, waited_s=0.7), "two never believe"),
    ],
)
def test_a_grant_whose_key_was_taken_before_its_holder_heard_of_it(late: Belief, promise: str) -> None:
    """It may be believed in late: only if its key was taken away in just that time, and no other fault explains it."""
    made = history()
    made.beliefs.append(late)
    made.faults.append(TAKEN)
    assert promise not in " ".join(verdicts(made))
    made.faults[-1] = replace(TAKEN, struck=False)
    assert promise in " ".join(verdicts(made))
    made.faults[-1] = replace(TAKEN, name="renewal")
    assert promise in " ".join(verdicts(made))
    made.faults[-1] = TAKEN
    made.beliefs[-1] = replace(late, waited_s=0.1)
    assert promise in " ".join(verdicts(made))
