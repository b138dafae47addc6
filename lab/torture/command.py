"""`seckill torture`: turns the command line's options into those of a run."""

import os
import random
import secrets
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final, cast

import httpx
from rich.console import Console
from rich.markup import escape

from app.combination import best_guard
from app.errors import EXPECTED, ConfigurationError, SeckillError
from app.settings import Guard
from app.stock.registry import MYSQL, POSTGRES, REDIS, check_guard
from fencelock.registry import CLASSES, backend_class
from lab.torture import run as torturing
from lab.torture.bugs import BUGS
from lab.torture.cable import why_not
from lab.torture.judge import Finding
from lab.torture.nemesis import CABLE, KINDS, SEVERAL, names_for, that_fit
from lab.torture.stage import STORES, python_of, system_of

FALLBACK: Final = "fallback"  # a lock in Redis that is skipped while Redis is away, as the articles have it
OPTIMISTIC: Final = "optimistic"  # no lock: if several decide at once, the first one to write wins
LOCKS: Final = (*(name for name in CLASSES if name not in ("file", "local", "none")), FALLBACK, OPTIMISTIC)
_CALM_S: Final = 5.0  # after each fault, beyond the TTL
_BUG_DURATION_S: Final = 24.0  # of a run with a bug, whose faults strike again and again
_SHORT_S: Final = 10.0  # of a first run, which finds most of them
_SHORT_CALM_S: Final = 3.0  # after each of its faults, beyond the TTL
_AT_ONCE: Final = 2  # runs with a bug: they wait for most of their time
_HELP: Final = "help"


class WrongOption(SeckillError):
    """An invalid option of the command line; `option` names it."""

    def __init__(self, option: str, text: str) -> None:
        super().__init__(text)
        self.option = option


@dataclass(frozen=True, slots=True)
class TortureArguments:
    """The options of the command line."""

    duration_s: float
    instances: int
    ttl_s: int
    nemesis: str
    every_s: float | None
    rate: float
    seed: int | None
    stock: int | None
    lock: str
    store: str
    guard: Guard | None
    payers: bool
    cents: bool
    with_bug: str
    all_bugs: bool
    report: Path
    upgrade_from: Path | None


def torture(arguments: TortureArguments) -> int:
    """Run the torture as the options say, and return the exit status. Raises `WrongOption` and `ConfigurationError`."""
    if arguments.nemesis == _HELP:
        for name, kind in KINDS.items():
            print(f"{name:15} {kind.what}")  # noqa: T201
        print(f"{SEVERAL:15} two or three of them at once")  # noqa: T201
        return 0
    if arguments.with_bug == _HELP:
        for name, bug in BUGS.items():
            print(f"{name:25} {bug.what} Found by {' or '.join(bug.rules)}.")  # noqa: T201
        return 0
    if arguments.with_bug and arguments.with_bug not in BUGS:
        raise WrongOption("--with-bug", f"there is no bug {arguments.with_bug!r}; there are {', '.join(BUGS)}")
    if release := arguments.upgrade_from:
        for needed in (release / "lab" / "torture" / "instance.py", python_of(release)):
            if not needed.exists():
                raise WrongOption("--upgrade-from", f"no checkout of a release: there is no {needed}")
    options = _options(arguments)
    _make_folder(arguments.report)
    if arguments.all_bugs:
        return try_all_bugs(options)
    if arguments.with_bug:
        options = with_bug(options, arguments.with_bug)
        if arguments.nemesis:
            options = replace(options, nemeses=_nemeses(arguments, options.nemeses))
    status, findings = torturing.run(options)
    if status in (0, 1) and (options.bug or options.guard is Guard.NONE):
        found, broken = broken_by(options.bug, findings)
        Console().print(_what_was_meant(options, _names(broken), found=found), style="bold", highlight=False)
        return 0 if found else 1  # it is broken on purpose: violations are what it is to show
    return status


