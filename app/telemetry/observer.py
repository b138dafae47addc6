"""What happens in an instance, told to everything that counts, remembers or traces it."""

from collections.abc import Iterable


class Observer:
    """Hears what happens. Each method does nothing by itself: an observer overrides what it wants to hear."""

    def answered(self, outcome: str) -> None:
        """A buyer was answered: an outcome, or the name of an error. Called for each buyer."""

    def committed(self, purchases: int) -> None:
        """A batch of that many purchases was decided."""

    def granted(self, lock: str, token: int, waited_s: float) -> None:
        """A lock was acquired, after a wait in seconds."""

    def released(self, lock: str, token: int, held_s: float, purchases: int, units: int) -> None:
        """It was released; the number of purchases decided under it, and of units sold."""

    def fenced(self, lock: str, sku: str) -> None:
        """The store refused our token."""

    def lost(self, lock: str) -> None:
        """A grant was lost while we held it."""

    def conflicted(self) -> None:
        """What a batch was decided on had changed before it was written."""

    def resolved(self, result: str) -> None:
        """What became of a batch in doubt: "committed", "not_committed", "unasked" (all its buyers have given up)."""

    def renewal(self, event: str) -> None:
        """A lease was "renewed", "retried", "lost", or "abandoned" by its owner."""

    def fallback(self, event: str) -> None:
        """The lock system went "away", or came "back"."""

    def audited(self, result: str) -> None:
        """All items were looked at: "consistent", "violated", or "failed" when that could not be finished."""


class Observers(Observer):
    """Several of them. Only those hear of an event that have something to do with it."""

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
