"""Porcupine judges forged histories; the tests are skipped where it can't be built."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.torture.history import Attempt, History, Look
from lab.torture.judge_sale import Evidence
from lab.torture.linear import Linearity, check
from tests.harness.servers import where_installed
from tests.unit.test_judge import at_end, attempt, history


def explained(made: History, picture: Path) -> Linearity:
    return where_installed(lambda: check(Evidence(made, at_end(made)), picture))


def test_a_good_history_is_explained(tmp_path: Path) -> None:
    """Each item and each repeated key is checked by itself, and no picture is needed."""
    found = explained(history(), tmp_path / "picture.html")
    assert found.violations == []
    assert (found.parts, list(tmp_path.iterdir())) == (3, [])


def a_look_of_another_time(made: History) -> None:
    made.looks[1] = Look(3.6, 3.7, 3, 0)


def a_sale_that_was_not_seen(made: History) -> None:
    made.looks.append(Look(8.7, 8.8, 1, 3))


def refused_too_early(made: History) -> None:
    made.attempts[6] = attempt("d", "sold_out", at=0.6)


def orders_in_another_order(made: History) -> None:
    one, two, *others = at_end(made).orders
    made.end = replace(at_end(made), orders=(two, one, *others))


def sold_before_it_was_there(made: History) -> None:
    made.restocks = [replace(made.restocks[0], asked_at=8.1, done_at=8.2)]


def told_two_orders(made: History) -> None:
    made.attempts[2] = replace(made.attempts[2], order="another")


@pytest.mark.parametrize(
    ("forgery", "about", "first"),
    [
        (a_look_of_another_time, "default", "3 left, 0 sold, as seen 3.600 to 3.700 s"),
        (a_sale_that_was_not_seen, "default", "1 left, 3 sold"),
        (refused_too_early, "default", "buyer of d asks one for 1: sold_out"),
        (orders_in_another_order, "default", "buyer of a asks one for 1: sold"),
        (sold_before_it_was_there, "default", "buyer of k asks one for 1: sold"),
        (told_two_orders, "key b", "sold"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_has_no_explanation_is_named(
    forgery: Callable[[History], None], about: str, first: str, tmp_path: Path
) -> None:
    """The report has the unexplained part, the first operation that doesn't fit, and porcupine's own picture."""
    made = history()
    forgery(made)
    found = explained(made, tmp_path / "picture.html")
    assert len(found.violations) == 1, found
    assert about in found.violations[0]
    assert first in found.violations[0]
    assert "<html" in (tmp_path / "picture.html").read_text().lower()


def test_hundreds_who_wait_together_are_decided(tmp_path: Path) -> None:
    """Where all buyers are answered after a second, only the order of the orders lets the search end."""
    made = history()
    crowd = [f"w{number}" for number in range(300)]
    waiting: list[Attempt] = [replace(attempt(name, "sold", at=20.0), sent_at=19.0) for name in crowd]
    made.attempts += waiting
    made.setup = replace(made.setup, items=(replace(made.setup.items[0], initial=303), made.setup.items[1]))
    made.looks = [replace(look, stock=look.stock + 300) for look in made.looks if look.at > 8 or look.at < 6]
    made.looks += [Look(19.5, 19.9, 300 - sold, 4 + sold) for sold in (70, 150, 220)]
    made.attempts = [one for one in made.attempts if one.key != "d"]
    order = at_end(made).orders[0]
    orders = [
        replace(order, id=f"order of {name}", key=name, buyer=f"buyer of {name}", token=9) for name in reversed(crowd)
    ]
    *others, keyless, mugs = at_end(made).orders
    made.end = replace(at_end(made), orders=(*others, keyless, *orders, mugs))
    default, mug = at_end(made).left
    made.end = replace(at_end(made), left=(replace(default, stock=0, lucky=304, initial=304), mug))
    found = explained(made, tmp_path / "picture.html")
    assert found.violations == []
