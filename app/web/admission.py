"""Admission control for all requests but purchases: readers wait for buyers."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import Overloaded
from app.web import problems
from app.web.call import GONE, never

_A_TURN: Final = 2  # requests that are started in one turn of the loop; a purchase needs some ten turns
_GONE_A_TURN: Final = 20  # clients that have hung up and are passed over in one turn of the loop
_REST: Final = 4  # while buyers wait, rests this many times as long as readers took: they get a fifth of the time
_REST_MAX_S: Final = 0.1
_READS: Final = ("GET", "HEAD")


async def _left(receive: Receive) -> None:
    """End a request without an answer, once the server knows that its client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Admission:
    """Lets requests into an application, in the order of their arrival, a few at each turn of the loop.

    So a turn is never much longer than the sale's own work, however many read: readers get the time that is left. While
    `buyers_wait()`, readers rest after each turn for longer than it took. It is measured in wall-clock time, so readers
    go last on a busy machine.

    At most `at_once` are in hand, from their arrival until their answer begins; more get 503, which waits for its turn
    as well: clients that ask again at once would otherwise fill every turn with refusals. Readers who have hung up are
    passed over when their turn comes; requests that change something are carried out. Lives on one event loop.
    """

    def __init__(self, app: ASGIApp, *, at_once: int, buyers_wait: Callable[[], bool]) -> None:
        self._app = app
        self._at_once = at_once
        self._in_hand = 0
        self._begun = _Turns(buyers_wait)
        self._refused = _Turns(buyers_wait)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on when it is its turn."""
        gone = scope["state"].get(GONE, never) if scope["method"] in _READS else never
        if self._in_hand >= self._at_once:
            if not await self._refused.wait(gone):
                await _left(receive)
                return
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
            if await self._begun.wait(gone):
                await self._app(scope, receive, send_and_note)
            else:
                await _left(receive)
        finally:
            if not answered:
                self._in_hand -= 1


class _Turns:
    """A queue that moves a few places at a turn of the loop."""

    def __init__(self, buyers_wait: Callable[[], bool]) -> None:
        self._buyers_wait = buyers_wait
        self._waiting: deque[tuple[asyncio.Future[bool], Callable[[], bool]]] = deque()
        self._moves = False

    async def wait(self, gone: Callable[[], bool]) -> bool:
        """Come back when it is the caller's turn; False if its client has gone."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((turn, gone))
        if not self._moves:
            self._moves = True
            loop.call_soon(self._move)
        return await turn

    def _move(self) -> None:
        there, passed_over = 0, 0
        while self._waiting and there < _A_TURN and passed_over < _GONE_A_TURN:
            turn, gone = self._waiting.popleft()
            if turn.done():
                continue
            turn.set_result(is_there := not gone())
            there += is_there
            passed_over += not is_there
        loop = asyncio.get_running_loop()
        loop.call_soon(self._rest, loop.time())  # behind the first steps of these requests

    def _rest(self, begun: float) -> None:
        loop = asyncio.get_running_loop()
        if self._buyers_wait():
            loop.call_later(min(_REST * (loop.time() - begun), _REST_MAX_S), self._go_on)
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._waiting:
            self._move()
        else:
            self._moves = False
