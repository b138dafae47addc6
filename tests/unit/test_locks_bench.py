"""What the benchmark of the locks makes of turns: the numbers that `fencelock bench` prints."""

import pytest

from app.locks.bench import Turn, heat_of, peers_of, table, url_for_peers


def test_turns_of_two_processes_at_once_are_counted_as_overlaps() -> None:
    one = [Turn(0.0, 0.0, 1.0), Turn(1.0, 2.0, 3.0)]
    other = [Turn(0.0, 0.9, 2.0), Turn(2.0, 3.5, 4.0)]
    heat = heat_of("broken", 0, [one, other])
    assert heat is not None
    assert heat.overlaps == 1
    assert table([heat])[1].split()[-1] == "1"


def test_a_heat_of_turns_one_after_the_other() -> None:
    one = [Turn(0.0, 1.0, 2.0), Turn(2.0, 4.0, 5.0)]
    other = [Turn(0.0, 2.5, 3.0)]
    heat = heat_of("good", 0, [one, other])
    assert heat is not None
    assert (heat.overlaps, heat.fewest, heat.most) == (0, 1, 2)
    assert heat.grants_per_s == pytest.approx(3 / 4)
    assert (heat.hand_p50_ms, heat.wait_p50_ms) == (1000, 2000)


def test_of_a_single_turn_there_is_nothing_to_tell() -> None:
    assert heat_of("alone", 0, [[Turn(0.0, 1.0, 2.0)], []]) is None


@pytest.mark.parametrize(
    ("url", "theirs", "system"),
    [
        ("redis+fair://h:1", "redis://h:1", "redis"),
        ("etcd+txn://h:1,i:2", "etcd://h:1,i:2", "etcd"),
        ("zookeeper://h:1/a?b=c", "zookeeper://h:1/a?b=c", "zookeeper"),
    ],
)
def test_peers_hear_of_a_server_and_not_of_our_kinds_of_lock(url: str, theirs: str, system: str) -> None:
    assert url_for_peers(url) == theirs
    assert {one.system for one in peers_of(url)} == {system}
