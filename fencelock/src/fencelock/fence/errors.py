"""The error of a fence."""

from ..errors import FencelockError


class FenceRefused(FencelockError):
    """The fence has seen a higher token than ours, or another source's tokens; this call has written nothing.

    `token` and `source`: ours. `highest` and `highest_source`: the fence's. The caller is no longer the lock's holder:
    its reads are old, so it must not try again, but give up or acquire the lock anew.
    """

    def __init__(self, token: int, source: str, highest: int, highest_source: str) -> None:
        super().__init__(token, source, highest, highest_source)  # as they are, so that it can be pickled
        self.token = token
        self.source = source
        self.highest = highest
        self.highest_source = highest_source

    @property
    def foreign(self) -> bool:
        """True if the fence has tokens of another source, which can't be compared with ours."""
        return self.source != self.highest_source

    def __str__(self) -> str:
        if self.foreign:
            return (
                f"the fence has seen token {self.highest} of {self.highest_source!r}, and ours is {self.token} of "
                f"{self.source!r}: tokens of two sources can't be compared"
            )
        return f"the fence has seen token {self.highest} of {self.source!r}, and ours is {self.token}: we come too late"
