"""A plugin of pytest, for CI: tests that failed run twice more at the end, alone, and refuse only if they fail again.

What passes both times is named, so that it is mended next: a test that needs a quick machine is wrong. A run that broke
off, tests that can't be collected, and failures of more than a few tests are no such thing, and are final.
"""

import subprocess
import sys
from collections.abc import Generator
from typing import Final

import pytest

_TIMES: Final = 2
_MOST: Final = 10  # tests


def pytest_configure(config: pytest.Config) -> None:
    """Watch where the reports of all workers come together."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Again())


class _Again:
    def __init__(self) -> None:
        self._failed: dict[str, None] = {}  # in order, each once: its setup or teardown may fail, too
        self._final = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._final |= report.failed

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None]:
        yield  # the summary, and the end of the workers
        final = self._final or exitstatus != pytest.ExitCode.TESTS_FAILED
        if final or not 0 < len(self._failed) <= _MOST:
            return
        for turn in range(_TIMES):
            print(f"\n{len(self._failed)} failed; again, alone ({turn + 1} of {_TIMES}):", flush=True)  # noqa: T201
            # All markers: they chose the tests of the run that is over.
            argv = [sys.executable, "-m", "pytest", "-m", "", *self._failed]
            if subprocess.run(argv, check=False).returncode != 0:
                return
        print("\nTO BE MENDED NEXT, as they failed once, and passed when nothing ran beside them:")  # noqa: T201
        print(*self._failed, sep="\n", flush=True)  # noqa: T201
        session.exitstatus = pytest.ExitCode.OK
