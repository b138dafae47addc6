"""Observers count, remember or trace the events in an instance."""

from collections.abc import Iterable


class Observer:
    """Is notified of what happens.

    By default each method does nothing; an observer overrides the methods that it needs.
    """

    def answered(self, outcome: str) -> None:
        """A buyer was answered: an outcome, or the name of an error. Called for each buyer."""

    def changed(self, command: str, outcome: str) -> None:
        """A "hold", "confirm", "extend", "cancel", "refund" or "expire" was answered."""

    def committed(self, purchases: int) -> None:
        """A batch of that many purchases was decided."""

    def granted(self, lock: str, token: int, waited_s: float) -> None:
        """A lock was acquired, after a wait in seconds."""

    def released(self, lock: str, token: int, held_s: float, purchases: int, units: int) -> None:
        """A lock was released; `purchases` were decided under the grant, and `units` sold."""

    def fenced(self, lock: str, sku: str) -> None:
        """The store refused our token."""

    def lost(self, lock: str) -> None:
        """A grant was lost while we held it."""

    def conflicted(self) -> None:
        """The basis of a batch had changed before it was written."""

    def resolved(self, result: str) -> None:
        """A batch in doubt was "committed", "not_committed", or is "unasked" (all its buyers have given up)."""

    def renewal(self, event: str) -> None:
        """A lease was "renewed", "retried", "lost", or "abandoned" by its owner."""

    def fallback(self, event: str) -> None:
        """The lock system went "away", or came "back"."""

    def audited(self, result: str) -> None:
        """A round of the audit is over: "consistent", "violated", or "failed" if it could not be finished."""

    def delivered(self, result: str, receiver: str) -> None:
        """An event was "delivered", "refused" by an answer, "unanswered", or is "dead", tried no more.

        `receiver`: "" for the default one.
        """

    def refunded(self, result: str) -> None:
        """A refund was asked for: it is "done", "accepted", "refused", or "unknown"."""


class Observers(Observer):
    """Several observers; an event calls only those that override its method."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        everybody = list(observers)
        for name in [name for name in vars(Observer) if not name.startswith("_")]:
            hearing = [one for one in everybody if getattr(type(one), name) is not getattr(Observer, name)]
            if len(hearing) == 1:
                setattr(self, name, getattr(hearing[0], name))
            else:
                setattr(self, name, _to_all([getattr(one, name) for one in hearing]))


def _to_all(methods: list[object]) -> object:
    def tell(*about: object) -> None:
        for method in methods:
            method(*about)  # type: ignore[operator]

    return tell
