"""Test our lock together with another client's. A pair's tests inherit one of the classes."""

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Self

import pytest

from fencelock import Contender
from tests.harness.waiting import eventually
from tests.interop.client import Client
from tests.interop.pairs import TTL_S, Pair

SLACK_S = 2  # beyond a TTL: servers look for expired keys now and then, and the machine is busy
LONG_TTL_S = 30  # where no lease may expire
ROUNDS = 25

# They start programs in three languages; and the first test on a machine has to build them.
marks = [pytest.mark.exhaustive, pytest.mark.timeout(1200)]
either = pytest.mark.parametrize(("kind", "other"), [("ours", "theirs"), ("theirs", "ours")])


class Journal:
    """The files in which contenders leave their traces."""

    def __init__(self, folder: Path) -> None:
        self.counter, self.file = folder / "counter", folder / "journal"
        self.counter.write_text("0")
        self.file.write_text("")

    def lines(self) -> list[str]:
        return self.file.read_text().splitlines()

    def served(self) -> list[str]:
        """Return the holders in order. Fails if two were in at once, or if an update was lost."""
        lines = self.lines()
        served = [line.removeprefix("in ") for line in lines[::2]]
        assert lines == [f"{what} {who}" for who in served for what in ("in", "out")], "two had the lock at once"
        assert int(self.counter.read_text()) == len(served), "two had the lock at once: an update is lost"
        return served


def run_side_by_side(contenders: dict[str, Client], journal: Journal, rest_ms: int) -> None:
    """Run all at once, many times each, and check that they contended: both kinds had turns among the other's."""
    for who, contender in contenders.items():
        contender.tell("loop", ROUNDS, rest_ms, who, journal.counter, journal.file)
    for contender in contenders.values():
        assert contender.answer(120) == ["looped", str(ROUNDS)]
    served = journal.served()
    assert {who: served.count(who) for who in contenders} == dict.fromkeys(contenders, ROUNDS)
    changes = sum(one.partition("-")[0] != next_.partition("-")[0] for one, next_ in pairwise(served))
    assert changes >= 5, f"they took turns {changes} times only: {served}"


class Crowd:
    """The contenders of a test, for a lock of its own, and our view of them."""

    def __init__(self, pair: Pair) -> None:
        self.name = f"/interop/{uuid.uuid4().hex}"
        self.pair = pair
        self._stack = ExitStack()
        self.locks = self._stack.enter_context(pair.connect())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, *kinds: str, ttl_s: float = TTL_S) -> list[Client]:
        """Start a contender of ours or theirs for each."""
        return self.launch(*(getattr(self.pair, kind)(self.name, ttl_s) for kind in kinds))

    def launch(self, *commands: list[str]) -> list[Client]:
        """Start contenders with these command lines."""
        clients = [self._stack.enter_context(Client(command)) for command in commands]
        for client in clients:
            assert client.answer() == ["ready"]
        return clients

    def arrive(self, client: Client, *words: object) -> None:
        """Have a contender wait for the lock, and return when the server shows it."""
        before = self.pair.signs(self.locks, self.name)
        client.tell(*words)
        eventually(lambda: self.pair.signs(self.locks, self.name) > before, f"it contends: {words}")
        assert client.is_silent()

    def hand_over(self, holder: Client, waiter: Client, *, waits_s: float = 0.0) -> float:
        """Hand the lock from one to the other; return how long that took after the release began, in seconds.

        `waits_s`: the wait before that. Redisson tries again when it listens; only then does it need a notification.
        """
        self.arrive(waiter, "acquire", -1)
        assert waiter.is_silent(for_s=waits_s)
        _, began = holder.ask("release")
        _, _, got = waiter.answer()
        return (int(got) - int(began)) / 1e6

    def contenders(self) -> list[Contender]:
        return self.locks.lock(self.name).contenders()


