"""Elections: who leads, what it says, and who hears it; etcd's own client stands in the same line."""

import contextlib
import gc
import os
import queue
import subprocess
from collections.abc import Iterator

import pytest

from app.embedded import EtcdMember, etcd_binary
from app.errors import LockCancelled, LockError, LockLost, LockTimeout, LockUnavailable
from app.locks import Cancel, Election, EtcdBackend, Leader
from app.locks.etcd import queue as etcd_queue
from app.locks.local import LocalBackend
from app.torture.proxy import Proxy
from tests.contract.lock_contract import TTL_S, _Thread
from tests.contract.test_etcd_lock import EtcdSystem
from tests.harness.servers import etcdctl, watchers
from tests.harness.waiting import WITHIN_S, eventually

NAME = "/test/leader"


@pytest.fixture
def backend(etcd: EtcdMember) -> Iterator[EtcdBackend]:
    """A connection; at its end nothing of an election is left on the server."""
    backend = EtcdBackend([etcd.endpoint], ttl_s=TTL_S)
    yield backend
    eventually(lambda: not EtcdSystem(etcd).leftovers(), "nothing is left on the server")
    backend.close()


@pytest.fixture
def election(backend: EtcdBackend) -> Election:
    return backend.election(NAME)


class Observer:
    """Observes in a thread of its own; `heard` has the values in their order, None for "nobody"."""

    def __init__(self, election: Election) -> None:
        self.cancel = Cancel()
        self.heard: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = _Thread(lambda: self._observe(election))

    def _observe(self, election: Election) -> None:
        for leader in election.observe(cancel=self.cancel):
            self.heard.put(leader.value if leader else None)

    def hear(self) -> str | None:
        """What comes next."""
        return self.heard.get(timeout=WITHIN_S)

    def stop(self) -> None:
        self.cancel.set()
        self._thread.result()


def queued(election: Election, number: int) -> None:
    eventually(lambda: len(election._queue.contenders()) == number, f"{number} candidates")


def test_the_first_leads_and_the_next_follows(election: Election) -> None:
    """One of them leads; when it resigns, the one who came next does, with a greater token."""
    assert election.leader() is None
    first = election.campaign("first")
    seen = election.leader()
    assert seen == Leader(first.key, "first", first.token, first.token)
    second = _Thread(lambda: election.campaign("second"))
    queued(election, 2)
    third = _Thread(lambda: election.campaign("third"))
    queued(election, 3)
    first.resign()
    leading = second.result()
    assert leading.token > first.token
    assert third.thread.is_alive()
    seen = election.leader()
    assert seen is not None
    assert seen.value == "second"
    leading.resign()
    last = third.result()
    assert last.token > leading.token
    last.resign()
    assert election.leader() is None


def test_what_is_proclaimed_is_heard(election: Election, monkeypatch: pytest.MonkeyPatch) -> None:
    """An observer is told who leads now, what it says then, that nobody leads, and who is next."""
    monkeypatch.setattr(etcd_queue, "_LOOK_AGAIN_S", 600)  # told, not found out by looking
    with election.campaign("one") as leadership:
        observer = Observer(election)
        assert observer.hear() == "one"
        leadership.proclaim("two")
        assert observer.hear() == "two"
        leadership.proclaim("two")  # once more is news, too: it says that it is still there
        assert observer.hear() == "two"
    assert observer.hear() is None
    with election.campaign("three"):
        assert observer.hear() == "three"
    assert observer.hear() is None
    observer.stop()


def test_nobody_leads_at_first(election: Election) -> None:
    """An observer is told that, too."""
    observer = Observer(election)
    assert observer.hear() is None
    observer.stop()


def test_a_campaign_that_is_called_off_leaves_nothing(election: Election) -> None:
    """Neither after its time is over nor after it was cancelled."""
    with election.campaign("me"):
        with pytest.raises(LockTimeout):
            election.campaign("other", wait_s=0)
        cancel = Cancel()
        other = _Thread(lambda: election.campaign("other", cancel=cancel))
        queued(election, 2)
        cancel.set()
        with pytest.raises(LockCancelled):
            other.result()
        queued(election, 1)


def test_who_lost_the_lead_can_say_no_more(etcd: EtcdMember, election: Election) -> None:
    """It is told so, and what its successor says stands."""
    first = election.campaign("first")
    second = _Thread(lambda: election.campaign("second"))
    queued(election, 2)
    etcdctl(etcd.endpoint, "lease", "revoke", first.key.rpartition("/")[2])
    leadership = second.result()
    with pytest.raises(LockLost):
        first.proclaim("I still lead")
    assert first.lost
    with pytest.raises(LockLost):
        first.proclaim("I do")
    seen = election.leader()
    assert seen is not None
    assert (seen.value, seen.token) == ("second", leadership.token)
    first.resign()  # not the successor's
    assert election.leader() == seen
    leadership.resign()


