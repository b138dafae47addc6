"""pytest-xdist: an expensive fixture that one of the workers makes, and the others wait for.

Each worker has its own session, and runs the fixture: `made` is told to one of them.
"""

import os
from collections.abc import Iterator

import pytest

from fencelock import connect


def make() -> None:
    """Fill the database; done once a test run."""
    print("made", file=open(os.environ["MADE"], "a"))  # noqa: SIM115, PTH123


@pytest.fixture(scope="session", autouse=True)
def database(testrun_uid: str) -> Iterator[None]:
    """A database with all that the tests need."""
    with connect(os.environ["LOCKS"], ttl_s=30) as locks:
        # For as long as it is made nobody else is started: the others wait, and then find this run's slot taken.
        with locks.once("/tests/database", slot=testrun_uid, wait_s=600) as start:
            if start is not None:
                make()
        yield
