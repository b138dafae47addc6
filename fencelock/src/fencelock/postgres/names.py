"""Names of locks and of messages, as the server has them."""

import hashlib
from typing import Final

CHANNEL: Final = "fencelock"  # of all messages: the name of a channel is short, and a session listens to few
_NAME_BYTES: Final = 1020  # 255 characters, as in MySQL; an index takes no more than twice that


def key(name: str) -> bytes:
    """Encode a name as the tables have it. Raises `ValueError` if it is too long."""
    encoded = name.encode()
    if len(encoded) > _NAME_BYTES:
        raise ValueError(f"a name for PostgreSQL has at most {_NAME_BYTES} bytes: {name[:40]!r}...")
    return encoded


def observers(name: str) -> str:
    """Return the message for the observers of an election."""
    return hashlib.sha256(name.encode()).hexdigest()
