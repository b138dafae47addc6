"""Listeners of server-sent events hear of each change at once, are released at the end, and cost little."""

import asyncio
import itertools
import json
import re
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import time
from typing import Any

import httpx
import psutil
import pytest

from app.errors import StockUnavailable, TooManyListeners
from app.web import sse
from app.web.sse import Feeds
from lab.servers import EtcdMember, Valkey
from tests.harness.shop import TOKEN, Instance, Reached, ThreadedInstance, shop
from tests.harness.waiting import WITHIN_S, eventually, eventually_async
from tests.integration.test_web import is_problem

BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Listener:
    """A reader of a stream in its own thread: all lines, and whether the stream has ended."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.lines: list[str] = []
        self.ended = False
        self.broken: Exception | None = None
        self._thread = threading.Thread(target=self._read, name="listener")
        self._thread.start()

    def _read(self) -> None:
        try:
            for line in self.answer.iter_lines():
                self.lines.append(line)
        except (httpx.HTTPError, httpx.StreamError) as error:
            self.broken = error
        self.ended = True

    @property
    def told(self) -> list[dict[str, Any]]:
        """Return the messages."""
        return [json.loads(line.removeprefix("data: ")) for line in list(self.lines) if line.startswith("data: ")]

    def join(self) -> None:
        self._thread.join(WITHIN_S)
        assert self.ended


@contextmanager
def listening(instance: Reached, path: str) -> Iterator[Listener]:
    with httpx.Client(base_url=instance.url, headers=BEARER, timeout=WITHIN_S) as http:
        with http.stream("GET", path) as answer:
            assert answer.status_code == 200, answer.read()
            listener = Listener(answer)
            yield listener
            # The reader wakes because the connection is shut down, not only closed.
            with suppress(OSError):
                answer.extensions["network_stream"].get_extra_info("socket").shutdown(2)
        listener.join()


@pytest.fixture
def instance(etcd: EtcdMember, valkey: Valkey) -> Iterator[Reached]:
    """Start an instance with 5 units, and room for two listeners."""
    with ThreadedInstance(etcd.endpoint, valkey.url, listeners_max=2) as started:
        restock(started, 5)
        yield started


def restock(instance: Reached, stock: int, sku: str = "default") -> None:
    wish = {"stock": stock, "new_sale": True, "forget_orders": "all"}
    httpx.put(f"{instance.url}/stock", params={"sku": sku}, json=wish, headers=BEARER).raise_for_status()


def refused(instance: Reached, path: str) -> httpx.Response | None:
    """Return the answer that came in the place of a stream, if any."""
    with httpx.stream("GET", instance.url + path, headers=BEARER, timeout=WITHIN_S) as answer:
        if answer.status_code == 200:
            return None
        answer.read()
        return answer


# -- over HTTP --------------------------------------------------------------------------------------------------------


def test_the_stock_is_told_as_it_changes(instance: Reached, etcd: EtcdMember, valkey: Valkey) -> None:
    """A listener gets the stock at once, then each change, whichever instance made it, and nothing else."""
    with ThreadedInstance(etcd.endpoint, valkey.url) as other, listening(instance, "/stock/live") as listener:
        headers = listener.answer.headers
        assert headers["content-type"].startswith("text/event-stream")
        assert "no-store" in headers["cache-control"]
        assert headers["x-accel-buffering"] == "no"
        eventually(lambda: listener.told, "it is told at once")
        assert (listener.told[0]["stock"], listener.told[0]["lucky"]) == (5, 0)
        assert any(re.fullmatch(r"retry: \d+", line) for line in listener.lines)
        assert other.get("/stock/reduce")[0] == 200
        eventually(lambda: listener.told[-1]["stock"] == 4, "the other one's sale")
        restock(instance, 50)
        eventually(lambda: listener.told[-1]["stock"] == 50, "the restock")
        levels = [(one["stock"], one["lucky"], one["audit"]) for one in listener.told]
        assert all(before != after for before, after in itertools.pairwise(levels))


def test_the_list_is_told_as_it_changes(etcd: EtcdMember, valkey: Valkey, tmp_path: Path) -> None:
    """A listener gets the items of the catalogue that are there, as `GET /stock/list` has them, and each change."""
    (tmp_path / "items.toml").write_text('[items.cup]\nname = "Cup"\n[items.hat]\nname = "Hat"\n')
    with ThreadedInstance(etcd.endpoint, valkey.url, catalogue=tmp_path / "items.toml") as shop:
        with listening(shop, "/stock/list/live") as listener:
            eventually(lambda: listener.told, "it is told at once")
            assert listener.told[0]["items"] == []
            for sku, units in (("hat", 3), ("cup", 2)):
                restock(shop, units, sku)
                eventually(lambda sku=sku: sku in skus(listener.told[-1]), f"the {sku}")
            assert shop.get("/stock/reduce?sku=hat")[0] == 200
            eventually(lambda: [one["stock"] for one in listener.told[-1]["items"]] == [2, 2], "the sale")
        asked = shop.get("/stock/list")[1]
        assert skus(asked) == ["cup", "hat"]
        assert asked["items"][1].keys() == shop.get("/stock?sku=hat")[1].keys()


def skus(told: dict[str, Any]) -> list[str]:
    return [one["sku"] for one in told["items"]]


@pytest.mark.slow
def test_heartbeats(instance: Reached) -> None:
    """A listener without news gets heartbeats."""
    with listening(instance, "/stock/live") as listener:
        eventually(lambda: ": still here" in listener.lines, "a heartbeat")


def test_pictures_keep_coming(instance: Reached) -> None:
    """The control room gets pictures whether anything has changed or not."""
    with listening(instance, "/control/live") as listener:
        eventually(lambda: len(listener.told) >= 5, "five pictures")
        times = [one["at"] for one in listener.told]
        assert all(before < after for before, after in itertools.pairwise(times))
        assert listener.told[0]["level"]["stock"] == 5


def test_so_many_and_no_more(instance: Reached) -> None:
    """A listener above the limit is refused; when one goes, there is room. Operators have a limit of their own."""
    path = "/stock/live"
    with listening(instance, path) as one, listening(instance, path):
        eventually(lambda: one.told)
        answer = refused(instance, path)
        assert answer is not None
        assert is_problem(answer, 503)["type"] == "urn:seckill:too-many-listeners"
        assert instance.get("/stock")[0] == 200
        assert refused(instance, "/control/live") is None
    eventually(lambda: refused(instance, path) is None, "their places are free")
    # Refused listeners use up no places.
    for sku in ("none", "a b"):
        for _ in range(5):
            answer = refused(instance, f"{path}?sku={sku}")
            assert answer is not None
            is_problem(answer, 404 if sku == "none" else 422)
    with listening(instance, path), listening(instance, path):
        assert refused(instance, path) is not None


def test_they_end_when_the_instance_does(etcd: EtcdMember, valkey: Valkey) -> None:
    """A stopping instance ends the streams in order, and does not wait for the listeners."""
    with Instance(etcd.endpoint, valkey.url, drain_timeout_s=60) as instance:
        restock(instance, 5)
        with listening(instance, "/stock/live") as one, listening(instance, "/control/live") as another:
            eventually(lambda: one.told and another.told)
            instance.signal(signal.SIGTERM)
            eventually(lambda: one.ended and another.ended, "the streams end")
            assert one.broken is another.broken is None
            eventually(lambda: not instance.running, "the instance ends")
            assert "Traceback" not in instance.last_lines(1000)


@pytest.mark.slow
def test_readers_of_nothing_keep_nothing(
    etcd: EtcdMember, valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listeners that read nothing are cut off, and their buffers freed; a stop does not wait for that."""
    event = {"number": 1, "at": time(), "kind": "mode", "facts": {"mode": "x" * 300_000}, "times": 1}
    fat = {"instance": "fat", "number": 1, "units": 0, "waiting": 0, "mode": "lock", "held": [], "grants": []}
    fat |= {"events": [event], "pausing": False, "paused_s": 0}

    async def report() -> None:
        async with shop(etcd.endpoint, valkey.url) as opened:
            await opened.notices({"report/fat": json.dumps(fat)})

    def of(instance: Instance, ports: set[int]) -> set[int]:
        clients = {one.raddr.port for one in psutil.Process(instance.pid).net_connections("tcp") if one.raddr}
        return clients & ports

    def come(instance: Instance, stuck: ExitStack) -> set[int]:
        ports = set()
        for _ in range(3):
            one = stuck.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            one.connect(("127.0.0.1", instance.port))
            head = f"GET /control/live HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            one.sendall(head.encode())
            ports.add(one.getsockname()[1])
        eventually(lambda: of(instance, ports) == ports, "they are there")
        return ports

    with Instance(etcd.endpoint, valkey.url) as instance, ExitStack() as stuck:
        restock(instance, 5)
        asyncio.run(report())
        ports = come(instance, stuck)
        eventually(lambda: not of(instance, ports), "they are cut off")
    monkeypatch.setenv("HANG_HOW", "listeners")
    monkeypatch.setenv("HANG_AT", str(tmp_path / "never"))
    patient = [sys.executable, "-m", "tests.harness.hung"]
    with Instance(etcd.endpoint, valkey.url, drain_timeout_s=600, under=patient) as instance, ExitStack() as stuck:
        come(instance, stuck)
        instance.signal(signal.SIGTERM)
        eventually(lambda: not instance.running, "the instance ends")
        assert "Traceback" not in instance.last_lines(1000)


