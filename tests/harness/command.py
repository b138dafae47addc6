"""Run the `seckill` command in this process: Python and the libraries start once, not for each command."""

import sys
import time
from collections.abc import Mapping
from subprocess import CompletedProcess

import pytest
from typer.testing import CliRunner

from app.cli import main


def seckill(*arguments: str, env: Mapping[str, str] | None = None) -> CompletedProcess[str]:
    """Run the command to its end, in a terminal of 120 columns and in UTC, with no answer to its questions."""
    variables = {"COLUMNS": "120", "TZ": "UTC", **(env or {})}
    with pytest.MonkeyPatch.context() as patch, CliRunner().isolation(env=variables) as (output, errors, _):
        time.tzset()
        patch.setattr(sys, "argv", ["seckill", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        sys.stdout.flush()
        sys.stderr.flush()
        status = end.value.code
        assert isinstance(status, int)
        return CompletedProcess(arguments, status, output.getvalue().decode(), errors.getvalue().decode())
