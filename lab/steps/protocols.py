"""Cuts what a client and a server say to each other into messages, and names them.

A message is some bytes and a name; the name is empty for what is no step of ours: greetings, pings, windows.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from importlib.resources import files
from itertools import pairwise
from typing import Any, Final, NamedTuple

from app.stock.redis.client import Script as StockScript
from fencelock.redis import election, fair, lock, redlock
from fencelock.redis.client import Script as LockScript


class WireMessage(NamedTuple):
    """A message, and its name."""

    raw: bytes
    name: str


class WireProtocol(ABC):
    """One connection's two streams. The answer to a request has the request's name."""

    def __init__(self) -> None:
        self._asked = b""  # what has not been cut yet
        self._answered = b""
        self.given: list[Any] = []  # the leases or sessions that the server has given

    def asked(self, data: bytes) -> list[WireMessage]:
        """Cut what the client says."""
        self._asked += data
        found = []
        while (size := self._size(self._asked, up=True)) and len(self._asked) >= size:
            raw, self._asked = self._asked[:size], self._asked[size:]
            found.append(WireMessage(raw, self._request(raw)))
        return found

    def answered(self, data: bytes) -> list[WireMessage]:
        """Cut what the server says."""
        self._answered += data
        found = []
        while (size := self._size(self._answered, up=False)) and len(self._answered) >= size:
            raw, self._answered = self._answered[:size], self._answered[size:]
            found.append(WireMessage(raw, self._answer(raw)))
        return found

    @abstractmethod
    def _size(self, data: bytes, *, up: bool) -> int:
        """Return the size of the first message in some bytes; 0 if that can't be said yet."""

    @abstractmethod
    def _request(self, raw: bytes) -> str:
        """Name what the client says."""

    @abstractmethod
    def _answer(self, raw: bytes) -> str:
        """Name what the server says."""


# -- Redis -------------------------------------------------------------------------------------------------------------


def _scripts() -> dict[str, str]:
    found = {}
    for module in (lock, fair, redlock, election):
        for name, value in vars(module).items():
            if isinstance(value, LockScript):
                found[value.sha] = name.strip("_").lower()
    for file in files("app.stock.redis").iterdir():
        if file.name.endswith(".lua") and file.name != "common.lua":
            found[StockScript(file.name).sha] = file.name.removesuffix(".lua")
    return found


class Resp(WireProtocol):
    """RESP2. A script has the name of its file."""

    _names: dict[str, str] | None = None

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[str] = deque()
        self._listens = False
        if Resp._names is None:
            Resp._names = _scripts()

    def _size(self, data: bytes, *, up: bool) -> int:
        return _resp_end(data, 0)

    def _request(self, raw: bytes) -> str:
        words = raw.split(b"\r\n")[2::2]
        name = words[0].decode().upper()
        if name in ("EVALSHA", "EVAL"):
            sha = words[1].decode() if name == "EVALSHA" else hashlib.sha1(_bulk(raw, 1)).hexdigest()  # noqa: S324
            name = (self._names or {}).get(sha, f"{name.lower()} {sha[:6]}")
        elif name in ("CLIENT", "HELLO", "SELECT", "AUTH", "PING"):
            name = ""
        self._listens = self._listens or "SUBSCRIBE" in name
        self._waiting.append(name.lower())
        return name.lower()

    def _answer(self, raw: bytes) -> str:
        if self._listens and (raw.startswith(b"*3\r\n$7\r\nmessage") or raw.startswith(b"*4\r\n$8\r\npmessage")):
            return "message"
        return self._waiting.popleft() if self._waiting else ""


def _resp_end(data: bytes, at: int) -> int:
    """Return where the value that begins at `at` ends; 0 if it is not all there."""
    end = data.find(b"\r\n", at)
    if end < 0:
        return 0
    kind, count = data[at : at + 1], data[at + 1 : end]
    end += 2
    if kind == b"$":
        size = int(count)
        return end if size < 0 else (end + size + 2 if len(data) >= end + size + 2 else 0)
    if kind == b"*":
        for _ in range(max(0, int(count))):
            end = _resp_end(data, end)
            if not end:
                return 0
    return end


def _bulk(raw: bytes, number: int) -> bytes:
    at = raw.find(b"\r\n") + 2
    for _ in range(number):
        at = _resp_end(raw, at)
    begin = raw.find(b"\r\n", at) + 2
    return raw[begin : begin + int(raw[at + 1 : begin - 2])]


