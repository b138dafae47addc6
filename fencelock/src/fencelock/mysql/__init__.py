"""MySQL and MariaDB: the locks there, and their client, which a store may use to dial."""

from .client import GROUP, MySqlClient, group_of

__all__ = ["GROUP", "MySqlClient", "group_of"]
