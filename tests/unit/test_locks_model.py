"""What stands on the locks, on a clock that a test moves: `once`, `leading` and the renewal, each beside its rule."""

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencelock import AsyncLeadership, AsyncOnce, DistributedLock, Grant, LockError, LockLost, LockUnavailable, Start
from fencelock.testing import MemoryLocks, MemoryServer

NAME, TTL_S, EVERY_S = "/jobs/nightly", 6, 60
REMEMBERED = 500  # slots with names


def slot_of(at_s: float) -> str:
    return datetime.fromtimestamp(at_s // EVERY_S * EVERY_S, UTC).isoformat(timespec="milliseconds")


# A slot of time, by a clock that may be wrong; one with a name, which may be that of a slot of time; the end of a run;
# a stolen lock, for some seconds; seconds that pass; a server that has forgotten all.
JOBS = st.one_of(
    st.tuples(st.just("timed"), st.integers(0, 1), st.sampled_from([0, 59.999, 60, 61, 119, 120, 300])),
    st.tuples(st.just("named"), st.integers(0, 1), st.sampled_from(["a", "b", "c", slot_of(60)])),
    st.tuples(st.just("ends")),
    st.tuples(st.just("stolen"), st.sampled_from([1, 5])),
    st.tuples(st.just("passes"), st.sampled_from([1, 3, 10])),
    st.tuples(st.just("forgets")),
)


@settings(max_examples=60)
@given(st.lists(JOBS, max_size=16))
def test_a_slot_is_started_once(jobs: list[Any]) -> None:
    """Of each slot one run starts, none is started behind a later one, and none while another one goes on."""
    asyncio.run(started_once(jobs))


async def started_once(jobs: list[Any]) -> None:  # noqa: PLR0912 - a job each
    server = MemoryServer()
    last, named, runs, until = "", list[str](), list[tuple[Any, Start]](), 0.0
    async with AsyncExitStack() as opened:
        both = [opened.enter_context(MemoryLocks(server, ttl_s=TTL_S)).aio for _ in range(2)]
        for job, *about in jobs:
            now = server.now()
            match job:
                case "timed" | "named":
                    slot = slot_of(about[1]) if job == "timed" else about[1]
                    every_s, own = (EVERY_S, None) if job == "timed" else (None, slot)
                    election = both[about[0]].election(NAME)
                    once = AsyncOnce(election, NAME, every_s, own, 0, clock=partial(float, about[1] if every_s else 0))
                    if slot == last or slot in named:
                        why = "it was started"
                    elif job == "timed" and slot < last:
                        why = f"a later one, {last}, was started: a clock is wrong, or the slots were shorter"
                    elif (runs and not runs[-1][1].grant.lost) or now < until:
                        why = "another run goes on, or another process is about to start this one"
                    else:
                        why = ""
                    start = await once.__aenter__()
                    assert (start is None) == bool(why), (slot, why, once.reason)
                    assert once.reason == (f"{NAME}: {slot} is not started here: {why}" if why else "")
                    if start is not None:
                        assert start.slot == slot
                        assert not runs or start.token > runs[-1][1].token
                        runs.append((once, start))
                        last, named = (slot, named) if job == "timed" else (last, [*named, slot])
                    else:
                        await once.__aexit__(None, None, None)
                case "ends" if runs:
                    await runs[-1][0].__aexit__(None, None, None)
                    runs.pop()
                case "stolen":
                    server.steal(NAME, for_s=about[0])
                    until = now + about[0]
                    server.advance(TTL_S / 3)  # in which a holder is told
                case "passes":
                    server.advance(about[0])
                case "forgets" if not runs:
                    server.restart(forget=True)
                    last, named, until = "", [], 0.0
        for once, _ in reversed(runs):
            await once.__aexit__(None, None, None)


def test_the_last_slots_with_names_are_remembered() -> None:
    """So many of them, the newest: an older one would be started once more."""
    with MemoryLocks(ttl_s=TTL_S) as locks:

        async def start(number: int) -> bool:
            async with locks.aio.once(NAME, slot=f"s{number}") as started:
                return started is not None

        async def all_of_them() -> None:
            assert all([await start(number) for number in range(REMEMBERED + 2)])
            assert not any([await start(number) for number in range(2, REMEMBERED + 2)])
            assert await start(1)

        asyncio.run(all_of_them())


@pytest.mark.parametrize("right", [{"every_s": 1}, {"slot": "x"}, {"slot": "x" * 255}])
def test_a_slot_is_a_length_of_time_or_a_name(right: Any) -> None:
    with MemoryLocks() as locks, locks.once(NAME, **right) as start:
        assert start is not None


# Another kind of value would be written down as a text, and never be found again.
@pytest.mark.parametrize("wrong", ["x" * 256, "", ["a"], ("2026", "11"), 5, b"one", {"a": 1}])
def test_a_slot_is_a_text(wrong: Any) -> None:
    with MemoryLocks() as locks, pytest.raises(ValueError, match="slot must be a text"):
        locks.once(NAME, slot=wrong)


@pytest.mark.parametrize("wrong", [{}, {"every_s": 1, "slot": "x"}, {"every_s": 0.99}])
def test_what_can_be_no_slot(wrong: Any) -> None:
    with MemoryLocks() as locks, pytest.raises(ValueError, match="every_s"):
        locks.once(NAME, **wrong)


@pytest.mark.parametrize(("dead_s", "starts"), [(TTL_S * 1.2 + 1.9, True), (TTL_S * 1.2 + 2.1, False)])
def test_a_slot_waits_for_a_run_that_is_dead(dead_s: float, starts: bool) -> None:
    """For a TTL and a bit, unless it is told otherwise."""
    with MemoryLocks(ttl_s=TTL_S) as locks:
        locks.server.steal(NAME, for_s=dead_s)
        with locks.once(NAME, slot="x") as start:
            assert (start is not None) is starts


def test_a_start_that_can_not_be_written_down_keeps_nobody_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise LockUnavailable

    with MemoryLocks(ttl_s=TTL_S) as locks:
        with monkeypatch.context() as patched, pytest.raises(LockUnavailable):
            patched.setattr(AsyncLeadership, "record", fail)
            locks.once(NAME, slot="x").__enter__()
        with locks.once(NAME, slot="x", wait_s=0) as start:
            assert start is not None


def test_a_block_is_used_again_and_not_twice_at_once() -> None:
    """It tells the reason of its last call alone, and can be used after a failure."""
    with MemoryLocks(ttl_s=TTL_S) as locks:
        once = locks.once(NAME, slot="x")

        async def in_tasks() -> None:
            block = locks.aio.once(NAME, slot="y")
            for frozen in (True, False):
                locks.server.freeze() if frozen else locks.server.thaw()
                with pytest.raises(
                    LockUnavailable if frozen else LockError, match="does not answer" if frozen else "entered"
                ):
                    async with block, block:
                        pass

        locks.server.freeze()
        with pytest.raises(LockUnavailable), once:
            pass
        locks.server.thaw()
        with once as start, pytest.raises(LockError, match="entered already"), once:
            pass
        assert start is not None
        with once as start:
            assert start is None
        assert "it was started" in once.reason
        locks.server.restart(forget=True)
        with once as start:
            assert start is not None
        assert once.reason == ""
        asyncio.run(in_tasks())


ENDS = st.sampled_from(["returns", "its own error", "loses it", "loses it and says so", "loses it, and returns"])


class Own(Exception):
    """An error of the body."""


@settings(max_examples=40)
@given(st.lists(ENDS, min_size=1, max_size=5))
def test_a_function_is_called_with_each_of_its_terms(ends: list[str]) -> None:
    """Until it returns, or raises an error of its own; a term that is lost is followed by the next one."""
    server, terms = MemoryServer(), list[AsyncLeadership]()
    story = [*ends, "returns"]

    async def body(term: AsyncLeadership, word: str) -> str:
        assert word == "a word" and not term.lost
        assert not terms or term.token > terms[-1].token
        terms.append(term)
        end = story[len(terms) - 1]
        if end.startswith("loses"):
            server.lose(NAME)
            if end == "loses it":
                await asyncio.Event().wait()  # it is cancelled
            if end.endswith("says so"):
                term.ensure_held()
        if end == "its own error":
            raise Own
        return end

    last = next(
        number for number, end in enumerate(story) if end in ("returns", "its own error", "loses it, and returns")
    )
    with MemoryLocks(server, ttl_s=TTL_S) as locks:
        led = locks.aio.leading(NAME, "me")(body)
        if story[last] == "its own error":
            with pytest.raises(Own):
                asyncio.run(led("a word"))
        else:
            assert asyncio.run(led("a word")) == story[last]
        assert len(terms) == last + 1
        assert not locks.contenders(NAME)


HOLDS = st.one_of(
    st.tuples(st.just("takes"), st.integers(0, 2)),
    st.tuples(st.just("releases"), st.integers(0, 2)),
    st.tuples(st.just("passes"), st.sampled_from([0.5, 1, 2, 3, 5.984375, 6, 9, 100])),  # which a float can add up
    st.tuples(st.just("freezes")),
    st.tuples(st.just("thaws")),
)


@settings(max_examples=80)
@given(st.lists(HOLDS, max_size=20))
def test_a_lease_is_renewed_in_time_or_lost_at_its_end(acts: list[Any]) -> None:
    """Each third of its TTL, counted from the request; a server that is away for longer than the rest has it lost."""
    server, frozen = MemoryServer(), False
    held: dict[int, tuple[Grant, float]] = {}  # and when it was renewed last
    taken: dict[int, DistributedLock] = {}
    ttls = (6.0, 9.0, 3.0)
    with MemoryLocks(server, ttl_s=TTL_S) as locks:
        for act, *about in acts:
            match act:
                case "takes" if about[0] not in held:
                    which = about[0]
                    begun, taken[which] = server.now(), locks.lock(f"/l{which}", ttl_s=ttls[which])
                    if frozen:
                        with pytest.raises(LockUnavailable):
                            taken[which].acquire(wait_s=0)
                    else:
                        held[which] = taken[which].acquire(wait_s=0), begun
                case "releases" if about[0] in held and not frozen:
                    del held[about[0]]
                    taken[about[0]].release()
                case "passes":
                    server.advance(about[0])
                case "freezes" if not frozen:
                    server.freeze()
                    frozen = True
                case "thaws" if frozen:
                    server.thaw()
                    frozen = False
                    held = {one: (grant, at if grant.lost else server.now()) for one, (grant, at) in held.items()}
            now = server.now()
            for which, (grant, at) in list(held.items()):
                third = ttls[which] / 3
                renewed = at if frozen else at + (now - at) // third * third
                lost = now >= renewed + ttls[which]
                assert grant.lost == lost, (act, now, renewed)
                if lost:
                    with pytest.raises(LockLost):
                        grant.ensure_held()
                    del held[which]
                else:
                    assert grant.deadline == pytest.approx(renewed + ttls[which])
                    held[which] = grant, renewed
        if frozen:
            server.thaw()
