"""ZooKeeper's protocol, as far as locks need it: what is sent, and what is read from that which comes.

Every message is a length and so many bytes, of integers in network order and of texts with their lengths. A request has
a number (xid), and is answered with the same one; answers come in the order of the requests. Source: zookeeper.jute and
`ZooDefs.java` of ZooKeeper 3.9; the client's side of a session is in "ZooKeeper Programmer's Guide", "Sessions".
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar

Answer = TypeVar("Answer")

_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">iqi")  # of an answer: xid, zxid, error
_STAT: Final = struct.Struct(">qqqqiiiqiiq")  # of a node: czxid, mzxid, ctime, mtime, ...
_MESSAGE_MAX_BYTES: Final = 64 << 20  # a list of half a million contenders

EVENT_XID: Final = -1
PING_XID: Final = -2
AUTH_XID: Final = -4
_CREATE: Final = 1
_DELETE: Final = 2
_EXISTS: Final = 3
_GET: Final = 4
_SYNC: Final = 9
_PING: Final = 11
_CHILDREN: Final = 8
_CREATE2: Final = 15  # which answers the node's czxid, too
_CREATE_CONTAINER: Final = 19
_AUTH: Final = 100
_CLOSE: Final = -11
_ANY_VERSION: Final = _INT.pack(-1)
_ALL_RIGHTS: Final = 31
_READ: Final = 1
_NODE_DELETED: Final = 2


class Malformed(Exception):
    """What came is not ZooKeeper's protocol."""


class Fault(IntEnum):
    """That a node is not as it was thought to be."""

    NO_NODE = -101
    NODE_EXISTS = -110


NO_AUTH: Final = -102
_REFUSALS: Final = {
    -1: "SystemError", -4: "ConnectionLoss", -5: "MarshallingError", -6: "Unimplemented", -7: "OperationTimeout",
    -8: "BadArguments", NO_AUTH: "NoAuth", -103: "BadVersion", -108: "NoChildrenForEphemerals", -111: "NotEmpty",
    -112: "SessionExpired", -114: "InvalidACL", -115: "AuthFailed", -118: "SessionMoved", -119: "NotReadOnly",
    -125: "QuotaExceeded", -127: "ThrottledOp",
}  # fmt: skip


def name_of(error: int) -> str:
    """What ZooKeeper calls an error."""
    return _REFUSALS.get(error, f"error {error}")


class Kind(Enum):
    """What kind of node to create: the opcode and the flags."""

    PERSISTENT = (_CREATE, 0)
    EPHEMERAL_SEQUENTIAL = (_CREATE2, 3)
    CONTAINER = (_CREATE_CONTAINER, 4)  # which the server removes some time after its last child


class Node(NamedTuple):
    """A node, and the number of the transaction that created it."""

    text: bytes
    czxid: int


class Reader:
    """Reads a message from its beginning to its end. Raises `Malformed`."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._at = 0

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        """Some integers."""
        try:
            values = form.unpack_from(self._message, self._at)
        except struct.error:
            raise Malformed("a message is too short") from None
        self._at += form.size
        return values

    def integer(self) -> int:
        """One of four bytes."""
        return int(self.unpack(_INT)[0])

    def buffer(self) -> bytes:
        """Bytes with their length; none at all count as empty."""
        length = max(0, self.integer())
        begin, self._at = self._at, self._at + length
        if self._at > len(self._message):
            raise Malformed("a message is too short")
        return self._message[begin : self._at]

    def text(self) -> str:
        """A text."""
        try:
            return self.buffer().decode()
        except UnicodeDecodeError:
            raise Malformed("a text is none") from None

    def texts(self) -> list[str]:
        """A list of texts."""
        return [self.text() for _ in range(self.integer())]

    def czxid(self) -> int:
        """Of a node's `Stat`, of which nothing else matters here."""
        return int(self.unpack(_STAT)[0])

    def nothing(self) -> None:
        """Whatever there is."""


@dataclass(frozen=True, slots=True)
class Request(Generic[Answer]):
    """A request about a node, and how its answer is read."""

    opcode: int
    path: str
    rest: bytes
    read: Callable[[Reader], Answer]

    def frame(self, xid: int, folder: str) -> bytes:
        """What is sent; paths are within `folder`. Raises `ValueError` for a path that can't be one."""
        return _frame(xid, self.opcode, _text(folder + self.path if self.path != "/" else folder or "/") + self.rest)


