"""The store's clock, by which holds end, and whether it goes as time does."""

import logging
import time
from collections.abc import Callable
from typing import Final

import fencelock

_log = logging.getLogger(__name__)

BOUND_S: Final = 30.0  # a jump by less is one of a replica that took over, or of a clock that is set right
_SLEW: Final = 0.001  # of the time that passes: a clock that is set right without a jump differs by half as much


class StoreClock:
    """What the store's clock says, held against this instance's clocks.

    From the start on, when the wall clock is read, the time that passes is counted here, also while the machine is
    suspended. If the store's clock says more than `BOUND_S` seconds more than that, it has jumped ahead, and would end
    the holds of all who are paying: these end by the time that has passed then, until the store's clock is right again,
    or has been as wrong for as long as any hold of the item lasts, so that all those from before are over.

    Nothing else depends on this: deadlines are set by the store's clock, and told with it.
    """

    def __init__(self, *, wall: Callable[[], float] = time.time, passed: Callable[[], float] = fencelock.now) -> None:
        self._wall = wall
        self.passed = passed
        self._heard = passed()
        self._ahead_s = self._counted_s = wall() - self._heard  # the store's clock, and ours, minus `passed`
        self._jump_s, self._since = 0.0, 0.0  # and since when, by `passed`
        self._said = (False, False)

    def hear(self, now_ms: int, asked: float) -> None:
        """Take what the store's clock has said, in ms since 1970, after it was asked at `asked`, by `passed()`."""
        heard = self.passed()
        least, most = now_ms / 1000 - heard, now_ms / 1000 - asked  # it was read in between
        self._ahead_s = min(max(self._ahead_s, least), most)
        jump_s = min(max(self._counted_s, least), most) - self._counted_s
        if abs(jump_s) <= BOUND_S:
            step_s = _SLEW * (heard - self._heard)
            self._counted_s += min(max(jump_s, -step_s), step_s)
            self._jump_s = 0.0
        elif abs(jump_s - self._jump_s) > BOUND_S:
            self._jump_s, self._since = jump_s, heard
        self._heard = heard
        self._say()

    def ahead_s(self, lasting_s: float) -> float:
        """How far the store's clock is ahead of the one by which holds of an item end, which last so long at most."""
        return self._jump_s if self._jump_s > 0 and self.passed() - self._since < lasting_s else 0.0

    @property
    def now(self) -> float:
        """The store's clock, in seconds since 1970, as far as it was heard."""
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
        """What is wrong, in sentences for the operator."""
        offset_s, found = self.offset_s, []
        if abs(offset_s) > BOUND_S:
            found.append(f"the store's clock is {_how(offset_s, 'behind')} this instance's: one of the two is wrong")
        if self._jump_s:
            then = "end by the latter until it is right" if self._jump_s > 0 else "last that much longer"
            found.append(f"the store's clock is {_how(self._jump_s, 'behind')} the time that has passed: holds {then}")
        return found

    def _say(self) -> None:
        said = abs(self.offset_s) > BOUND_S, bool(self._jump_s)
        if said != self._said:
            self._said = said
            for warning in self.warnings:
                _log.warning("%s", warning)
            if not any(said):
                _log.info("the store's clock is right again")


def _how(by_s: float, behind: str) -> str:
    return f"{abs(by_s):,.0f} s {'ahead of' if by_s > 0 else behind}"
