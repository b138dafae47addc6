"""The benchmark of the locks computes numbers from turns, which `python -m loadtest.bench.race` prints."""

import sys
from pathlib import Path

import pytest

from loadtest.bench.race import Contestant, Turn, heat_of, peers_of, program, race, table, url_for_peers

# A foreign contestant; "with" is its lock.
PROGRAM = """
import contextlib, fcntl, sys, time

def micros():
    return time.time_ns() // 1000

@contextlib.contextmanager
def alone():
    with open(sys.argv[1], "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

everybody = contextlib.nullcontext
print("ready", flush=True)
for line in sys.stdin:
    _, length, hold, file = line.split()
    end, turns = micros() + int(length), []
    while (asked := micros()) < end:
        with LOCK():
            got = micros()
            time.sleep(int(hold) / 1e6)
            turns.append(f"{asked} {got} {micros()}\\n")
        time.sleep(0.001)
    open(file, "w").writelines(turns)
    print("raced", len(turns), flush=True)
"""


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


@pytest.mark.parametrize(("lock", "excludes"), [("alone", True), ("everybody", False)])
def test_a_program_of_others_races_and_is_found_out(lock: str, excludes: bool, tmp_path: Path) -> None:
    source = PROGRAM.replace("LOCK()", f"{lock}()")
    one = Contestant("flock", (sys.executable, "-c", source, str(tmp_path / "lock"), "{name}"))
    turns, wrong = race(one, "local://", 3, hold_ms=2, seconds=0.5)
    assert not wrong
    heat = heat_of("flock", 2, turns)
    assert heat is not None
    assert (heat.processes, heat.fewest > 0, heat.overlaps == 0) == (3, True, excludes)
    assert sum(map(len, turns)) / heat.grants_per_s > 0.4  # seconds: those of the heat, and not of the warm-up
    assert all(turn.gave_at - turn.got_at >= 0.002 and turn.asked_at <= turn.got_at for own in turns for turn in own)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("/nowhere/peer {name}", "No such file or directory: '/nowhere/peer'"),
        ("false {name}", "2 of 2 processes had no turn: it ended with status 1"),
        ("""sh -c 'echo "no such server" >&2; exit 3' {name}""", "2 of 2 processes had no turn: no such server"),
        ("sh -c 'echo ready; read line; echo error it is not there; sleep 1000' {name}", "error it is not there"),
    ],
)
def test_a_program_that_fails_says_why(command: str, why: str) -> None:
    turns, wrong = race(program(f"it={command}"), "local://", 2, hold_ms=0, seconds=0.1)
    assert why in wrong
    assert turns == [[], []]


def test_a_program_is_told_the_server_and_the_lock() -> None:
    one = program("Go's=go run ./peer --to={hosts} {url} '{name} x'")
    assert one.name == "Go's"
    assert one.command("etcd://h:1,i:2/a", "/l") == ["go", "run", "./peer", "--to=h:1,i:2", "etcd://h:1,i:2/a", "/l x"]


@pytest.mark.parametrize("text", ["", "x", "x=", "={name}", "x=command", "x='{name}"])
def test_a_program_that_is_not_given_the_lock_is_no_contestant(text: str) -> None:
    with pytest.raises(ValueError, match=r"NAME=COMMAND|quotation"):
        program(text)
