"""`python -m loadtest.bench.race URL`: how often a lock changes hands, and how evenly and soon it is given.

Each contestant is taken and given back by several processes that do nothing else. Contestants take turns within each
round, so that a machine that slows down hits all alike. A contestant is a program, in any language:

    it says              "ready", when it is connected
    it is told           "race LENGTH HOLD FILE": take the lock and give it back again and again for LENGTH, and have it
                         for HOLD each time, both in microseconds
    it says              "raced TURNS", and has written a line "ASKED GOT GAVE" to the file for each turn: when it asked
                         for the lock, when it had it, when it began to give it back, in microseconds since 1970

The input repeats that several times, and then ends, and the program with it. Any other output is a failure.
"""

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import queue
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final, cast

_START_WITHIN_S: Final = 30.0  # for all processes of a heat to be there, and connected
_END_WITHIN_S: Final = 60.0  # for the last turn
_GO_WITHIN_S: Final = 15.0
_WARM_S: Final = 0.3  # until leases, watches and compilers are ready
_LINE: Final = "{:20} {:>3} {:>5} {:>9} {:>11} {:>13} {:>11} {:>9}"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A lock that takes part. `words`: its command line, with places for {url}, {hosts} and the lock's {name}.

    `system`: the first word of the URLs that it understands, or nothing if it is ours. `module`: what has to be
    installed; it comes with `package`.
    """

    name: str
    words: Sequence[str]
    system: str = ""
    module: str = "asyncio"
    package: str = ""

    def command(self, url: str, name: str) -> list[str]:
        """Return the command line for the lock of that name on the server of that URL."""
        places = {"{url}": url, "{hosts}": url.partition("://")[2].partition("/")[0], "{name}": name}
        words = list(self.words)
        for place, value in places.items():
            words = [word.replace(place, value) for word in words]
        return words


def is_installed(module: str) -> bool:
    """Return whether contestants that need that module can take part here."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # no such parent package
        return False


def program(text: str) -> Contestant:
    """Return a contestant from "NAME=COMMAND", as for a shell. Raises ValueError for other texts."""
    name, _, command = text.partition("=")
    words = shlex.split(command)
    if not name or not words or not any("{name}" in word for word in words):
        raise ValueError(f"must be NAME=COMMAND with a place for the lock's {{name}}, not {text!r}")
    return Contestant(name, words)


def _python(name: str, system: str = "", module: str = "asyncio", package: str = "") -> Contestant:
    words = (sys.executable, "-P", "-m", f"{__package__}.racer", name, "{url}", "{name}")
    return Contestant(name, words, system, module, package)


OURS: Final = (_python("threads"), _python("asyncio"))
PEERS: Final = (
    _python("python-etcd3", "etcd", "etcd3", "cslab-etcd3"),
    _python("aetcd", "etcd", "aetcd", "aetcd"),
    _python("etcd3aio", "etcd", "etcd3aio", "etcd3aio"),
    _python("redis-py", "redis", "redis", "redis"),
    _python("redis-py on asyncio", "redis", "redis.asyncio", "redis"),
    _python("python-redis-lock", "redis", "redis_lock", "python-redis-lock"),
    _python("kazoo", "zookeeper", "kazoo", "kazoo"),
    _python("pg_advisory_lock", "postgres", "psycopg", "'psycopg[binary]'"),
)


def peers_of(url: str) -> list[Contestant]:
    """Return the peers that can use the server of one of our URLs."""
    system = url_for_peers(url).partition("://")[0]
    return [one for one in PEERS if one.system == system]


def url_for_peers(url: str) -> str:
    """Return the server's URL without our word for the kind of lock: redis+fair://host is redis://host to others."""
    scheme, separator, rest = url.partition("://")
    return scheme.partition("+")[0] + separator + rest


# -- a heat ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of one process; moments of the wall clock, in seconds."""

    asked_at: float
    got_at: float
    gave_at: float


@dataclass(frozen=True, slots=True)
class Heat:
    """One contestant's result at a given process count. `overlaps`: how often two had the lock at once.

    A hand-off is from the call of one's release to the return of the next one's acquire.
    """

    contestant: str
    processes: int
    hold_ms: float
    grants_per_s: float
    hand_p50_ms: float
    hand_p99_ms: float
    wait_p50_ms: float
    wait_p99_ms: float
    fewest: int
    most: int
    overlaps: int


