"""This job once, and a body that runs on one instance: the same on every system that has elections."""

import asyncio
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fencelock import (
    AsyncElection,
    AsyncLeadership,
    Cancel,
    Leadership,
    LockBackend,
    LockCancelled,
    LockError,
    LockLost,
    LockTimeout,
    LockUnavailable,
    Once,
    connect,
)
from fencelock.registry import CLASSES, backend_class
from lab.servers import Valkey
from lab.servers.lock_servers import LockServers
from lab.torture.proxy import Proxy
from tests.contract.lock_contract import InThread, by_day
from tests.harness.servers import optional
from tests.harness.waiting import WITHIN_S, eventually, eventually_async

ELECTS = [name for name in CLASSES if backend_class(name).guarantees.elects]
TTL_S = 2  # the shortest that etcd grants by its defaults
CALM_S = 10  # where no lease runs out, however busy the machine is
HOUR_S = 3600
# The rest is the same for all systems, and stands on what each has: its elections, and what a leader writes down.
in_one_system = pytest.mark.parametrize("servers", ["redis"], indirect=True)


@pytest.fixture(scope="module", params=by_day(ELECTS))
def servers(request: pytest.FixtureRequest) -> Iterator[LockServers]:
    with optional(lambda: LockServers(request.param)) as servers:
        yield servers


@pytest.fixture
def locks(servers: LockServers) -> Iterator[LockBackend]:
    with connect(servers.url, ttl_s=CALM_S) as locks:
        yield locks


@pytest.fixture
def name() -> str:
    return f"/test/once-{uuid.uuid4().hex}"


@contextmanager
def behind(servers: LockServers, **options: Any) -> Iterator[tuple[Proxy, LockBackend]]:
    """Locks behind a proxy."""
    if not servers.ports:
        pytest.skip("there is no network in between")
    with Proxy(servers.ports[0]) as proxy, connect(servers.url_by([proxy.port]), **options) as locks:
        yield proxy, locks
        proxy.restore()


def word(servers: LockServers, slot: str) -> list[bytes]:
    """The parts of a slot's writing, as they are sent: PostgreSQL gets them in hexadecimal digits."""
    parts = [b"named", slot.encode()]
    return [part.hex().encode() for part in parts] if servers.url.startswith("postgres") else parts


def started(once: Once) -> str | None:
    """Start it, and return the slot that was started."""
    with once as start:
        return None if start is None else start.slot


# -- once ------------------------------------------------------------------------------------------------------------


def test_a_slot_is_started_once(servers: LockServers, locks: LockBackend, name: str) -> None:
    """One gets the start, with a token; all others None and a reason, whether it still runs or is over."""
    with connect(servers.url) as others:
        with locks.once(name, slot="v7") as start:
            assert start is not None
            assert start.slot == "v7"
            assert start.token == start.grant.token
            assert not start.grant.lost
            assert started(others.once(name, slot="v7")) is None
        again = others.once(name, slot="v7")
        assert started(again) is None
        assert "v7 is not started here: it was started" in again.reason
        with others.once(name, slot="v8") as later:
            assert later is not None
            assert start.token == 0 or later.token > start.token
        # Names have no order: one that was started long ago is not started again.
        assert started(locks.once(name, slot="v7")) is None
        assert started(locks.once(name, slot="v10")) == "v10"


def test_many_who_come_at_once_start_a_slot_once(servers: LockServers, locks: LockBackend, name: str) -> None:
    """In threads of two processes' connections, all at the same moment."""
    with connect(servers.url) as others:
        ready = threading.Barrier(8)

        def come(backend: LockBackend) -> str | None:
            ready.wait(WITHIN_S)
            return started(backend.once(name, slot="now"))

        crowd = [InThread(lambda backend=backend: come(backend)) for backend in (locks, others) * 4]
        assert sorted(str(one.result()) for one in crowd) == ["None"] * 7 + ["now"]


