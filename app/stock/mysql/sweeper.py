"""What earlier sales have left in MySQL, deleted by and by: a new sale of two million orders holds nobody up."""

import logging
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from app.common.mysql import MySqlClient, Sessions
from app.errors import StockUnavailable
from app.stock.mysql import tables
from app.stock.mysql.tables import Item

_log = logging.getLogger(__name__)


class Sweeper:
    """Deletes what does not count any more, a thousand rows at a time, with pauses.

    Whoever sells an item, or begins a sale of it, sweeps; so it does not matter who stops before all is gone. Several
    get in each other's way: then one of them goes on.
    """

    def __init__(self, client: MySqlClient, sessions: Sessions) -> None:
        self._client = client
        self._sessions = sessions
        self._thread = ThreadPoolExecutor(1, "seckill-sweeper")
        self._under_way: set[str] = set()
        self._closed = threading.Event()

    def sweep(self, items: Iterable[Item]) -> None:
        """Begin to sweep those of the items that need it."""
        for item in items:
            if item.swept != item.sale and item.sku not in self._under_way and not self._closed.is_set():
                self._under_way.add(item.sku)
                self._thread.submit(self._sweep, item)

    def _sweep(self, item: Item) -> None:
        try:
            began_at = time.monotonic()
            while self._client.call(partial(tables.sweep, item=item), sessions=self._sessions):
                # As long as it took: the sale has the disk at least as often.
                if self._closed.wait(time.monotonic() - began_at):
                    break
                began_at = time.monotonic()
        except StockUnavailable:
            pass  # it is done again with the next sale
        except Exception:
            _log.exception("unexpected error while sweeping %s", item.sku)
        finally:
            self._under_way.discard(item.sku)

    def close(self) -> None:
        """Stop, in the middle of it."""
        self._closed.set()
        self._thread.shutdown(wait=False, cancel_futures=True)
