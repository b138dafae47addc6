"""The lock of one machine: a file for each name, locked by `flock`, and one counter of tokens in a folder.

`flock(1)`, and other programs that use flock on the same file, contend with our locks, but have no token. A lock is
free as soon as its holder's process ends, however it ends: the kernel sees to it. A process that stands still keeps it.
"""

import asyncio
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self, cast
from urllib.parse import quote, unquote
from weakref import finalize

from typing_extensions import Unpack, override

from . import fork
from .backend import Guarantees, LockBackend, Scope
from .backoff import Backoff
from .connection import Attempt, Connection, Options, Terms
from .contender import Contender, describe, parse_owner
from .election import Ballot, Leader
from .errors import ConfigurationError, LockUnavailable, NoLock
from .grant import Grant
from .lease import Lease
from .url import LockUrl
from .waiting import Wait

try:
    import fcntl
except ImportError:  # Windows: the error comes when a backend is made
    fcntl = None  # type: ignore[assignment]

_SUFFIX: Final = ".lock"
_NAME_MAX: Final = 255  # bytes of a file's name, on all file systems
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
_LOOK_S: Final = 0.001  # `contenders` holds a lock for less time
_LOOKS_MAX: Final = 5
_MOUNTS: Final = "/proc/self/mountinfo"
# A lock there is the server's, or the client's alone, as versions and mount options have it, and is lost in silence.
_REMOTE: Final = re.compile(
    r"nfs\d?|cifs|smb\w*|ncpfs|afs|ceph|lustre|gpfs|beegfs|gfs2?|ocfs2|fuse(\..*)?|9p|virtiofs|vboxsf"
)
_SIGNED_MAX: Final = 4096  # bytes of a file that are read: other programs may write anything
_TOKENS: Final = range(1, 2**63)  # those that a fence takes
_SIGNED: Final = re.compile(rb"\d+ |\0*\Z")  # the first bytes of a lock's file; a crash may leave zeros

# The files that this process has locked, or is about to lock, each with a function that closes it.
_held: "dict[int, finalize[[int], _FileAttempt] | None]" = {}


def _close_all() -> None:
    for number, closing in _held.items():
        if closing is not None:
            closing.detach()
        os.close(number)  # only close it: to unlock it here would unlock it for the parent
    _held.clear()


fork.in_child(_close_all)  # else a child that outlives the parent would keep its locks


def _opened(path: Path, flags: int = 0) -> int:
    """Open a file of ours, and no link that another user has put in its place."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o666)


def _to_lock(path: Path) -> int:
    number = _opened(path)
    _held[number] = None
    return number


def _close(number: int) -> None:
    _held.pop(number, None)
    os.close(number)


def _at_once(path: str, flags: int) -> int:
    # A pipe that another user has put there would have us wait.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _free(number: int) -> None:
    with suppress(OSError):
        os.ftruncate(number, 0)
    with suppress(OSError):
        fcntl.flock(number, fcntl.LOCK_UN)  # closing it is not enough: a child may have been forked a moment ago
    _close(number)


class _Lease(Lease):
    """A lease that time does not end, as the kernel gives the lock to nobody else while we have the file."""

    @property
    @override
    def lost(self) -> bool:
        if not (self.reason or self.inherited or self.overdue):
            self._deadline = self._clock() + self.ttl_s
        return super().lost


class _FileAttempt(Attempt["FileConnection"]):
    """An attempt, with the locked file once it has got one."""

    def __init__(self, connection: "FileConnection", name: str, ttl_s: float) -> None:
        super().__init__(connection, name, ttl_s)
        self._file = connection.file_of(name)
        self._number = -1
        self._close: finalize[[int], _FileAttempt] | None = None
        self._pauses = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)

    @override
    async def take(self, wait: Wait) -> Grant | float:
        here = self.connection
        if self.lease is None:
            with here.translated():
                for _ in range(_LOOKS_MAX):
                    if self._lock():
                        break
                    with suppress(FileNotFoundError):
                        if self._file.stat().st_size:
                            break
                    await asyncio.sleep(_LOOK_S)  # who has it only looks, or has yet to sign
            if self._close is None:
                return self._pauses.next_s() * here.waiters.crowd
            self.lease = _Lease(self.name, self, self.ttl_s)
            self.lease.on_lost(self._close)
        token = await here.next_token(wait.call_s(self.timeout_s))
        with here.translated():
            os.ftruncate(self._number, 0)
            os.pwrite(self._number, f"{token} {describe(here.terms.instance)}".encode(), 0)
        self.renewer.keep(self.lease)
        return Grant(f"{self.name}/{token}", token, here.source, self.lease)

    def _lock(self) -> bool:
        self._file.parent.mkdir(exist_ok=True)  # somebody may have removed it since
        self._number = number = _to_lock(self._file)
        try:
            if os.fstat(number).st_nlink > 1 or not _SIGNED.match(os.pread(number, _SIGNED_MAX, 0)):
                raise NoLock(f"{self._file} is another program's: it is no lock's file, and stays as it is")
            with suppress(BlockingIOError):
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_there():
                    _held[number] = self._close = finalize(self, _free, number)
        finally:
            if self._close is None:
                _close(number)
        return self._close is not None

    def _is_there(self) -> bool:
        """Return whether the path still leads to this file: else others would lock a new one."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return os.path.samestat(os.fstat(self._number), self._file.stat())
        return False

    async def renew(self, timeout_s: float) -> bool:
        """Return whether the lock is still ours."""
        with self.connection.translated():
            return self._close is not None and self._close.alive and self._is_there()

    async def end(self, timeout_s: float) -> None:
        """Unlock the file. The file stays, as somebody else may be about to lock it."""
        if self._close is not None:
            self._close()


