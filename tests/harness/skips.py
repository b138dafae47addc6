"""In CI a test is skipped for a reason that is named here, or it fails: a skip that nobody reads tests nothing."""

import os
import re
from collections.abc import Generator

import pytest

# What a backend or a server has not, which another case of the same test has; and what no runner of CI needs to have.
NAMED = re.compile(
    "nothing outlives the process|it holds nothing|there is no network in between|there is no server"
    "|SQLite can't be used on both sides of a fork"
    "|this server has no innodb_snapshot_isolation"
    "|this is no clone"  # of an unpacked source distribution
    "|another language's program: "  # Go's and Java's clients are built where their compilers and their indexes are
    "|no time namespaces for us here|no clock here goes on in a suspended machine"
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip that is not named into a failure, if this is CI."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not NAMED.search(reason):
            report.outcome = "failed"
            report.longrepr = f"CI skips what tests/harness/skips.py names, and not this: {reason}"
    return report
