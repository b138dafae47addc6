"""Messages for the operator when a store refuses: the cause, and the command that helps."""

from app.stock.batch import LAYOUT, Fence


def foreign(sku: str, seen: Fence, ours: Fence) -> str:
    """The text for a store that is fenced by another lock system's tokens."""
    return (
        f"the stock of {sku!r} is fenced by {seen.source} (token {seen.token}), ours is from {ours.source}; tokens of "
        f"two lock systems can't be compared. If {seen.source} is gone for good: seckill stock unfence --sku {sku}"
    )


def superseded(sku: str, seen: object, ours: Fence) -> str:
    """The text for a store that has seen another token than ours, or another batch."""
    return (
        f"the stock of {sku!r} has seen token {seen}, ours is {ours.token}: another instance had the lock after us "
        "(or, if the tokens are equal, another batch was prepared). If every instance says so for long, etcd was "
        f"restored from an older backup: seckill stock unfence --sku {sku}"
    )


def behind(sku: str, entry: str = "an order") -> str:
    """The text for a known order that is missing."""
    return (
        f"the store has lost orders of {sku!r}: {entry} was acknowledged and is not there; it was restored from an "
        "older copy, or a replica without its last writes was promoted. Put a complete copy in its place; if they are "
        f"gone for good: seckill stock accept-loss --sku {sku}; if the store was emptied on purpose: "
        f"seckill stock set N --new-sale --sku {sku}; if another deployment uses this etcd, it needs another "
        "SECKILL_LOCK_PREFIX"
    )


def changed(sku: str, stock: object) -> str:
    """Return the text of a stock that has changed since the decision's read."""
    return f"the stock of {sku!r} was changed to {stock} between our read and our write"


def other_layout(sku: str, layout: int) -> str:
    """The text for a sale whose layout is not known here; 0: none was noted."""
    known = f"(layout {layout}, and {LAYOUT} is known here)"
    if layout > LAYOUT:
        return (
            f"the sale of {sku!r} was begun by a newer release, whose data this one can't read {known}: sell it with "
            "that release"
        )
    return (
        f"the sale of {sku!r} was begun by an earlier, unreleased state of this project {known}: export its orders "
        f"with that state, then begin a new sale: seckill stock set N --new-sale --sku {sku}"
    )


def half(sku: str, lucky: int) -> str:
    """The text for an item whose last write ended half-way."""
    return (
        f"the last write of item {sku!r} ended half-way: it counts {lucky} units as sold, and the orders of some are "
        "not there; compare it with the orders, then set the stock (`seckill stock set`), which begins anew"
    )


def not_as_expected(sku: str, stock: int, lucky: int) -> str:
    """The text for a restock whose condition is not met."""
    return f"item {sku!r} has {stock} units left and {lucky} sold; nothing was changed"
