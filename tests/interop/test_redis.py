"""Redis: Redisson's RLock and RFairLock, and redsync over several servers, share their locks with ours."""

import pytest
from redis import Redis

from app.embedded import Valkey
from tests.harness.servers import where_installed
from tests.interop import builds, pairs
from tests.interop.pairs import Pair
from tests.interop.together import Crowd, InLine, Shown, Together, either, marks

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
        # Theirs show no sign of life while they wait: only this tells that one of them is dead.
        dies = "dead_waiter" in request.node.name
        return pairs.redisson_fair(valkey, wait_s=1 if dies else pairs.FAIR_WAIT_S)


class TestRedsync(Together):
    @pytest.fixture
    def pair(self, valkeys: list[Valkey]) -> Pair:
        where_installed(builds.go_program)
        return pairs.redsync(valkeys)

    @either
    def test_a_minority_is_not_enough(self, crowd: Crowd, valkeys: list[Valkey], kind: str, other: str) -> None:
        """One of the three servers has forgotten who has the lock: nobody gets it from that one alone."""
        holder, late = crowd.start(kind, other)
        assert holder.ask("acquire", -1)[0] == "granted"
        with Redis.from_url(valkeys[2].url) as redis:
            assert redis.delete(crowd.name) == 1
        assert late.ask("acquire", 1000) == ["timeout"]
        assert holder.ask("release")[0] == "released"
        assert late.ask("acquire", 20_000)[0] == "granted"

    def test_we_show_their_holder(self, crowd: Crowd) -> None:
        """What redsync keeps on the servers says that somebody has the lock, and not who that is."""
        ours, theirs = crowd.start("ours", "theirs")
        theirs.ask("acquire", -1)
        assert [(one.holds, one.owner) for one in crowd.contenders()] == [(True, {})]
        theirs.ask("release")
        ours.ask("acquire", -1)
        assert [one.owner["pid"] for one in crowd.contenders()] == [ours.pid]
