"""A client of MySQL and MariaDB that knows nothing of what its connections are for."""

from ...errors import ConfigurationError
from .client import DEADLOCK, DUPLICATE, NO_TABLE, Answer, Call, Lent, MySqlClient, Refused, Session, Sessions
from .group import GROUP, group_of

__all__ = [
    "DEADLOCK",
    "DUPLICATE",
    "GROUP",
    "NO_TABLE",
    "Answer",
    "Call",
    "ConfigurationError",
    "Lent",
    "MySqlClient",
    "Refused",
    "Session",
    "Sessions",
    "group_of",
]