def create(path: str, text: bytes, kind: Kind, *, logged_in: bool, readable: bool = False) -> Request[tuple[str, int]]:
    """A node, for whoever is logged in alike, or for all: its path, and its czxid (0 of a persistent one).

    `readable`: all others can read it.
    """
    anyone = _text("world") + _text("anyone")
    given = [_INT.pack(_ALL_RIGHTS) + (_text("auth") + _text("") if logged_in else anyone)]
    if logged_in and readable:
        given.append(_INT.pack(_READ) + anyone)
    rights = _INT.pack(len(given)) + b"".join(given)
    opcode, flags = kind.value
    read = _path if opcode == _CREATE else _path_and_czxid
    return Request(opcode, path, _buffer(text) + rights + _INT.pack(flags), read)


def _path(answer: Reader) -> tuple[str, int]:
    return answer.text(), 0


def _path_and_czxid(answer: Reader) -> tuple[str, int]:
    return answer.text(), answer.czxid()


def delete(path: str) -> Request[None]:
    """No such node any more."""
    return Request(_DELETE, path, _ANY_VERSION, Reader.nothing)


def exists(path: str) -> Request[int]:
    """Its czxid."""
    return Request(_EXISTS, path, b"\0", Reader.czxid)


def get(path: str, *, watch: bool = False) -> Request[Node]:
    """What is in it. `watch`: be told of its next change or end."""
    return Request(_GET, path, bytes([watch]), lambda answer: Node(answer.buffer(), answer.czxid()))


def children(path: str, *, watch: bool = False) -> Request[list[str]]:
    """Their names. `watch`: be told of the next one that comes or goes."""
    return Request(_CHILDREN, path, bytes([watch]), Reader.texts)


def sync(path: str) -> Request[None]:
    """What is asked after it is as new as the leader's."""
    return Request(_SYNC, path, b"", Reader.nothing)


PING: Final = _INT.pack(8) + _INT.pack(PING_XID) + _INT.pack(_PING)


def log_in(auth: str) -> bytes:
    """Be "user:password" of the scheme "digest"."""
    return _frame(AUTH_XID, _AUTH, _INT.pack(0) + _text("digest") + _buffer(auth.encode()))


def close(xid: int) -> bytes:
    """End the session."""
    return _frame(xid, _CLOSE, b"")


@dataclass(frozen=True, slots=True)
class SessionId:
    """What a session is known by, and its timeout."""

    number: int
    password: bytes
    timeout_s: float

    def hello(self) -> bytes:
        """The first message of a connection; number 0: for a new session."""
        head = struct.pack(">iqiq", 0, 0, round(self.timeout_s * 1000), self.number)
        return _sized(head + _buffer(self.password) + b"\0")  # not from a server that can only read


NO_SESSION: Final = 0
_NO_PASSWORD: Final = bytes(16)


def new_session(timeout_s: float) -> SessionId:
    """One that there isn't yet."""
    return SessionId(NO_SESSION, _NO_PASSWORD, timeout_s)


def read_welcome(message: bytes) -> SessionId | None:
    """The answer to a hello; None if the session is over. Raises `Malformed`."""
    answer = Reader(message)
    _, timeout_ms = answer.unpack(struct.Struct(">ii"))
    (number,) = answer.unpack(_LONG)
    password = answer.buffer()
    if timeout_ms <= 0:
        return None
    if not password:
        raise Malformed("a session without a password")
    return SessionId(number, password, timeout_ms / 1000)


def read_head(answer: Reader) -> tuple[int, int]:
    """Which request it answers, and with which error (0: none)."""
    xid, _, error = answer.unpack(_HEAD)
    return xid, error


def read_event(answer: Reader) -> tuple[str, bool]:
    """The path of the node that has changed, and whether it was deleted."""
    kind, _ = answer.unpack(struct.Struct(">ii"))
    return answer.text(), kind == _NODE_DELETED


class Stream:
    """Cuts what comes into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def messages(self, data: bytes) -> Iterator[bytes]:
        """Those that are whole with these bytes. Raises `Malformed`."""
        self._bytes += data
        while len(self._bytes) >= _INT.size:
            (length,) = _INT.unpack_from(self._bytes)
            if not 0 <= length <= _MESSAGE_MAX_BYTES:
                raise Malformed("a message of that length")
            end = _INT.size + length
            if len(self._bytes) < end:
                return
            message = bytes(self._bytes[_INT.size : end])
            del self._bytes[:end]
            yield message


def _frame(xid: int, opcode: int, body: bytes) -> bytes:
    return _sized(_INT.pack(xid) + _INT.pack(opcode) + body)


def _sized(message: bytes) -> bytes:
    return _INT.pack(len(message)) + message


def _text(text: str) -> bytes:
    return _buffer(text.encode())


def _buffer(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data
