"""MySQL and MariaDB: the locks there, and their client, which knows nothing of locks and serves a store as well.

`MySqlClient` pools connections, for one event loop, and runs work on them: a `Call` has one deadline for all of its
statements. An error of the server that the caller has listed is `Refused`; others are raised as the caller's own.
"""

from .client import DUPLICATE, Call, MySqlClient, Sessions
from .group import GROUP, group_of
from .session import Refused

__all__ = ["DUPLICATE", "GROUP", "Call", "MySqlClient", "Refused", "Sessions", "group_of"]
