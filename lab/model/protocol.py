"""The protocol of a sale as states and the steps between them: lock, lease, fence, batches, and batches in doubt.

Each step is one party's atomic action: a buyer asks, an instance sends a message, the store handles one. Any time may
pass between two steps. Messages to the store may arrive late, in any order, or never; leases end while
their holders go on; instances crash; an operator changes the stock; the store comes back older. These are the faults,
and a history has only a few of them.

Each mechanism can be switched off; the promise that then breaks is the reason for the mechanism (docs/model.md).
"""

from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from typing_extensions import override

from lab.model.search import Model, Note


class Mechanism(StrEnum):
    """A mechanism on which the safety of a sale rests. The text is its name on the command line."""

    LOCK = "lock"
    LEASE = "lease"
    TOKENS = "tokens"
    FENCE_AT_READ = "fence-at-read"
    FENCE_AT_WRITE = "fence-at-write"
    COMPARE = "compare"
    KEYS = "keys"
    DOUBT = "doubt"
    SETTLE = "settle"
    ANSWER_LAST = "answer-last"
    MARKS = "marks"
    APART = "apart"


MEANING: Final[dict[Mechanism, str]] = {
    Mechanism.LOCK: "an instance waits for its turn; without: it believes at once that it owns the lock",
    Mechanism.LEASE: "what a dead holder has ends by itself; without: it stays",
    Mechanism.TOKENS: "the store refuses a read with a token lower than one that it has seen",
    Mechanism.FENCE_AT_READ: "a read registers the batch that may be written; without: only writes raise the fence",
    Mechanism.FENCE_AT_WRITE: "the store writes only the batch that was registered last",
    Mechanism.COMPARE: "the store writes only if the stock is what was read",
    Mechanism.KEYS: "a purchase with a key that has an order gets that order",
    Mechanism.DOUBT: "a commit that was not answered is in doubt; without: it is served once more at once",
    Mechanism.SETTLE: "what is in doubt is looked for after another batch is registered; without: just looked for",
    Mechanism.ANSWER_LAST: "buyers are told when the commit is answered; without: when it is sent",
    Mechanism.MARKS: "instances know of the last order, and refuse a store that lacks it",
    Mechanism.APART: "the lock's server keeps that knowledge; without: it is the store's, and a restore sets both back",
}
# The promise that breaks without each of them, as the shortest history shows.
BREAKS: Final[dict[Mechanism, str]] = {
    Mechanism.LOCK: "instance A is refused while nothing is broken",
    Mechanism.LEASE: "Ann waits for ever",
    Mechanism.TOKENS: "an order was written with a lower token than the one before",
    Mechanism.FENCE_AT_READ: "Ann has two orders for one key",
    Mechanism.FENCE_AT_WRITE: "Ann was told “nothing was sold”, and has an order",
    Mechanism.COMPARE: "the stock is -1: a unit was sold that isn't there",
    Mechanism.KEYS: "Ann was told “sold out”, and has an order",
    Mechanism.DOUBT: "Ann was told “nothing was sold”, and has an order",
    Mechanism.SETTLE: "Ann was told “nothing was sold”, and has an order",
    Mechanism.ANSWER_LAST: "Ann is told “sold”, and has no order",
    Mechanism.MARKS: "Ann and Bob have bought 1 unit",
    Mechanism.APART: "Ann and Bob have bought 1 unit",
}


class Scope(NamedTuple):
    """The size of a sale that is explored. `faults`: of any kind, in one history; `asks`: of each buyer."""

    instances: int = 2
    buyers: int = 2
    units: int = 1
    faults: int = 1
    asks: int = 2

    @override
    def __str__(self) -> str:
        faults = f"{self.faults} fault{'s' * (self.faults != 1)}"
        units = f"{self.units} unit{'s' * (self.units != 1)}"
        buyers = "1 buyer who asks" if self.buyers == 1 else f"{self.buyers} buyers who ask"
        return f"{self.instances} instances, {buyers} up to {self.asks} times, {units}, {faults}"


