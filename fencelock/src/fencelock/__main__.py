"""`fencelock`: run a command under a lock, look at the queues, take a lock from a holder that hangs."""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from . import portal
from .backend import LockBackend
from .contender import Contender, printable
from .errors import ConfigurationError, FencelockError, LockError, LockTimeout, LockUnavailable
from .grant import Grant
from .registry import connect

# As in sysexits.h.
_UNAVAILABLE: Final = 69
_NOT_HAD: Final = 75
_LOST: Final = 76
_USAGE: Final = 2
_NOT_FOUND: Final = 127
_AGAIN_S: Final = 1.0  # a lock system that was away when a term ended is asked again
_PASSED_ON: Final = [one for one in signal.Signals if one.name in {"SIGINT", "SIGTERM", "SIGHUP"}]
_DEFAULT: Final = "etcd://127.0.0.1:2379"
# Replaces itself by the command, in a group of its own, and dies with us, as we could not end it if we were killed.
_LAUNCHER: Final = (
    "import ctypes, os, signal, sys\n"
    "getattr(ctypes.CDLL(None), 'prctl', lambda *_: 0)(1, signal.SIGKILL)\n"
    "os.getppid() == int(sys.argv[1]) or sys.exit(1)\n"
    "try: os.execvp(sys.argv[2], sys.argv[2:])\n"
    "except OSError as error: sys.exit(f'fencelock: {sys.argv[2]}: {error.strerror}' if error.errno != 2 else 127)\n"
)
EPILOG: Final = f"""\
The lock system: --url, or FENCELOCK_URL; without either {_DEFAULT}.

exit status of `run`: that of the command (128 + the signal's number if one ended it);
  0   with --once and --every also when there was nothing to start, as it says on standard error
  {_NOT_HAD}  the lock was not free within --wait seconds
  {_LOST}  the lock was lost, and the command was killed
  {_UNAVAILABLE}  the lock system can't be reached
  {_NOT_FOUND} there is no such command
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program `fencelock`, and exit with its status."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the program with these arguments, and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        with connect(options.url, ttl_s=options.ttl) as locks:
            status: int = options.run(locks, options)
            return status
    except ConfigurationError as error:
        _say(error)
        return _USAGE
    except FencelockError as error:
        _say(error)
        return _UNAVAILABLE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--url", default=os.environ.get("FENCELOCK_URL", _DEFAULT), help="the lock system")
    common.add_argument("--ttl", type=_seconds, default=5.0, help="seconds that a dead holder costs (5)")
    parser = argparse.ArgumentParser(
        "fencelock",
        description="Distributed locks with fencing tokens.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    one = commands.add_parser(
        "run",
        parents=[common],
        help="run a command while one has a lock",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    one.add_argument("--wait", type=_seconds, help="seconds to wait at most (as long as it takes); 0: not at all")
    how = one.add_mutually_exclusive_group()
    how.add_argument("--once", metavar="SLOT", help="start it once at most for this slot, such as 2026-11-28, anywhere")
    how.add_argument("--every", type=_seconds, metavar="SECONDS", help="the same for slots of time: 3600 for each hour")
    how.add_argument(
        "--leader", action="store_true", help="run it while leading; again in the next term, if one is lost"
    )
    one.add_argument("--quiet", action="store_true", help="don't say so if there is nothing to start: for cron's mail")
    one.add_argument("name", help="of the lock, such as /jobs/nightly")
    one.add_argument("command", nargs=argparse.REMAINDER, help="-- and what to run; it has FENCELOCK_TOKEN")
    one.set_defaults(run=_run)

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


# -- run -------------------------------------------------------------------------------------------------------------


def _run(locks: LockBackend, options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        _say("what shall be run? fencelock run NAME -- COMMAND ...")
        return _USAGE
    if not hasattr(os, "killpg"):
        _say("this system has no groups of processes, and all of the command must end with the lock")
        return _USAGE
    how = _lead if options.leader else _lock if options.once is options.every is None else _once
    try:
        return how(locks, options, command)
    except LockTimeout as error:
        _say(error)
        return _NOT_HAD
    except ValueError as error:  # a name or a number
        _say(error)
        return _USAGE


def _once(locks: LockBackend, options: argparse.Namespace, command: Sequence[str]) -> int:
    once = locks.once(options.name, slot=options.once, every_s=options.every, wait_s=options.wait or 0)
    with once as start:
        if start is not None:
            return _run_under(start.grant, options.name, command, SLOT=start.slot)
    if not options.quiet:
        _say(once.reason)
    return 0  # as intended: no service manager is to try it again


def _lock(locks: LockBackend, options: argparse.Namespace, command: Sequence[str]) -> int:
    lock = locks.lock(options.name)
    grant = lock.acquire(wait_s=options.wait)
    try:
        return _run_under(grant, options.name, command)
    finally:
        try:
            lock.release()
        except LockError as error:
            _say(error)


def _lead(locks: LockBackend, options: argparse.Namespace, command: Sequence[str]) -> int:
    """Run the command in one term after the other, until it ends by itself."""
    election, again = locks.election(options.name), False
    before = {number: signal.getsignal(number) for number in _PASSED_ON}
    while True:
        try:
            term = election.campaign(locks.instance, wait_s=None if again else options.wait)
        except LockUnavailable as error:
            if not again:
                raise  # a wrong address, perhaps
            _say(error)
            time.sleep(_AGAIN_S)
            continue
        with term:
            status = _run_under(term, options.name, command, notice=True)
        if status != _LOST:
            return status
        _say("the term is over; standing again")
        again = True
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_under(grant: Grant, name: str, command: Sequence[str], *, notice: bool = False, **more: str) -> int:
    """Run the command, and kill it when the grant is lost. `notice`: with SIGTERM while a third of the TTL is left."""
    about = {"NAME": name, "TOKEN": str(grant.token), "SOURCE": grant.source} | more
    environment = os.environ | {f"FENCELOCK_{key}": value for key, value in about.items()}
    children: list[subprocess.Popen[bytes]] = []  # the command, once it runs
    noticing: Future[None] | None = None
    over = threading.Event()  # it was told to end, as its grant is not renewed
    early: list[int] = []  # signals that came before it ran

    def pass_on(number: int, _: object) -> None:
        if children:
            _signal(children, number)
        else:
            early.append(number)

    def stop(*_: object) -> None:
        _signal(children, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        # We go on, after a while: does the lock?
        _signal(children, signal.SIGKILL if grant.lost else signal.SIGCONT)

    async def give_notice() -> None:
        while (left_s := grant.trusted_s - grant.lease.ttl_s / 3) > 0:  # noqa: ASYNC110 - a renewal sets no event
            await asyncio.sleep(left_s)
        over.set()
        _signal(children, signal.SIGTERM)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    signal.signal(signal.SIGTSTP, stop)
    try:
        launched = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
        children.append(subprocess.Popen(launched, env=environment, start_new_session=True))
        for signalled in early:
            _signal(children, signalled)
        grant.on_lost(lambda: _signal(children, signal.SIGKILL))
        noticing = asyncio.run_coroutine_threadsafe(give_notice(), portal.loop()) if notice else None
        status = children[0].wait()
    finally:
        _signal(children, signal.SIGKILL)  # all of it, before anybody else has the lock
        for child in children:
            child.wait()
        children.clear()  # their number may soon be another process's
        if noticing is not None:
            noticing.cancel()
    if grant.lost or over.is_set():
        return _LOST
    if status == _NOT_FOUND:
        _say(f"there is no command {command[0]!r}, or it ended with {_NOT_FOUND}")
    return status if status >= 0 else 128 - status


def _signal(children: "list[subprocess.Popen[bytes]]", number: int) -> None:
    for child in children:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)


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


def _say(what: object) -> None:
    print(printable(f"fencelock: {what}"), file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
