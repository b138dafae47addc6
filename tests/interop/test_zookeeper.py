"""ZooKeeper: Curator's InterProcessMutex shares one queue with ours."""

import pytest

from lab.servers import ZooKeeper
from tests.harness.servers import where_installed
from tests.interop import builds, pairs
from tests.interop.pairs import Pair
from tests.interop.together import InLine, marks

pytestmark = marks


class TestCurator(InLine):
    @pytest.fixture
    def pair(self, zookeeper: ZooKeeper) -> Pair:
        where_installed(builds.java_folder)
        return pairs.curator(zookeeper)
