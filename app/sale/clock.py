"""The clocks of the store's servers, by which holds end, and whether they go as time does."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

import fencelock

_log = logging.getLogger(__name__)

BOUND_S: Final = 30.0  # a jump by less is one of a replica that took over, or of a clock that is set right
_FORGET_S: Final = 600.0  # a server that has sent no time for so long is gone
_SLEW: Final = 0.001  # part of the time that passes: a clock that is corrected slowly differs by half of it


class StoreClock:
    """The clock of a store's server, compared with this instance's clocks.

    Passed time is counted here from the start on, also while the machine is suspended. If the store's clock gains more
    than `BOUND_S` seconds on the passed time, it has jumped ahead, and would end the holds of buyers who are paying.
    Their holds then end by the passed time, until the store's clock is right again, or has been wrong for as long as
    any hold of the item lasts. The same happens when a clock that was behind is set right: older holds end later than
    it says.

    Deadlines are set by the store's clock, and announced with it; nothing else depends on this class.
    """

    def __init__(
        self, server: str = "", *, wall: Callable[[], float] = time.time, passed: Callable[[], float] = fencelock.now
    ) -> None:
        self._named = f"the store's clock at {server}" if server else "the store's clock"
        self._wall = wall
        self.passed = passed
        self.heard = passed()  # when it was last
        self._ahead_s = self._counted_s = wall() - self.heard  # the store's clock and ours, each minus `passed`
        self._jump_s, self._since = 0.0, 0.0  # and since when, by `passed`
        self._late_s = 0.0  # holds end so much later than the store's clock says
        self._said = (False, False)

    def hear(self, now_ms: int, asked: float) -> None:
        """Take a reading of the store's clock, in ms since 1970, which was asked for at `asked`, by `passed()`."""
        heard = self.passed()
        least, most = now_ms / 1000 - heard, now_ms / 1000 - asked  # it was read in between
        self._ahead_s = min(max(self._ahead_s, least), most)
        jump_s = min(max(self._counted_s, least), most) - self._counted_s
        if abs(jump_s) <= BOUND_S:
            step_s = _SLEW * (heard - self.heard)
            self._counted_s += min(max(jump_s, -step_s), step_s)
            jump_s = 0.0
        if abs(jump_s - self._jump_s) > BOUND_S:
            self._late_s = max(jump_s, jump_s - self._jump_s, 0.0)
            self._jump_s, self._since = jump_s, heard
        self.heard = heard
        self._say()

    def ahead_s(self, lasting_s: float) -> float:
        """How far the store's clock is ahead of the one that ends holds, which last `lasting_s` at most."""
        return self._late_s if self.passed() - self._since < lasting_s else 0.0

    @property
    def now(self) -> float:
        """The store's clock, in seconds since 1970, by its last answer."""
        return self.passed() + self._ahead_s

    @property
    def offset_s(self) -> float:
        """How far the store's clock is ahead of this instance's wall clock."""
        return self.now - self._wall()

    @property
    def jump_s(self) -> float:
        """How far the store's clock has jumped ahead of the time that has passed, and not come back; 0 if it hasn't.

        Less than 0 if it has jumped back, or stands still.
        """
        return self._jump_s

    @property
    def warnings(self) -> list[str]:
        """Warnings, in sentences for the operator."""
        offset_s, found = self.offset_s, []
        if abs(offset_s) > BOUND_S:
            found.append(f"{self._named} is {_how(offset_s, 'behind')} this instance's: one of the two is wrong")
        if self._jump_s:
            then = "end by the latter until it is right" if self._jump_s > 0 else "last that much longer"
            found.append(f"{self._named} is {_how(self._jump_s, 'behind')} the time that has passed: holds {then}")
        return found

    def _say(self) -> None:
        said = abs(self.offset_s) > BOUND_S, bool(self._jump_s)
        if said != self._said:
            self._said = said
            for warning in self.warnings:
                _log.warning("%s", warning)
            if not any(said):
                _log.info("%s is right again", self._named)


class StoreClocks:
    """The clocks of a store's servers: of a Redis Cluster several, else one. `server_of(sku)`: which has an item."""

    def __init__(self, server_of: Callable[[str], str]) -> None:
        self._server_of = server_of
        self._by_server: dict[str, StoreClock] = {}
        self.passed = fencelock.now

    def of(self, sku: str) -> StoreClock:
        """The clock by which an item's holds end."""
        return self._at(self._server_of(sku))

    def hear(self, said_ms: Mapping[str, int], asked: float) -> None:
        """Take readings of the clocks by server: see `StoreClock.hear`. Servers that are gone are forgotten."""
        for server, now_ms in said_ms.items():
            self._at(server).hear(now_ms, asked)
        for server in [name for name, one in self._by_server.items() if self.passed() - one.heard > _FORGET_S]:
            del self._by_server[server]

    @property
    def offset_s(self) -> float:
        """The `StoreClock.offset_s` of the server whose clock is most wrong."""
        return max((one.offset_s for one in self._by_server.values()), key=abs, default=0.0)

    @property
    def jump_s(self) -> float:
        """The `StoreClock.jump_s` of the server whose clock has jumped most."""
        return max((one.jump_s for one in self._by_server.values()), key=abs, default=0.0)

    @property
    def warnings(self) -> list[str]:
        """Warnings, in sentences for the operator."""
        return [warning for one in self._by_server.values() for warning in one.warnings]

    def _at(self, server: str) -> StoreClock:
        return self._by_server.get(server) or self._by_server.setdefault(server, StoreClock(server))


def _how(by_s: float, behind: str) -> str:
    return f"{abs(by_s):,.0f} s {'ahead of' if by_s > 0 else behind}"
