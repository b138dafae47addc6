"""The observed quantities, and by how much each may differ between two quarters of a healthy run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Quantity:
    """A panel of the plot. `name`: that of its column in the CSV, one for each instance if `each`.

    `slack`: how much the last quarter's median may be above the second's besides the share (`flatness.SHARE`); None: it
    is shown and not judged. `why`: the reason for the slack.
    """

    name: str
    title: str
    unit: str
    slack: float | None
    why: str
    each: bool = False

    def columns(self, instances: Sequence[str]) -> list[str]:
        """Return its columns in the CSV."""
        return [f"{instance} {self.name}" for instance in instances] if self.each else [self.name]


# A leak of one with each fault adds thirty between the two medians of an hour, and one with each new sale six. So no
# slack of a count is as large as six.
QUANTITIES: Final = (
    Quantity("rss_mib", "memory (RSS)", "MiB", 4.0, "arenas of the allocator, of which a few are half empty", True),
    Quantity("open_files", "open file descriptors", "", 5.0, "buyers' connections, which come and go", True),
    Quantity("threads", "threads", "", 2.0, "gRPC's and the executor's come with the work", True),
    Quantity("etcd_leases", "leases in etcd", "", 3.0, "those lent last are kept for two seconds"),
    Quantity("etcd_lock_keys", "keys under the lock prefix", "", 2.0, "a waiter, or none, of each instance"),
    Quantity("etcd_watchers", "watchers in etcd", "", 3.0, "a waiter has one"),
    Quantity("etcd_open_files", "etcd's open file descriptors", "", 4.0, "its log is in a few files"),
    Quantity("store_clients", "connections of the store", "", 5.0, "a pool keeps what a rush has opened, 16 at most"),
    Quantity("store_keys", "keys in the store", "", 2.0, "refusals of an item are in one key or in two"),
    Quantity("store_notices", "notices on the board", "", 2.0, "a look of the control room is one"),
    Quantity("store_refusals", "refusals that are remembered", "", None, "grow with those of a sale; 20,000 an item"),
    Quantity("store_bytes_per_order", "the store's bytes an order", "B", 16.0, "a hash doubles its table in steps"),
    Quantity("store_mib", "the store's memory", "MiB", None, "grows with the orders of a sale"),
    Quantity(
        "etcd_bytes_per_order", "etcd's bytes an order", "B", None, "past revisions, until etcd is told to compact"
    ),
    Quantity("orders_per_s", "orders a second", "", None, "what the crowd finds time for"),
)
