"""Admission of whatever is no purchase: those who look wait for those who buy."""

import asyncio
from collections import deque
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import Overloaded
from app.web import problems

_A_TURN: Final = 2  # requests that are begun in one turn of the loop; a purchase needs some ten turns


class Admission:
    """Lets requests into an application, in the order of their arrival, a few at each turn of the loop.

    A turn is then never much longer than the sale's own work, however many look: they get what time is left. At most
    `at_once` are in hand, from their arrival until their answer begins; more get 503, which waits for its turn as
    well: those who ask again at once would otherwise fill every turn with refusals. Lives on one event loop.
    """

    def __init__(self, app: ASGIApp, *, at_once: int) -> None:
        self._app = app
        self._at_once = at_once
        self._in_hand = 0
        self._begun = _Turns()
        self._refused = _Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on when it is its turn."""
        if self._in_hand >= self._at_once:
            await self._refused.wait()
            error = Overloaded(f"{self._at_once} requests are in hand already, and purchases go first")
            await problems.of(error, scope["method"], scope["path"])(scope, receive, send)
            return
        answered = False

        async def send_and_note(message: Message) -> None:
            nonlocal answered
            if not answered:
                answered = True
                self._in_hand -= 1
            await send(message)

        self._in_hand += 1
        try:
            await self._begun.wait()
            await self._app(scope, receive, send_and_note)
        finally:
            if not answered:
                self._in_hand -= 1


class _Turns:
    """A queue that moves a few places at each turn of the loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Come back when it is the caller's turn."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._move)
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _move(self) -> None:
        for _ in range(min(_A_TURN, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._move)