def broken_by(bug: str, findings: Sequence[Finding]) -> tuple[bool, list[Finding]]:
    """Return whether rules that such a bug breaks are broken, and these, or else the others, which prove nothing."""
    broken = [one for one in findings if not one.holds]
    own = [one for one in broken if not bug or one.rule in BUGS[bug].rules]
    return bool(own), own or broken


def _names(broken: Sequence[Finding]) -> str:
    return ", ".join(one.rule for one in broken) or "nothing"


def _make_folder(report: Path) -> None:
    if report.exists() and not report.is_dir():
        raise WrongOption("--report", f"{report} is not a folder")
    try:
        report.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WrongOption("--report", f"the folder {report} can't be made: {error.strerror}") from None


def _what_was_meant(options: torturing.TortureOptions, broken: str, *, found: bool) -> str:
    """Explain how a run ended that is broken on purpose: violations are to be found."""
    if options.bug:
        return (
            f"This is what you were meant to see: {options.bug} was put in, and the judge has found it, by "
            f"{broken}. Without the bug the same run ends with every promise kept."
            if found
            else f"Not found (broken: {broken}): its moment may not have come. Run it once more, or for longer."
        )
    return (
        "This is what you were meant to see: nothing guards the store, so whoever comes too late writes all the "
        "same. That is what the fence is for: without `--guard none` the same run ends with every promise kept."
        if found
        else "Nothing has gone wrong this time, and nothing would have kept it from going wrong: no guard."
    )


def _options(arguments: TortureArguments) -> torturing.TortureOptions:
    lock, store, guard = arguments.lock, arguments.store, arguments.guard
    if lock not in LOCKS and lock != "none":
        raise WrongOption("--lock", f"there is no lock {lock!r} to torture; there are {', '.join(LOCKS)}")
    if store not in STORES:
        raise WrongOption("--store", f"there is no store {store!r}; there are {', '.join(STORES)}")
    fallback = lock == FALLBACK
    if lock in (FALLBACK, OPTIMISTIC):
        lock, guard = "redis" if fallback else "none", guard or Guard.VERSION
        store = store if system_of(store) == POSTGRES else MYSQL
    promised = backend_class(lock).guarantees
    system = system_of(store)
    guard = guard or best_guard(promised, system)
    try:
        check_guard(system, guard)
        if guard is Guard.FENCE and not promised.fencing:
            raise ConfigurationError(
                f"--lock {lock} gives no fencing tokens; say --guard {best_guard(promised, system)}"
            )
    except ConfigurationError as error:
        raise WrongOption("--guard", str(error)) from None
    every_s = arguments.ttl_s + _CALM_S if arguments.every_s is None else arguments.every_s
    seed = secrets.randbelow(10**6) if arguments.seed is None else arguments.seed
    can_hold = torturing.can_hold(store, guard, arguments.upgrade_from)
    if arguments.cents and not can_hold:
        raise WrongOption("--cents", "nothing can be held there, and so nothing be paid")
    sends = arguments.payers and can_hold and not arguments.cents
    possible = names_for(lock, store, guard, promised, sends=sends, upgraded=arguments.upgrade_from is not None)
    return torturing.TortureOptions(
        duration_s=arguments.duration_s,
        instances=arguments.instances,
        ttl_s=arguments.ttl_s,
        nemeses=_nemeses(arguments, possible)
        or that_fit(possible, arguments.duration_s, arguments.ttl_s, every_s, random.Random(seed)),  # noqa: S311
        every_s=every_s,
        rate=arguments.rate,
        seed=seed,
        stock=arguments.stock,
        lock=lock,
        store=store,
        guard=guard,
        fallback=fallback,
        bug="",
        report=arguments.report,
        upgrade_from=arguments.upgrade_from and arguments.upgrade_from.absolute(),
        payers=arguments.payers,
        cents=arguments.cents,
    )