# The scopes in which the whole protocol is explored, and the smallest one in which a mechanism is missed.
SCOPES: Final = (Scope(), Scope(units=2), Scope(instances=3, asks=1), Scope(faults=2))
SMALLEST: Final[dict[Mechanism, Scope]] = {
    Mechanism.TOKENS: Scope(units=2),
    Mechanism.FENCE_AT_READ: Scope(buyers=1, faults=2),
    Mechanism.FENCE_AT_WRITE: Scope(buyers=1),
    Mechanism.KEYS: Scope(buyers=1),
    Mechanism.SETTLE: Scope(buyers=1),
}


class Word(StrEnum):
    """The last answer that a buyer got."""

    NOTHING = "nothing yet"
    SOLD = "sold"
    SOLD_OUT = "sold out"
    NOT_SOLD = "503, nothing was sold"
    UNKNOWN = "503, the outcome is unknown"


class ModelBuyer(NamedTuple):
    """A buyer who wants a unit. `at`: the instances where a purchase of theirs waits or is under way.

    `unsure`: one of their answers was "nobody knows"; "nothing was sold" is then about the last try only.
    """

    told: Word = Word.NOTHING
    asked: int = 0
    at: frozenset[int] = frozenset()
    unsure: bool = False


class Phase(StrEnum):
    """The current work of an instance."""

    IDLE = "idle"
    QUEUED = "waits for the lock"
    OWNER = "owns the lock"
    READING = "has sent a read"
    DECIDED = "has read and decided"
    WRITING = "has sent a commit"
    SETTLING = "has asked what became of a batch"
    CRASHED = "crashed"


class ModelBatch(NamedTuple):
    """A batch of buyers, and the decision on the snapshot: who of them gets a unit, and whose key has one already.

    `number` identifies the batch.
    """

    number: int
    taken: tuple[int, ...] = ()
    again: tuple[int, ...] = ()
    buyers: tuple[int, ...] = ()
    stock: int = 0


class ModelInstance(NamedTuple):
    """An instance. `batch`: the one that it works on; `doubt`: the one that it has sent, with no answer yet."""

    phase: Phase = Phase.IDLE
    token: int = 0
    batch: ModelBatch | None = None
    doubt: ModelBatch | None = None
    mark: int = 0


class Store(NamedTuple):
    """`orders`: buyer, token and batch; `fence`: the highest token; `registered`: the batch that may be written."""

    stock: int
    orders: tuple[tuple[int, int, int], ...] = ()
    fence: int = 0
    registered: int = 0


class Message(NamedTuple):
    """A message on its way to the store: "read", "settle" or "commit"."""

    kind: str
    sender: int
    token: int
    batch: ModelBatch


class Answer(NamedTuple):
    """An answer on its way back. `found`: the stock that was read, or the number of orders; None: refused, not written.

    `settled`: the buyers whose keys have an order.
    """

    kind: str
    receiver: int
    batch: int
    found: int | None
    settled: frozenset[int] = frozenset()


class State(NamedTuple):
    """The whole state. `units`: how many there should be, sold or not; `written`: buyers who have had an order.

    `faults`: how many may still come; `peace`: whether there was none yet; `older`: the state to which the store may go
    back; `broken`: a promise that a step has broken.
    """

    store: Store
    instances: tuple[ModelInstance, ...]
    buyers: tuple[ModelBuyer, ...]
    queue: tuple[int, ...] = ()
    tokens: int = 0
    batches: int = 0
    messages: frozenset[Message] = frozenset()
    answers: frozenset[Answer] = frozenset()
    units: int = 0
    written: frozenset[int] = frozenset()
    faults: int = 0
    peace: bool = True
    older: Store | None = None
    broken: str = ""


Step = tuple[Note, State]
STORE: Final = "store"
LOCK: Final = "lock"


