"""The judge's demand on the store: what it was asked and what it said is a run of the model of the protocol.

Each request to the store is a message of the model. When it arrived, nobody knows: at some moment after it was sent,
before it was answered, or later, or never, if it was not. So the judge keeps all states in which the store can be, and
has the model decide what each arrival makes of them: which token is the highest, which batch is registered, which one
is written. An answer that no state explains is told, and ends the judgement of that item. The batches in the journal
are those that were written, in that order; how many units each moved is the other model's matter (`judge_model`).
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from lab.model.protocol import Message, ModelBatch, ModelInstance, Protocol, Scope, State, Store
from lab.torture.asked import REFUSED
from lab.torture.history import History, StoreCall

_MOST: Final = 20_000  # states of one item at one moment


class _Branch(NamedTuple):
    """A state in which the store of an item may be. `written`: how many batches; `arrived`: what its answer will be."""

    store: Store
    written: int
    flying: frozenset[int]
    arrived: frozenset[tuple[int, int | None]]


class Written(NamedTuple):
    """A batch that was written: how many units are left more than before it, and how many orders began with it."""

    batch: str
    moved: int
    begun: int = 1


class StoreFollower:
    """Follows the store of one item. `batches`: those that were written; `without`: mechanisms that the model lacks."""

    def __init__(
        self, asked: Sequence[StoreCall], batches: Sequence[Written], without: frozenset[str] = frozenset()
    ) -> None:
        own = {one for one in Protocol.mechanisms if one in without}
        self._model = Protocol(Scope(instances=1, buyers=0, units=0), without=own)
        self._asked, self._batches = asked, batches
        self._known = {one.batch: one.begun for one in batches}
        self._numbers: dict[str, int] = {"": 0}

    def follow(self) -> Iterator[str]:
        """Yield the first answer that has no explanation."""
        moments = [(one.sent_at, 0, number) for number, one in enumerate(self._asked)]
        moments += [(one.done_at, 1, number) for number, one in enumerate(self._asked) if one.done_at is not None]
        states = {_Branch(Store(0), 0, frozenset(), frozenset())}
        for _, ended, number in sorted(moments):
            if not ended:
                states = {self._without_dead(one._replace(flying=one.flying | {number})) for one in states}
                continue
            after = self._answered(states, number)
            if not after:
                one = self._asked[number]
                yield (
                    f"{one.sku} at {one.done_at:.2f} s: {one.verb} of {one.instance} with token {one.token} was told "
                    f"{one.said!r}: no state of the store explains it"
                )
                return
            states = after
            if len(states) > _MOST:
                yield f"{self._asked[number].sku}: more than {_MOST:,} states of the store explain what was said"
                return
        everything = len(self._batches)
        if not any(one.written == everything for one in self._closure(states)):
            most = max((one.written for one in self._closure(states)), default=0)
            yield f"batch {self._batches[most].batch} is in the journal, and nothing explains how it came there"

    def _answered(self, states: set[_Branch], number: int) -> set[_Branch]:
        """Return the states in which the answer to a request is what was said."""
        said, found = self._asked[number].said, set[_Branch]()
        for state in self._closure(states):
            for place, answer in state.arrived:
                if place == number and self._agrees(self._asked[number], answer, said):
                    left = state.arrived - {(place, answer)}
                    found.add(self._without_dead(state._replace(arrived=left)))
        return found

    def _closure(self, states: set[_Branch]) -> set[_Branch]:
        """Return all states that are reached by arrivals alone."""
        found, line = set(states), list(states)
        while line and len(found) <= 10 * _MOST:
            state = line.pop()
            for number in state.flying:
                after = self._arrives(state, number)
                if after is not None and after not in found:
                    found.add(after)
                    line.append(after)
        return found

    def _arrives(self, state: _Branch, number: int) -> _Branch | None:
        """Return the state after a request has arrived; None if it did otherwise by the journal."""
        one = self._asked[number]
        gone = state._replace(flying=state.flying - {number})
        store, answer, written = state.store, None, state.written
        match one.verb:
            case "prepare" | "commit":
                store, answer = self._by_the_model(store, one)
                if one.verb == "commit" and answer is not None and one.batch in self._known:
                    if written >= len(self._batches) or self._batches[written].batch != one.batch:
                        return None
                    store = store._replace(stock=store.stock + self._batches[written].moved, registered=0)
                    written += 1
                elif one.verb == "commit" and one.batch in self._known:
                    done = any(known.batch == one.batch for known in self._batches[:written])
                    answer = 0 if done else answer  # it was sent again
            case "unfence":
                store, answer = store._replace(fence=0, registered=0), 0
            case _ if one.token < store.fence:
                answer = None
            case _:
                stock = (one.stock or 0) + (store.stock if one.verb == "add" else 0)
                store, answer = Store(stock, fence=one.token), stock
        kept = gone._replace(store=store, written=written)
        if one.done_at is None:
            return self._without_dead(kept)
        return self._without_dead(kept._replace(arrived=kept.arrived | {(number, answer)}))

    def _by_the_model(self, store: Store, one: StoreCall) -> tuple[Store, int | None]:
        kind = "read" if one.verb == "prepare" else "commit"
        batch = ModelBatch(self._number(one.batch), stock=one.stock or 0)
        message = Message(kind, 0, one.token, batch)
        state = State(store, (ModelInstance(),), (), messages=frozenset({message}), peace=False)
        ((_, after),) = self._model.arrives(state, message)
        (answer,) = after.answers
        return after.store._replace(orders=()), answer.found

    def _agrees(self, one: StoreCall, answer: int | None, said: int | str | None) -> bool:
        if said == REFUSED:
            return answer is None
        if one.verb == "commit":  # as many orders as the journal has of it
            return answer is not None and said == self._known.get(one.batch, 0)
        return answer is not None if one.verb == "unfence" else answer == said

    def _number(self, batch: str) -> int:
        return self._numbers.setdefault(batch, len(self._numbers))

    def _without_dead(self, state: _Branch) -> _Branch:
        """Forget the requests that nobody waits for and that can't change anything any more."""
        dead = {
            number
            for number in state.flying
            if (one := self._asked[number]).done_at is None
            and one.verb in ("prepare", "commit")
            and (
                one.token < state.store.fence
                or (one.verb == "commit" and one.batch not in {known.batch for known in self._batches[state.written :]})
            )
        }
        return state._replace(flying=state.flying - dead) if dead else state


def keeps_its_rule(history: History) -> Iterator[str]:
    """What the store was asked and what it said is a run of the model; only where the guard is the fence."""
    if history.setup.guard != "fence" or history.end is None or not history.asked:
        return
    orders: dict[str, list[Written]] = {}
    for (sku, batch), some in groupby(history.end.journal, key=lambda one: (one.sku, one.batch)):
        ones = list(some)
        begun = sum(one.number == 1 for one in ones)
        orders.setdefault(sku, []).append(Written(batch, sum(one.stock for one in ones), begun))
    # What was written in a sale that a new one has forgotten is known to nobody.
    for sku in {one.sku for one in history.asked} - history.drops:
        about = [one for one in history.asked if one.sku == sku]
        # The model knows no tokens of another lock, for which it would be refused as well.
        foreign = len({one.source for one in about if one.source}) > 1
        told = [one for one in about if not (foreign and one.said == REFUSED)]
        asked = sorted(told, key=lambda one: one.sent_at)
        yield from StoreFollower(asked, orders.get(sku, ())).follow()