def _nemeses(arguments: TortureArguments, possible: tuple[str, ...]) -> tuple[str, ...]:
    wanted = tuple(dict.fromkeys(name.strip() for name in arguments.nemesis.split(",") if name.strip()))
    for name in wanted:
        if name not in (*KINDS, SEVERAL):
            raise WrongOption("--nemesis", f"there is no {name!r}; there are {', '.join((*KINDS, SEVERAL))}")
        if name == CABLE and (reason := why_not()):
            raise WrongOption("--nemesis", f"{name} is not possible here: {reason}")
        if name not in possible and not arguments.with_bug:
            raise WrongOption(
                "--nemesis", f"{name} strikes what this sale doesn't have; there are {', '.join(possible)}"
            )
    return wanted


def with_bug(options: torturing.TortureOptions, name: str) -> torturing.TortureOptions:
    """Return the options of a run that has this bug, and the faults that expose it."""
    bug = BUGS[name]
    return replace(
        options,
        bug=name,
        lock=bug.lock,
        store=REDIS,
        guard=Guard.FENCE,
        nemeses=bug.nemeses,
        duration_s=min(options.duration_s, _BUG_DURATION_S),
        payers=True,
        cents=bug.cents,
    )


def try_all_bugs(options: torturing.TortureOptions) -> int:
    """Run with each bug, some at a time, and return 0 if all were found. What a run came to is told when it ends.

    An interrupt ends the runs that are under way, and what is known by then is told.
    """
    console, waiting, running = Console(), list(BUGS), dict[Connection, tuple[str, SpawnProcess, float]]()
    found, missed = 0, list[str]()
    try:
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                name, (ours, theirs) = waiting.pop(0), Pipe(duplex=False)
                own = with_bug(replace(options, report=options.report / name), name)
                child = get_context("spawn").Process(target=_try_bug, args=(own, theirs))
                child.start()
                theirs.close()
                running[ours] = name, child, time.monotonic()
            for told in wait(list(running)):
                assert isinstance(told, Connection)  # noqa: S101 - for the type checker
                name, child, began = running.pop(told)
                was_found, did = _heard(told)
                child.join()
                found, missed = found + was_found, [*missed, *([] if was_found else [name])]
                verdict = f"[green]{name}: found[/]" if was_found else f"[red]{name}: not found[/]"
                place, took_s = f"{found + len(missed)} of {len(BUGS)}", time.monotonic() - began
                console.print(f"{place}, {verdict} in {took_s:.0f} s: {escape(did)}", highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        for _, child, _ in running.values():
            os.kill(child.pid or 0, signal.SIGINT)
        for _, child, _ in running.values():
            child.join()
        console.print(_tally(found, missed, [*(name for name, *_ in running.values()), *waiting]))
        return 130
    console.print(_tally(found, missed))
    return 1 if missed else 0


def _heard(told: Connection) -> tuple[bool, str]:
    try:
        return cast(tuple[bool, str], told.recv())
    except EOFError:
        return False, "the run itself has ended without a word"


def _try_bug(options: torturing.TortureOptions, told: Connection) -> None:
    """Tell whether a bug is found in a short run, or in two whole ones, and by which rules; a process is for this."""
    os.setsid()  # an interrupt on the terminal is for the one who has begun us, and interrupts us in turn
    short = replace(options, duration_s=min(options.duration_s, _SHORT_S), every_s=options.ttl_s + _SHORT_CALM_S)
    did = ""
    try:
        for own in (short, *(replace(options, seed=options.seed + more) for more in (1, 2))):
            _, findings = torturing.run_once(own, Console(quiet=True))
            found, broken = broken_by(options.bug, findings)
            if found:
                told.send((True, f"{_names(broken)}: {broken[0].violations[0]}"))
                return
            did = f"broken: {_names(broken)}"
    except KeyboardInterrupt:
        return
    except (*EXPECTED, OSError, httpx.HTTPError) as error:
        did = f"the run itself has failed: {error!r}"
    told.send((False, did))


def _tally(found: int, missed: Sequence[str], not_tried: Sequence[str] = ()) -> str:
    told = {"not found": missed, "not tried to the end": not_tried}
    return "; ".join([f"{found} found", *(f"{what}: {', '.join(names)}" for what, names in told.items() if names)])
