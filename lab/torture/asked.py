"""What instances ask the store, and what it answers: prepare, commit, set, unfence.

Each request is a line when it is sent and one when it is answered, so that the requests of a killed instance are there,
too. The service itself has no part in this: `watch` patches the stores that it uses.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from app.errors import FenceRefused, StockChanged
from app.orders import Snapshot
from app.stock import Batch, Fence, Level, StockStore
from fencelock import clock
from lab.torture.history import StoreCall

FILE: Final = "asked.jsonl"
REFUSED: Final = "refused"
Tell = Callable[..., Callable[[Mapping[str, Any]], None]]


@contextlib.contextmanager
def watch(file: Path, instance: str) -> Iterator[None]:
    """Make all stores of this process note what they are asked."""
    out, numbers = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT), itertools.count()

    def note(**fields: Any) -> None:
        # Each line is a single write, so that a killed instance leaves whole lines.
        os.write(out, (json.dumps(fields) + "\n").encode())

    def asks(verb: str, fence: Fence | None, batch: str, parts: Mapping[str, Any]) -> Callable[[Any], None]:
        number = next(numbers)
        own = {"token": fence.token if fence else 0, "source": fence.source if fence else "", "batch": batch}
        note(asked=number, verb=verb, parts=dict(parts), at=clock.now(), **own)
        return lambda answers: note(answered=number, at=clock.now(), said={sku: _said(answers[sku]) for sku in parts})

    note(began=instance)
    before = {name: getattr(StockStore, name) for name in _WATCHED}
    for name, method in before.items():
        setattr(StockStore, name, _WATCHED[name](method, asks))
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(StockStore, name, method)
        os.close(out)


def _said(answer: Any) -> Any:
    match answer:
        case Snapshot() | Level():
            return answer.stock
        case FenceRefused() | StockChanged():
            return REFUSED
        case list():
            return len(answer)
    return None  # it is in doubt, or the store has another reason


def _prepare(real: Callable[..., Awaitable[Any]], asks: Tell) -> Any:
    async def prepare(self: Any, fence: Fence, batch_id: str, parts: Mapping[str, Any]) -> Any:
        answered = asks("prepare", fence, batch_id, dict.fromkeys(parts))
        answers = await real(self, fence, batch_id, parts)
        answered(answers)
        return answers

    return prepare


def _commit(real: Callable[..., Awaitable[Any]], asks: Tell) -> Any:
    async def commit(self: Any, fence: Fence, batches: Mapping[str, Batch], together: Any = ()) -> Any:
        name = next(iter(batches.values())).batch_id if batches else ""
        answered = asks("commit", fence, name, {sku: one.seen.stock for sku, one in batches.items()})
        answers = await real(self, fence, batches, together)
        answered(answers)
        return answers

    return commit


def _set(real: Callable[..., Awaitable[Any]], asks: Tell) -> Any:
    async def set_stock(self: Any, sku: str, fence: Fence, stock: int, **how: Any) -> Any:
        kind = "sale" if how.get("new_sale") else "add" if how.get("add") else "set"
        answered = asks(kind, fence, "", {sku: stock})
        try:
            level = await real(self, sku, fence, stock, **how)
        except (FenceRefused, StockChanged) as error:
            answered({sku: error})
            raise
        answered({sku: level})
        return level

    return set_stock


def _unfence(real: Callable[..., Awaitable[Any]], asks: Tell) -> Any:
    async def unfence(self: Any, sku: str, **how: Any) -> Any:
        answered = asks("unfence", None, "", {sku: 0})
        await real(self, sku, **how)
        answered({sku: []})

    return unfence


_WATCHED: Final[dict[str, Callable[..., Any]]] = {
    "prepare": _prepare,
    "commit": _commit,
    "set_stock": _set,
    "unfence": _unfence,
}


def read(file: Path, name: str, since: float) -> list[StoreCall]:
    """Return what an instance has noted; times count from `since`."""
    found, under_way = list[StoreCall](), dict[int, dict[str, Any]]()

    def asked(one: dict[str, Any], done: dict[str, Any] | None) -> Iterator[StoreCall]:
        for sku, stock in one["parts"].items():
            said = done["said"][sku] if done else None
            done_at = round(done["at"] - since, 5) if done and said is not None else None
            own = (one["verb"], sku, one["token"], one["source"], one["batch"], stock)
            yield StoreCall(name, *own, round(one["at"] - since, 5), done_at, said)

    with contextlib.suppress(FileNotFoundError), file.open() as lines:
        for line in lines:
            fields = json.loads(line)
            if "asked" in fields:
                under_way[fields["asked"]] = fields
                continue
            ended = under_way.values() if "began" in fields else [under_way.pop(fields["answered"])]
            for one in ended:
                found += asked(one, fields if "answered" in fields else None)
            if "began" in fields:
                under_way = {}
    for one in under_way.values():
        found += asked(one, None)
    return found
