"""Back-off: the pauses before something that failed is tried again."""

import logging
import random


class Backoff:
    """Exponential back-off: each pause is twice the last one, from `first_s` up to `longest_s` (seconds).

    With `jitter` a pause is a random part of that (full jitter, as in AWS' "Exponential Backoff And Jitter"), so that
    callers that failed together do not come again together.
    """

    __slots__ = ("_first_s", "_jitter", "_last", "_longest_s", "_pause_s")

    def __init__(self, first_s: float, longest_s: float, *, jitter: bool = False) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._jitter = jitter
        self._pause_s = 0.0
        self._last: type[Exception] | None = None

    def next_s(self) -> float:
        """Return the next pause in seconds."""
        self._pause_s = min(self._longest_s, self._pause_s * 2 or self._first_s)
        return random.uniform(0, self._pause_s) if self._jitter else self._pause_s  # noqa: S311 - not a secret

    def loudness(self, error: Exception) -> int:
        """Return the log level for an error: WARNING, or DEBUG if the last one was of the same kind."""
        again, self._last = type(error) is self._last, type(error)
        return logging.DEBUG if again else logging.WARNING

    def reset(self) -> None:
        """Begin again with the shortest pause, after a success."""
        self._pause_s, self._last = 0.0, None
