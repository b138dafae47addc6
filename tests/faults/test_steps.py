"""Every step of an operation fails once; what is broken on purpose is found."""

import subprocess
import sys

import pytest

from lab.steps.__main__ import LOCKS, OF_A_CHANGE
from lab.steps.protocols import Http, MySql, Pg, Resp, WireProtocol

# Those of elections and what is made of them go at night, with the other systems, and with those that take minutes.
OF_A_LOCK = ("take", "take behind", "re-enter", "take in a thread", "fall back", "fence")
LONG = (
    *(("redis", one) for one in ("two wait", "hold", "give up", "take over", "campaign")),
    ("etcd", "take behind"),
)


def steps(*words: str, broken: str = "pass") -> str:
    """Run the command in a process of its own, with a bug if there is one; its output, and its status in the end."""
    code = f"import sys\nfrom lab.steps.__main__ import main\n{broken}\nsys.exit(main({list(words)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    # What Python says of a coroutine that its closed loop has left behind stands in front of the result.
    return f"{done.stderr}{done.stdout}status {done.returncode}"


def test_a_failure_is_run_alone() -> None:
    said = steps("--system", "redis", "--only", "take / lock take 1 answered / lost")
    assert "1 operations, 15 steps, 1 runs, " in said, said
    assert said.endswith(" 0 violations\nstatus 0"), said


@pytest.mark.slow
def test_what_is_not_there_is_no_success() -> None:
    assert steps("--system", "redis", "--only", "fly").endswith("status 1")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("system", "operation"),
    [
        *(("redis", operation) for operation in OF_A_LOCK),
        ("etcd", "take"),
        ("sale", "confirm"),
        ("sale", "purchase / store put"),
        *(pytest.param(*one, marks=pytest.mark.exhaustive) for one in LONG),
    ],
)
def test_every_step_fails_once(system: str, operation: str) -> None:
    said = steps("--system", system, "--only", operation)
    assert said.endswith(" 0 violations\nstatus 0"), said


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "words",
    [
        *(("--system", name) for name in OF_A_CHANGE),
        *(("--system", name) for name in LOCKS if name not in OF_A_CHANGE),
        *(("--system", name) for name in ("sale-mysql", "events")),
        *(("--system", name, "--pairs") for name in ("redis", "etcd", "postgres", "sale")),
    ],
    ids=" ".join,
)
def test_the_others_before_a_release(words: tuple[str, ...]) -> None:
    said = steps(*words)
    assert said.endswith(" 0 violations\nstatus 0"), said


IN_DOUBT = """
from app.sale.in_doubt import InDoubt
from app.sale.queue import EntryState
InDoubt.add = lambda self, parts: [part.set_state(EntryState.TAKEN) for part in parts]
"""
HUNG_UP = """
from app.sale.queue import Entry
Entry.wanted = property(lambda self: True)
"""
DEAF_TO_ITS_LOSS = """
from fencelock.lease import Lease
Lease.lose = lambda self, reason: None
"""
NEVER_BEGUN = """
import asyncio
from app.sale.worker import Worker
def start(self):
    if len(self._tasks) < self._tasks_max:
        self._tasks.add(asyncio.get_running_loop().create_task(self._run(), name=self._lock.name))
Worker._start = start
"""
FROM_THE_ANSWER = """
from fencelock.lease import Lease
renewed = Lease.renewed
Lease.renewed = lambda self, asked_at: renewed(self, self._clock())
"""
WHOEVER_HAS_IT = """
from fencelock.etcd import shared_lease
async def end(self, timeout_s):
    self.forget()
    await self.session.client.delete(self.name, timeout_s)
    await self.session.forget(self, timeout_s)
shared_lease.Key.end = end
"""
NOT_READ_AGAIN = """
from fencelock.once import AsyncOnce
looked = AsyncOnce._was_started
def was_started(self, record, slot):
    self.looks = getattr(self, "looks", 0) + 1
    return self.looks == 1 and looked(self, record, slot)
AsyncOnce._was_started = was_started
"""
NOT_WOKEN = """
from fencelock.redis.client import ReleaseListener
def leave(self, pattern, ticket):
    channel = self._channels.get(pattern)
    if channel is not None and ticket in channel.line:
        channel.line.remove(ticket)
ReleaseListener.leave = leave
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "system", "only"),
    [
        pytest.param(
            *(NOT_WOKEN, "redis", "two wait / await LockBackend.take in Attempt._until_granted"),
            id="a waiter that leaves as it is woken wakes nobody",
        ),
        pytest.param(
            *(FROM_THE_ANSWER, "redis", "hold / lock renew 1 answered / slow, and the last one"),
            id="a lease counts from the answer",
        ),
        pytest.param(
            *(WHOEVER_HAS_IT, "etcd", "take / lock DeleteRange 1 asked / late, when it is owned again"),
            id="a late deletion meets the next key",
        ),
        pytest.param(
            *(NOT_READ_AGAIN, "redis", "once / lock get 1 answered / between: once"),
            id="a slot is started that another one has started meanwhile",
        ),
        pytest.param(NEVER_BEGUN, "sale", "purchase / await Worker._run 0", id="a worker that never began is believed"),
        pytest.param(IN_DOUBT, "sale", "purchase without a key / store put", id="what is in doubt is served again"),
        pytest.param(HUNG_UP, "sale", "hang up / store look", id="who has hung up is sold to"),
        pytest.param(DEAF_TO_ITS_LOSS, "redis", "hold / lock renew 1 asked", id="nobody is told of a loss"),
    ],
)
def test_what_is_broken_is_found(broken: str, system: str, only: str) -> None:
    said = steps("--system", system, "--only", only, broken=broken)
    assert f"✗ {system}: {only}" in said, said
    assert said.endswith("status 1"), said


@pytest.mark.parametrize(
    ("protocol", "asked", "names"),
    [
        (
            Resp,
            b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nDEL\r\n$2\r\n\r\n\r\n",
            ["get", "", "del"],
        ),
        (Http, b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n\r\n\r\nPOST / HTTP/1.1\r\n\r\n", ["post", "post"]),
        (
            MySql,
            b"\x03\x00\x00\x01abc\x12\x00\x00\x00\x03UPDATE t SET a=1 \x09\x00\x00\x00\x03ROLLBACK",
            ["", "update t", "rollback"],
        ),
        (
            Pg,
            b"\0\0\0\x08\0\x03\0\0"  # hello
            b"P\0\0\0\x19_p\0SELECT a FROM t\0\0\0S\0\0\0\x04"
            b"B\0\0\0\x0e\0_p\0\0\0\0\0\0\0E\0\0\0\x09\0\0\0\0\0S\0\0\0\x04Q\0\0\0\x0bCOMMIT\0",
            ["", "select t", "select t", "commit"],
        ),
    ],
    ids=["Redis", "HTTP", "MySQL", "PostgreSQL"],
)
def test_messages_are_cut_however_they_arrive(protocol: type[WireProtocol], asked: bytes, names: list[str]) -> None:
    for size in (1, 7, len(asked)):
        speaks, found = protocol(), []
        for at in range(0, len(asked), size):
            found += speaks.asked(asked[at : at + size])
        assert [one.name for one in found] == names
        assert b"".join(one.raw for one in found) == asked
