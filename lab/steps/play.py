"""One run: an actor does an operation through the wire, a fault strikes at a step, and everything is looked at.

A run is a process of its own, forked from one that has imported everything: its threads, tasks and connections are its
own, and it can be killed. The actor has the main thread's event loop; the wire, the second actor and the judge have
one in a second thread, so that they go on when the first one is closed.
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import pickle
import random
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from lab.steps.awaits import Awaits, is_await
from lab.steps.systems import System
from lab.steps.wire import ActorConnection, Do, Side, Wire, WireStep

TTL_S: Final = 2.0
TIMEOUT_S: Final = 0.8
PATIENCE_S: Final = 15.0  # of the judge, for what must come to pass; on a busy machine it takes its time
_PAUSE_S: Final = 1.5 * TTL_S
_SLOW_S: Final = TTL_S / 5  # in time, but a good part of a lease
_LOOK_EVERY_S: Final = 0.02
_QUIET_S: Final = 0.25
_BUSY_S: Final = 1.0
_RENEWED_S: Final = TTL_S * 0.36  # a renewal finds out within a third of the TTL; and still within `TIMEOUT_S`

# At a message, and at an await.
LOST, CUT, LATE, AFTER_LEASE = "lost", "cut", "late", "after the lease"
LATER = "late, when it is owned again"
AWAY, PAUSED = "slow, and the last one", "paused"
ENDED, TAKEN, NOTICED, THROWN_OUT = "lease ended", "taken over", "lease ended, and noticed", "thrown out"
CANCELLED, ALL_CANCELLED, LOOP_ENDS, KILLED = "cancelled", "all cancelled", "loop ends", "killed"
CANCELLED_LOST = "all cancelled, and it is lost"
AS_ANSWERED = "cancelled as it is answered"
RESTARTED, FORGETFUL = "restarted", "restarted without its last write"
REFUSED = "refused"
BETWEEN = "between: "  # and the name of another operation
AT_A_MESSAGE: Final = (*(LOST, CUT, LATE, AFTER_LEASE), *(CANCELLED, ALL_CANCELLED, CANCELLED_LOST, LOOP_ENDS, KILLED))
AT_AN_AWAIT: Final = (CANCELLED, AS_ANSWERED, ALL_CANCELLED)


@dataclass(frozen=True, slots=True)
class Case:
    """What is run: an operation, and a fault at a step of it; without a step nothing goes wrong."""

    system: str
    operation: str
    step: WireStep | None = None
    fault: str = ""
    second: tuple[WireStep, str] | None = None

    @property
    def name(self) -> str:
        """The name by which it can be run alone."""
        parts = [self.operation, *([str(self.step), self.fault] if self.step else [])]
        if self.second:
            parts += [str(self.second[0]), self.second[1]]
        return " / ".join(parts)


@dataclass(slots=True)
class PlayResult:
    """What came of it.

    `steps`: those that were passed; `struck`: whether the fault came to its step; `again`: the first run of it failed.
    """

    case: Case
    steps: list[WireStep] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    struck: bool = False
    again: bool = False
    took_s: float = 0.0
    told: str = ""


def die_with_parent() -> None:
    """End this process when the one that has forked it ends, where the kernel can do that."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


async def _collect() -> None:
    gc.collect()