@in_one_system
def test_those_who_wait_for_a_slot_start_it_once(
    servers: LockServers, locks: LockBackend, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them saw, before they waited, that it was not started; only the first one to be elected starts it."""
    stand, standing = AsyncElection.campaign, []

    async def noted(election: AsyncElection, *words: Any, **more: Any) -> AsyncLeadership:
        standing.append(election)
        return await stand(election, *words, **more)

    with connect(servers.url, ttl_s=CALM_S) as others:
        with locks.leading(name):
            monkeypatch.setattr(AsyncElection, "campaign", noted)
            crowd = [
                InThread(lambda backend=backend: started(backend.once(name, slot="now", wait_s=None)))
                for backend in (locks, others, others)
            ]
            eventually(lambda: len(standing) == len(crowd), "all have looked")
        assert sorted(str(one.result()) for one in crowd) == ["None", "None", "now"]


@in_one_system
def test_a_wait_for_a_slot_is_called_off(locks: LockBackend, name: str) -> None:
    """By a `Cancel`, at once; nothing was started."""
    cancel = Cancel()
    with locks.once(name, slot="one"):
        waiting = InThread(lambda: started(locks.once(name, slot="two", wait_s=None, cancel=cancel)))
        cancel.set()
        with pytest.raises(LockCancelled):
            waiting.result()
    assert started(locks.once(name, slot="two")) == "two"


CHILD = """
import sys, threading
from fencelock import AsyncLeadership, connect
url, name, dies = sys.argv[1:]

def stop(*_):
    print("here", flush=True)
    threading.Event().wait()

if dies == "before":
    AsyncLeadership.record = stop
with connect(url, ttl_s=2) as locks, locks.once(name, slot="tonight"):
    stop()
"""


@pytest.mark.parametrize(
    ("servers", "dies"),
    [("redis", "before"), *(pytest.param(*one.values, "after", marks=one.marks) for one in by_day(ELECTS))],
    indirect=["servers"],
)
def test_a_holder_that_is_killed(servers: LockServers, locks: LockBackend, name: str, dies: str) -> None:
    """Before its slot is written down, the next one starts it; after that nobody does, unless it is to run again.

    All who come for the next slot within the dead one's TTL wait for its end, and one of them starts that.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, servers.url, name, dies], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "here\n"
    child.kill()
    child.communicate()
    wait_s = TTL_S + WITHIN_S
    if dies == "before":
        assert started(locks.once(name, slot="tonight", wait_s=wait_s)) == "tonight"
        return
    with connect(servers.url, ttl_s=TTL_S) as others:
        hosts = [InThread(lambda: started(others.once(name, slot="tomorrow"))) for _ in range(3)]
        assert sorted(str(one.result()) for one in hosts) == ["None", "None", "tomorrow"]
    assert started(locks.once(name, slot="tonight", wait_s=wait_s)) is None
    with locks.once(name, slot="tonight", wait_s=wait_s, again=True) as start:
        assert start is not None
        assert started(locks.once(name, slot="tonight", wait_s=0, again=True)) is None
    assert started(locks.once(name, slot="tonight")) is None


def test_an_answer_that_is_lost_starts_nothing(servers: LockServers, locks: LockBackend, name: str) -> None:
    """Whether the word arrived is not known: so no body runs there, and nobody starts that slot if it did."""
    with behind(servers, ttl_s=CALM_S, timeout_s=1) as (proxy, theirs):
        assert (
            started(theirs.once(f"{name}-before", slot="before")) == "before"
        )  # Redis has the scripts, and MySQL the tables
        proxy.lose_answer_to(*word(servers, "first"))
        with pytest.raises((LockUnavailable, LockLost)):
            started(theirs.once(name, slot="first"))
        assert proxy.struck.wait(WITHIN_S)
        proxy.restore()
        assert started(locks.once(name, slot="first", wait_s=WITHIN_S)) is None
        proxy.lose_request(*word(servers, "second"))

        def lost() -> bool:
            with pytest.raises((LockUnavailable, LockLost)):
                started(theirs.once(name, slot="second", wait_s=WITHIN_S))
            return proxy.struck.is_set()

        eventually(lost, "the word itself is lost")
        proxy.restore()
        assert started(locks.once(name, slot="second", wait_s=CALM_S + WITHIN_S)) == "second"


@in_one_system
def test_a_term_that_is_over_as_its_word_is_written_starts_nothing(
    servers: LockServers, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process stands still once its word is written, until its term is over and another one may lead."""
    record = AsyncLeadership.record

    async def stand_still(leadership: AsyncLeadership, value: str) -> None:
        await record(leadership, value)
        eventually(lambda: leadership.lost, "its term is over")  # with its loop, which renews nothing meanwhile

    monkeypatch.setattr(AsyncLeadership, "record", stand_still)
    with connect(servers.url, ttl_s=TTL_S) as locks, pytest.raises(LockLost):
        started(locks.once(name, slot="late"))


@in_one_system
async def test_tasks_start_a_slot_once(locks: LockBackend, name: str) -> None:
    """As a block and as a decorator, which returns the function's result, or None."""
    aio = locks.aio

    @aio.once(name, slot="one")
    async def job(what: str) -> str:
        await asyncio.sleep(0)
        return f"did {what}"

    found = await asyncio.gather(*(job("it") for _ in range(5)))
    assert sorted(map(str, found)) == ["None"] * 4 + ["did it"]
    async with aio.once(name, slot="two") as start, aio.once(name, slot="two", wait_s=0) as other:
        assert start is not None
        assert other is None
    with pytest.raises(TypeError, match="LockBackend.once"):
        aio.once(name, slot="one")(lambda: None)  # type: ignore[arg-type, return-value]
    await aio.leave_loop()


@in_one_system
async def test_a_task_that_is_cancelled_at_its_start_leaves_nothing(locks: LockBackend, name: str) -> None:
    """Neither a lead that keeps the next slot away, nor a second start of the same slot."""
    aio, runs = locks.aio, 0

    async def job() -> None:
        nonlocal runs
        async with aio.once(name, slot="one") as start:
            runs += start is not None

    for turns in range(0, 60, 4):
        task = asyncio.create_task(job())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await job()
    assert runs <= 1
    async with aio.once(name, slot="two", wait_s=WITHIN_S) as start:
        assert start is not None
    await aio.leave_loop()


@in_one_system
def test_threads_have_it_as_a_decorator(locks: LockBackend, name: str) -> None:
    """The function's result, or None; an error of its own is a start all the same."""

    @locks.once(name, slot="one")
    def job() -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job()
    assert job() is None


@in_one_system
def test_a_record_of_something_else_is_left_alone(locks: LockBackend, name: str) -> None:
    """An election whose leader has written down what it likes counts no slots."""
    with locks.election(name).campaign("me") as leadership:
        leadership.record("offset 7")
    with pytest.raises(LockError, match="something else than slots"):
        started(locks.once(name, slot="one"))
    assert locks.election(name).recorded() == "offset 7"


# -- leading ---------------------------------------------------------------------------------------------------------


@in_one_system
async def test_the_body_of_a_lost_term_is_cancelled(servers: LockServers, name: str) -> None:
    """The block raises LockLost; a body that is cancelled by somebody else ends as cancelled."""
    with behind(servers, ttl_s=TTL_S, timeout_s=0.5) as (proxy, locks):
        async with locks.aio.leading(name, "me") as term:
            assert 0 < term.trusted_s <= TTL_S
        with pytest.raises(LockLost):
            async with locks.aio.leading(name, "me") as term:
                proxy.stall()
                await asyncio.sleep(4 * WITHIN_S)
        assert term.lost
        assert term.trusted_s == 0
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        proxy.restore()
        await locks.aio.leave_loop()


@in_one_system
async def test_a_cancellation_from_outside_stays_one(locks: LockBackend, name: str) -> None:
    inside = asyncio.Event()

    @locks.aio.leading(name)
    async def lead(term: AsyncLeadership) -> None:
        inside.set()
        await asyncio.sleep(4 * WITHIN_S)

    task = asyncio.create_task(lead())
    await asyncio.wait_for(inside.wait(), WITHIN_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await eventually_async(lambda: locks.aio.election(name).leader(), until=lambda found: found is None) is None
    await locks.aio.leave_loop()


@in_one_system
def test_threads_lead_and_are_told(servers: LockServers, name: str) -> None:
    """The body finds out by itself; a decorated function that lets the loss through is called with the next term."""
    with behind(servers, ttl_s=TTL_S, timeout_s=0.5) as (proxy, locks):
        tokens = []

        @locks.leading(name, "me")
        def lead(term: Leadership, word: str) -> str:
            tokens.append(term.token)
            if len(tokens) == 1:
                term.on_lost(proxy.restore)
                proxy.stall()
                eventually(lambda: term.lost, "the term is over")
                term.ensure_held()
            return word

        assert lead("done") == "done"
        assert len(tokens) >= 2
        assert tokens == sorted(set(tokens))
        with pytest.raises(LockLost), locks.leading(name, "me") as term:
            assert term.trusted_s > 0
            proxy.stall()
            eventually(lambda: term.lost, "the term is over")
        proxy.restore()


@in_one_system
def test_an_error_of_ones_own_ends_it(locks: LockBackend, name: str) -> None:
    """So does LockLost that is another lock's; nobody leads any more."""
    calls = []

    @locks.leading(name)
    def lead(_: Leadership) -> None:
        calls.append(1)
        raise LockLost("of another lock")

    with pytest.raises(LockLost, match="another"):
        lead()
    assert len(calls) == 1
    assert locks.election(name).leader() is None


@in_one_system
def test_one_leads_at_a_time(servers: LockServers, locks: LockBackend, name: str) -> None:
    """The next one waits until the term is over, and all see what the leader says."""
    with connect(servers.url, ttl_s=CALM_S) as others:

        @others.leading(name, "second")
        def token(term: Leadership) -> int:
            return term.token

        with locks.leading(name, "first") as term:
            seen = others.election(name).leader()
            assert seen is not None
            assert (seen.value, seen.token) == ("first", term.token)
            with pytest.raises(LockTimeout):
                others.election(name).campaign("second", wait_s=0)
            waiting = InThread(token)
            eventually(waiting.thread.is_alive)
        assert waiting.result() > term.token


# -- on the command line ---------------------------------------------------------------------------------------------


def command(url: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "fencelock", "run", "--url", url, *arguments]


def run(url: str, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(command(url, *arguments), capture_output=True, text=True, timeout=4 * WITHIN_S)
    return done.returncode, done.stdout, done.stderr


def test_a_command_is_started_once(valkey: Valkey, name: str) -> None:
    """The first one runs, and ends with its status; the next one succeeds, and says why it did nothing, if it may."""
    job = (name, "--", "sh", "-c", "echo $FENCELOCK_SLOT $FENCELOCK_TOKEN; exit 7")
    status, said, _ = run(valkey.url, "--once", "2026-11-28", *job)
    assert (status, said.split()[0]) == (7, "2026-11-28")
    assert int(said.split()[1]) > 0
    status, said, why = run(valkey.url, "--once", "2026-11-28", *job)
    assert (status, said) == (0, "")
    assert why == f"fencelock: {name}: 2026-11-28 is not started here: it was started\n"
    assert run(valkey.url, "--quiet", "--once", "2026-11-28", *job) == (0, "", "")


def test_a_command_is_started_once_an_hour(valkey: Valkey, name: str) -> None:
    """Slots of time are named by their beginning. A length that can't be one is said in a line."""
    status, said, _ = run(valkey.url, "--every", str(10_000 * HOUR_S), name, "--", "printenv", "FENCELOCK_SLOT")
    assert status == 0
    assert said.endswith(":00:00.000+00:00\n")
    assert run(valkey.url, "--quiet", "--every", str(10_000 * HOUR_S), name, "--", "false") == (0, "", "")
    status, _, why = run(valkey.url, "--every", "0.5", name, "--", "true")
    assert (status, why) == (2, "fencelock: every_s must be 1 or more seconds, not 0.5\n")


LED = """
import os, pathlib, signal, sys, time
file = pathlib.Path(sys.argv[1])
token = os.environ["FENCELOCK_TOKEN"]

def told(*_):
    file.write_text(file.read_text() + f"told {token}\\n")
    sys.exit()

signal.signal(signal.SIGTERM, told)
file.write_text((file.read_text() if file.exists() else "") + f"leads {token}\\n")
while not (file.parent / "enough").exists():
    time.sleep(0.05)
sys.exit(5)
"""


def test_a_leaders_command_is_told_before_its_term_is_over(valkey: Valkey, name: str, tmp_path: Path) -> None:
    """It gets SIGTERM while the lease still holds, runs again in the next term, and its own end is the end."""
    file = tmp_path / "led"

    def lines() -> list[str]:
        return file.read_text().splitlines() if file.exists() else []

    with Proxy(valkey.port) as proxy:
        argv = command(f"redis://127.0.0.1:{proxy.port}", "--ttl", "6", "--leader", name, "--")
        leader = subprocess.Popen([*argv, sys.executable, "-c", LED, str(file)], stderr=subprocess.PIPE, text=True)
        try:
            eventually(lambda: len(lines()) == 1, "it leads")
            proxy.stall()
            eventually(lambda: len(lines()) == 2, "it is told")
            proxy.restore()
            first, told, again = eventually(lambda: lines()[2:] and lines(), "it leads again")
            assert told == first.replace("leads", "told")
            assert int(again.split()[1]) > int(first.split()[1])
            (tmp_path / "enough").touch()
            _, said = leader.communicate(timeout=4 * WITHIN_S)
            assert leader.returncode == 5
            assert "the term is over; standing again" in said
        finally:
            leader.kill()
            leader.communicate()
