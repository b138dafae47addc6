"""`python -m lab.cents`: books to the cent, with a provider that has bad days and cashiers that are killed."""

import argparse
import asyncio
import sys
import time
from typing import Final

from rich.console import Console

from app.stock.registry import REDIS, SYSTEMS
from lab.cents.bugs import BUGS

_console: Final = Console(highlight=False, markup=False, soft_wrap=True)


def main() -> int:
    """Return the exit status: 1 if the books are wrong, or a planted bug was not found."""
    parser = argparse.ArgumentParser(prog="python -m lab.cents", description=__doc__)
    parser.add_argument("--payments", type=int, default=1000, metavar="N", help="how many buyers (1000)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of all dice")
    parser.add_argument("--store", choices=SYSTEMS, default=REDIS, help="where the orders are (redis)")
    parser.add_argument("--bug", choices=BUGS, default="", help="plant a bug, which must be found")
    parser.add_argument("--all-bugs", action="store_true", help="plant each of them, one after the other")
    asked = parser.parse_args()
    bugs = list(BUGS) if asked.all_bugs else [asked.bug]
    return max(_run(asked.payments, asked.seed, bug, asked.store) for bug in bugs)


def _run(payments: int, seed: int, bug: str, store: str) -> int:
    from lab.cents.run import run, shown

    began = time.monotonic()
    found = asyncio.run(run(payments, seed, bug, store))
    took_s = time.monotonic() - began
    if bug:
        said = f"found in {took_s:.0f} s: {found[0]}" if found else f"NOT FOUND in {took_s:.0f} s"
        _console.print(f"{bug}: {said}")
        return 0 if found else 1
    for line in shown(found):
        _console.print(line)
    _console.print(f"{payments:,} buyers, store {store}, seed {seed}, {took_s:.0f} s: {len(found)} differences")
    return 1 if found else 0


def _serve(bug: str, port: str) -> int:
    """Run an instance with a bug."""
    from app.server import prepare
    from app.settings import load

    if bug:
        BUGS[bug]()
    server, listeners = prepare(load(port=int(port)))
    server.run(listeners)
    return 0


if __name__ == "__main__":
    sys.exit(_serve(*sys.argv[2:]) if sys.argv[1:2] == ["serve"] else main())