class Protocol(Model[State]):
    """The steps from a state. `without`: the mechanisms that are switched off."""

    mechanisms, meaning, breaks, scopes, smallest = Mechanism, MEANING, BREAKS, SCOPES, SMALLEST

    def __init__(self, scope: Scope, *, without: Collection[StrEnum] = ()) -> None:
        super().__init__(scope, without=without)
        self._asks = scope.asks
        store = Store(scope.units)
        instances, buyers = (ModelInstance(),) * scope.instances, (ModelBuyer(),) * scope.buyers
        self.start = State(store, instances, buyers, units=scope.units, faults=scope.faults, older=store)
        self.lanes = (*map(name_of, range(scope.buyers)), *map(at, range(scope.instances)), LOCK, STORE)

    # -- what must hold ----------------------------------------------------------------------------------------------

    @override
    def violation(self, state: State) -> str:  # noqa: PLR0911 - one promise after the other
        """Return the promise that a state breaks; empty if it keeps all."""
        store = state.store
        if state.broken:
            return state.broken
        if store.stock < 0:
            return f"the stock is {store.stock}: a unit was sold that isn't there"
        if store.stock + len(store.orders) != state.units:
            return f"stock {store.stock} + sold {len(store.orders)} is not {state.units}"
        ordered = [number for number, _, _ in store.orders]
        told = {number for number, buyer in enumerate(state.buyers) if buyer.told is Word.SOLD}
        if len(told | set(ordered)) > state.units:
            return f"{_names(sorted(told | set(ordered)))} have bought {state.units} unit"
        for number in set(ordered):
            if ordered.count(number) > 1:
                return f"{name_of(number)} has two orders for one key"
        tokens = [token for _, token, _ in store.orders]
        if tokens != sorted(tokens):
            return "an order was written with a lower token than the one before"
        for number, buyer in enumerate(state.buyers):
            if buyer.told is Word.NOT_SOLD and number in ordered and not buyer.at and not buyer.unsure:
                return f"{name_of(number)} was told “nothing was sold”, and has an order"
            if buyer.told is Word.SOLD_OUT and number in ordered:
                return f"{name_of(number)} was told “sold out”, and has an order"
        return ""

    @override
    def stuck(self, state: State) -> str:
        """Return what is wrong in a state that has no next step; empty if nothing is."""
        for number, buyer in enumerate(state.buyers):
            if buyer.at:
                return f"{name_of(number)} waits for ever"
        return ""

    # -- the steps ---------------------------------------------------------------------------------------------------

    @override
    def steps(self, state: State) -> Iterator[Step]:
        """Yield everything that can happen next except deadlines and faults."""
        for number in range(len(state.buyers)):
            yield from self._asks_for_a_unit(state, number)
        for number in range(len(state.instances)):
            yield from self._works(state, number)
        for message in state.messages:
            yield from self.arrives(state, message)
        for answer in state.answers:
            yield from self._is_answered(state, answer)

    @override
    def mishaps(self, state: State) -> Iterator[Step]:
        """Yield the faults."""
        if not state.faults:
            return
        hurt = state._replace(faults=state.faults - 1, peace=False)
        for number, instance in enumerate(state.instances):
            if instance.phase is Phase.CRASHED:
                continue
            if number in state.queue:
                gone = tuple(other for other in state.queue if other != number)
                yield Note(f"the lease of {at(number)} ends; it is not told", LOCK), hurt._replace(queue=gone)
            if instance.phase in (Phase.READING, Phase.WRITING, Phase.SETTLING):
                yield Note("hears nothing for too long, and gives up", at(number)), self._gives_up(hurt, number)
            yield Note("crashes", at(number)), self._crash(hurt, number)
        if state.older is not None:
            for change, text in ((-1, "takes a unit away"), (1, "adds a unit")):
                if state.store.stock + change >= 0:
                    changed = state.store._replace(stock=state.store.stock + change)
                    yield (
                        Note(f"an operator {text}, by hand", STORE),
                        hurt._replace(store=changed, units=state.units + change),
                    )
        # Only by itself: with a second fault it can come back before anybody has heard of the order (docs/limits.md).
        if state.peace and state.older is not None and state.store.orders:
            yield Note("comes back older: its last orders are gone", STORE), self._comes_back_older(hurt)

    def _asks_for_a_unit(self, state: State, number: int) -> Iterator[Step]:
        buyer = state.buyers[number]
        if buyer.told in (Word.SOLD, Word.SOLD_OUT) or buyer.asked >= self._asks:
            return
        if (
            buyer.asked
            and buyer.told is Word.NOTHING
            and any(state.instances[one].phase is not Phase.CRASHED for one in buyer.at)
        ):
            return  # waits for its answer
        for instance in range(len(state.instances)):
            if state.instances[instance].phase is not Phase.CRASHED and instance not in buyer.at:
                asking = buyer._replace(told=Word.NOTHING, asked=buyer.asked + 1, at=buyer.at | {instance})
                text = "asks again, with the same key" if buyer.asked else "asks for a unit"
                yield Note(text, name_of(number), at(instance)), _with_buyer(state, number, asking)

    def _works(self, state: State, number: int) -> Iterator[Step]:
        own = state.instances[number]
        waiting = [buyer for buyer, one in enumerate(state.buyers) if number in one.at]
        match own.phase:
            case Phase.IDLE if waiting or own.doubt:
                token = state.tokens + 1
                queued = own._replace(phase=Phase.QUEUED, token=token)
                yield (
                    Note("queues", at(number), LOCK),
                    _with_instance(state, number, queued)._replace(queue=(*state.queue, number), tokens=token),
                )
            case Phase.QUEUED:
                yield from self._looks_for_its_turn(state, number)
            case Phase.OWNER:
                batch = ModelBatch(state.batches + 1, tuple(waiting))
                kind, phase = ("settle", Phase.SETTLING) if own.doubt else ("read", Phase.READING)
                sent = state._replace(
                    messages=state.messages | {Message(kind, number, own.token, batch)}, batches=batch.number
                )
                does = f"asks: was the batch for {_names(own.doubt.buyers)} written?" if own.doubt else "reads"
                yield (
                    Note(does, at(number), of=kind),
                    _with_instance(sent, number, own._replace(phase=phase, batch=batch)),
                )
            case Phase.DECIDED:
                assert own.batch is not None  # noqa: S101 - for the type checker
                yield from self._commits(state, number, own.batch)

    @override
    def options(self, state: State) -> Iterator[Step]:
        """Turn away buyers who are not served in time, which is no way for a sale to go on."""
        for number, own in enumerate(state.instances):
            for buyer, one in enumerate(state.buyers):
                if number not in one.at:
                    continue
                if own.doubt is not None and buyer in own.doubt.buyers:
                    yield self._turns_away(state, number, buyer, Word.UNKNOWN)
                elif own.phase is Phase.QUEUED:
                    yield self._turns_away(state, number, buyer, Word.NOT_SOLD)

    def _looks_for_its_turn(self, state: State, number: int) -> Iterator[Step]:
        own = state.instances[number]
        if number not in state.queue:  # the instance's lease has ended: it starts over
            yield (
                Note("finds its place in the queue gone", at(number)),
                _with_instance(state, number, own._replace(phase=Phase.IDLE)),
            )
        elif state.queue[0] == number or not self.has(Mechanism.LOCK):
            yield (
                Note(
                    "it is your turn" if self.has(Mechanism.LOCK) else "believes that it owns the lock",
                    LOCK if self.has(Mechanism.LOCK) else at(number),
                    at(number) if self.has(Mechanism.LOCK) else "",
                ),
                _with_instance(state, number, own._replace(phase=Phase.OWNER)),
            )

    def _turns_away(self, state: State, number: int, buyer: int, word: Word) -> Step:
        one = state.buyers[buyer]
        gone = one._replace(told=word, at=one.at - {number}, unsure=one.unsure or word is Word.UNKNOWN)
        return Note(f"“{word}”", at(number), name_of(buyer)), _with_buyer(state, buyer, gone)

    def _commits(self, state: State, number: int, batch: ModelBatch) -> Iterator[Step]:
        own = state.instances[number]
        message = Message("commit", number, own.token, batch)
        sent = _with_instance(state, number, own._replace(phase=Phase.WRITING))
        sent = sent._replace(messages=sent.messages | {message})
        text = f"sends its commit, for {_names(batch.buyers)}"
        if not self.has(Mechanism.ANSWER_LAST):
            text += f", and tells: “{Word.SOLD}”"
            for buyer in batch.buyers:
                sent = self._tell(sent, number, buyer, Word.SOLD)
        yield Note(text, at(number), of="commit"), sent

    # -- at the store ------------------------------------------------------------------------------------------------

    def arrives(self, state: State, message: Message) -> Iterator[Step]:
        """Yield what becomes of a message that has reached the store."""
        left = state._replace(messages=state.messages - {message})
        if message.kind == "commit":
            yield self._is_written(left, message)
            return
        store, own = state.store, state.instances[message.sender]
        asked = "reads" if message.kind == "read" else "was it written?"
        refused = self.has(Mechanism.TOKENS) and message.token < store.fence
        behind = self.has(Mechanism.MARKS) and len(store.orders) < self._mark_of(state, message.sender)
        if refused or behind:
            why = "the store lacks orders" if behind and not refused else "a higher token was here"
            yield self._at_store(message, f"{asked}, refused: {why}"), self._reply(left, message, None)
            return
        registers = Mechanism.SETTLE if message.kind == "settle" else Mechanism.FENCE_AT_READ
        if self.has(registers):
            registered = store._replace(fence=message.token, registered=message.batch.number)
            left = left._replace(store=registered)
        if message.kind == "read":
            settled = frozenset(buyer for buyer, _, _ in store.orders)
            yield self._at_store(message, f"{store.stock} left"), self._reply(left, message, store.stock, settled)
        else:
            doubt = own.doubt.number if own.doubt else 0
            found = any(batch == doubt for _, _, batch in store.orders) and len(store.orders)
            said = "yes, it was written" if found else "no, it is not there"
            yield self._at_store(message, said), self._reply(left, message, found)

    def _is_written(self, state: State, message: Message) -> Step:
        store, batch = state.store, message.batch
        if self.has(Mechanism.FENCE_AT_READ):
            stale = (store.fence, store.registered) != (message.token, batch.number)
        else:
            stale = message.token < store.fence
        stale = stale and self.has(Mechanism.FENCE_AT_WRITE)
        changed = self.has(Mechanism.COMPARE) and store.stock != batch.stock
        if stale or changed:
            why = "another one was registered since" if stale else f"{store.stock} are left, not {batch.stock}"
            if state.peace:
                state = state._replace(broken=f"{at(message.sender)} is refused while nothing is broken")
            return self._at_store(message, f"refused: {why}"), self._reply(state, message, None)
        orders = store.orders + tuple((buyer, message.token, batch.number) for buyer in batch.buyers)
        written = store._replace(
            stock=store.stock - len(batch.buyers), orders=orders, fence=max(store.fence, message.token)
        )
        had = state.written | set(batch.buyers)
        left = f"{written.stock} left" if written.stock >= 0 else f"{written.stock} left!"
        note = self._at_store(message, f"writes the order of {_names(batch.buyers)}: {left}")
        return note, self._reply(state._replace(store=written, written=had), message, len(orders))

    def _at_store(self, message: Message, text: str) -> Note:
        return Note(text, at(message.sender), STORE, message.kind)

    def _reply(self, state: State, message: Message, found: int | None, settled: frozenset[int] = frozenset()) -> State:
        return state._replace(
            answers=state.answers | {Answer(message.kind, message.sender, message.batch.number, found, settled)}
        )

    def _mark_of(self, state: State, number: int) -> int:
        # The marks lie beside the locks, so each instance learns what the others know.
        if not self.has(Mechanism.APART) and state.older is None:
            return state.instances[number].mark  # but for what the locks have forgotten
        return max(instance.mark for instance in state.instances)

    # -- at the instance ---------------------------------------------------------------------------------------------

    def _is_answered(self, state: State, answer: Answer) -> Iterator[Step]:
        number = answer.receiver
        own = state.instances[number]
        left = state._replace(answers=state.answers - {answer})
        if own.batch is None or own.batch.number != answer.batch:
            yield Note("hears an answer that it does not wait for", at(number)), left
            return
        match answer.kind, own.phase:
            case "read", Phase.READING:
                yield from self._decides(left, number, answer)
            case "settle", Phase.SETTLING:
                yield self._settles(left, number, answer)
            case "commit", Phase.WRITING:
                yield self._hears(left, number, answer)
            case _:
                yield Note("hears an answer that it does not wait for", at(number)), left

    def _decides(self, state: State, number: int, answer: Answer) -> Iterator[Step]:
        own = state.instances[number]
        assert own.batch is not None  # noqa: S101 - for the type checker
        if answer.found is None:
            yield Note("was refused, and gives the lock back", at(number)), self._release(state, number)
            return
        taken = [buyer for buyer in own.batch.taken if number in state.buyers[buyer].at]
        again = [buyer for buyer in taken if self.has(Mechanism.KEYS) and buyer in answer.settled]
        sold = [buyer for buyer in taken if buyer not in again][: answer.found]
        batch = own.batch._replace(taken=tuple(taken), again=tuple(again), buyers=tuple(sold), stock=answer.found)
        decided = _with_instance(state, number, own._replace(phase=Phase.DECIDED, batch=batch))
        if sold:
            yield Note(f"decides: a unit for {_names(sold)}", at(number)), decided
            return
        words = {buyer: Word.SOLD if buyer in again else Word.SOLD_OUT for buyer in taken}
        for buyer, word in words.items():
            state = self._tell(state, number, buyer, word)
        what = ", ".join(f"tells {name_of(buyer)}: “{word}”" for buyer, word in words.items()) or "has nobody to serve"
        yield Note(f"{what}; gives the lock back", at(number)), self._release(state, number)

    def _hears(self, state: State, number: int, answer: Answer) -> Step:
        own = state.instances[number]
        assert own.batch is not None  # noqa: S101 - for the type checker
        if answer.found is None:
            return Note("hears of the refusal, and gives the lock back", at(number)), self._release(state, number)
        words: dict[Word, list[int]] = {}
        for buyer in own.batch.taken:
            word = Word.SOLD if buyer in own.batch.buyers + own.batch.again else Word.SOLD_OUT
            words.setdefault(word, []).append(buyer)
            state = self._tell(state, number, buyer, word)
        state = self._knows(state, number, answer.found)
        what = ", ".join(f"tells {_names(buyers)}: “{word}”" for word, buyers in words.items())
        return Note(f"{what}; gives the lock back", at(number)), self._release(state, number)

    def _settles(self, state: State, number: int, answer: Answer) -> Step:
        own = state.instances[number]
        assert own.doubt is not None  # noqa: S101 - for the type checker
        if answer.found is None:
            return Note("was refused, and gives the lock back", at(number)), self._release(state, number)
        batch, clear = own.doubt, own._replace(doubt=None)
        state = _with_instance(state, number, clear)
        if not answer.found:
            return Note("hears that it was not written: all wait again", at(number)), self._release(state, number)
        for buyer in batch.buyers:
            if number in state.buyers[buyer].at:
                state = self._tell(state, number, buyer, Word.SOLD)
        state = self._knows(state, number, answer.found)
        return Note(f"tells {_names(batch.buyers)}: “{Word.SOLD}”", at(number)), self._release(state, number)

    def _tell(self, state: State, number: int, buyer: int, word: Word) -> State:
        one = state.buyers[buyer]
        if number not in one.at:
            return state  # has an answer already
        if word is Word.SOLD and buyer not in state.written:
            state = state._replace(broken=f"{name_of(buyer)} is told “{word}”, and has no order")
        return _with_buyer(state, buyer, one._replace(told=word, at=one.at - {number}))

    def _knows(self, state: State, number: int, orders: int) -> State:
        own = state.instances[number]
        return _with_instance(state, number, own._replace(mark=max(own.mark, orders)))

    def _release(self, state: State, number: int) -> State:
        own = state.instances[number]
        idle = own._replace(phase=Phase.IDLE, batch=None, token=0)
        queue = tuple(other for other in state.queue if other != number)
        return _with_instance(state, number, idle)._replace(queue=queue)

    def _gives_up(self, state: State, number: int) -> State:
        own = state.instances[number]
        if own.phase is Phase.WRITING and self.has(Mechanism.DOUBT):
            state = _with_instance(state, number, own._replace(doubt=own.batch))
        return self._release(state, number)

    def _crash(self, state: State, number: int) -> State:
        own = state.instances[number]
        # Its purchases get no answer; its place in the queue ends with its lease.
        queue = tuple(other for other in state.queue if other != number) if self.has(Mechanism.LEASE) else state.queue
        for buyer, one in enumerate(state.buyers):
            if number in one.at:
                state = _with_buyer(state, buyer, one._replace(told=Word.UNKNOWN, at=one.at - {number}, unsure=True))
        gone = ModelInstance(Phase.CRASHED, mark=own.mark)
        return _with_instance(state, number, gone)._replace(queue=queue)

    def _comes_back_older(self, state: State) -> State:
        assert state.older is not None  # noqa: S101 - for the type checker
        back = state._replace(store=state.older, older=None, faults=0)
        return back if self.has(Mechanism.APART) else back._replace(queue=(), tokens=0)

    @override
    def canonical(self, state: State) -> State:
        """Return the same state with the smallest numbers."""
        return canonical(state)