def race(one: Contestant, url: str, processes: int, hold_ms: float, seconds: float) -> tuple[list[list[Turn]], str]:
    """Let so many processes have a lock in turn, for some seconds; return the turns of each, and an error or nothing.

    `url`: the server's, in our form. A process that fails or hangs has no turns, and is ended.
    """
    command = one.command(url if one in OURS else url_for_peers(url), f"/bench/{uuid.uuid4().hex}")
    crowd: list[_Racer] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / str(number) for number in range(processes)]
            for file in files:
                crowd.append(_Racer(command, file.with_suffix(".errors")))
            for racer in crowd:
                racer.hear("ready", _START_WITHIN_S)
            for length_s in (_WARM_S, seconds):
                for racer, file in zip(crowd, files, strict=True):
                    racer.tell(f"race {length_s * 1e6:.0f} {hold_ms * 1e3:.0f} {file}")
                for racer in crowd:
                    racer.hear("raced", length_s + _END_WITHIN_S)
            turns = [[] if racer.failed else _turns(file) for racer, file in zip(crowd, files, strict=True)]
            for racer in crowd:
                racer.hang_up()
            for racer in crowd:
                racer.wait()
    except OSError as error:  # no such program
        return [[]] * processes, str(error)
    finally:  # also after a Ctrl-C: at this process's end, they would miss files that it has removed by then
        for racer in crowd:
            racer.end()
    idle = turns.count([])
    why = next((racer.failed for racer in crowd if racer.failed), "they never got the lock")
    return turns, f"{idle} of {processes} processes had no turn: {why}" if idle else ""


def _turns(file: Path) -> list[Turn]:
    return [Turn(*(int(word) / 1e6 for word in line.split())) for line in file.read_text().splitlines()]


