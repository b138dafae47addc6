"""Pools of connections: SQLAlchemy's, one for each loop and each set of settings."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from ...per_loop import PerLoop
from .session import MIN_CALL_S, Session, late

try:
    from sqlalchemy.dialects.mysql import asyncmy as _  # noqa: F401 - else the first call would stop its loop for that
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
except ImportError:  # an extra: said when a client is made
    pass

if TYPE_CHECKING:
    from .client import MySqlClient

_IDLE_MAX: Final = 16  # connections kept for later


class Sessions:
    """Connections with the same settings: an engine of SQLAlchemy's for each loop."""

    def __init__(self, client: "MySqlClient", settings: Sequence[str], *, autocommit: bool) -> None:
        self._client = client
        self._dial = partial(client.dial, settings, autocommit)
        self._autocommit = autocommit
        self.engines = PerLoop(self._engine)

    def _engine(self, _: asyncio.AbstractEventLoop) -> "AsyncEngine":
        # What goes to the server: the setting up of a connection, a ping when it is used again, and our statements.
        more: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if self._autocommit else {}
        return create_async_engine(
            "mysql+asyncmy://",  # where it is and the password are the creator's: they can't get into an error
            async_creator=self._dial,
            pool_size=_IDLE_MAX,
            max_overflow=-1,
            pool_use_lifo=True,
            pool_pre_ping=True,
            pool_reset_on_return=None,
            skip_autocommit_rollback=True,
            hide_parameters=True,
            **more,
        )

    async def take(self, timeout_s: float) -> Session:
        """One that nobody else uses; to be given back, or ended."""
        client = self._client
        client.ensure_open()
        try:
            async with asyncio.timeout(max(MIN_CALL_S, timeout_s)):
                connection = await self.engines.here().connect()
        except TimeoutError:
            raise client.failed(late(timeout_s)) from None
        except (SQLAlchemyError, OSError) as error:
            raise client.failed(error) from error
        return client.session_of(connection)

    async def give(self, session: Session) -> None:
        """Keep it for the next one, if it is well."""
        self._client.live.discard(session)
        if session.in_step:
            with suppress(SQLAlchemyError):
                await session.connection.close()
        else:
            await session.end()


class Lent:
    """One session for several calls in a row: as `Sessions`, but it is only given back at the end of the block."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._session: Session | None = None

    async def take(self, timeout_s: float) -> Session:
        """The one, or another if that has ended."""
        if self._session is None:
            self._session = await self._sessions.take(timeout_s)
        return self._session

    async def give(self, session: Session) -> None:
        """Keep it for the next call, if it is well."""
        if not session.in_step:
            self._session = None
            await self._sessions.give(session)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._sessions.give(self._session)