class FileConnection(Connection):
    """The locks of a folder. Its files `.token` and `.token.guard` belong to no lock."""

    def __init__(self, terms: Terms, folder: Path) -> None:
        super().__init__(terms)
        self._folder = folder
        self._token = folder / ".token"
        self.source = f"file:{socket.gethostname()}:{folder.resolve()}"

    def file_of(self, name: str) -> Path:
        """Return a lock's file."""
        return self._folder / _file_of(name)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise `LockUnavailable` where the system refuses us."""
        try:
            yield
        except OSError as error:
            raise LockUnavailable(f"{error.filename or self._folder}: {error.strerror}") from error

    @override
    def attempt(self, name: str, ttl_s: float) -> _FileAttempt:
        return _FileAttempt(self, name, ttl_s)

    async def next_token(self, timeout_s: float) -> int:
        """Return a token greater than all before it, once it is on disk. Raises `LockUnavailable`."""
        deadline = time.monotonic() + timeout_s
        with self.translated():
            guard = _to_lock(self._folder / ".token.guard")
            try:
                while True:
                    with suppress(BlockingIOError):
                        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        self._agree(guard)
                        return self._count()
                    if time.monotonic() > deadline:
                        raise LockUnavailable(f"{self._folder}: another process has the token for {timeout_s:g} s")
                    await asyncio.sleep(_LOOK_S)
            finally:
                fcntl.flock(guard, fcntl.LOCK_UN)
                _close(guard)

    def _agree(self, guard: int) -> None:
        """Agree on one source for the folder's tokens, its first user's, as each container has another host name."""
        said = os.pread(guard, _SIGNED_MAX, 0)
        if not said:
            os.pwrite(guard, said := self.source.encode(), 0)
            os.fsync(guard)
        self.source = said.decode(errors="replace")

    def _count(self) -> int:
        try:
            with open(self._token, "rb", opener=_at_once) as file:
                token = int(file.read(_SIGNED_MAX) or b"") + 1
            if token not in _TOKENS:
                raise ValueError
        except FileNotFoundError:
            # The folder is new, or in memory and the machine was started anew: by the clock the tokens go on.
            token = time.time_ns() // 1000
        except ValueError:
            raise LockUnavailable(f"{self._token} holds no number: a token would be given twice") from None
        self._replace(self._token, str(token).encode())
        return token

    def _replace(self, path: Path, text: bytes) -> None:
        """Write a file so that it has this text or the one before, whenever the machine fails."""
        made = path.with_name(f"{path.name}.new")
        with open(_opened(made, os.O_TRUNC), "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def words(self, name: str) -> dict[str, Any]:
        """Return the leaders' last proclamation and record. Raises `LockUnavailable`, and `NoLock`."""
        path = self._folder / f"{_file_of(name)}.words"
        with self.translated(), suppress(FileNotFoundError), open(path, "rb", opener=_at_once) as file:
            try:
                found: dict[str, Any] = json.load(file)["fencelock"]
            except (ValueError, LookupError, TypeError):
                raise NoLock(
                    f"{path} is another program's: no leader's words are in it, and it stays as it is"
                ) from None
            return found
        return {}

    async def write(self, grant: Grant, name: str, **words: object) -> bool:
        """Write a leader's proclamation or record, and keep the other one; False if it leads no more."""
        text = json.dumps({"fencelock": self.words(name) | words}).encode()
        if not await grant.lease.hold.renew(self.timeout_s):
            return False
        with self.translated():
            self._replace(self._folder / f"{_file_of(name)}.words", text)
        return True

    @override
    async def contenders(self, prefix: str) -> list[Contender]:
        with self.translated():
            names = [unquote(file.name.removesuffix(_SUFFIX)) for file in self._folder.glob(f"*{_SUFFIX}")]
        found = [self._holder(name) for name in sorted(names) if f"{name}/".startswith(prefix)]
        return [one for one in found if one is not None]

    @override
    async def queue(self, name: str) -> list[Contender]:
        holder = self._holder(name)
        return [] if holder is None else [holder]

    def _holder(self, name: str) -> Contender | None:
        """Return the holder. To see whether it lives, its file is locked for a moment, if that is possible."""
        path = self.file_of(name)
        if path.is_symlink():  # of another user
            return None
        with (
            self.translated(),
            suppress(FileNotFoundError, IsADirectoryError),
            open(path, "rb", opener=_at_once) as file,
        ):
            token, _, owner = (file.read(_SIGNED_MAX) or b"").decode(errors="replace").partition(" ")
            if token.isdecimal():
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    fcntl.flock(file, fcntl.LOCK_UN)
                except BlockingIOError:
                    return Contender(f"{name}/{token}", int(token), *parse_owner(owner), None, holds=True)
        return None

    @override
    async def ping(self, timeout_s: float) -> None:
        with self.translated():
            self._folder.mkdir(exist_ok=True)


