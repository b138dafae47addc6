"""`python -m loadtest.bench.race` races programs in any language beside ours: the real clients, in one run."""

from lab.servers import EtcdMember
from loadtest.bench.race import Contestant, compare
from tests.harness.servers import where_installed
from tests.interop import builds, pairs
from tests.interop.together import marks

pytestmark = marks


def test_go_java_and_python_race_beside_ours(etcd: EtcdMember) -> None:
    where_installed(builds.go_program)
    where_installed(builds.java_folder)
    go, jetcd = pairs.go_etcd(etcd), pairs.jetcd(etcd)
    theirs = [Contestant("Go", go.theirs("{name}", 5)), Contestant("jetcd", jetcd.theirs("{name}", 5))]
    heats, _ = compare(go.url, contenders=(2,), holds_ms=(2.0,), seconds=1.0, rounds=1, peers=True, programs=theirs)
    found = {heat.contestant: heat for heat in heats}
    assert {"threads", "asyncio", "python-etcd3", "Go", "jetcd"} <= set(found)
    assert all(found[one].overlaps == 0 and found[one].fewest > 0 for one in ("threads", "asyncio", "Go", "jetcd"))
