"""Checks with porcupine, beside our own judge, that one order of all events explains every answer.

Linearizability is checked for each item, and for each idempotency key, by an established checker. It is a Go
module: built once, kept in the user's cache, where Go is on PATH.
"""

import bisect
import hashlib
import heapq
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from app.errors import ConfigurationError
from lab.torture.history import UNKNOWN, Attempt, Item
from lab.torture.judge_sale import LIMIT_REACHED, MEMORY_S, SOLD, Evidence

_CHECK_WITHIN_S: Final = 20.0  # per item
_BUILD_WITHIN_S: Final = 300.0  # the first build on a machine downloads what it needs
_SOURCES: Final = ("main.go", "go.mod", "go.sum")
_NEVER_US: Final = 10**12  # the return of an operation that was not answered


class NoChecker(ConfigurationError):
    """Porcupine can't be used here; the text says why."""


@dataclass(slots=True)
class Linearity:
    """The verdict of porcupine. `violations`: one for each part for which it found no order."""

    operations: int = 0
    parts: int = 0
    violations: list[str] = field(default_factory=list)


def check(evidence: Evidence, picture: Path) -> Linearity:
    """Ask porcupine about each item and each key, and draw its findings. Raises `NoChecker`."""
    program = _program()
    lines = "".join(json.dumps(one) + "\n" for one in operations(evidence))
    argv = [str(program), str(_CHECK_WITHIN_S), str(picture)]
    done = subprocess.run(argv, input=lines, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoChecker(f"porcupine failed: {done.stderr.strip()[-300:]}")
    found = Linearity()
    for line in done.stdout.splitlines():
        result = json.loads(line)
        found.parts += 1
        found.operations += result["operations"]
        if result["verdict"] != "Ok":
            # With the order of the orders a good history takes a second; a history that takes 20 has no explanation.
            how = f"in {_CHECK_WITHIN_S:g} s no order was found that" if result["verdict"] == "Unknown" else "no order"
            found.violations.append(f"{how} explains {result['item']}; the first that doesn't fit: {result['first']}")
    return found


def operations(evidence: Evidence) -> Iterator[dict[str, Any]]:
    """Yield the events as operations of porcupine."""
    of_items = [*_of_items(evidence)]
    free: list[tuple[int, int]] = []  # since when each client is free: a client does one thing at a time
    for one in sorted(of_items, key=lambda operation: operation["call"]):
        lane = heapq.heappop(free)[1] if free and free[0][0] < one["call"] else len(free) + 1
        heapq.heappush(free, (one["return"], lane))
        yield one | {"client": lane}
    yield from _of_keys(evidence)


def _operation(part: str, kind: str, call_s: float, return_s: float, about: str, **more: Any) -> dict[str, Any]:
    us = {"call": int(call_s * 1e6), "return": min(_NEVER_US, int(return_s * 1e6)) if return_s < 1e6 else _NEVER_US}
    return {"item": part, "kind": kind, "about": about, **us, **more}


class _Order:
    """The order of an item's sales as the store has it, where the orders lie as they were written.

    The order must be one that explains all. Without it the search would not end: of waiting buyers anybody could
    have been the first, and an unanswered request could have taken effect at any time. `number` of a sale, and how many
    looks saw less than that (`looks_before`), which shows early that a branch leads nowhere.
    """

    def __init__(self, evidence: Evidence, sku: str) -> None:
        orders = evidence.orders[sku]
        self.number = {order.key or order.buyer: number for number, order in enumerate(orders)}
        sold = list(itertools.accumulate((order.quantity for order in orders), initial=0))
        seen = sorted(look.lucky for look in evidence.looks(sku))
        self.looks_before = [bisect.bisect_right(seen, before) for before in sold]


def _of_items(evidence: Evidence) -> Iterator[dict[str, Any]]:
    history, end = evidence.history, evidence.end
    for item in history.setup.items:
        yield _operation(item.sku, "init", -2, -1, "the beginning", stock=item.initial)
    for item in history.setup.items:
        yield from _restocks(evidence, item)
    last = 0.0
    for look in history.looks:
        last = max(last, look.at)
        about = f"{look.stock} left, {look.lucky} sold, as seen {look.asked_at:.3f} to {look.at:.3f} s"
        yield _operation(look.sku, "look", look.asked_at, look.at, about, stock=look.stock, lucky=look.lucky)
    for attempt in history.attempts:
        last = max(last, attempt.done_at)
    orders = {item.sku: _Order(evidence, item.sku) for item in history.setup.items}
    for attempts in evidence.asked.values():
        order, wish = orders[attempts[0].sku], attempts[0].key or attempts[0].buyer
        number = order.number.get(wish, -1)
        for operation in _of_wish(attempts, written=number >= 0):
            yield operation | {"number": number, "looks": order.looks_before[number]}
    for left in end.left:
        about = f"{left.stock} left, {left.lucky} sold, at the end"
        yield _operation(left.sku, "look", last + 1, last + 2, about, stock=left.stock, lucky=left.lucky)


def _restocks(evidence: Evidence, item: Item) -> Iterator[dict[str, Any]]:
    """Yield restocks. The operator waits for the lock; looks narrow down the moment, which shortens the search."""
    units, looks = item.initial, evidence.looks(item.sku)
    for one in sorted(evidence.restocks(item.sku), key=lambda restock: restock.asked_at):
        before, units = units, units + one.added
        begin = max([one.asked_at, *(look.asked_at for look in looks if look.stock + look.lucky <= before)])
        end = min([one.done_at, *(look.at for look in looks if look.stock + look.lucky >= units)])
        if begin > end:  # a look was wrong; porcupine finds out which one
            begin, end = one.asked_at, one.done_at
        about = f"{one.added} of {one.sku} added, {one.asked_at:.3f} to {one.done_at:.3f} s"
        yield _operation(one.sku, "add", begin, end, about, units=one.added)


def _of_wish(attempts: list[Attempt], *, written: bool) -> Iterator[dict[str, Any]]:
    """Yield the new answers to a purchase. An attempt without one may still be served, as a later answer shows."""
    since: float | None = None
    under_way: float | None = None
    told: str | None = None
    for one in attempts:
        since = one.sent_at if since is None else since
        if one.status == 200:
            if one.outcome != LIMIT_REACHED and not (one.replayed and told == one.outcome):
                yield _purchase(one, since if under_way is None else min(since, under_way))
            told, since = one.outcome, None
        elif under_way is None and (one.status == 0 or one.error == UNKNOWN):
            under_way = one.sent_at
    if written and told != SOLD:
        first = attempts[0]
        about = f"{first.buyer} asks for {first.quantity} from {first.sent_at:.3f} s on, and hears nothing"
        yield _operation(first.sku, "buy", first.sent_at, 1e9, about, units=first.quantity, outcome=SOLD)


def _purchase(answer: Attempt, since: float) -> dict[str, Any]:
    about = (
        f"{answer.buyer} asks {answer.instance} for {answer.quantity}: {answer.outcome}, "
        f"{since:.3f} to {answer.done_at:.3f} s"
    )
    # A buyer without a key may get an answer that was true a moment ago.
    since -= 0 if answer.key is not None or answer.outcome == SOLD else MEMORY_S
    return _operation(answer.sku, "buy", since, answer.done_at, about, units=answer.quantity, outcome=answer.outcome)


def _of_keys(evidence: Evidence) -> Iterator[dict[str, Any]]:
    for attempts in evidence.asked.values():
        answers = [one for one in attempts if one.status == 200 and one.key is not None]
        if len(answers) < 2 or any(one.outcome == "sold_out" for one in answers):  # that answer is not final
            continue
        for number, one in enumerate(answers):
            part, about = f"key {one.key}", f"{one.outcome} {one.order}, {one.sent_at:.3f} to {one.done_at:.3f} s"
            more = {"outcome": one.outcome, "order": one.order or "", "client": number}
            yield _operation(part, "ask", one.sent_at, one.done_at, about, **more)


def _program() -> Path:
    """Return the checker, after building it if necessary. Raises `NoChecker`."""
    sources = {name: files("lab.torture").joinpath("porcupine", name).read_bytes() for name in _SOURCES}
    digest = hashlib.sha256(b"".join(sources.values())).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seckill"
    program = cache / f"porcupine-{digest}"
    if program.exists():
        return program
    if shutil.which("go") is None:
        raise NoChecker("Go is not on PATH; see go.dev/doc/install")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        for name, text in sources.items():
            (Path(work) / name).write_bytes(text)
        built = Path(work) / "built"
        argv = ["go", "build", "-trimpath", "-o", str(built), "."]
        try:
            done = subprocess.run(argv, cwd=work, capture_output=True, text=True, timeout=_BUILD_WITHIN_S)
        except subprocess.TimeoutExpired:
            raise NoChecker("go build took too long") from None
        if done.returncode:
            raise NoChecker(f"go build failed: {done.stderr.strip()[-300:]}")
        built.rename(program)  # nobody ever sees a partial one
    return program