class Together:
    """The tests for every pair."""

    @pytest.fixture
    def pair(self) -> Pair:
        raise NotImplementedError

    @pytest.fixture(params=["threads", "tasks"])
    def crowd(self, pair: Pair, request: pytest.FixtureRequest) -> Iterator[Crowd]:
        with Crowd(replace(pair, face=request.param)) as crowd:
            yield crowd

    def test_never_two_at_once(self, crowd: Crowd, tmp_path: Path) -> None:
        """Two of ours and two of theirs, each in a process of its own, lose no update and are never in together."""
        clients = crowd.start("ours", "theirs", "ours", "theirs", ttl_s=LONG_TTL_S)
        who = ("ours-1", "theirs-1", "ours-2", "theirs-2")
        run_side_by_side(dict(zip(who, clients, strict=True)), Journal(tmp_path), crowd.pair.rest_ms)

    @either
    def test_a_release_is_told(self, crowd: Crowd, kind: str, other: str) -> None:
        """The next contender gets a released lock without a wait for the lease to end."""
        holder, waiter = crowd.start(kind, other, ttl_s=LONG_TTL_S)
        assert holder.ask("acquire", -1)[0] == "granted"
        crowd.arrive(waiter, "acquire", -1)
        # Redisson tries again when it listens; from then on only a message wakes it before the TTL is over.
        assert waiter.is_silent(for_s=1.5)
        assert holder.ask("release")[0] == "released"
        assert waiter.answer(LONG_TTL_S / 3)[0] == "granted"
        assert waiter.ask("release")[0] == "released"

    @either
    def test_a_holder_keeps_it_as_long_as_it_lives(self, crowd: Crowd, kind: str, other: str) -> None:
        """A living holder keeps the lock beyond its TTL; when it is killed, the other kind has it after a TTL."""
        holder, waiter = crowd.start(kind, other)
        assert holder.ask("acquire", -1)[0] == "granted"
        crowd.arrive(waiter, "acquire", -1)
        assert waiter.is_silent(for_s=1.5 * TTL_S), "the holder lives, and the lock was given away"
        holder.kill()
        assert waiter.answer(TTL_S + SLACK_S)[0] == "granted"
        assert waiter.ask("release")[0] == "released"

    @either
    def test_a_dead_waiter_is_passed_over(self, crowd: Crowd, kind: str, other: str) -> None:
        """The contender behind a dead waiter has the lock after a TTL."""
        holder, victim, behind = crowd.start(other, kind, other)
        assert holder.ask("acquire", -1)[0] == "granted"
        crowd.arrive(victim, "acquire", -1)
        crowd.arrive(behind, "acquire", -1)
        victim.kill()
        assert holder.ask("release")[0] == "released"
        assert behind.answer(TTL_S + SLACK_S)[0] == "granted"
        assert behind.ask("release")[0] == "released"

    @either
    def test_a_wait_that_was_too_long_leaves_nothing(self, crowd: Crowd, kind: str, other: str) -> None:
        """A waiter that timed out leaves nothing: those behind it get the lock in time, and it may come back."""
        holder, impatient, behind = crowd.start(other, kind, other, ttl_s=LONG_TTL_S)
        assert holder.ask("acquire", -1)[0] == "granted"
        began = time.monotonic()
        crowd.arrive(impatient, "acquire", 3000)
        crowd.arrive(behind, "acquire", -1)
        assert impatient.answer() == ["timeout"]
        assert 3 <= time.monotonic() - began < 3 + TTL_S
        if crowd.pair.in_line:
            eventually(lambda: len(crowd.contenders()) == 2, "its place is given back", TTL_S)
        assert holder.ask("release")[0] == "released"
        assert behind.answer(TTL_S)[0] == "granted"
        assert behind.ask("release")[0] == "released"
        assert impatient.ask("acquire", 20_000)[0] == "granted"
        assert impatient.ask("release")[0] == "released"


class Shown(Together):
    """The tests for pairs whose holder our backend can show."""

    def test_we_show_who_has_it(self, crowd: Crowd) -> None:
        """A holder of theirs is shown without an owner, and one of ours with its owner."""
        ours, theirs = crowd.start("ours", "theirs")
        theirs.ask("acquire", -1)
        holder, *others = crowd.contenders()
        assert (holder.holds, holder.owner, others) == (True, {}, [])
        theirs.ask("release")
        ours.ask("acquire", -1)
        holder, *others = crowd.contenders()
        assert (holder.holds, holder.owner["pid"], others) == (True, ours.pid, [])
        ours.ask("release")
        assert crowd.contenders() == []


class InLine(Shown):
    """The tests for pairs that are served in the order of arrival."""

    def test_we_show_who_waits(self, crowd: Crowd) -> None:
        """Waiters are shown in their order, theirs among ours."""
        theirs, ours, last = crowd.start("theirs", "ours", "theirs")
        theirs.ask("acquire", -1)
        crowd.arrive(ours, "acquire", -1)
        crowd.arrive(last, "acquire", -1)
        line = crowd.contenders()
        assert [(one.holds, one.owner.get("pid")) for one in line] == [(True, None), (False, ours.pid), (False, None)]

    @either
    def test_nobody_passes_one_who_is_slow(self, crowd: Crowd, kind: str, other: str) -> None:
        """The lock is free and the first in line is frozen: it keeps its turn, and a later contender must wait."""
        holder, slow, newcomer = crowd.start(other, kind, other, ttl_s=LONG_TTL_S)
        assert holder.ask("acquire", -1)[0] == "granted"
        crowd.arrive(slow, "acquire", -1)
        slow.pause()
        assert holder.ask("release")[0] == "released"
        assert newcomer.ask("acquire", 500) == ["timeout"]
        slow.resume()
        assert slow.answer(LONG_TTL_S / 3)[0] == "granted"

    @pytest.mark.parametrize("first", ["ours", "theirs"])
    def test_they_are_served_in_order(self, crowd: Crowd, first: str, tmp_path: Path) -> None:
        """Contenders of both clients, which come one by one, are served in the order of arrival."""
        journal = Journal(tmp_path)
        kinds = ["theirs", "ours", "ours", "theirs", "theirs", "ours"]
        holder, *line = crowd.start(first, *kinds, ttl_s=LONG_TTL_S)
        names = [f"{kind}-{place}" for place, kind in enumerate(kinds)]
        assert holder.ask("acquire", -1)[0] == "granted"
        for who, contender in zip(names, line, strict=True):
            crowd.arrive(contender, "loop", 1, 0, who, journal.counter, journal.file)
        assert journal.lines() == []
        keys = [one.key for one in crowd.contenders()]
        assert len(keys) == len(line) + 1
        assert holder.ask("release")[0] == "released"
        for contender in line:
            assert contender.answer() == ["looped", "1"]
        assert journal.served() == names
