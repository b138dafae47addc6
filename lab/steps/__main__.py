"""`python -m lab.steps`: every step of every operation fails once, in every way."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from rich.console import Console
from rich.table import Table

from fencelock.registry import CLASSES
from lab.steps import counts, locks, sale
from lab.steps.awaits import is_await, is_own
from lab.steps.play import (
    ALL_CANCELLED,
    AS_ANSWERED,
    AT_A_MESSAGE,
    AT_AN_AWAIT,
    AWAY,
    BETWEEN,
    CANCELLED,
    CUT,
    ENDED,
    FORGETFUL,
    KILLED,
    LATE,
    LATER,
    LOST,
    NOTICED,
    PAUSED,
    REFUSED,
    RESTARTED,
    TAKEN,
    THROWN_OUT,
    Case,
    Play,
    PlayResult,
)
from lab.steps.run import run_all
from lab.steps.systems import STOCKS, lock_system
from lab.steps.wire import NEXT, Side, WireStep

# The systems of the sale: a lock in Redis, and a store.
SALES: Final = {"sale": "redis", "sale-mysql": "mysql", "sale-postgres": "postgres", "events": "redis"}
LOCKS: Final = tuple(name for name in CLASSES if name not in ("file", "local", "none"))
OF_A_CHANGE: Final = ("redis", "etcd", "sale")  # what every change runs
_SAID: Final = {
    "missed": "faults never came to their step",
    "left_out": "awaits came in one of two calm runs only",
    "once": "runs failed the first time only",
    "alone": "operations have nobody who comes between",
}
_PAIRS: Final = (LOST, CUT, LATE, ENDED)
_PAIRS_FIRST: Final = (*_PAIRS, REFUSED)
_PAIRS_SECOND: Final = (*_PAIRS, LATER, KILLED)
_PAIRED: Final = ("take", "take behind", "purchase", "confirm")
_FEW_AT_ONCE: Final = 4
_LIKE_MAX: Final = 8  # messages of a name at which faults strike: a busy waiter asks the same again and again
_MISSED_MOST: Final = 0.5  # of the faults that come to no step: a busy waiter looks more often, or less


@dataclass(slots=True)
class RunTally:
    """What came of an operation's runs."""

    steps: list[WireStep]
    runs: int = 0
    missed: int = 0
    left_out: int = 0
    once: int = 0
    took_s: float = 0.0
    faults: set[str] = field(default_factory=set)

    def see(self, steps: list[WireStep]) -> None:
        """Note the steps of a calm run. Of two the longer one counts: on a busy machine something may be missed.

        What a task of the program awaits in one of them alone is left out: it may not come again.
        """
        if self.steps:
            odd = {step for step in {*self.steps} ^ {*steps} if is_await(step) and not is_own(step)}
            self.left_out = len(odd)
            steps = [step for step in max(self.steps, steps, key=len) if step not in odd]
        self.steps = steps

    @property
    def numbers(self) -> counts.Numbers:
        """Return what is noted of it."""
        ran = {"faults": len(self.faults), "runs": self.runs, "seconds": round(self.took_s)} if self.runs else {}
        return {"steps": len(self.steps), **ran}


