"""The gate to the receiver of events: open, or closed while it is away; then one event at a time tries it."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Iterable
from typing import Final

from app.outbox.endpoint import Result
from app.outbox.webhook import Webhook
from app.telemetry.observer import Observer

_log = logging.getLogger(__name__)

_AWAY_AFTER: Final = 5  # orders in a row of which none gets through
_NOT_OF_AN_EVENT: Final = (401, 403, 404, 410, 429)  # these refuse all of them, or say that it is busy
_LONGEST_S: Final = 4 * 3600.0
_RETRY_AFTER_MAX_S: Final = 600.0  # the longest `Retry-After` that counts: a receiver may send milliseconds by mistake
_SAY_GONE_EVERY_S: Final = 600.0


class Gate:
    """Decides whether the receiver is away, by the fate of the events.

    `retry_s`: the first wait after a failure, which doubles up to four hours.
    """

    def __init__(self, webhook: Webhook, retry_s: float, observer: Observer) -> None:
        self._webhook = webhook
        self._retry_s = retry_s
        self._observer = observer
        self._rests_until = 0.0  # as all clocks here
        self._closed_until: float | None = None  # by the monotonic clock, as the wall clock may be wrong for a while
        self._probing = False
        self._probes = 0
        self._answered = 0  # of them in a row: the receiver is there, and refuses what was tried
        self._moved = asyncio.Event()
        self._failed_orders: set[tuple[str, str]] = set()  # the orders that were refused since one got through
        self._failing_since: float | None = None
        self._said_gone = 0.0

    @property
    def is_open(self) -> bool:
        """Whether events may pass."""
        return self._closed_until is None

    @property
    def away_s(self) -> float:
        """For how many seconds none has got through although some were tried."""
        return time.time() - self._failing_since if self._failing_since is not None else 0.0

    async def admitted(self) -> bool:
        """Wait until the gate is open, or for our turn to try whether the receiver is back: True. Then call `tried`."""
        while self._closed_until is not None or self._rests_until > time.monotonic():
            closed = self._closed_until is not None
            left_s = max(self._closed_until or 0.0, self._rests_until) - time.monotonic()
            if closed and left_s <= 0 and not self._probing:
                self._probing = True
                return True
            self._moved.clear()
            # Not `wait_for`: before Python 3.12 that swallows a cancellation which comes as it is woken.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if closed and self._probing else max(0.01, left_s)):
                    await self._moved.wait()
        return False

    def rest(self, wait_s: float) -> None:
        """Let no event pass for that time, as the receiver is busy."""
        self._rests_until = max(self._rests_until, time.monotonic() + wait_s)

    def tried(self) -> None:
        """End a turn to try."""
        self._probing = False
        self._moved.set()

    def try_now(self) -> None:
        """Let the next event try at once, if the gate is closed or the receiver busy."""
        self._rests_until = 0.0
        self._moved.set()
        if self._closed_until is not None:
            self._closed_until, self._probes, self._answered = 0.0, 0, 0

    def got_through(self) -> float | None:
        """Note that an event was taken. If the receiver was away, return since when, in seconds since 1970."""
        failing_since, self._failing_since = self._failing_since, None
        self._failed_orders.clear()
        if self._closed_until is None:
            return None
        self._closed_until, self._probes, self._answered = None, 0, 0
        self._moved.set()
        _log.info("the receiver of events is back: %s", self._webhook.where)
        return failing_since

    def was_refused(self, orders: Iterable[tuple[str, str]], result: Result, probe: bool) -> None:
        """Note that the receiver has refused events; it may be away. `orders`: those of which this says so anew.

        A repeated refusal, long after others got through, does not mean that the receiver is away. While the gate is
        closed, each refusal doubles the wait; but a receiver that says why it refuses may be back, and so a few others
        are tried soon.
        """
        orders = list(orders)
        now = time.time()
        self._observer.delivered("refused" if result.status else "unanswered", self._webhook.receiver.suffix)
        if self._failing_since is None and (orders or probe):
            self._failing_since = now
        if result.status == 410 and now > self._said_gone + _SAY_GONE_EVERY_S:
            self._said_gone, where = now, self._webhook.where
            _log.error("%s says 410 Gone: it wants no events; without SECKILL_WEBHOOK_URL none are sent", where)
        self._failed_orders.update(orders)
        if probe or (self._closed_until is None and len(self._failed_orders) >= _AWAY_AFTER):
            if self._closed_until is None:
                _log.warning("the receiver of events is away, and they wait: %s %s", self._webhook.where, result.why)
            says_why = 400 <= result.status < 500 and result.status not in _NOT_OF_AN_EVENT
            self._answered = self._answered + 1 if probe and says_why else 0
            soon = self._answered % _AWAY_AFTER
            if not soon:
                self._probes += 1
            self._closed_until = time.monotonic() + self.wait_s(1 if soon else self._probes, result)

    def wait_s(self, tries: int, result: Result) -> float:
        """The seconds to wait after a number of failures."""
        longest_s = min(_LONGEST_S, self._retry_s * 2.0 ** min(tries - 1, 30))
        asked_s = min(_RETRY_AFTER_MAX_S, result.retry_after_s)
        # Jitter, downwards, so that several receivers behind one server are not tried at once.
        return max(longest_s * random.uniform(0.7, 1.0), asked_s)  # noqa: S311