# -- etcd --------------------------------------------------------------------------------------------------------------

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST = 0, 1, 3


class Grpc(WireProtocol):
    """gRPC over HTTP/2. Each message of a call is one; a call has the name of its method."""

    def __init__(self) -> None:
        from hpack import Decoder

        super().__init__()
        self._began = False
        self._headers = Decoder()
        self._calls: dict[int, str] = {}

    def asked(self, data: bytes) -> list[WireMessage]:
        """See `WireProtocol`. A call's headers have its deadline, so they are one message with what is asked."""
        found: list[WireMessage] = []
        for message in super().asked(data):
            raw = message.raw
            before = next((n for n in reversed(range(len(found))) if found[n].name), -1) + 1
            if message.name and any(one.raw[3] == _HEADERS and one.raw[5:9] == raw[5:9] for one in found[before:]):
                raw = b"".join(one.raw for one in found[before:]) + raw
                del found[before:]
            found.append(WireMessage(raw, message.name))
        return found

    def _size(self, data: bytes, *, up: bool) -> int:
        if up and not self._began:
            return len(_PREFACE) if len(data) >= len(_PREFACE) else 0
        return 9 + int.from_bytes(data[:3], "big") if len(data) >= 9 else 0

    def _request(self, raw: bytes) -> str:
        if not self._began:
            self._began = True
            return ""
        kind, flags, stream = raw[3], raw[4], int.from_bytes(raw[5:9], "big")
        if kind == _HEADERS:
            skip = 14 if flags & 0x20 else 9  # a priority
            for name, value in self._headers.decode(raw[skip:]):
                if name in (":path", b":path"):
                    text = value.decode() if isinstance(value, bytes) else value
                    self._calls[stream] = text.rpartition("/")[2]
            return ""
        if kind == _RST:
            return ""
        return self._calls.get(stream, "") if kind == _DATA and len(raw) > 9 else ""

    def _answer(self, raw: bytes) -> str:
        kind, stream = raw[3], int.from_bytes(raw[5:9], "big")
        name = self._calls.get(stream, "") if kind == _DATA and len(raw) > 9 else ""
        if name == "LeaseGrant":
            from etcd3 import etcdrpc

            self.given.append(etcdrpc.LeaseGrantResponse.FromString(raw[14:]).ID)
        return name


# -- ZooKeeper ---------------------------------------------------------------------------------------------------------

_OPERATIONS: Final = {
    1: "create",
    2: "delete",
    3: "exists",
    4: "get",
    5: "set",
    8: "children",
    9: "sync",
    12: "children",
    13: "check",
    14: "multi",
    15: "create",
    18: "remove watches",
    19: "create",
    21: "create",
    -11: "close",
    101: "watches",
}
_EVENT, _PING = -1, -2


class Jute(WireProtocol):
    """ZooKeeper's protocol."""

    def __init__(self) -> None:
        super().__init__()
        self._greeted = self._welcomed = False
        self._calls: dict[int, str] = {}

    def _size(self, data: bytes, *, up: bool) -> int:
        return 4 + int.from_bytes(data[:4], "big") if len(data) >= 4 else 0

    def _request(self, raw: bytes) -> str:
        if not self._greeted:
            self._greeted = True
            return "connect"
        number, kind = _signed(raw, 4), _signed(raw, 8)
        if number == _PING:
            return ""
        name = self._calls[number] = _OPERATIONS.get(kind, f"operation {kind}")
        return name

    def _answer(self, raw: bytes) -> str:
        if not self._welcomed:
            self._welcomed = True
            self.given.append((int.from_bytes(raw[12:20], "big", signed=True), raw[24:40]))
            return "connect"
        number = _signed(raw, 4)
        return "event" if number == _EVENT else self._calls.pop(number, "")


def _signed(raw: bytes, at: int) -> int:
    return int.from_bytes(raw[at : at + 4], "big", signed=True)


# -- MySQL -------------------------------------------------------------------------------------------------------------

_QUERY: Final = 3


