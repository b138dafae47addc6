"""Hears of released locks: one session listens as long as somebody waits."""

import asyncio
import logging
from typing import Final

import psycopg

from ..errors import LockUnavailable
from ..waiting import Wake
from .client import PostgresClient, PostgresSession, text_of
from .names import CHANNEL

_log = logging.getLogger(__name__)

_AWAY_PAUSE_S: Final = 0.1
_POOLED_PAUSE_S: Final = 60.0


class ListenTicket:
    """A waiter's place among the listeners. `told`: there was a message for it since its last look."""

    __slots__ = ("told", "wake", "what")

    def __init__(self, what: str, wake: Wake) -> None:
        self.what = what
        self.wake = wake
        self.told = False


class NotifyListener:
    """Wakes those who are meant. `hears`: whether messages come; they only make it quicker."""

    def __init__(self, client: PostgresClient) -> None:
        self.hears = False
        self._client = client
        self._tickets: dict[str, list[ListenTicket]] = {}
        self._task: asyncio.Task[None] | None = None
        self._said = ""

    def listen(self, what: str, wake: Wake) -> ListenTicket:
        """Have `wake` set at each message that says `what`, until `leave`; and when messages begin or cease to come.

        Look once after this returns, as earlier messages are not heard.
        """
        ticket = ListenTicket(what, wake)
        self._tickets.setdefault(what, []).append(ticket)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return ticket

    def leave(self, ticket: ListenTicket) -> None:
        """Listen no longer."""
        self._tickets[ticket.what].remove(ticket)
        if not self._tickets[ticket.what]:
            del self._tickets[ticket.what]

    async def _run(self) -> None:
        while self._tickets:
            session: PostgresSession | None = None
            pause_s = _AWAY_PAUSE_S
            try:
                session = await self._client.dial(self._client.timeout_s)
                if session.prepared is None:
                    pause_s = _POOLED_PAUSE_S
                else:
                    await self._hear(session)
            except (psycopg.Error, OSError, LockUnavailable) as error:
                self._say(text_of(error))
            finally:
                if session is not None:
                    self._client.drop(session)
                self._turn(hears=False)
            if self._tickets:
                await asyncio.sleep(pause_s)

    async def _hear(self, session: PostgresSession) -> None:
        await session.run(f"LISTEN {CHANNEL}", {}, self._client.timeout_s)
        while self._tickets:
            # Nothing else shows that a quiet connection is alive; and while the queue is full no message comes.
            [[(room,)]] = await session.run("SELECT pg_notification_queue_usage() < 1", {}, self._client.timeout_s)
            self._say("" if room else "the server's queue of messages is full")
            self._turn(hears=room)
            async for message in session.notifies(timeout=self._client.timeout_s):
                for ticket in self._tickets.get(message.payload, ()):
                    ticket.told = True
                    ticket.wake.set()

    def _say(self, why: str) -> None:
        if why and why != self._said:
            _log.warning("PostgreSQL tells of no releases, waiters look by themselves: %s", why)
        self._said = why

    def _turn(self, *, hears: bool) -> None:
        if self.hears is not hears:
            self.hears = hears
            for tickets in self._tickets.values():
                for ticket in tickets:
                    ticket.wake.set()

    async def close(self) -> None:
        """End the task and its session."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
