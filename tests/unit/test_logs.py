"""Log lines have two forms and a context, and resist buyers' attacks."""

import asyncio
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE
from typing import Any

import pytest

from app.telemetry import logs

HUMAN, JSON = logs.Human("8080"), logs.Json("8080")


def record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    trace = (type(error), error, error.__traceback__) if error else None
    return logging.LogRecord("app.sale", logging.WARNING, __file__, 1, message, args, trace)


@contextmanager
def written(form: logging.Formatter) -> Iterator[list[str]]:
    """Return the lines that are logged meanwhile."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler, logger = Lines(), logging.getLogger(__name__)
    handler.setFormatter(form)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def test_for_people() -> None:
    """A line has time, level, logger and message, and then the known fields."""
    with logs.about(token=41, batch="9f86d0"):
        line = HUMAN.format(record("%d buyers wait", 3))
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING app\.sale: 3 buyers wait instance=8080 token=41 batch=9f86d0",
        line,
    )


def test_as_json() -> None:
    """A line is an object with the same, and with a time in UTC; unknown fields are absent."""
    at = record("%d buyers wait", 3)
    at.created, at.msecs = 1763712000.25, 250.0
    with logs.about(token=41, sku="default"):
        line = JSON.format(at)
    assert json.loads(line) == {
        "time": "2025-11-21T08:00:00.250+00:00",
        "level": "WARNING",
        "logger": "app.sale",
        "message": "3 buyers wait",
        "instance": "8080",
        "token": 41,
        "sku": "default",
    }


def test_what_others_add_is_in_the_json() -> None:
    """OpenTelemetry adds a trace to each record, by which to find its lines."""
    traced = record("open")
    traced.otelTraceID = "5b8aa5a2d2c872e8321cf37308d69df2"
    assert json.loads(JSON.format(traced))["otelTraceID"] == "5b8aa5a2d2c872e8321cf37308d69df2"


@pytest.mark.parametrize("form", [HUMAN, JSON])
@pytest.mark.parametrize(
    "nasty",
    ["a\nINFO forged", "a\r\nb", "a\x1b[31mred", "a\x85b", "a\u2028b", "a\u202eb", 'a", "level": "INFO', "\ud800"],
)
def test_nobody_writes_lines_into_the_log(form: logging.Formatter, nasty: str) -> None:
    """A record is one line; characters that move the cursor, or change the reading direction, are escaped."""
    with logs.about(sku=nasty):
        line = form.format(record("buyer %s was here", nasty))
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert "was here" in line
    if form is JSON:
        said = json.loads(line)
        assert (said["message"], said["sku"], said["level"]) == (f"buyer {nasty} was here", nasty, "WARNING")


def failed(text: str) -> ValueError:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def test_a_stack_trace_stays_readable() -> None:
    """Our own part of a record keeps its lines; the error's text, which may be a buyer's, does not."""
    text = HUMAN.format(record("failed", error=failed("a\x1b[31m\nINFO forged")))
    first, *trace = text.splitlines()
    assert first.endswith("failed instance=8080")
    assert len(trace) > 2
    assert "\x1b" not in text
    assert all(line.startswith("    ") for line in trace)


def test_a_stack_trace_is_a_field_of_the_json() -> None:
    """The stack trace is on the one line, with escaped line breaks."""
    text = JSON.format(record("failed", error=failed("a\x1b[31m\nINFO forged")))
    said: dict[str, Any] = json.loads(text)
    assert text.isprintable()
    assert said["message"] == "failed"
    assert said["error"].startswith("Traceback (most recent call last):\n")
    assert said["error"].endswith("ValueError: a\x1b[31m\nINFO forged")


def test_blocks_add_up() -> None:
    """A block adds its fields to those of the outer one, and removes them at its end, however that comes."""
    log = logging.getLogger(__name__)
    with written(HUMAN) as lines:
        with logs.about(token=1):
            with pytest.raises(ValueError, match="so it ends"), logs.about(batch="b"):
                log.warning("both")
                raise failed("so it ends")
            log.warning("one")
            logs.also_about(batch="c")
            logs.also_about(token=2)
            log.warning("changed")
        log.warning("none")
    assert [line.rpartition("instance=8080")[2] for line in lines] == [
        " token=1 batch=b",
        " token=1",
        " token=2 batch=c",
        "",
    ]


def test_tasks_do_not_mix() -> None:
    """A task's lines have that task's fields, whatever runs beside it."""
    log = logging.getLogger(__name__)

    async def serve(token: int, entered: asyncio.Event, go: asyncio.Event) -> None:
        with logs.about(token=token):
            entered.set()
            await go.wait()
            log.warning("till %d", token)

    async def main() -> None:
        entered = [asyncio.Event(), asyncio.Event()]
        go = [asyncio.Event(), asyncio.Event()]
        async with asyncio.TaskGroup() as tasks:
            for token in (0, 1):
                tasks.create_task(serve(token, entered[token], go[token]))
            for each in entered:
                await each.wait()
            log.warning("beside")
            go[1].set()
            go[0].set()

    with written(JSON) as lines:
        asyncio.run(main())
    said = {line["message"]: line.get("token") for line in map(json.loads, lines)}
    assert said == {"beside": None, "till 0": 0, "till 1": 1}


_SLOWLY_READ = """
import logging, os, time
from app.telemetry import logs
logs._LINES_MAX = 2
ours, theirs = os.pipe()
os.set_blocking(theirs, False)
handler = logs.Lines(theirs)