def main(words: Sequence[str] | None = None) -> int:
    """Run what the command line says; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.steps", description="Every step fails once.")
    parser.add_argument("--system", default=",".join(OF_A_CHANGE), help=f"{', '.join((*LOCKS, *SALES))}, or all")
    parser.add_argument("--only", default="", help="a part of the table: 'take', or 'take / lock take 1 asked / lost'")
    parser.add_argument("--pairs", action="store_true", help=f"two faults in a run, of {', '.join(_PAIRED)}")
    parser.add_argument("--at-once", type=int, default=16, metavar="N", help="runs at a time (16)")
    parser.add_argument("--write", action="store_true", help="note the numbers of steps")
    parser.add_argument("--calm", action="store_true", help="count the steps, and let none fail")
    options = parser.parse_args(words)
    names = [*LOCKS, *SALES] if options.system == "all" else options.system.split(",")
    for name in names:
        if name not in (*LOCKS, *SALES):
            parser.error(f"no such system: {name}")
    console = Console(highlight=False, soft_wrap=True)
    total, violations = Counter[str](), 0
    for name in names:
        wrong = Steps(name, console, options)
        violations += wrong.run()
        total += wrong.total()
        if options.write:
            counts.write(name, {operation: one.numbers for operation, one in wrong.tallies.items()})
    console.print(
        f"{total['operations']} operations, {total['steps']} steps, {total['runs']} runs, "
        + "".join(f"{total[name]} {what}, " for name, what in _SAID.items() if total[name])
        + f"{violations} violations"
    )
    return 1 if violations or not total["steps" if options.calm else "runs"] else 0


class Steps:
    """All runs of a system."""

    def __init__(self, name: str, console: Console, options: argparse.Namespace) -> None:
        self._name = name
        self._console = console
        self._only: str = options.only
        self._at_once: int = options.at_once
        self._cases_of = self._no_cases if options.calm else self._pairs_of if options.pairs else self._cases
        self._is_sale = name in SALES
        self.tallies: dict[str, RunTally] = {}

    def run(self) -> int:
        """Run them, and return how many were violated."""
        began, violated = time.monotonic(), 0
        operation = self._only.partition(" / ")[0]
        with ExitStack() as servers:
            self._systems = {"lock": lock_system("redis-fair" if self._is_sale else self._name)}
            if self._is_sale:
                kind = SALES[self._name]
                self._systems["store"] = self._systems["lock"] if kind == "redis" else STOCKS[kind](kind)
            for system in {id(one): one for one in self._systems.values()}.values():
                servers.callback(system.stop)
                system.start()
            calm = [Case(self._name, one) for one in self._operations() if operation in ("", one)]
            for result in self._run([*calm, *calm]):
                violated += self._tell(result)
                tally = self.tallies.setdefault(result.case.operation, RunTally([]))
                tally.see(result.steps)
                tally.once += result.again and not result.violations
            self.tallies = {case.operation: self.tallies[case.operation] for case in calm}
            violated += self._fewer()
            for result in self._run(self._cases_of()):
                tally = self.tallies[result.case.operation]
                tally.runs += 1
                tally.once += result.again and not result.violations
                tally.took_s += result.took_s
                tally.missed += not result.struck
                tally.faults.add(result.case.fault)
                violated += self._tell(result)
        self._table(time.monotonic() - began)
        total = self.total()
        if total["missed"] > max(3, _MISSED_MOST * total["runs"]):
            missed = f"{total['missed']} of {total['runs']} faults never came to their step"
            self._console.print(f"✗ {self._name}: {missed}", style="red")
            violated += 1
        return violated

    def total(self) -> Counter[str]:
        """Return the sums."""
        found = Counter(operations=len(self.tallies))
        for tally in self.tallies.values():
            found += Counter(steps=len(tally.steps), runs=tally.runs, missed=tally.missed, once=tally.once)
            found += Counter(left_out=tally.left_out)
        if self._is_sale:
            found["alone"] = sum(not sale.OPERATIONS[operation].between for operation in self.tallies)
        return found

    def _operations(self) -> Iterable[str]:
        if self._is_sale:
            return (name for name, one in sale.OPERATIONS.items() if one.wants_own == (self._name == "events"))
        return (one for one in locks.OPERATIONS if locks.has(self._name, one))

    def _run(self, cases: Iterable[Case]) -> Iterator[PlayResult]:
        """Run cases; what fails runs once more, alone, as the machine may have been busy: a bug fails again.

        A fault that did not come to its step is tried once more, too, with fewer others beside it.
        """
        failed, missed = [], []
        for result in run_all(cases, self._make, at_once=self._at_once):
            if result.violations:
                failed.append(result.case)
            elif result.case.fault and not result.struck:
                missed.append(result.case)
            else:
                yield result
        for result in run_all(missed, self._make, at_once=_FEW_AT_ONCE):
            if result.violations:
                failed.append(result.case)
            else:
                yield result
        for result in run_all(failed, self._make, at_once=1):
            result.again = True
            yield result

    def _make(self, case: Case, name: str) -> Play:
        return (sale.SalePlay if self._is_sale else locks.LockPlay)(case, name, self._systems)

    def _no_cases(self) -> Iterator[Case]:
        return iter(())

    def _cases(self) -> Iterator[Case]:
        for operation, tally in self.tallies.items():
            for step in tally.steps:
                if step.number > _LIKE_MAX and not (self._is_sale or is_await(step)):
                    continue
                for fault in self._faults(operation, step):
                    case = Case(self._name, operation, step, fault)
                    if case.name.startswith(self._only):
                        yield case

    def _faults(self, operation: str, step: WireStep) -> Iterator[str]:
        if is_await(step):
            yield from _at_an_await(step) if operation != locks.IN_A_THREAD else ()
            return
        if self._is_sale and (sale.OPERATIONS[operation].wants_own or sale.OPERATIONS[operation].long):
            yield from (LOST, CUT, LATE, CANCELLED, ALL_CANCELLED, KILLED)
            if step.side == Side.ASKED.value and not step.name.startswith("hook"):
                yield from (f"{BETWEEN}{what}" for what in sale.OPERATIONS[operation].between)
            return
        yield from (fault for fault in AT_A_MESSAGE if operation != locks.IN_A_THREAD or fault not in AT_AN_AWAIT)
        yield NOTICED if self._is_sale else ENDED  # what is done between ends the lease, too
        yield RESTARTED
        if self._can(REFUSED, step):
            yield REFUSED
        if step.side == Side.ANSWERED.value and self._systems[step.name.partition(" ")[0]].can_forget:
            yield FORGETFUL
        if self._is_sale:
            yield from (f"{BETWEEN}{what}" for what in sale.OPERATIONS[operation].between)
        else:
            yield TAKEN
            if self._systems["lock"].can_throw_out:
                yield THROWN_OUT
            if self._can(LATER, step):
                yield LATER
            elif operation != locks.IN_A_THREAD:
                yield from (AWAY, PAUSED)
            yield from (f"{BETWEEN}{what}" for what in ("try", "force", locks.ONCE)[: 2 + (operation == locks.ONCE)])

    def _can(self, fault: str, step: WireStep) -> bool:
        if fault == REFUSED:
            return self._systems[step.name.partition(" ")[0]].can_refuse and step.side == Side.ASKED.value
        return fault != LATER or (step.side == Side.ASKED.value and not self._is_sale)

    def _pairs_of(self) -> Iterator[Case]:
        for operation, tally in self.tallies.items():
            steps = [step for step in tally.steps if not is_await(step)] if operation in _PAIRED else []
            for n, first in enumerate(steps):
                # What comes later is repeated, so the second fault may come to the next message of a name, too.
                again = [WireStep(step.name, step.number + 1, step.side) for step in steps[: n + 1]]
                # Or to one that a calm run doesn't have.
                again += [WireStep(f"{first.name.partition(' ')[0]} {NEXT}", 1, side.value) for side in Side]
                for second in dict.fromkeys([*steps[n + 1 :], *again]):
                    for faults in product(_PAIRS_FIRST, _PAIRS_SECOND):
                        case = Case(self._name, operation, first, faults[0], (second, faults[1]))
                        can = self._can(faults[0], first) and self._can(faults[1], second)
                        if can and case.name.startswith(self._only):
                            yield case

    def _tell(self, result: PlayResult) -> bool:
        for violation in result.violations:
            self._console.print(f"✗ {self._name}: {result.case.name}: {violation}", style="red", markup=False)
        return bool(result.violations)

    def _fewer(self) -> int:
        known, fewer = counts.read().get(self._name, {}), 0
        for operation, tally in self.tallies.items():
            steps = len(tally.steps)
            if not steps or 2 * steps < known.get(operation, {}).get("steps", 0):
                self._console.print(f"✗ {self._name}: {operation}: only {steps} steps", style="red")
                fewer += 1
        return fewer

    def _table(self, took_s: float) -> None:
        table = Table("operation", "steps", "faults", "runs", "seconds", title=f"{self._name}, {took_s:.0f} s")
        for operation, one in self.tallies.items():
            table.add_row(operation, *map(str, (len(one.steps), len(one.faults), one.runs, round(one.took_s))))
        self._console.print(table)


def _at_an_await(step: WireStep) -> tuple[str, ...]:
    if is_own(step):
        return AT_AN_AWAIT
    return (CANCELLED, AS_ANSWERED) if step.number else (CANCELLED,)  # or before it has begun


if __name__ == "__main__":
    sys.exit(main())
