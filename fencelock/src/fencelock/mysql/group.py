"""Groups of servers that all take writes: a member may not have seen what another has just written."""

from collections.abc import Sequence
from typing import Any, Final

GROUP: Final = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on', 'group_replication_group_name')"


def group_of(rows: Sequence[Any]) -> str | None:
    """Return the kind of group that a server belongs to, by its answer to `GROUP`; None for a single server."""
    found: dict[str, str] = dict(rows)
    if found.get("wsrep_on") == "ON":
        return "Galera"
    return "group replication" if found.get("group_replication_group_name") else None
