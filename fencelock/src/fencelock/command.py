"""`fencelock run`: a command that runs under a lock, once for each slot, or while it leads."""

import argparse
import asyncio
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final, Literal

from . import portal
from .backend import LockBackend
from .contender import printable
from .errors import LockCancelled, LockError, LockTimeout, LockUnavailable
from .grant import Grant
from .guard import LEFT, Guard, given
from .waiting import Cancel

# As in sysexits.h, but for the first.
USAGE: Final = 2
NOT_HAD: Final = 75
LOST: Final = 76

_AGAIN_S: Final = 1.0  # between two terms: the lock system may be away
_LOOKS: Final = 20  # looks at the lease in each TTL
_TOLD: Final = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGTSTP")
_Under = Callable[..., tuple[int, bool]]  # runs the command: its status, and whether it was ended with its lock


class Signals:
    """The signals that come to us: they end our wait, or are passed on to the command. No signal is lost.

    Threads that are started from now on block them, too. An ignored signal, as by `nohup`, stays ignored.
    """

    def __init__(self) -> None:
        self.cancel = Cancel()  # of our wait
        self.ended_by: int | None = None  # the signal that asks us to end
        self._guard: Guard | None = None
        self._mutex = threading.Lock()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide how the command ended
        ours = [getattr(signal, name) for name in _TOLD]
        self._ours = {one for one in ours if signal.getsignal(one) is not signal.SIG_IGN}
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, self._ours)
        threading.Thread(target=self._watch, daemon=True).start()

    def start(self, command: list[str], environment: dict[str, str], deadline: float) -> Guard:
        """Start a command, and pass signals on to it until it is `over`. Raises `LockCancelled` if we are to end."""
        with self._mutex:
            if self.ended_by is not None:
                raise LockCancelled("we are to end")
            self._guard = Guard(command, environment, self._blocked, deadline)
            return self._guard

    def over(self) -> None:
        """Note that the command is over."""
        with self._mutex:
            self._guard = None

    def _watch(self) -> None:
        while True:
            if sys.platform == "linux":  # where a terminal's Ctrl-C reaches the whole group, and so the command itself
                found = signal.sigwaitinfo(self._ours)
                number, sent = found.si_signo, found.si_code <= 0
            else:  # the command has a session of its own
                number, sent = signal.sigwait(self._ours), True
            with self._mutex:
                if self._guard is not None and sent:
                    self._guard.order(number)
                if number == signal.SIGTSTP:
                    os.kill(os.getpid(), signal.SIGSTOP)
                    if self._guard is not None:  # we go on; if the lease was over, all of it has been killed
                        self._guard.order(signal.SIGCONT)
                # A command may survive the other signals: SIGHUP makes many read their configuration.
                elif self._guard is None or number in (signal.SIGINT, signal.SIGTERM):
                    self.ended_by = number
                    self.cancel.set()


def run_under(locks: LockBackend, options: argparse.Namespace) -> int:
    """Do `fencelock run` with these options, and return its exit status. Raises `KeyboardInterrupt` after a Ctrl-C."""
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        say("what shall be run? fencelock run NAME -- COMMAND ...")
        return USAGE
    if not hasattr(os, "killpg"):
        say("this system has no groups of processes, and all of the command must end with the lock")
        return USAGE
    signals = Signals()

    def under(grant: Grant, *, notice: bool = False, **more: str) -> tuple[int, bool]:
        """Run the command until its end or the grant's. `notice`: with SIGTERM while a third of the TTL is left."""
        about = {"NAME": options.name, "TOKEN": str(grant.token), "SOURCE": grant.source} | more
        environment = given() | {f"FENCELOCK_{key}": value for key, value in about.items()}
        leased, noticed = locks.guarantees.leases, threading.Event()
        guard = signals.start(command, environment, grant.deadline if leased else math.inf)

        async def look() -> None:
            while True:
                guard.deadline = grant.deadline if leased else math.inf
                late = notice and not noticed.is_set() and grant.trusted_s <= grant.lease.ttl_s / 3
                guard.order(signal.SIGTERM if late else 0)
                if late:
                    noticed.set()
                await asyncio.sleep(grant.lease.ttl_s / _LOOKS)

        looking = asyncio.run_coroutine_threadsafe(look(), portal.loop())
        forget = grant.on_lost(lambda: guard.order(signal.SIGKILL))
        try:
            status = guard.wait()
        finally:
            signals.over()
            forget()
            looking.cancel()
        return status, grant.lost or noticed.is_set()

    how = _lead if options.leader else _lock if options.once is options.every is None else _once
    try:
        status, lost = how(locks, options, signals, under)
    except LockCancelled:
        status, lost = 128 + (signals.ended_by or signal.SIGTERM), False
    except LockTimeout as error:
        say(error)
        return NOT_HAD
    except ValueError as error:  # a name or a number
        say(error)
        return USAGE
    if status == 128 + signal.SIGINT and not lost:
        raise KeyboardInterrupt  # so that a script that runs us ends, too
    return LOST if lost else status


def _once(locks: LockBackend, options: argparse.Namespace, signals: Signals, under: _Under) -> tuple[int, bool]:
    slot = datetime.now(options.zone).date().isoformat() if options.once == "today" else options.once
    wait_s: float | Literal["ttl"] = "ttl" if options.wait is None else options.wait
    every_s, again, cancel = options.every, options.again, signals.cancel
    once = locks.once(options.name, slot=slot, every_s=every_s, wait_s=wait_s, again=again, cancel=cancel)
    with once as start:
        if start is not None:
            return under(start.grant, SLOT=start.slot)
    if not options.quiet:
        say(once.reason)
    return 0, False  # as intended, so no service manager should try it again


def _lock(locks: LockBackend, options: argparse.Namespace, signals: Signals, under: _Under) -> tuple[int, bool]:
    lock = locks.lock(options.name)
    grant = lock.acquire(wait_s=options.wait, cancel=signals.cancel)
    try:
        return under(grant)
    finally:
        try:
            lock.release()
        except LockError as error:
            say(error)


def _lead(locks: LockBackend, options: argparse.Namespace, signals: Signals, under: _Under) -> tuple[int, bool]:
    """Run the command in one term after the other, until it ends by itself."""
    election, first = locks.election(options.name), True
    while True:
        try:
            wait_s = options.wait if first else None
            term = election.campaign(locks.instance, wait_s=wait_s, cancel=signals.cancel)
        except LockUnavailable as error:
            if first:
                raise  # a wrong address, perhaps
            say(error)
        else:
            with term:
                status, lost = under(term, notice=True)
            if not lost or status == LEFT:
                return status, lost
            first = False
            if signals.ended_by is None:
                say("the term is over; standing again")
        time.sleep(_AGAIN_S)


def say(what: object) -> None:
    """Report something to the user."""
    print(printable(f"fencelock: {what}"), file=sys.stderr)  # noqa: T201
