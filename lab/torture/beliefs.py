"""The instances' beliefs: the periods in which each of them believed that it held a lock.

An instance writes a line when it is granted a lock, and one when it begins to give it back, with its own opinion of
whether it still had it. The service itself has no part in this: `watch` patches the locks that it uses.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from fencelock import clock
from fencelock.connection import Terms
from fencelock.grant import Grant
from fencelock.lock import AsyncLock
from lab.torture.history import Belief

FILE: Final = "beliefs.jsonl"


@contextlib.contextmanager
def watch(file: Path, instance: str) -> Iterator[None]:
    """Make all locks of this process note who believes that they own it."""
    out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(**fields: Any) -> None:
        # Each line is a single write, so that a killed instance leaves whole lines.
        os.write(out, (json.dumps(fields) + "\n").encode())

    note(began=instance)
    tell_of, give_back = Terms.tell_of, AsyncLock._give_back
    numbers, names = itertools.count(), dict[int, int]()  # of the grants, by their identity

    def granted(self: Terms, name: str, grant: Grant, waited_s: float) -> None:
        number = names[id(grant)] = next(numbers)
        note(granted=number, lock=name, token=grant.token, at=clock.now(), waited_s=round(waited_s, 4))
        tell_of(self, name, grant, waited_s)

    async def ended(self: AsyncLock, grant: Grant) -> None:
        number = names.pop(id(grant), None)
        if number is not None:
            # In this order: an instance that believes in its grant after `at` did so at `at`.
            at, lost = clock.now(), grant.lost
            note(ended=number, at=min(at, grant.deadline) if lost else at, lost=lost)
        await give_back(self, grant)

    Terms.tell_of = granted  # type: ignore[method-assign]
    AsyncLock._give_back = ended  # type: ignore[method-assign]
    try:
        yield
    finally:
        Terms.tell_of, AsyncLock._give_back = tell_of, give_back  # type: ignore[method-assign]
        os.close(out)


def read(file: Path, name: str, since: float) -> list[Belief]:
    """Return the beliefs that an instance has noted; times count from `since`."""
    found: list[Belief] = []
    with contextlib.suppress(FileNotFoundError), file.open() as lines:
        found += _read(lines, name, lambda at: round(at - since, 4))
    return found


def _read(lines: Iterator[str], name: str, moment: Callable[[float], float]) -> Iterator[Belief]:
    held: dict[int, dict[str, Any]] = {}
    for line in lines:
        fields = json.loads(line)
        if "began" in fields:
            yield from (_unended(one, name, moment) for one in held.values())
            held = {}
        elif "granted" in fields:
            held[fields["granted"]] = fields
        else:
            one, lost = held.pop(fields["ended"]), fields["lost"]
            begin, end = moment(one["at"]), moment(fields["at"])
            yield Belief(name, one["lock"], one["token"], begin, max(begin, end), lost, waited_s=one["waited_s"])
    yield from (_unended(one, name, moment) for one in held.values())


def _unended(one: dict[str, Any], name: str, moment: Callable[[float], float]) -> Belief:
    at = moment(one["at"])
    return Belief(name, one["lock"], one["token"], at, at, ended=False, waited_s=one["waited_s"])
