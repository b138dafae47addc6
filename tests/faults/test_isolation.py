"""`python -m lab.isolation` finds which isolation levels are safe."""

import pytest

from lab import isolation
from lab.servers import MariaDB, Postgres
from tests.harness.servers import optional

pytestmark = pytest.mark.slow


def test_a_guard_that_is_not_enough_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within a second `timestamp` cannot tell two writes apart; a run that demands it fails."""
    optional(MariaDB)
    monkeypatch.setattr(isolation, "LEVELS", ("READ COMMITTED",))
    monkeypatch.setattr(isolation, "_MUST_BE_SAFE", ("timestamp",))
    assert isolation.main(["--servers", "MariaDB", "--rounds", "3"]) == 1
    said = capsys.readouterr().out
    assert "✗ MariaDB, READ COMMITTED, timestamp: a buyer above the limit" in said
    assert "READ COMMITTED, none of ours: oversold" in said


@pytest.mark.parametrize("level", isolation.LEVELS)
def test_tokens_and_versions_are_safe_on_postgresql(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No level lets them pass what was decided on something old."""
    optional(Postgres)
    monkeypatch.setattr(isolation, "LEVELS", (level,))
    monkeypatch.setattr(isolation, "GUARDS", ("fence", "version"))
    assert isolation.main(["--servers", "PostgreSQL", "--rounds", "1"]) == 0
