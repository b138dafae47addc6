"""etcd: `etcdctl lock`, Go's concurrency.Mutex and jetcd share one queue with ours."""

import pytest

from lab.servers import EtcdMember
from tests.harness.servers import where_installed
from tests.interop import builds, pairs
from tests.interop.pairs import Pair
from tests.interop.together import InLine, marks

pytestmark = marks


class TestEtcdctl(InLine):
    @pytest.fixture
    def pair(self, etcd: EtcdMember) -> Pair:
        return pairs.etcdctl(etcd)


class TestGo(InLine):
    @pytest.fixture
    def pair(self, etcd: EtcdMember) -> Pair:
        where_installed(builds.go_program)
        return pairs.go_etcd(etcd)


class TestJetcd(InLine):
    @pytest.fixture
    def pair(self, etcd: EtcdMember) -> Pair:
        where_installed(builds.java_folder)
        return pairs.jetcd(etcd)