# -- how it is done ---------------------------------------------------------------------------------------------------


class Browser:
    """A listener of a feed, and everything that was sent to it. While `reads` is not set it reads nothing."""

    def __init__(self, feeds: Feeds, look: sse.Look, name: str = "x") -> None:
        self.sent: list[str] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self._gone = asyncio.Event()
        response = feeds.open(name, "first", look, since=feeds.number)
        scope = {"type": "http", "method": "GET", "headers": []}
        self.listening = asyncio.create_task(response(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.reads.wait()
        found = re.search(r"data: (\S+)", message.get("body", b"").decode())
        if found:
            self.sent.append(found[1])

    async def leave(self) -> None:
        self._gone.set()
        await self.end()

    async def end(self) -> None:
        """Wait for the end of the stream."""
        await asyncio.wait_for(self.listening, WITHIN_S)


class Sight:
    """A source of data that counts its look-ups."""

    def __init__(self) -> None:
        self.looks = 0
        self.error: Exception | None = None

    async def look(self) -> str | None:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return str(self.looks)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pause between look-ups."""
    monkeypatch.setattr(sse, "EVERY_S", 0.01)


OpenFeeds = Callable[..., Feeds]


@pytest.fixture
async def open_feeds() -> AsyncIterator[OpenFeeds]:
    """Open feeds with room for so many listeners; close them at the end."""
    with ExitStack() as stack:

        def open_them(listeners_max: int = 10) -> Feeds:
            feeds = Feeds(listeners_max)
            stack.callback(feeds.close)
            return feeds

        yield open_them


async def heard(browser: Browser, count: int) -> None:
    await eventually_async(lambda: len(browser.sent) >= count, f"{count} messages")


@pytest.mark.usefixtures("often")
async def test_one_look_for_all_and_none_for_nobody(open_feeds: OpenFeeds) -> None:
    """The level is looked up once for all; when the last listener leaves, the look-ups stop."""
    feeds, sight = open_feeds(), Sight()
    await asyncio.sleep(0.1)
    assert sight.looks == 0
    browsers = [Browser(feeds, sight.look) for _ in range(5)]
    for browser in browsers:
        await heard(browser, 10)
    for browser in browsers:
        assert browser.sent[0] == "first"
        numbers = [int(text) for text in browser.sent[1:]]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))  # no message is missing or comes twice
        assert numbers[-1] <= sight.looks
    for browser in browsers:
        await browser.leave()
    looks = sight.looks
    await asyncio.sleep(0.1)
    assert sight.looks == looks
    again = Browser(feeds, sight.look)
    await heard(again, 3)
    await again.leave()


@pytest.mark.usefixtures("often")
async def test_feeds_of_other_names_are_apart(open_feeds: OpenFeeds) -> None:
    """Each item has its own feed; a feed without listeners ends although others go on."""
    feeds, sight = open_feeds(), Sight()
    other = Sight()
    one, another = Browser(feeds, sight.look), Browser(feeds, other.look, "y")
    await heard(one, 3)
    await heard(another, 3)
    await one.leave()
    looks = sight.looks
    before = len(another.sent)
    await heard(another, before + 5)
    assert sight.looks == looks
    await another.leave()


@pytest.mark.usefixtures("often")
async def test_a_slow_reader_holds_nobody_up(open_feeds: OpenFeeds) -> None:
    """A slow reader misses changes, and continues with the newest; the others miss nothing."""
    feeds, sight = open_feeds(), Sight()
    slow, fast = Browser(feeds, sight.look), Browser(feeds, sight.look)
    await heard(slow, 2)
    slow.reads.clear()
    before = len(slow.sent)
    await heard(fast, 40)
    assert len(slow.sent) == before
    slow.reads.set()
    await heard(slow, before + 5)
    assert len(slow.sent) < len(fast.sent) - 20
    assert int(slow.sent[-1]) > 40
    for browser in (slow, fast):
        await browser.leave()


@pytest.mark.usefixtures("often")
async def test_the_last_of_what_is_new_is_never_missed(open_feeds: OpenFeeds) -> None:
    """A reader who was busy during a change gets it afterwards, although nothing has changed since."""
    feeds, sight = open_feeds(), Sight()

    async def look() -> str | None:
        return await sight.look() if sight.looks < 5 else None

    busy = Browser(feeds, look)
    await heard(busy, 1)
    busy.reads.clear()
    await eventually_async(lambda: sight.looks == 5, "all has changed that will")
    busy.reads.set()
    await eventually_async(lambda: busy.sent[-1] == "5", "the last change is told")
    await busy.leave()


@pytest.mark.usefixtures("often")
async def test_a_reader_of_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch, open_feeds: OpenFeeds) -> None:
    """After a while a listener that reads nothing is cut off, and its place is free."""
    monkeypatch.setattr(sse, "_SEND_S", 0.2)
    feeds, sight = open_feeds(listeners_max=1), Sight()
    stuck = Browser(feeds, sight.look)
    await heard(stuck, 2)
    stuck.reads.clear()
    with pytest.raises(TooManyListeners):
        Browser(feeds, sight.look)
    await stuck.end()
    looks = sight.looks
    await asyncio.sleep(0.1)
    assert sight.looks == looks
    await Browser(feeds, sight.look).leave()


@pytest.mark.usefixtures("often")
async def test_a_look_that_fails(open_feeds: OpenFeeds) -> None:
    """While a look-up fails nothing is sent, whether the store is away or the error is ours; then the feed goes on."""
    feeds, sight = open_feeds(), Sight()
    browser = Browser(feeds, sight.look)
    for error in (StockUnavailable("away"), ZeroDivisionError("ours")):
        await heard(browser, len(browser.sent) + 2)
        sight.error = error
        looks = sight.looks
        before = len(browser.sent)

        async def tried(until: int = looks + 5) -> bool:
            return sight.looks > until

        await eventually_async(tried, "it is tried again")
        assert len(browser.sent) <= before + 1
        sight.error = None
    await heard(browser, len(browser.sent) + 2)
    await browser.leave()


@pytest.mark.usefixtures("often")
async def test_the_end(open_feeds: OpenFeeds) -> None:
    """All streams end by themselves, and there are no new ones."""
    feeds, sight = open_feeds(), Sight()
    browsers = [Browser(feeds, sight.look, name) for name in "xxy"]
    for browser in browsers:
        await heard(browser, 2)
    feeds.close()
    for browser in browsers:
        await browser.end()
    with pytest.raises(TooManyListeners):
        Browser(feeds, sight.look)
