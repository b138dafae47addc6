"""Each error that may be an answer says what it means for the caller."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import app
from app import errors
from app.web import problems
from app.web.connection import _TITLES
from app.web.problem_types import GENERAL, KINDS, OTHERS, Effect, name_of, types
from fencelock import FencelockError


def below(error: type[Exception]) -> Iterator[type[Exception]]:
    yield error
    for one in error.__subclasses__():
        yield from below(one)


ALL = {*below(errors.SeckillError), *below(FencelockError)}
# Without those of the lab, and of a lock system: clients are told what is above those.
ERRORS = sorted(
    (one for one in ALL if one.__module__.startswith(("app.", "fencelock.errors"))), key=lambda one: one.__name__
)


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_has_a_kind_of_its_own(error: type[Exception]) -> None:
    """A new error that nobody has classified fails here: what is above it says nothing of what has happened."""
    assert error in KINDS or error in GENERAL


def test_what_says_that_nothing_was_done_is_of_that_kind() -> None:
    """The docstrings of the errors and the table agree, as far as they say it."""
    for error in ERRORS:
        said = error.__doc__ or ""
        if "nothing was done" in said or "nothing was written" in said:
            assert error in GENERAL or KINDS[error].effect is Effect.NOTHING, error
        if "may count" in said or "may not have been applied" in said:
            assert KINDS[error].effect is Effect.UNKNOWN, error


def test_a_store_that_was_not_reached_has_done_nothing() -> None:
    """The same error means something else if the request was never sent."""
    for untouched, effect in ((True, "nothing"), (False, "unknown")):
        answer = problems.of(errors.StockUnavailable("away", untouched=untouched), "POST", "/stock/reduce")
        assert f'"effect":"{effect}"' in bytes(answer.body).decode()


def test_each_status_that_the_code_refuses_with_is_in_the_reference() -> None:
    """A refusal by its status alone has a row, with that status."""
    sources = [file.read_text() for file in Path(app.__file__).parent.rglob("*.py")]
    raised = {status for text in sources for status in re.findall(r"\bHTTPException\((\d{3})", text)}
    assert raised
    assert {f"http-{status}" for status in raised} <= OTHERS.keys()
    for status, title in _TITLES.items():
        assert OTHERS[title.lower().replace(" ", "-")][:2] == (status, title)


def test_no_two_errors_have_one_name() -> None:
    """A type leads to one row."""
    answered = [name_of(error) for error in ERRORS if error not in GENERAL]
    assert len({*answered, *OTHERS}) == len(answered) + len(OTHERS)
    assert types().keys() == {*answered, *OTHERS}
    assert len(types()) > 40
    assert all(re.fullmatch(r"[A-Z`].+\.", kind.when) for kind in types().values())