class FileBallot(Ballot):
    """An election in a folder: a lock's owner leads, and its words are in a file beside the lock's."""

    connection: FileConnection

    @override
    async def stand(self, value: str, wait: Wait) -> Grant:
        place = self.connection.attempt(self.name, self.connection.terms.ttl_s)
        grant = await place.until_granted(wait)
        try:
            if not await self._say(grant, value, grant.token):
                raise LockUnavailable(f"{self.name}: the lead was lost as soon as it was had")
        except BaseException:
            await place.leave()
            raise
        return grant

    @override
    async def say(self, grant: Grant, value: str) -> bool:
        return await self._say(grant, value, await self.connection.next_token(self.connection.timeout_s))

    async def _say(self, grant: Grant, value: str, revision: int) -> bool:
        return await self.connection.write(grant, self.name, token=grant.token, revision=revision, said=value)

    @override
    async def record(self, grant: Grant, value: str) -> bool:
        return await self.connection.write(grant, self.name, record=value)

    @override
    async def recorded(self) -> str | None:
        return self.connection.words(self.name).get("record")

    @override
    async def leader(self, timeout_s: float | None) -> Leader | None:
        holders, words = await self.connection.queue(self.name), self.connection.words(self.name)
        if not holders or words.get("token") != holders[0].token:
            return None
        return Leader(holders[0].key, words["said"], holders[0].token, words["revision"])


class FileBackend(LockBackend):
    """The locks of a folder, for the processes of one machine.

    `folder`: an absolute path; it is made at first use, but its parent is not. For the rest see `Options`; `ttl_s` is
    how long a lock stays with a thread or task that has ended.
    """

    name = "file"
    guarantees = Guarantees(scope=Scope.MACHINE, leases=False, fencing=True, elects=True)

    def __init__(self, folder: str | Path, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        self._folder = Path(folder)
        if fcntl is None:
            raise ConfigurationError("file:// needs flock, which Windows lacks")
        if not self._folder.is_absolute() or self._folder == Path("/"):
            raise ConfigurationError("file:// needs the absolute path of a folder: file:///var/lock/jobs")
        kind = filesystem_of(self._folder)
        if _REMOTE.fullmatch(kind):
            raise ConfigurationError(f"{folder} is on {kind}, whose locks can't be trusted: file:// needs a disk")

    @classmethod
    @override
    def from_url(cls, url: LockUrl, **options: Unpack[Options]) -> Self:
        url.refuse_options()
        if url.hosts or url.user:
            raise ConfigurationError("file:// has no host, but three slashes: file:///var/lock/jobs")
        return cls(url.path, **options)

    @override
    def check_name(self, name: str) -> None:
        if len(_file_of(name)) > _NAME_MAX:
            most = _NAME_MAX - len(_SUFFIX)
            raise ValueError(f"a name for file:// has at most {most} bytes, escaped: {name[:40]!r}...")

    @override
    def connect(self) -> FileConnection:
        return FileConnection(self.terms, self._folder)

    @override
    def ballot(self, name: str) -> FileBallot:
        return FileBallot(cast(FileConnection, self.here()), name)


def _file_of(name: str) -> str:
    """Return the path of a lock's file, escaped so that it is always in the folder. Raises `ValueError`."""
    return quote(name, safe="") + _SUFFIX


def filesystem_of(folder: Path) -> str:
    """Return the kind of file system that a folder is on, by Linux' name; empty elsewhere, where it isn't known."""
    try:
        mounts = os.fsdecode(Path(_MOUNTS).read_bytes())
    except OSError:
        return ""
    path, found, longest = folder.resolve(), "", -1
    for line in mounts.splitlines():
        of_mount, _, of_system = line.partition(" - ")
        point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), of_mount.split()[4]))
        if path.is_relative_to(point) and len(point.parts) >= longest:  # the last mount of a place covers the others
            found, longest = of_system.split()[0], len(point.parts)
    return found
