"""The rules that a sale is run by."""

from dataclasses import dataclass

from app.orders import NO_TERMS, Terms


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that a sale is run by. Times are by this machine's clock."""

    batch_max: int = 1000  # purchases that a grant serves at most; 1: one lock for each, as in the articles
    max_hold_s: float = 0.01  # time after which a grant begins no batch, so that other instances get their turn
    queue_max: int = 20_000  # buyers who may wait for one lock in this instance
    purchase_timeout_s: float = 10.0  # a purchase's own deadline
    sold_out_ttl_s: float = 0.0  # for so long the answer that an item is not sold is cached; 0: not at all
    terms: Terms = NO_TERMS  # the terms of items that have none of their own
    grace_s: float = 60.0  # seconds that a payment may be late after its announced deadline
