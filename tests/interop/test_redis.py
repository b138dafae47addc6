"""Redis: Redisson's RLock and RFairLock, and redsync over several servers, share their locks with ours."""

import time
from pathlib import Path

import pytest
from redis import Redis

from lab.servers import Valkey
from tests.harness.servers import where_installed
from tests.interop import builds, pairs
from tests.interop.pairs import TTL_S, Pair
from tests.interop.together import SLACK_S, Crowd, InLine, Journal, Shown, Together, either, marks

pytestmark = marks


class TestRedisson(Shown):
    @pytest.fixture
    def pair(self, valkey: Valkey) -> Pair:
        where_installed(builds.java_folder)
        return pairs.redisson(valkey)


class TestRedissonFair(InLine):
    @pytest.fixture
    def pair(self, request: pytest.FixtureRequest, valkey: Valkey) -> Pair:
        where_installed(builds.java_folder)
        # Redisson's waiters show no sign of life: only this time-out tells that one of them is dead.
        dies = "dead_waiter" in request.node.name
        return pairs.redisson_fair(valkey, wait_s=1 if dies else pairs.FAIR_WAIT_S)

    @pytest.mark.parametrize(
        ("before_s", "behind_s"),
        [(0, 3.5 * TTL_S), (3.5 * TTL_S, 0)],
        ids=["we wait for long", "it has waited for long"],
    )
    @either
    def test_we_keep_our_places_behind_theirs(
        self, crowd: Crowd, tmp_path: Path, kind: str, other: str, before_s: float, behind_s: float
    ) -> None:
        """Redisson's grant takes its whole wait off our entry's time-out; it releases the lock before we look again."""
        journal = Journal(tmp_path)
        kinds = ["theirs", "ours", "ours", other, "ours", "theirs"]
        holder, *line, newcomer = crowd.start(kind, *kinds, "ours")
        names = [f"{kind}-{place}" for place, kind in enumerate(kinds)]
        assert holder.ask("acquire", -1)[0] == "granted"
        for who, contender in zip(names, line, strict=True):
            crowd.arrive(contender, "loop", 1, 0, who, journal.counter, journal.file)
            if who == names[0]:
                time.sleep(before_s)
        time.sleep(behind_s)
        assert holder.ask("release")[0] == "released"
        newcomer.tell("loop", 1, 0, "newcomer", journal.counter, journal.file)
        for contender in (*line, newcomer):
            assert contender.answer() == ["looped", "1"]
        assert journal.served() == [*names, "newcomer"]

    def test_a_dead_one_of_ours_behind_theirs_costs_a_ttl(self, crowd: Crowd) -> None:
        """A dead waiter of ours costs a TTL, even with no other of ours: Redisson subtracts just what we had added."""
        holder, theirs, ours, behind = crowd.start("theirs", "theirs", "ours", "theirs")
        assert holder.ask("acquire", -1)[0] == "granted"
        for contender in (theirs, ours, behind):
            crowd.arrive(contender, "acquire", -1)
        time.sleep(1.5 * TTL_S)
        ours.kill()
        assert holder.ask("release")[0] == "released"
        assert theirs.answer()[0] == "granted"
        assert theirs.ask("release")[0] == "released"
        assert behind.answer(TTL_S + SLACK_S)[0] == "granted"


class TestRedsync(Together):
    @pytest.fixture
    def pair(self, valkeys: list[Valkey]) -> Pair:
        where_installed(builds.go_program)
        return pairs.redsync(valkeys)

    @either
    def test_a_minority_is_not_enough(self, crowd: Crowd, valkeys: list[Valkey], kind: str, other: str) -> None:
        """When one of three servers has lost the lock's key, nobody gets the lock from that server alone."""
        holder, late = crowd.start(kind, other)
        assert holder.ask("acquire", -1)[0] == "granted"
        with Redis.from_url(valkeys[2].url) as redis:
            assert redis.delete(crowd.name) == 1
        assert late.ask("acquire", 1000) == ["timeout"]
        assert holder.ask("release")[0] == "released"
        assert late.ask("acquire", 20_000)[0] == "granted"

    def test_we_show_their_holder(self, crowd: Crowd) -> None:
        """redsync's value on the servers shows that the lock is held, and not by which owner."""
        ours, theirs = crowd.start("ours", "theirs")
        theirs.ask("acquire", -1)
        assert [(one.holds, one.owner) for one in crowd.contenders()] == [(True, {})]
        theirs.ask("release")
        ours.ask("acquire", -1)
        assert [one.owner["pid"] for one in crowd.contenders()] == [ours.pid]