class Play(ABC):
    """A run of a case. `name`: a name that no other run has."""

    allowed: tuple[type[BaseException], ...] = ()
    outlives_its_loop = False  # whether connections of a loop that was closed may stay open
    wants_own = False  # servers of its own, as the operation is about all that is on them

    def __init__(self, case: Case, name: str, systems: dict[str, System]) -> None:
        self.case = case
        self.name = name
        self.systems = systems
        self.result = PlayResult(case)
        self.wire: Wire
        self.loop: asyncio.AbstractEventLoop  # the actor's
        self.stage: asyncio.AbstractEventLoop
        self.let_go: asyncio.Event  # set when what is late arrives
        self.raised: BaseException | None = None
        self.killed = False
        self.alive = True  # the actor's loop goes on
        self.closed = False  # an earlier one was closed
        self._refusing: asyncio.Task[None] | None = None
        self._over = threading.Event()  # the operation, or the actor
        self._left = threading.Event()  # the actor's loop is closed
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._leave: asyncio.Event
        self._strikes: list[tuple[WireStep, str]] = [
            *([(case.step, case.fault)] if case.step else []),
            *([case.second] if case.second else []),
        ]

    # -- what a kind of play fills in ----------------------------------------------------------------------------------

    @abstractmethod
    async def set_up(self) -> None:
        """Make what the operation needs; on the stage."""

    @abstractmethod
    async def open(self) -> None:
        """Open what is the actor's; on its loop."""

    @abstractmethod
    async def operate(self) -> None:
        """Do the operation; on the actor's loop."""

    @abstractmethod
    async def judge(self) -> None:
        """Look at everything; on the stage."""

    @abstractmethod
    async def shut(self) -> None:
        """Close what is the actor's; on its loop, if that goes on."""

    @abstractmethod
    def forget(self) -> None:
        """Drop what keeps alive what was the actor's."""

    async def meanwhile(self) -> None:  # noqa: B027
        """Do what others do while the operation is under way; on the stage."""

    async def end_leases(self) -> None:  # noqa: B027
        """End the actor's leases behind its back."""

    async def throw_out(self) -> None:  # noqa: B027
        """Delete what the actor has on the servers, and leave its lease."""

    async def between(self, what: str) -> None:  # noqa: B027
        """Do another operation as the second actor, from start to end."""

    def remember(self) -> Any:
        """Return what must be known when the actor is killed."""
        return None

    def recall(self, known: Any) -> None:  # noqa: B027
        """Take what the killed actor knew."""

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self) -> PlayResult:
        """Run it."""
        began = time.monotonic()
        logging.disable()
        # Others would suffer, too; and they outlive an actor who is killed.
        own = self.wants_own or any(fault in (RESTARTED, FORGETFUL, REFUSED) for _, fault in self._strikes)
        try:
            if own:
                self._start_own()
            if any(fault == KILLED for _, fault in self._strikes):
                self._run_killed()
            else:
                self._run_here(judge=True)
        finally:
            if own:
                self._stop_own()
        self.result.took_s = time.monotonic() - began
        return self.result

    def violated(self, text: str) -> None:
        """Note that a promise was broken."""
        if text not in self.result.violations:
            self.result.violations.append(text)

    def _run_killed(self) -> None:
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            die_with_parent()
            os.close(reader)
            self._pipe = writer
            with contextlib.suppress(BaseException):
                self._run_here(judge=False)
                self.tell_parent()
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as told:
            said = told.read()
        os.waitpid(child, 0)
        self.killed, self.alive = True, False
        for step, fault in self._strikes:
            if fault == REFUSED:  # the one who would have seen to it is dead
                self.systems[step.name.partition(" ")[0]].refuse(False)
        last = None
        while said:
            size = int.from_bytes(said[:4], "big")
            last, said = said[4 : 4 + size], said[4 + size :]
        self._over.set()
        if last is None:
            self.violated("the harness: the actor has said nothing before it was killed")
            return
        struck, steps, given, known = pickle.loads(last)  # noqa: S301 - of our own child
        self.result.struck, self.result.steps = struck, steps
        self._given = given
        self.recall(known)
        self._stage(self._judge_only())
        if self._failed:
            raise self._failed

    def tell_parent(self) -> None:
        """Write down all that is known, for the judge of a killed actor."""
        raw = pickle.dumps((self.wire.struck, self.wire.steps, self.wire.given, self.remember()))
        os.write(self._pipe, len(raw).to_bytes(4, "big") + raw)

    async def _judge_only(self) -> None:
        self.wire, self.let_go = Wire(), asyncio.Event()
        self.wire.given = self._given
        self.wire.struck = True
        await self.judge()

    def _run_here(self, *, judge: bool) -> None:
        thread = threading.Thread(target=self._stage, args=(self._direct(judge),), daemon=True)
        thread.start()
        if not self._ready.wait(120) or self._failed:
            raise self._failed or TimeoutError("the stage is not ready")
        try:
            asyncio.run(self._act())
            if not self._over.is_set():
                self.closed = True
                self._left.set()
                asyncio.run(self._stay())
        finally:
            self.alive = False
            self._left.set()
            self._over.set()
        thread.join(120)
        if self._failed:
            raise self._failed

    def _stage(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            asyncio.run(work)
        except BaseException as error:
            self._failed = error
        finally:
            self._ready.set()

    async def _direct(self, judge: bool) -> None:
        self.stage = asyncio.get_running_loop()
        self.wire, self.let_go = Wire(), asyncio.Event()
        self._others = asyncio.Lock()  # somebody else's command, or a restart, is under way
        others: asyncio.Task[None] | None = None
        try:
            random.seed(7)  # what the program throws dice for is the same in each run
            await self.set_up()
            self._aim()
            self._ready.set()
            others = asyncio.create_task(self.meanwhile())
            while not self._over.is_set():  # noqa: ASYNC110 - set by another thread
                await asyncio.sleep(_LOOK_EVERY_S)
            others.cancel()
            await asyncio.gather(others, return_exceptions=True)
            self.result.struck = self.wire.struck
            self.result.steps = list(self.wire.steps)
            self.wire.counting = False
            async with self._others:
                pass
            if self._refusing is not None:
                await self._refusing
            if self.wire.failed:
                self.violated(self.wire.failed)
            if judge:
                await self.judge()
        finally:
            self.let_go.set()
            await self._dismiss()
            await self.wire.close()

    def _aim(self) -> None:
        strikes = [(step, fault) for step, fault in self._strikes if not is_await(step)]
        self.wire.aims = {step: partial(self._struck_by, step, fault) for step, fault in strikes}
        for step, fault in strikes:
            if fault == FORGETFUL:
                system = self.systems[step.name.partition(" ")[0]]
                self.wire.aims[step._replace(side=Side.ASKED.value)] = partial(self._remembered, system)

    async def _remembered(self, system: System, _: ActorConnection) -> Do:
        system.remember()
        self.wire.struck = False
        return Do.PASS

    def _start_own(self) -> None:
        copies = {id(one): one.copy() for one in self.systems.values()}
        self.systems = {role: copies[id(one)] for role, one in self.systems.items()}
        for system in copies.values():
            system.start()

    def _stop_own(self) -> None:
        for system in set(self.systems.values()):
            system.stop()

    async def quiet(self) -> None:
        """Wait until the actor says nothing more, or says the same again and again: it waits for somebody."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        while not self.wire.steps or (  # noqa: ASYNC110 - of what doesn't happen
            loop.time() - max(self.wire.heard_at, begin) < _QUIET_S and loop.time() - begin < _BUSY_S
        ):
            await asyncio.sleep(_QUIET_S / 4)

    # -- the actor -----------------------------------------------------------------------------------------------------

    async def _act(self) -> None:
        self.loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        self._leave = asyncio.Event()
        await self.open()
        aim, fault = next(((step, fault) for step, fault in self._strikes if is_await(step)), (WireStep("", 0, ""), ""))

        def strike(struck: asyncio.Task[Any], awaited: Any) -> None:
            self.wire.struck = True
            if fault == AS_ANSWERED and isinstance(awaited, asyncio.Future):
                awaited.add_done_callback(lambda _: struck.cancel())
            elif fault == ALL_CANCELLED:
                self.loop.call_soon(self._cancel_all)
            elif not aim.number:  # it has not begun
                struck.cancel()
            else:
                self.loop.call_soon(struck.cancel)

        leave = asyncio.create_task(self._leave.wait())
        self._ours = {task, leave}
        awaits = Awaits(aim, strike, spared=Play.on_actor.__qualname__)
        self.loop.set_task_factory(awaits.task)  # type: ignore[arg-type]
        operation = self._operation = awaits.operation(self.loop, self.operate())
        while not operation.done() and not self._leave.is_set():
            await asyncio.wait({operation, leave}, return_when=asyncio.FIRST_COMPLETED)
        awaits.counting = False
        self.loop.set_task_factory(None)
        if operation.done():
            self.raised = asyncio.CancelledError() if operation.cancelled() else operation.exception()
            allowed = (*self.allowed, asyncio.CancelledError) if self.case.step else ()  # in a calm run nothing is
            if self.raised is not None and not isinstance(self.raised, allowed):
                self.violated(f"it raised {self.raised!r}")
        if self._leave.is_set():
            return  # the loop ends while the operation is under way
        if not self.case.step:
            self.wire.steps += awaits.steps
        del operation, awaits  # what they have raised keeps alive all that they used
        self._over.set()
        await self._leave.wait()
        leave.cancel()

    async def _stay(self) -> None:
        """Go on, with another loop, as a program does that calls `asyncio.run` again and again."""
        self.loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        self._ours, self._leave = {task}, asyncio.Event()
        self._over.set()
        await self._leave.wait()

    def _cancel_all(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            if task not in self._ours:
                task.cancel()

    async def on_actor(self, work: Callable[[], Awaitable[Any]], within_s: float = PATIENCE_S) -> Any:
        """Do something on the actor's loop, and wait for it."""

        async def do() -> Any:
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - for the type checker
            self._ours.add(task)
            return await work()

        return await asyncio.wait_for(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(do(), self.loop)), within_s)

    async def on_stage(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do something as somebody else, on the stage's loop, and wait for it on the actor's."""

        async def do() -> Any:
            return await work()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(do(), self.stage))

    async def close_actor(self) -> None:
        """Close what is the actor's; nothing of it may go on, and no connection stay open."""
        try:
            await self.on_actor(self.shut)
        except TimeoutError:
            self.violated("A can't be closed")
            return
        except BaseException as error:
            self.violated(f"closing raised {error!r}")
            return
        self.forget()
        self.raised = None
        del self._operation
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            await self.on_actor(_collect)
            tasks = [task for task in asyncio.all_tasks(self.loop) if task not in self._ours]
            if not tasks and (not self.wire.open or (self.closed and self.outlives_its_loop)):
                return
            await asyncio.sleep(_LOOK_EVERY_S)
        if tasks:
            self.violated(f"{len(tasks)} tasks of A go on: {tasks[0].get_coro()}")
        elif self.wire.open:
            self.violated(f"{len(self.wire.open)} connections of A stay open")

    async def nothing_is_left(self, system: System) -> None:
        """Wait until nothing of the run is on the lock's servers any more."""
        until = time.monotonic() + TTL_S + PATIENCE_S
        while left := await system.left(self.wire, self.name):
            if time.monotonic() > until:
                self.violated(f"left behind: {left}")
                return
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _dismiss(self) -> None:
        if self.alive and hasattr(self, "_leave"):
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._leave.set)

    # -- faults --------------------------------------------------------------------------------------------------------

    async def _struck_by(self, step: WireStep, fault: str, connection: ActorConnection) -> Do:  # noqa: PLR0911, PLR0912, PLR0915
        asked = step.side == Side.ASKED.value
        system = self.systems.get(step.name.partition(" ")[0], self.systems["lock"])  # a receiver is no system
        if fault.startswith(BETWEEN):
            async with self._others:
                await self.between(fault.removeprefix(BETWEEN))
            return Do.PASS
        match fault:
            case "lost":
                return Do.SWALLOW
            case "cut":
                return Do.CUT
            case "late" | "late, when it is owned again":
                if asked:
                    await self.let_go.wait()
                    return Do.ARRIVE
                await asyncio.sleep(TIMEOUT_S * 1.5)
            case "after the lease":
                await asyncio.sleep(TTL_S + 0.5)
            case "slow, and the last one":
                await asyncio.sleep(_SLOW_S)
                self.wire.away = True
                self._waiting = asyncio.create_task(self._wait_for_it())
            case "paused":
                self.loop.call_soon_threadsafe(time.sleep, _PAUSE_S)
                self._waiting = asyncio.create_task(self._wait_for_it())
            case "lease ended":
                await self.end_leases()
            case "thrown out":
                await self.throw_out()
            case "lease ended, and noticed":
                await self.end_leases()
                await asyncio.sleep(_RENEWED_S)
            case "taken over":
                async with self._others:
                    await self.end_leases()
                    await self.between(TAKEN)
            case "cancelled":
                await self._there(self._operation.cancel)
            case "all cancelled":
                await self._there(self._cancel_all)
            case "all cancelled, and it is lost":
                await self._there(self._cancel_all)
                return Do.SWALLOW
            case "loop ends":
                self.loop.call_soon_threadsafe(self._leave.set)
                await asyncio.to_thread(self._left.wait, 2.0)
            case "killed":
                # Its last word: what it knew.
                self.tell_parent()
                os.kill(os.getpid(), signal.SIGKILL)
            case "refused":
                async with self._others:
                    await asyncio.to_thread(system.refuse, True)
                    self._refusing = asyncio.create_task(self._admit(system))
            case "restarted" | "restarted without its last write":
                await self._restart(system, forget=fault == FORGETFUL)
                return Do.CUT if fault == FORGETFUL else Do.PASS
            case _:
                raise ValueError(f"no such fault: {fault}")
        return Do.PASS

    async def _wait_for_it(self) -> None:
        async with self._others:
            await self.between(AWAY)
        await asyncio.sleep(TTL_S)
        self.wire.heal()

    async def _admit(self, system: System) -> None:
        await asyncio.sleep(TIMEOUT_S / 2)
        await asyncio.to_thread(system.refuse, False)

    async def _restart(self, system: System, *, forget: bool) -> None:
        async with self._others:
            await asyncio.to_thread(system.restart, forget=forget)

    async def _there(self, function: Callable[[], object]) -> None:
        """Call a function on the actor's loop, and let it take effect there."""

        async def do() -> None:
            function()
            for _ in range(10):
                await asyncio.sleep(0)

        with contextlib.suppress(Exception, asyncio.CancelledError):
            await self.on_actor(do, 2.0)
