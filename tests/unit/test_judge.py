"""The judge against forged histories: one that is right, and one for each thing that it must not let pass."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.torture.history import Attempt, Count, End, Fault, History, Look, Recorder, Setup, SoldOrder, load, parse
from app.torture.judge import judge
from app.torture.picture import draw


def attempt(key: str, outcome: str | None, *, at: float = 1.0, status: int = 200, quantity: int = 1) -> Attempt:
    sold = outcome == "sold"
    return Attempt(
        key=key,
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


def history() -> History:
    """Of three units a, b and c got one each (b was told twice, c after a 503 and a lost answer); d was refused."""
    made = History(Setup(3, 2, 2.0, 4.0, "fence", 1, ("pause",)))
    made.attempts = [
        attempt("a", "sold", at=1.0),
        attempt("b", "sold", at=1.5),
        replace(attempt("b", "sold", at=2.0), replayed=True),
        attempt("c", None, at=3.0, status=503),
        replace(attempt("c", None, at=4.0, status=0), instance="two"),
        replace(attempt("c", "sold", at=5.0), replayed=True),
        attempt("d", "sold_out", at=6.0),
    ]
    made.looks = [Look(0.4, 0.5, 3, 0), Look(1.6, 1.7, 1, 2), Look(6.9, 7.0, 0, 3)]
    made.counts = [Count(2.0, 4.0, "one", "fenced_writes_total", 1)]
    made.faults = [Fault("pause", "one", True, 2.0, 5.0, 2.0, 6.5)]
    orders = (order("a", token=1), order("b", token=1), order("c", token=4, instance="two"))
    made.end = End(stock=0, lucky=3, initial=3, orders=orders)
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


def a_look_that_does_not_add_up(made: History) -> None:
    made.looks[1] = Look(1.6, 1.7, 1, 1)


def a_negative_stock(made: History) -> None:
    made.looks[1] = Look(1.6, 1.7, -1, 4)


def sales_undone(made: History) -> None:
    made.looks.append(Look(7.9, 8.0, 2, 1))


def an_end_that_does_not_add_up(made: History) -> None:
    made.end = replace(at_end(made), stock=1)


def another_beginning(made: History) -> None:
    made.end = replace(at_end(made), initial=4)


def lucky_without_an_order(made: History) -> None:
    made.end = replace(at_end(made), orders=at_end(made).orders[:2])
    made.attempts = [one for one in made.attempts if one.key != "c"]


def oversold(made: History) -> None:
    made.attempts.append(attempt("e", "sold"))
    made.end = replace(at_end(made), lucky=4, orders=(*at_end(made).orders, order("e", token=9)))


def two_orders_for_a_key(made: History) -> None:
    again = replace(order("c", token=9), id="another")
    made.end = replace(at_end(made), orders=(*at_end(made).orders, again))


def an_order_that_is_there_twice(made: History) -> None:
    made.end = replace(at_end(made), orders=(*at_end(made).orders, at_end(made).orders[-1]))


def refused_what_was_there(made: History) -> None:
    made.setup = replace(made.setup, initial=4)
    made.looks = []
    made.end = replace(at_end(made), stock=1, initial=4)


def refused_three_when_three_were_left(made: History) -> None:
    made.setup = replace(made.setup, initial=6)
    made.looks = []
    made.end = replace(at_end(made), stock=3, initial=6)
    made.attempts[-1] = attempt("d", "sold_out", at=6.0, quantity=3)


def nobody_was_refused(made: History) -> None:
    made.setup = replace(made.setup, initial=4)
    made.looks = []
    made.attempts.pop()
    made.end = replace(at_end(made), stock=1, initial=4)


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
    made.end = replace(at_end(made), orders=(order("a", token=2), order("b", token=1), order("c", token=4)))


def a_grant_of_two_instances(made: History) -> None:
    made.end = replace(at_end(made), orders=(order("a"), order("b", instance="two"), order("c", token=4)))


def an_order_without_a_grant(made: History) -> None:
    made.end = replace(at_end(made), orders=(order("a", token=0), order("b"), order("c", token=4)))


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
    made.faults = [Fault("pause", "one", True, 6.0, 6.5, 6.0, 12.0)]


def silence_that_ends_after_the_watch(made: History) -> None:
    made.attempts.append(attempt("e", "sold_out", at=60.0))


def silence_over_several_faults(made: History) -> None:
    times = (6.0, 9.0, 12.0)
    made.faults = [Fault("pause", "one", True, at, at + 0.1, at, at + 3.0) for at in times]
    made.attempts.append(attempt("e", "sold_out", at=15.0))


def an_instance_that_stays_silent(made: History) -> None:
    made.attempts += [replace(attempt("e", None, at=5.0 + n, status=503), instance="two") for n in range(1, 8)]
    made.attempts += [attempt("e", "sold_out", at=5.0 + n) for n in range(1, 8)]
    made.faults = [Fault("pause", "one", True, 2.0, 5.0, 2.0, 11.0)]


def refused_what_was_sold_later(made: History) -> None:
    made.attempts.append(attempt("e", "sold_out", at=0.6))


def said_before_it_was_so(made: History) -> None:
    made.looks[1] = Look(1.6, 1.7, 2, 1)


def another_outcome(made: History) -> None:
    made.attempts[-1] = replace(made.attempts[-1], outcome="limit_reached")


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
    made.end = replace(at_end(made), orders=(*orders[:2], replace(orders[2], instance="three")))


def a_batch_of_two_grants(made: History) -> None:
    orders = at_end(made).orders
    made.end = replace(at_end(made), orders=(*orders[:2], replace(orders[2], batch=orders[1].batch)))


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
    made.attempts = made.attempts[-1:]
    made.setup = replace(made.setup, initial=0)
    made.end = End(0, 0, 0, ())


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
        (a_grant_of_two_instances, "under a grant"),
        (an_order_without_a_grant, "under a grant"),
        (a_key_left_in_the_queue, "nothing is left in"),
        (a_lease_left, "nothing is left in"),
        (an_internal_error, "answers are"),
        (a_503_that_says_not_when, "answers are"),
        (a_buyer_who_was_never_told, "answers are"),
        (silence_after_a_fault, "sales go on"),
        (silence_that_ends_after_the_watch, "sales go on"),
        (silence_over_several_faults, "sales go on"),
        (an_instance_that_stays_silent, "each instance"),
        (refused_what_was_sold_later, "left unsold"),
        (said_before_it_was_so, "what is seen"),
        (another_outcome, "answers are"),
        (an_answer_about_another_quantity, "answers are"),
        (told_nothing_was_sold_but_it_was, "no answer was untrue"),
        (told_twice_as_if_anew, "no answer was untrue"),
        (told_again_at_the_first_time, "no answer was untrue"),
        (an_instance_that_was_not_asked, "without a request"),
        (a_batch_of_two_grants, "under a grant"),
        (fenced_off_in_peace, "nobody was fenced off"),
        (no_faults, "a test of all this"),
        (faults_that_missed, "a test of all this"),
        (nobody_looked, "a test of all this"),
        (late_commits_that_nobody_noticed, "a test of all this"),
        (nothing_sold, "a test of all this"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_forged_history_is_rejected(forgery: Forgery, promise: str) -> None:
    """Each forgery breaks the promise that it is about, and the judge says so."""
    made = history()
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
        for event in (*made.attempts, *made.looks, *made.counts, *made.faults, at_end(made)):
            recorder.note(event)
    assert load(file) == made == recorder.history
    with pytest.raises(ValueError, match="not a line of a history"):
        parse(io.StringIO('{"kind": "attempt"}'))
    with pytest.raises(ValueError, match="empty"):
        parse([])


def test_the_picture_shows_faults_and_verdict() -> None:
    """Faults, curves and verdicts are in the page; nothing in it runs, or is loaded, or escapes its place."""
    made = history()
    made.faults = [replace(made.faults[0], target="<script>one")]
    a_lease_left(made)
    page = draw(made, judge(made))
    assert "pause" in page
    assert page.count("<polyline") == 4
    assert "lease 1 is still there" in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
