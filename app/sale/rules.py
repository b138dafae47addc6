"""The rules that a sale is run by."""

from dataclasses import dataclass

from app.orders import NO_TERMS, Terms


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that a sale is run by.

    `batch_max`: purchases a grant serves at most (1: the articles' one lock per request); `max_hold_s`: how many
    seconds a grant serves at most, so that other instances get their turn; `queue_max`: buyers who may wait for one
    lock in this instance; `purchase_timeout_s`: a purchase's own deadline; `sold_out_ttl_s`: how many seconds the
    store's answer that nothing is left, or that an item is not sold now, is cached (0: ask each time); `terms`: those
    of the items that have none of their own; times are by this machine's clock; `grace_s`: how many seconds a
    payment may come later than the buyer is told.
    """

    batch_max: int = 1000
    max_hold_s: float = 0.01
    queue_max: int = 20_000
    purchase_timeout_s: float = 10.0
    sold_out_ttl_s: float = 0.0
    terms: Terms = NO_TERMS
    grace_s: float = 60.0
