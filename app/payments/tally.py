"""Counts the answers to callbacks of payment providers: to refuse all must not look as if none came."""

import time
from collections.abc import Callable
from typing import Final

TAKEN: Final = "taken"
AGAIN: Final = "again"  # the provider has to send it again: no such order yet, or no store
NOT_SIGNED: Final = "not_signed"
INVALID: Final = "invalid"
SWITCHED_OFF: Final = "switched_off"
NO_ADDRESS: Final = "no_address"  # the outcome at an address of no provider

_LATELY_S: Final = 3600.0
_SEVERAL: Final = 3  # one or two refusals may be a stranger's tries
_WORDS: Final = {
    NOT_SIGNED: "not signed with a secret that is set here",
    INVALID: "not valid, the log says why",
    SWITCHED_OFF: "the setting for them is missing",
    NO_ADDRESS: "no provider reports to that address",
}


class Tally:
    """The callbacks that were refused since one was taken, by provider ("": to an address that is nobody's).

    `count` is called with the provider and the outcome of each.
    """

    def __init__(self, count: Callable[[str, str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._count = count
        self._clock = clock
        self._refused: dict[str, tuple[int, float, str]] = {}  # how many, when the last one was, and why

    def add(self, provider: str, outcome: str) -> None:
        """Count a callback."""
        self._count(provider, outcome)
        if outcome == TAKEN:
            self._refused.pop(provider, None)
            self._refused.pop("", None)  # somebody's address is right
        elif outcome != AGAIN:
            self._refused[provider] = self._refused.get(provider, (0,))[0] + 1, self._clock(), outcome

    @property
    def warnings(self) -> list[str]:
        """A warning for each provider whose callbacks of the last hour were refused, several of them."""
        since = self._clock() - _LATELY_S
        return [
            f"{count} callbacks of {provider or 'a payment provider'} were refused, and none was taken since: "
            f"{_WORDS[why]}"
            for provider, (count, at, why) in sorted(self._refused.items())
            if count >= _SEVERAL and at >= since
        ]