def say(text):
    handler.handle(logging.makeLogRecord({"msg": text}))

def hear(until):
    heard = ""
    while not heard.endswith(until):
        heard += os.read(ours, 65_536).decode()
    print(heard.lstrip("x"), end="")

say("x" * 200_000 + "first")
while not handler.queue.empty():
    time.sleep(0.01)
for number in range(5):
    say(f"line {number}")
hear("in time)\\n")
say("and then")
hear("then\\n")
if not os.fork():
    say("the child's")
    handler.finish()
    os._exit(0)
os.wait()
hear("child's\\n")
"""


def test_a_line_is_written_to_its_end() -> None:
    """However long it is, and slowly it is read; what found no room is counted, once; a forked process has its own."""
    done = subprocess.run([sys.executable, "-c", _SLOWLY_READ], capture_output=True, text=True, timeout=30)
    missing = "(here 3 lines are missing: they were not read in time)"
    assert done.stdout.splitlines() == ["first", "line 0", "line 1", missing, "and then", "the child's"], done.stderr


def test_the_last_lines_of_a_process_are_written() -> None:
    """Its end waits for them."""
    begin = 'from app.telemetry import logs\nlogs.configure(level="INFO", form="human", instance="8080")'
    program = f"import logging\n{begin}\nfor n in range(999): logging.getLogger('app').info('line')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stderr.count(" line instance=8080\n") == 999


_TALKATIVE = """
import logging, sys
from app.telemetry import logs
logs.configure(level="INFO", form="human", instance="8080")
for number in range(30_000):
    logging.getLogger("app").info("line %d", number)
print("said", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def talkative() -> Iterator[subprocess.Popen[str]]:
    """Start a process that logs 30,000 lines, none of which is read."""
    with subprocess.Popen(
        [sys.executable, "-c", _TALKATIVE], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "said\n"
        yield process


def test_lines_above_ten_thousand_are_dropped_and_counted(talkative: subprocess.Popen[str]) -> None:
    """A reader that stalls blocks no logger; later it gets the number of dropped lines."""
    assert talkative.stderr
    numbers, missing = [-1], 0
    for line in talkative.stderr:
        if gap := re.fullmatch(r"\(here (\d+) lines are missing: they were not read in time\)\n", line):
            missing += int(gap[1])
        elif number := re.search(r" line (\d+) ", line):
            numbers.append(int(number[1]))
        if len(numbers) - 1 + missing == 30_000:
            break
    assert numbers == sorted(set(numbers))
    assert 0 < missing <= 20_000
    assert talkative.communicate("\n", timeout=30)[1] == ""


def test_an_unread_log_keeps_no_process_from_ending(talkative: subprocess.Popen[str]) -> None:
    """Unread lines are dropped after a second, so that the process can end."""
    assert talkative.stdin
    talkative.stdin.close()
    assert talkative.wait(30) == 0