def test_a_key_that_was_made_anew_is_not_ours(etcd: EtcdMember, election: Election) -> None:
    """Somebody else's key of the same name is not written over; and who hears of the loss may do what they like."""
    leadership = election.campaign("first")
    heard: list[bool] = []

    def protest() -> None:
        with contextlib.suppress(LockLost):
            leadership.proclaim("I protest")
        heard.append(True)

    leadership.on_lost(protest)
    etcdctl(etcd.endpoint, "del", leadership.key)
    etcdctl(etcd.endpoint, "put", leadership.key, "somebody else's")
    proclaiming = _Thread(lambda: leadership.proclaim("I still lead"))
    with pytest.raises(LockLost):
        proclaiming.result()
    assert heard == [True]
    seen = election.leader()
    assert seen is not None
    assert seen.value == "somebody else's"
    etcdctl(etcd.endpoint, "del", leadership.key)
    leadership.resign()


def test_a_longer_name_is_another_election(backend: EtcdBackend, election: Election) -> None:
    """Whoever leads "/test/leader/of/others" does not lead "/test/leader"."""
    with backend.election(f"{NAME}/of/others").campaign("theirs"):
        assert election.leader() is None
        with election.campaign("ours"):
            seen = election.leader()
            assert seen is not None
            assert seen.value == "ours"


def test_a_proclamation_whose_answer_was_lost(etcd: EtcdMember, backend: EtcdBackend) -> None:
    """It counts once, and the next one counts after it."""
    with Proxy(etcd.client_port) as proxy:
        behind = EtcdBackend([f"http://127.0.0.1:{proxy.port}"], ttl_s=60, timeout_s=1)
        with behind.election(NAME).campaign("one") as leadership:
            proxy.lose_answer_to(b"second speech")
            proclaiming = _Thread(lambda: leadership.proclaim("second speech"))
            assert proxy.struck.wait(WITHIN_S)
            proxy.restore()
            with contextlib.suppress(LockUnavailable):  # then it is not known
                proclaiming.result()
            leader = backend.election(NAME).leader()
            assert leader is not None
            assert leader.value == "second speech"
            leadership.proclaim("third")
            leader = backend.election(NAME).leader()
            assert leader is not None
            assert leader.value == "third"
        behind.close()


def test_a_leadership_that_nobody_has_is_given_up(election: Election) -> None:
    """Who forgets it, does not lead for ever."""
    leadership = election.campaign("forgetful")
    other = _Thread(lambda: election.campaign("other"))
    queued(election, 2)
    del leadership
    gc.collect()
    other.result().resign()


def test_observers_outlive_a_restart() -> None:
    """A server that is killed and comes back: what is proclaimed then is heard."""
    with EtcdMember() as member:
        backend = EtcdBackend([member.endpoint], ttl_s=30)
        election = backend.election(NAME)
        leadership = election.campaign("before")
        observer = Observer(election)
        assert observer.hear() == "before"
        member.kill()
        member.start()

        def proclaimed() -> bool:
            try:
                leadership.proclaim("after")
            except LockUnavailable:
                return False
            return True

        eventually(proclaimed, "the server answers again")
        assert observer.hear() == "after"
        observer.stop()
        leadership.resign()
        backend.close()


def test_observing_ends_with_the_connection(etcd: EtcdMember) -> None:
    """And leaves no watch behind."""
    before = watchers(etcd)
    backend = EtcdBackend([etcd.endpoint], ttl_s=TTL_S)
    observer = Observer(backend.election(NAME))
    assert observer.hear() is None
    backend.close()
    observer._thread.result()
    eventually(lambda: watchers(etcd) == before, "no watch is left")


def test_etcds_own_client_stands_in_the_line(etcd: EtcdMember, election: Election) -> None:
    """`etcdctl elect` waits behind us, leads after us, and we wait behind it; each sees who leads."""
    ours = election.campaign("ours")
    listening = etcdctl(etcd.endpoint, "get", "--prefix", "--print-value-only", f"{NAME}/")
    assert listening.strip() == "ours"
    theirs = subprocess.Popen(
        [etcd_binary("etcdctl"), f"--endpoints={etcd.endpoint}", "elect", NAME, "theirs"],
        env=os.environ | {"ETCDCTL_API": "3"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        queued(election, 2)
        next_of_ours = _Thread(lambda: election.campaign("ours again"))
        queued(election, 3)
        ours.resign()
        assert theirs.stdout is not None
        key = theirs.stdout.readline().strip()
        assert key.startswith(f"{NAME}/")
        seen = election.leader()
        assert seen is not None
        assert seen.value == "theirs"
        assert next_of_ours.thread.is_alive()
    finally:
        theirs.terminate()
        theirs.communicate(timeout=WITHIN_S)
    next_of_ours.result().resign()
    etcdctl(etcd.endpoint, "lease", "revoke", key.removeprefix(f"{NAME}/"))  # it resigns, but leaves that behind


@pytest.mark.parametrize("name", ["", "/ends/"])
def test_an_odd_name_is_refused(backend: EtcdBackend, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        backend.election(name)


def test_not_every_backend_has_elections() -> None:
    backend = LocalBackend()
    assert not backend.guarantees.elects
    with pytest.raises(LockError, match="local has no elections"):
        backend.election(NAME)
    backend.close()
