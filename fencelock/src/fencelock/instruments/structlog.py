"""A structlog event for each event of a lock: normal ones at debug, others at warning."""

import structlog
from typing_extensions import override

from ..hook import Hook
from . import outcome_of


class Instrument(Hook):
    """Logs to the logger "fencelock"."""

    def __init__(self, system: str) -> None:
        self._log = structlog.get_logger("fencelock").bind(system=system)

    @override
    def granted(self, name: str, token: int, waited_s: float) -> None:
        self._log.debug("lock granted", lock=name, token=token, waited_s=waited_s)

    @override
    def not_granted(self, name: str, error: BaseException, waited_s: float) -> None:
        log = self._log.debug if outcome_of(error) in ("timeout", "cancelled") else self._log.warning
        log("lock not granted", lock=name, error=type(error).__name__, reason=str(error), waited_s=waited_s)

    @override
    def released(self, name: str, token: int, held_s: float) -> None:
        self._log.debug("lock released", lock=name, token=token, held_s=held_s)

    @override
    def renewal(self, event: str) -> None:
        if event == "retried":  # the other ends of a lease are losses
            self._log.warning("lease not renewed yet")

    @override
    def lost(self, name: str, token: int, reason: str) -> None:
        self._log.warning("lock lost", lock=name, token=token, reason=reason)
