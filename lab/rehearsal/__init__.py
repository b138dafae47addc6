"""What the lab adds to a control room: buyers on command, a holder that stands still, and the story of its pause.

Never where something is really sold: an instance gets it by `SECKILL_EXTENSION=lab.rehearsal`.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from pathlib import Path
from typing import Final

from app.dashboard.journal import Journal
from app.dashboard.room import ControlRoom, RoomTask
from app.errors import EXPECTED
from app.operator import Readiness
from app.orders import Hold, Outcome, Purchase
from app.sale import Shop
from app.stock import StockStore
from lab.rehearsal.delay import DelayingStore
from lab.rehearsal.routes import router

_log = logging.getLogger(__name__)

_SLICE: Final = 100  # buyers of a rush who come without a pause for others
_TOGETHER_S: Final = 1.0  # until a rush begins, so that all instances have heard of it
_DELAY_WITHIN_S: Final = 60.0


class Extension:
    """The lab's extension of an instance."""

    router = router
    folder = Path(__file__).parent / "static"
    anybody_confirms = True

    _delaying: DelayingStore
    _room: ControlRoom
    _shop: Shop
    _readiness: Readiness
    _journal: Journal

    def wrap(self, store: StockStore) -> StockStore:
        """The store, of which a write can be held back."""
        self._delaying = DelayingStore(store)
        return self._delaying.as_store

    def enter(self, room: ControlRoom, shop: Shop, readiness: Readiness, journal: Journal) -> None:
        """Have the room obey `rush` (with how many buyers come here) and `pause` (with for how many seconds)."""
        self._room, self._shop, self._readiness, self._journal = room, shop, readiness, journal
        room.obeys |= {"rush": self._rush, "pause": self._pause}

    async def _rush(self, command: RoomTask, number: float) -> None:
        """Our part of a rush: purchases like any others, without the way through HTTP."""
        buyers = int(number)
        await asyncio.sleep(min(_TOGETHER_S, max(0.0, command.at + _TOGETHER_S - time.time())))
        rush = secrets.token_hex(4)

        async def buy(number: int) -> str:
            await asyncio.sleep(command.over_s * number / buyers)
            try:
                answer = await self._shop.submit(Purchase(1, command.sku, f"rush-{rush}-{number}"))
                if answer.outcome is Outcome.HOLD_REQUIRED:
                    answer = await self._shop.submit(Hold(1, command.sku, f"rush-{rush}-{number}"))
            except EXPECTED as error:
                return type(error).__name__
            return answer.outcome

        async with asyncio.TaskGroup() as crowd:
            coming = []
            for place in range(buyers):
                coming.append(crowd.create_task(buy(place)))
                if place % _SLICE == 0:
                    await asyncio.sleep(0)  # let others have their turn
        told = Counter(one.result() for one in coming)
        self._journal.note("rush", buyers=buyers, **{str(name): count for name, count in told.items()})

    async def _pause(self, command: RoomTask, for_s: float) -> None:
        loop = asyncio.get_running_loop()

        def tell(what: str, token: int) -> None:
            if what == "paused":
                self._readiness.pause_renewal(for_s)
                self._room.paused_until = loop.time() + for_s
                self._journal.note("paused", token=token, for_s=for_s)
            else:
                self._journal.note(what, token=token)

        self._room.pausing += 1
        try:
            await self._shop.level(command.sku)  # nothing is ever written of an item that isn't there
            await self._delaying.delay_next_commit(command.sku, for_s, tell, within_s=_DELAY_WITHIN_S)
        except EXPECTED as error:
            _log.warning("no pause: %s", error)
        finally:
            self._room.pausing -= 1
