"""What this process knows to be in a store: the last order of each item, as a mark."""


class Known:
    """Marks of an item's orders that must be in the store. Each read looks for them, and then only for the last one."""

    __slots__ = ("_seen", "told")

    def __init__(self) -> None:
        self._seen: str | None = None  # of the last one that we have seen there
        self.told: frozenset[str] = frozenset()  # of those that we have only heard of

    @property
    def marks(self) -> frozenset[str]:
        """All of them."""
        return self.told | {self._seen} if self._seen else self.told

    @property
    def last(self) -> str | None:
        """The last one's."""
        return max(self.marks, default=None)

    def found(self, marks: frozenset[str], last: str | None = None) -> None:
        """All of these are there; `last` is the last one that is."""
        if marks & self.told:
            self._seen = max(marks | self.marks - self.told)
            self.told -= marks
        if last:
            self._seen = last
