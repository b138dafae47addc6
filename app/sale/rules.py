"""How a sale is run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """How a sale is run.

    `batch_max`: purchases a grant serves at most (1: the articles' one lock per request); `max_hold_s`: how many
    seconds a grant serves at most, so that other instances get their turn; `queue_max`: buyers who may wait for one
    lock in this instance; `purchase_timeout_s`: a purchase's own deadline; `limit_per_buyer`: units, 0 for no limit;
    `sold_out_ttl_s`: how many seconds the store's word that nothing is left is good for (0: ask each time);
    `starts_at`, `ends_at`: when purchases are served, in seconds since 1970, by this machine's clock.
    """

    batch_max: int = 1000
    max_hold_s: float = 0.05
    queue_max: int = 20_000
    purchase_timeout_s: float = 10.0
    limit_per_buyer: int = 0
    sold_out_ttl_s: float = 0.0
    starts_at: float | None = None
    ends_at: float | None = None