class _Racer:
    """A process of a contestant. Ctrl-C does not reach it, as it is in a process group of its own."""

    def __init__(self, command: Sequence[str], errors: Path) -> None:
        self.failed = ""  # the reason, if it has failed
        self._errors = errors
        with errors.open("w") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                bufsize=1,
                process_group=0,
            )
        self._input, self._output = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._output:
            self._said.put(line.strip())
        self._said.put("")

    def tell(self, line: str) -> None:
        if not self.failed:
            with contextlib.suppress(OSError):  # it is gone, which `hear` notices
                self._input.write(f"{line}\n")

    def hear(self, word: str, within_s: float) -> None:
        """Wait until the process says that word, or note that it failed."""
        if self.failed:
            return
        try:
            line = self._said.get(timeout=within_s)
        except queue.Empty:
            self.failed = f"it was silent for {within_s:g} s"
        else:
            if line.partition(" ")[0] != word:
                self.failed = line or self._last_words()
        if self.failed:
            self._kill()

    def _last_words(self) -> str:
        self._process.wait()
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with status {self._process.returncode}"

    def hang_up(self) -> None:
        """Let the process end, and give back what it has at the server."""
        with contextlib.suppress(OSError):
            self._input.close()

    def wait(self) -> None:
        """Wait until the process has ended, within reason."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GO_WITHIN_S)

    def end(self) -> None:
        """Kill the process, and its children, if it is still there."""
        self._kill()
        self._process.wait()
        self._reader.join()
        self.hang_up()
        self._output.close()

    def _kill(self) -> None:
        if self._process.poll() is None and os.name == "posix":
            os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()


def heat_of(name: str, hold_ms: float, turns: Sequence[Sequence[Turn]]) -> Heat | None:
    """Return the result of the turns of all processes; None for fewer than two processes."""
    line = sorted((turn for own in turns for turn in own), key=lambda turn: turn.got_at)
    if len(line) < 2:
        return None
    hands_ms = [(later.got_at - earlier.gave_at) * 1000 for earlier, later in itertools.pairwise(line)]
    waits_ms = [(turn.got_at - turn.asked_at) * 1000 for turn in line]
    counts = [len(own) for own in turns]
    return Heat(
        name,
        len(turns),
        hold_ms,
        len(line) / (line[-1].gave_at - line[0].got_at),
        _quantile(hands_ms, 0.5),
        _quantile(hands_ms, 0.99),
        _quantile(waits_ms, 0.5),
        _quantile(waits_ms, 0.99),
        min(counts),
        max(counts),
        sum(hand < 0 for hand in hands_ms),
    )


def _quantile(values: Iterable[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


# -- the command -------------------------------------------------------------------------------------------------------


def compare(
    url: str,
    *,
    contenders: Sequence[int],
    holds_ms: Sequence[float],
    seconds: float,
    rounds: int,
    peers: bool,
    programs: Sequence[Contestant] = (),
) -> tuple[list[Heat], list[str]]:
    """Race ours, with `peers` the other packages for that system, and these programs, on the server of that URL.

    Return the heats, and the reasons why some are missing.
    """
    everybody = [*OURS, *(peers_of(url) if peers else ()), *programs]
    heats: list[Heat] = []
    missing = {
        one.name: f"{one.name} did not take part: pip install {one.package}"
        for one in everybody
        if not is_installed(one.module)
    }
    for _, hold_ms, many, one in itertools.product(range(rounds), holds_ms, contenders, everybody):
        if one.name in missing:
            continue
        turns, wrong = race(one, url, many, hold_ms, seconds)
        heat = heat_of(one.name, hold_ms, turns)
        if heat is not None:
            heats.append(heat)
        if wrong:
            missing[one.name] = f"{one.name}: {wrong}"
    return heats, list(missing.values())


def table(heats: Sequence[Heat]) -> list[str]:
    """Return lines of text with the medians of the rounds."""
    lines = [_LINE.format("lock", "of", "hold", "grants/s", "hand-off", "wait", "turns", "overlaps")]
    groups: dict[tuple[str, int, float], list[Heat]] = {}
    for heat in heats:
        groups.setdefault((heat.contestant, heat.processes, heat.hold_ms), []).append(heat)
    for (name, processes, hold_ms), group in groups.items():
        lines.append(_LINE.format(name, processes, f"{hold_ms:g}", *medians(group)))
    return lines


def medians(heats: Sequence[Heat]) -> list[str]:
    """Return medians of like heats: grants a second, hand-off and wait (p50/p99, in ms), turns, overlaps in all."""

    def middle(of: Callable[[Heat], float]) -> float:
        return statistics.median(map(of, heats))

    return [
        f"{middle(lambda heat: heat.grants_per_s):,.0f}",
        f"{middle(lambda heat: heat.hand_p50_ms):.1f}/{middle(lambda heat: heat.hand_p99_ms):.1f}",
        f"{middle(lambda heat: heat.wait_p50_ms):.1f}/{middle(lambda heat: heat.wait_p99_ms):.1f}",
        f"{middle(lambda heat: heat.fewest):.0f}:{middle(lambda heat: heat.most):.0f}",
        str(sum(heat.overlaps for heat in heats)),
    ]


def main() -> int:
    """Race on an existing server; exit status 1 if a lock of ours let two in at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the lock system, such as etcd://127.0.0.1:2379")
    parser.add_argument("--peers", action="store_true", help="also other packages for the same system, if installed")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="also this program; the {url} or its {hosts} and the lock's {name} are filled in",
    )
    parser.add_argument("--contenders", default="2,8", help="processes that contend (2,8)")
    parser.add_argument("--hold-ms", default="0", help="how long each has the lock, in ms (0)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a heat (2)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; in each of them everybody takes part (3)")
    parser.add_argument("--json", action="store_true", help="all heats as JSON, a line for each")
    options = parser.parse_args()
    try:
        heats, missing = compare(
            options.url,
            contenders=[int(one) for one in options.contenders.split(",")],
            holds_ms=[float(one) for one in options.hold_ms.split(",")],
            seconds=options.seconds,
            rounds=options.rounds,
            peers=options.peers,
            programs=[program(one) for one in options.peer],
        )
    except ValueError as wrong:
        parser.error(str(wrong))
    for line in [json.dumps(asdict(heat)) for heat in heats] if options.json else table(heats):
        print(line)
    for line in missing:
        print(line, file=sys.stderr)
    ours = {one.name for one in OURS}
    return 1 if any(heat.overlaps for heat in heats if heat.contestant in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
