"""How callbacks of payment providers are answered: those who refuse all of them must not look as if none came."""

import time
from collections.abc import Callable
from typing import Final

TAKEN: Final = "taken"
AGAIN: Final = "again"  # it is to be sent again: no such order yet, or no store
NOT_SIGNED: Final = "not_signed"
INVALID: Final = "invalid"
SWITCHED_OFF: Final = "switched_off"
NO_ADDRESS: Final = "no_address"  # under which no provider reports; it has no provider's name

_LATELY_S: Final = 3600.0
_SEVERAL: Final = 3  # a stranger's try, or two, are no news
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
        """What an operator has to know: nothing of a provider was taken since several were refused, within an hour."""
        since = self._clock() - _LATELY_S
        return [
            f"{count} callbacks of {provider or 'a payment provider'} were refused, and none was taken since: "
            f"{_WORDS[why]}"
            for provider, (count, at, why) in sorted(self._refused.items())
            if count >= _SEVERAL and at >= since
        ]