class MySql(WireProtocol):
    """MySQL's protocol. A statement is named by its verb and its table; an answer's first packet is the message."""

    def __init__(self) -> None:
        super().__init__()
        self._asks = ""

    def _size(self, data: bytes, *, up: bool) -> int:
        return 4 + int.from_bytes(data[:3], "little") if len(data) >= 4 else 0

    def _request(self, raw: bytes) -> str:
        self._asks = ""
        if raw[3] == 0 and len(raw) > 5 and raw[4] == _QUERY:
            self._asks = _statement(raw[5:].decode(errors="replace"))
        return self._asks

    def _answer(self, raw: bytes) -> str:
        said, self._asks = self._asks, ""
        return said


def _statement(text: str) -> str:
    words = text.replace("(", " ").replace("`", "").split()
    verb = words[0].lower()
    if verb in ("set", "show", "kill", "use", "commit", "rollback", "do"):
        return "" if verb in ("show", "use") or (verb == "set" and "AUTOCOMMIT" in text.upper()) else verb
    for before, word in pairwise(words):
        if before.upper() in ("FROM", "INTO", "UPDATE", "TABLE"):
            return f"{verb} {word.lower()}"
    return verb


# -- PostgreSQL --------------------------------------------------------------------------------------------------------

_TLS: Final = 80877103
_ASIDE: Final = ("SELECT 1", "SET default_", "SELECT pg_", "SELECT extract(epoch FROM clock_timestamp())::float8")
_EXECUTES: Final = re.compile(r"EXECUTE ([a-z]+)(?:_(fencelock_\w+))?_[0-9a-f]{16}")
_EXTENDED: Final = b"PBDECHS"  # the messages of a prepared statement, of which S, for Sync, is the last


class Pg(WireProtocol):
    """PostgreSQL's protocol. A query is named by its first statement; its answer ends when another one may be asked.

    A call of the locks is named by its second statement, as the first one looks at the time. The messages of a prepared
    statement, up to Sync, are one: none of them does anything without the others.
    """

    def __init__(self) -> None:
        super().__init__()
        self._began = self._asks_for_tls = False
        self._asks = ""
        self._prepared: dict[bytes, str] = {}  # by the statements' names

    def _size(self, data: bytes, *, up: bool) -> int:
        if not up and self._asks_for_tls:
            return min(1, len(data))
        at = 1 if not up or self._began else 0  # the first message has no type
        if up and at and data[:1] and data[:1] in _EXTENDED:
            return next((end for kind, _, end in _messages(data) if kind == b"S"), 0)
        return at + int.from_bytes(data[at : at + 4], "big") if len(data) >= at + 4 else 0

    def _request(self, raw: bytes) -> str:
        if not self._began:
            self._asks_for_tls = int.from_bytes(raw[4:8], "big") == _TLS
            self._began = not self._asks_for_tls
        elif raw[:1] == b"Q":
            text = raw[5:-1].decode(errors="replace").strip()
            executes = _EXECUTES.findall(text)[1:]
            self._asks = " ".join(executes[0]).strip() if executes else _statement(text)
            self._asks = "" if text.startswith(_ASIDE) else self._asks
            return self._asks
        elif raw[:1] in _EXTENDED:
            for kind, body, _ in _messages(raw):
                if kind == b"P":
                    name, query, _ = body.split(b"\0", 2)
                    self._prepared[name] = _statement(query.decode(errors="replace"))
                if kind in b"PB":
                    self._asks = self._prepared.get(body.split(b"\0", 2)[kind == b"B"], "")
            return self._asks
        return ""

    def _answer(self, raw: bytes) -> str:
        if self._asks_for_tls:
            self._asks_for_tls = False
            return ""
        if raw[:1] == b"A":
            return "message"
        said = self._asks if raw[:1] == b"Z" else ""
        self._asks = "" if said else self._asks
        return said


def _messages(data: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield the type and the body of each message of a client that is there as a whole, and where it ends."""
    at = 0
    while len(data) >= at + 5 and len(data) >= (end := at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")):
        yield data[at : at + 1], data[at + 5 : end], end
        at = end


# -- webhooks ----------------------------------------------------------------------------------------------------------


class Http(WireProtocol):
    """HTTP/1.1 whose bodies have a length."""

    def _size(self, data: bytes, *, up: bool) -> int:
        head, found, _ = data.partition(b"\r\n\r\n")
        if not found:
            return 0
        lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        return len(head) + 4 + int(lengths[0] if lengths else 0)

    def _request(self, raw: bytes) -> str:
        return "post"

    def _answer(self, raw: bytes) -> str:
        return "post"
