"""Many tasks that wait for one lock cost little."""

import pytest

from lab.servers import EtcdMember, Valkey
from tests.harness.waiters import crowd

COUNT = 1000


@pytest.mark.slow
@pytest.mark.parametrize("system", ["etcd", "redis-fair"])
def test_a_thousand_tasks_that_wait(system: str, request: pytest.FixtureRequest) -> None:
    """A thousand waiting tasks cost less than 50 MB and no threads of their own; and each gets the lock."""
    if system == "etcd":
        member: EtcdMember = request.getfixturevalue("etcd")
        url = f"etcd://127.0.0.1:{member.client_port}"
    else:
        valkey: Valkey = request.getfixturevalue("valkey")
        url = valkey.url.replace("redis:", "redis+fair:")
    found = crowd(url, "/test/many-waiters", COUNT)
    assert found.of_all.rss_mb - found.of_one.rss_mb < 50
    assert found.of_all.threads <= found.of_one.threads + 2  # a client may begin one late
    assert sorted(found.served) == list(range(COUNT))
