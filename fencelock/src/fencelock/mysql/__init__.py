"""The locks in MySQL and MariaDB, and their client, by which a store may connect, too."""

from .client import GROUP, MySqlClient, group_of

__all__ = ["GROUP", "MySqlClient", "group_of"]
