"""Candidates of `etcdctl elect` and of Go's concurrency.Election share one queue with ours."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from lab.servers import EtcdMember, etcd_binary
from tests.harness.servers import where_installed
from tests.harness.waiting import eventually
from tests.interop import builds, pairs
from tests.interop.client import Client
from tests.interop.pairs import TTL_S
from tests.interop.together import SLACK_S, Crowd, either, marks

pytestmark = marks


@pytest.fixture(params=["threads", "tasks"])
def crowd(etcd: EtcdMember, request: pytest.FixtureRequest) -> Iterator[Crowd]:
    """Start a crowd; the other clients are Go's."""
    where_installed(builds.go_program)
    with Crowd(replace(pairs.go_etcd(etcd), face=request.param)) as crowd:
        yield crowd


def leader(crowd: Crowd) -> str | None:
    """Return the leader's value, as our client reads it."""
    found = crowd.locks.election(crowd.name).leader()
    return found.value if found else None


def test_they_lead_in_order(crowd: Crowd, etcd: EtcdMember) -> None:
    """Candidates lead one at a time, in the order of arrival, and the next follows a resignation at once."""
    ours, etcdctl = crowd.pair.ours(crowd.name, TTL_S), pairs.etcdctl(etcd).theirs(crowd.name, TTL_S)
    go = crowd.pair.theirs(crowd.name, TTL_S)
    line = crowd.launch(ours, etcdctl, go, ours, go, etcdctl)
    first, *others = line
    assert first.ask("campaign", "number-0") == ["elected"]
    for number, candidate in enumerate(others, 1):
        crowd.arrive(candidate, "campaign", f"number-{number}")
    for number, (leading, following) in enumerate(zip(line, others, strict=False)):
        assert leader(crowd) == f"number-{number}"
        assert all(candidate.is_silent() for candidate in line[number + 1 :])
        assert leading.ask("resign") == ["resigned"]
        assert following.answer() == ["elected"]
    assert leader(crowd) == "number-5"
    assert line[-1].ask("resign") == ["resigned"]
    assert leader(crowd) is None


# etcdctl is not tested: its candidates have a lease of a minute, and no option to change that.
@either
def test_a_dead_leader_is_succeeded(crowd: Crowd, kind: str, other: str) -> None:
    """A leader leads beyond a TTL until it dies; a TTL later a candidate of the other kind leads."""
    leading, following = crowd.start(kind, other)
    assert leading.ask("campaign", kind) == ["elected"]
    crowd.arrive(following, "campaign", other)
    assert following.is_silent(for_s=1.5 * TTL_S)
    assert leader(crowd) == kind
    leading.kill()
    assert following.answer(TTL_S + SLACK_S) == ["elected"]
    assert leader(crowd) == other


def test_etcdctl_hears_our_leader(crowd: Crowd, etcd: EtcdMember) -> None:
    """`etcdctl elect --listen` prints our candidate's value when it is elected."""
    (ours,) = crowd.start("ours")
    listening = [str(etcd_binary("etcdctl")), f"--endpoints={etcd.endpoint}", "elect", "--listen", crowd.name]
    assert ours.ask("campaign", "it-is-me") == ["elected"]
    (key,) = [one.key for one in crowd.contenders()]
    with Client(listening) as listener:
        assert (listener.answer(), listener.answer()) == ([key], ["it-is-me"])


def test_a_dead_candidate_is_passed_over(crowd: Crowd) -> None:
    """Behind a dead candidate of either kind, the next one leads after a TTL."""
    leading, dead, dead_too, following = crowd.start("ours", "theirs", "ours", "theirs")
    assert leading.ask("campaign", "first") == ["elected"]
    for candidate in (dead, dead_too, following):
        crowd.arrive(candidate, "campaign", "next")
    dead.kill()
    dead_too.kill()
    assert leading.ask("resign") == ["resigned"]
    assert following.answer(TTL_S + SLACK_S) == ["elected"]
    eventually(lambda: len(crowd.contenders()) == 1, "the dead have left the line")
