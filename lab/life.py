"""The picture of an order's life: which command leads from which state to which, and by which event.

A test drives the decision over all states and commands, and compares what it saw with what is drawn.
"""

from typing import Final, NamedTuple

from app.orders import Cancel, Command, Confirm, EventKind, Expire, Extend, Hold, Incident, OrderState, Purchase, Refund

SOLD, WAITING, HELD, CONFIRMED, EXPIRED, CANCELLED, REFUNDED = OrderState


class Arrow(NamedTuple):
    """A change of an order: from a state (None: it begins), by a command (`Expire`: its time is up), to a state."""

    before: OrderState | None
    by: type[Command]
    kind: EventKind
    after: OrderState


class Drawn(NamedTuple):
    """How an arrow is drawn: its path, the place of its label, and the label."""

    path: str
    x: int
    y: int
    label: str


ARROWS: Final = {
    Arrow(None, Purchase, EventKind.SOLD, SOLD): Drawn("M104 66H186", 146, 54, "purchase"),
    Arrow(None, Hold, EventKind.HELD, HELD): Drawn("M104 206H186", 146, 194, "hold"),
    Arrow(None, Hold, EventKind.WAITING, WAITING): Drawn("M104 536H186", 146, 524, "hold: wait"),
    Arrow(WAITING, Expire, EventKind.OFFERED, HELD): Drawn("M188 500H160V250H186", 92, 380, "units came back"),
    Arrow(WAITING, Cancel, EventKind.CANCELLED, CANCELLED): Drawn("M270 482V458", 240, 474, "cancel"),
    Arrow(WAITING, Expire, EventKind.CANCELLED, CANCELLED): Drawn("M310 482V458", 366, 474, "the sale ends"),
    Arrow(HELD, Confirm, EventKind.CONFIRMED, CONFIRMED): Drawn("M390 206H486", 438, 194, "confirm"),
    Arrow(HELD, Cancel, EventKind.CANCELLED, CANCELLED): Drawn("M288 277V340", 318, 314, "cancel"),
    Arrow(HELD, Expire, EventKind.EXPIRED, EXPIRED): Drawn("M390 258L486 356", 402, 322, "time is up"),
    Arrow(EXPIRED, Confirm, EventKind.CONFIRMED, CONFIRMED): Drawn(
        "M588 340V277", 672, 314, "confirm: late, some left"
    ),
    Arrow(CONFIRMED, Refund, EventKind.REFUNDED, REFUNDED): Drawn("M690 206H786", 738, 194, "refund"),
    Arrow(CONFIRMED, Incident, EventKind.DISPUTE_LOST, REFUNDED): Drawn("M690 240H786", 738, 228, "dispute lost"),
    Arrow(SOLD, Refund, EventKind.REFUNDED, REFUNDED): Drawn("M390 66H888V140", 620, 54, "refund"),
}
# What leaves the state as it is, and is an event all the same: of a payment, or of the second window. Requests of the
# cashier, refunds that fail, and disputes do so in each state, and are not drawn.
LOOPS: Final = {
    Arrow(WAITING, Cancel, EventKind.CANCELLED, WAITING): "some units",
    Arrow(WAITING, Confirm, EventKind.REFUND_DUE, WAITING): "it comes too early",
    Arrow(WAITING, Refund, EventKind.REFUNDED, WAITING): "that payment",
    Arrow(HELD, Extend, EventKind.EXTENDED, HELD): "second window",
    Arrow(HELD, Confirm, EventKind.AMOUNT_MISMATCH, HELD): "a payment",
    Arrow(HELD, Refund, EventKind.REFUND_DUE, HELD): "that payment",
    Arrow(HELD, Refund, EventKind.REFUNDED, HELD): "that payment",
    Arrow(HELD, Cancel, EventKind.CANCELLED, HELD): "some units",
    Arrow(SOLD, Refund, EventKind.REFUNDED, SOLD): "some units",
    Arrow(CONFIRMED, Confirm, EventKind.REFUND_DUE, CONFIRMED): "one too many",
    Arrow(CONFIRMED, Refund, EventKind.REFUND_DUE, CONFIRMED): "a part",
    Arrow(CONFIRMED, Refund, EventKind.REFUNDED, CONFIRMED): "that, a part, some units",
    Arrow(EXPIRED, Confirm, EventKind.REFUND_DUE, EXPIRED): "late, none is left",
    Arrow(EXPIRED, Expire, EventKind.REFUND_DUE, EXPIRED): "wrong amount",
    Arrow(EXPIRED, Refund, EventKind.REFUNDED, EXPIRED): "that payment",
    Arrow(CANCELLED, Confirm, EventKind.REFUND_DUE, CANCELLED): "it comes too late",
    Arrow(CANCELLED, Cancel, EventKind.REFUND_DUE, CANCELLED): "wrong amount",
    Arrow(CANCELLED, Refund, EventKind.REFUNDED, CANCELLED): "that payment",
    Arrow(REFUNDED, Confirm, EventKind.REFUND_DUE, REFUNDED): "one too many",
    Arrow(REFUNDED, Refund, EventKind.REFUNDED, REFUNDED): "that payment",
}

_BOXES: Final = {
    SOLD: (188, 26, 80),
    HELD: (188, 142, 133),
    CANCELLED: (188, 342, 114),
    WAITING: (188, 484, 95),
    CONFIRMED: (488, 142, 133),
    EXPIRED: (488, 342, 114),
    REFUNDED: (788, 142, 114),
}
_WIDTH: Final = 200
_ROW: Final = 19


def draw() -> str:
    """Return the picture as an SVG, with the names of states and events as the code has them."""
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 600" width="1000" height="600" role="img" '
        'aria-labelledby="t" font-family="system-ui, sans-serif" font-size="13">',
        '  <title id="t">The life of an order: the states, and the commands that lead from one to another</title>',
        '  <defs><marker id="a" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
        '<path d="M0 0 9 4 0 8z" fill="#848d97"/></marker></defs>',
        '  <rect width="1000" height="600" rx="8" fill="#ffffff"/>',
        *(f'  <circle cx="96" cy="{y}" r="6" fill="#848d97"/>' for y in (66, 206, 536)),
    ]
    for drawn in ARROWS.values():
        lines += [
            f'  <path d="{drawn.path}" fill="none" stroke="#848d97" stroke-width="2" marker-end="url(#a)"/>',
            f'  <text x="{drawn.x}" y="{drawn.y}" fill="#1f2328" text-anchor="middle">{drawn.label}</text>',
        ]
    for state, (x, y, height) in _BOXES.items():
        lines += [
            f'  <rect x="{x}" y="{y}" width="{_WIDTH}" height="{height}" rx="8" fill="#ddf4ff" stroke="#848d97"/>',
            f'  <text x="{x + 14}" y="{y + 27}" fill="#1f2328" font-size="17" font-weight="700">{state}</text>',
        ]
        at = y + 51
        for loop, label in LOOPS.items():
            if loop.before is state:
                lines.append(f'  <text x="{x + 14}" y="{at}" fill="#59636e" font-size="12">{loop.kind}: {label}</text>')
                at += _ROW
    return "\n".join([*lines, "</svg>", ""])
