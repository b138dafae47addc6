"""`fencelock`: run a command under a lock, look at the queues, take a lock from a holder that hangs."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .command import LOST, NOT_HAD, USAGE, run_under, say
from .contender import Contender, printable
from .errors import ConfigurationError, FencelockError
from .registry import connect

_UNAVAILABLE: Final = 69  # as in sysexits.h
_DEFAULT: Final = "etcd://127.0.0.1:2379"
EPILOG: Final = f"""\
The lock system: --url, or FENCELOCK_URL; without either {_DEFAULT}.

exit status of `run`: that of the command (128 + the signal's number if one ended it);
  0   with --once and --every also when there was nothing to start, as it says on standard error
  {NOT_HAD}  the lock was not free within --wait seconds
  {LOST}  the lock was lost, and the command was killed
  {_UNAVAILABLE}  the lock system can't be reached
  126 the command can't be run; 127: there is no such command

The command runs as if a shell's script had started it, but:
  - all that it has started is killed when it ends, also after status 0, and also what has left its session;
  - all of it is killed with SIGKILL when the lock is lost, and when fencelock is killed or stands still for a TTL;
  - signals that are sent to fencelock reach all of it;
  - what it becomes by sudo is not ours to kill: say `sudo fencelock run ...`, not `fencelock run ... -- sudo`;
  - what it hands to a service (systemd-run, at, docker run) is not below it, and goes on.
Elsewhere than on Linux it has a session of its own, without the terminal, and what leaves that is not killed.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program `fencelock`, and exit with its status."""
    try:
        sys.exit(run(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # ends whoever runs us, as a status would not
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.raise_signal(signal.SIGINT)


def run(arguments: Sequence[str]) -> int:
    """Run the program with these arguments, and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        with connect(options.url, ttl_s=options.ttl) as locks:
            status: int = options.run(locks, options)
            return status
    except ConfigurationError as error:
        say(error)
        return USAGE
    except FencelockError as error:
        say(error)
        return _UNAVAILABLE


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--url", default=os.environ.get("FENCELOCK_URL", _DEFAULT), help="the lock system")
    common.add_argument("--ttl", type=_seconds, default=5.0, help="seconds that a dead holder costs (5)")
    parser = argparse.ArgumentParser("fencelock", description="Distributed locks with fencing tokens.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    one = commands.add_parser("run", parents=[common], help="run a command while one has a lock")
    for about in (parser, one):
        about.epilog, about.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    one.add_argument(
        "--wait",
        type=_seconds,
        help="seconds to wait at most (as long as it takes; with --once and --every a TTL and a bit); 0: not at all",
    )
    how = one.add_mutually_exclusive_group()
    how.add_argument(
        "--once", metavar="SLOT", help="start it once at most for this slot, such as v7, anywhere; today: the date"
    )
    how.add_argument("--every", type=_seconds, metavar="SECONDS", help="the same for slots of UTC: 3600 for each hour")
    how.add_argument(
        "--leader", action="store_true", help="run it while leading; again in the next term, if one is lost"
    )
    one.add_argument("--zone", type=_zone, help="of `--once today`, such as Europe/Berlin (the machine's)")
    one.add_argument("--again", action="store_true", help="start a slot that was started, if its run died or failed")
    one.add_argument("--quiet", action="store_true", help="don't say so if there is nothing to start: for cron's mail")
    one.add_argument("name", help="of the lock, such as /jobs/nightly")
    one.add_argument("command", nargs=argparse.REMAINDER, help="-- and what to run; it has FENCELOCK_TOKEN")
    one.set_defaults(run=run_under)

    show = commands.add_parser("show", parents=[common], help="who has locks, and who waits")
    show.add_argument("prefix", nargs="?", default="/", help="names of locks begin so (/)")
    show.add_argument("--json", action="store_true", help="as JSON, a line for each")
    show.set_defaults(run=_show)

    force = commands.add_parser("force-release", parents=[common], help="take a lock from a holder that hangs")
    force.add_argument("name", help="of the lock")
    force.set_defaults(run=_force_release)

    return parser


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text}")
    return number


def _zone(text: str) -> ZoneInfo:
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise argparse.ArgumentTypeError(f"there is no zone {text!r} here") from None


# -- show, force-release ---------------------------------------------------------------------------------------------


def _show(locks: Any, options: argparse.Namespace) -> int:
    queue: list[Contender] = locks.contenders(options.prefix)
    for one in queue:
        if options.json:
            print(json.dumps(asdict(one), allow_nan=False))  # noqa: T201
            continue
        name, _, _ = one.key.rpartition("/")
        who = " ".join(f"{what}={value}" for what, value in one.owner.items() if what != "since") or "another program"
        waited = "" if one.waited_s is None else f" for {one.waited_s:.1f} s"
        left = "" if one.ttl_left_s is None else f", {one.ttl_left_s:.1f} s left"
        token = f" token {one.token}" if one.token else ""
        print(printable(f"{name}: {who} {'holds' if one.holds else 'waits'}{waited}{token}{left}"))  # noqa: T201
    if not queue and not options.json:
        print(f"Nobody holds or waits for a lock under {options.prefix}")  # noqa: T201
    return 0


def _force_release(locks: Any, options: argparse.Namespace) -> int:
    had: Contender | None = locks.force_release(options.name)
    if had is None:
        print(f"Nobody has {options.name}")  # noqa: T201
        return 1
    print(printable(f"taken from {had.key} (token {had.token}); it is told at its next renewal"))  # noqa: T201
    return 0


if __name__ == "__main__":
    main()
