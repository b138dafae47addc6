"""The parts of a grant that a fence needs: its token and its source."""

import re
from typing import Final, NamedTuple, Protocol

LARGEST: Final = 2**63 - 1  # the largest number of an integer column
_SOURCE: Final = re.compile(r"[ -~]{1,255}")


class Granted(Protocol):
    """A grant, or anything else that has a token and its source."""

    @property
    def token(self) -> int:
        """The fencing token: from 1 to 2**63 - 1, and greater than the tokens of all earlier grants."""

    @property
    def source(self) -> str:
        """The lock system that gives the tokens: 1 to 255 printable ASCII characters."""


class Fencing(NamedTuple):
    """A token and its source, apart from the grant that they came with."""

    token: int
    source: str


def checked(grant: Granted) -> Fencing:
    """Return a grant's token and source. Raises `ValueError` if they can't fence anything (token 0 is none)."""
    token, source = grant.token, grant.source
    if isinstance(token, bool) or not isinstance(token, int) or not 0 < token <= LARGEST:
        raise ValueError(
            f"a fencing token must be a number from 1 to 2**63 - 1, not {token!r} (0: the lock gives none)"
        )
    if not isinstance(source, str) or not _SOURCE.fullmatch(source):
        raise ValueError(f"a token's source must be 1 to 255 printable ASCII characters, not {source!r}")
    return Fencing(token, source)
