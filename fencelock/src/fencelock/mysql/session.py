"""A connection that a caller has to itself: each statement has a deadline, and raises our own errors."""

import asyncio
import os
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ..waiting import settled

try:
    from asyncmy.errors import Error as DriverError
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError
except ImportError:  # an extra; its lack is reported when a client is made
    pass

# The server says this and hangs up: shutting down, killed, idle for too long. 2000 and above are the driver's own.
_FAREWELLS: Final = {1053, 1152, 1159, 1160, 1161, 1927, 3169, 4031}
MIN_CALL_S: Final = 0.001
_END_MAX_S: Final = 5.0


class SqlRefused(Exception):
    """The server refused a statement with a code that the caller lists in `tell`. The session can still be used."""

    def __init__(self, code: int, text: object) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class StatementResult:
    """A statement's result. `matched`: rows found or written; `last_id`: the value that LAST_INSERT_ID was set to."""

    rows: tuple[tuple[Any, ...], ...]
    matched: int
    last_id: int


class MySqlSession:
    """A connection, for one at a time. `before_end`: called when the client is closed; `notes`: of its users."""

    # `connection`: SQLAlchemy's `AsyncConnection`.
    def __init__(self, connection: Any, failed: Callable[[object], Exception]) -> None:
        self.connection = connection
        self._driver = connection.sync_connection.connection.driver_connection
        self.notes: dict[str, Any] = connection.sync_connection.info  # kept with the connection while it lives
        self.open = True  # as far as we know
        self.before_end: Callable[[], None] = lambda: None
        self._failed = failed

    async def run(
        self, sql: str, args: Sequence[Any] = (), *, timeout_s: float | None, tell: Sequence[int] = ()
    ) -> StatementResult:
        """Run a statement; `timeout_s`: None waits as long as it takes. Refusals in `tell` are raised as `SqlRefused`.

        After any other error that leaves the outcome open, or if it is cancelled, the connection is ended.
        """
        if not self.open:  # SQLAlchemy would connect anew, which is another session
            raise self._failed("the connection is lost")
        try:
            async with asyncio.timeout(None if timeout_s is None else max(MIN_CALL_S, timeout_s)):
                result = await self.connection.exec_driver_sql(sql, tuple(args))
            rows = tuple(map(tuple, result.fetchall())) if result.returns_rows else ()
            return StatementResult(rows, result.rowcount, result.lastrowid or 0)
        except TimeoutError:
            await self.end()
            raise self._failed(late(timeout_s)) from None
        except DBAPIError as error:
            code = code_of(error)
            if code is None or code >= 2000 or code < 1000 or code in _FAREWELLS:
                await self.end()
            elif code in tell:
                raise SqlRefused(code, text_of(error)) from None
            raise self._failed(error) from error
        except SQLAlchemyError as error:
            await self.end()
            raise self._failed(error) from error
        except BaseException:
            await self.end()  # cancelled in mid-protocol: the next answer would be the last question's
            raise

    def cut(self) -> None:
        """Close the socket, so that a statement under way ends with an error."""
        self._driver.close()

    async def end(self) -> None:
        """Close the connection without a farewell; the server rolls uncommitted writes back."""
        if self.open:
            self.open = False
            self.cut()
            await settled(asyncio.ensure_future(self._end()))

    async def _end(self) -> None:
        # Both, even if the first one fails: the pool has to learn of it.
        for tell_pool in (self.connection.invalidate, self.connection.close):
            # The socket is cut already; a driver that waits for it all the same must not keep the caller for ever.
            with suppress(SQLAlchemyError, OSError, TimeoutError):
                async with asyncio.timeout(_END_MAX_S):
                    await tell_pool()


def late(timeout_s: float | None) -> str:
    """Return the text for a server that does not answer in time."""
    return "it does not answer" if timeout_s is None else f"it did not answer within {timeout_s:.2g} s"


def code_of(error: BaseException) -> int | None:
    """Return the server's or the driver's number for an error."""
    cause = getattr(error, "orig", error)
    return cause.args[0] if cause.args and isinstance(cause.args[0], int) else None


def text_of(why: object) -> str:
    """Return an error's text, but never the statement, which may contain anything."""
    if isinstance(why, DBAPIError):
        why = why.orig
    if isinstance(why, DriverError) and isinstance(why.__cause__, OSError):
        why = why.__cause__
    if isinstance(why, OSError):
        plain = why.errno is not None and why.errno > 0 and not isinstance(why, ssl.SSLError)
        return os.strerror(why.errno) if plain and why.errno else str(why.strerror or why)
    if isinstance(why, BaseException) and why.args:
        why = why.args[-1]
    return str(why or "the connection is lost")
