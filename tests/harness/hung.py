"""Run an instance whose event loop can hang while it has the lock: `python -m tests.harness.hung ... serve`.

At its next decision after the file that `HANG_AT` names exists, it hangs: "blocks", "spins", or "writes" into a pipe
without a reader. With "log" it never hangs; but its standard error is such a pipe from the start. With "listeners" it
never hangs; but it has patience with listeners who read nothing.
"""

import fcntl
import mmap
import os
import sys
import time
from pathlib import Path
from typing import Any

from app import cli
from app.sale import worker
from app.sale.batch import decide_parts
from app.web import sse


def main() -> None:
    how, at = os.environ["HANG_HOW"], Path(os.environ["HANG_AT"])
    _unread, pipe = os.pipe()

    def decide(*arguments: Any, **options: Any) -> Any:
        if at.exists():
            at.unlink()
            match how:
                case "blocks":
                    time.sleep(600)
                case "spins":
                    while True:
                        pass
                case "writes":
                    while True:
                        os.write(pipe, bytes(65_536))
        return decide_parts(*arguments, **options)

    worker.decide_parts = decide  # type: ignore[attr-defined]
    if how == "log":
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, mmap.PAGESIZE)
        os.dup2(pipe, 2)
    if how == "listeners":
        sse._SEND_S = 600  # type: ignore[misc]
    sys.argv = sys.argv[3:]  # behind: python -m app
    cli.main()


if __name__ == "__main__":
    main()