def canonical(state: State) -> State:
    """Renumber tokens and batches from the smallest number: only the order of tokens matters, and that batches differ.

    Otherwise a sale in which somebody asks again and again would have infinitely many states.
    """
    tokens = {state.store.fence, *(token for _, token, _ in state.store.orders)}
    tokens |= {one.token for one in state.instances} | {message.token for message in state.messages}
    set_back = state.tokens < max(tokens)  # some are dealt out again
    tokens |= {state.tokens} if set_back else set()
    batches: dict[int, int] = {0: 0}

    def see(number: int) -> None:
        batches.setdefault(number, len(batches))

    for _, _, number in state.store.orders:
        see(number)
    see(state.store.registered)
    for instance in state.instances:
        for batch in (instance.batch, instance.doubt):
            if batch is not None:
                see(batch.number)
    for message in sorted(state.messages):
        see(message.batch.number)
    for answer in sorted(state.answers, key=lambda one: (one.receiver, one.batch)):
        see(answer.batch)
    rank = {token: number for number, token in enumerate(sorted(tokens | {0}))}
    if len(rank) == state.tokens + 1 and len(batches) == state.batches + 1 and all(a == b for a, b in batches.items()):
        return state

    def renamed(batch: ModelBatch | None) -> ModelBatch | None:
        return batch and batch._replace(number=batches[batch.number])

    return state._replace(
        tokens=rank[state.tokens] if set_back else len(rank) - 1,
        batches=len(batches) - 1,
        store=state.store._replace(
            fence=rank[state.store.fence],
            registered=batches[state.store.registered],
            orders=tuple((buyer, rank[token], batches[batch]) for buyer, token, batch in state.store.orders),
        ),
        instances=tuple(
            one._replace(token=rank[one.token], batch=renamed(one.batch), doubt=renamed(one.doubt))
            for one in state.instances
        ),
        messages=frozenset(
            one._replace(token=rank[one.token], batch=one.batch._replace(number=batches[one.batch.number]))
            for one in state.messages
        ),
        answers=frozenset(one._replace(batch=batches[one.batch]) for one in state.answers),
    )


def _names(buyers: Sequence[int]) -> str:
    return " and ".join(map(name_of, buyers))


def name_of(buyer: int) -> str:
    """Return the name of a buyer."""
    names = ("Ann", "Bob", "Cem", "Dee")
    return names[buyer] if buyer < len(names) else f"buyer {buyer + 1}"


def at(instance: int) -> str:
    """Return the name of an instance."""
    return f"instance {'ABC'[instance]}"


def _with_buyer(state: State, number: int, buyer: ModelBuyer) -> State:
    buyers = state.buyers
    return state._replace(buyers=(*buyers[:number], buyer, *buyers[number + 1 :]))


def _with_instance(state: State, number: int, instance: ModelInstance) -> State:
    instances = state.instances
    return state._replace(instances=(*instances[:number], instance, *instances[number + 1 :]))
