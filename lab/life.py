"""The picture of an order's life: which command leads from which state to which, and by which event.

A test drives the decision over all states and commands, and compares what it saw with what is drawn.
"""

from typing import Final, NamedTuple

from app.orders import Cancel, Command, Confirm, EventKind, Expire, Extend, Hold, OrderState, Purchase, Refund

SOLD, HELD, CONFIRMED, EXPIRED, CANCELLED, REFUNDED = OrderState


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
    Arrow(HELD, Confirm, EventKind.CONFIRMED, CONFIRMED): Drawn("M380 206H486", 434, 194, "confirm"),
    Arrow(HELD, Cancel, EventKind.CANCELLED, CANCELLED): Drawn("M284 270V362", 316, 322, "cancel"),
    Arrow(HELD, Expire, EventKind.EXPIRED, EXPIRED): Drawn("M380 250L486 372", 410, 330, "time is up"),
    Arrow(EXPIRED, Confirm, EventKind.CONFIRMED, CONFIRMED): Drawn(
        "M584 366V274", 676, 322, "confirm: late, and units are left"
    ),
    Arrow(CONFIRMED, Refund, EventKind.REFUNDED, REFUNDED): Drawn("M680 206H786", 734, 194, "refund"),
    Arrow(SOLD, Refund, EventKind.REFUNDED, REFUNDED): Drawn("M380 66H884V138", 620, 54, "refund"),
}
# What leaves the state as it is, and is an event all the same: of a payment, or of the second window.
LOOPS: Final = {
    Arrow(HELD, Extend, EventKind.EXTENDED, HELD): "extend: the second window",
    Arrow(HELD, Confirm, EventKind.AMOUNT_MISMATCH, HELD): "confirm: a wrong amount",
    Arrow(HELD, Refund, EventKind.REFUNDED, HELD): "refund: of a wrong amount",
    Arrow(CONFIRMED, Confirm, EventKind.REFUND_DUE, CONFIRMED): "confirm: another payment",
    Arrow(CONFIRMED, Refund, EventKind.REFUNDED, CONFIRMED): "refund: of that, or a part",
    Arrow(EXPIRED, Confirm, EventKind.REFUND_DUE, EXPIRED): "confirm: nothing is left",
    Arrow(EXPIRED, Expire, EventKind.REFUND_DUE, EXPIRED): "time is up: a wrong amount",
    Arrow(EXPIRED, Refund, EventKind.REFUNDED, EXPIRED): "refund: of a payment",
    Arrow(CANCELLED, Confirm, EventKind.REFUND_DUE, CANCELLED): "confirm: it comes too late",
    Arrow(CANCELLED, Cancel, EventKind.REFUND_DUE, CANCELLED): "cancel: a wrong amount",
    Arrow(CANCELLED, Refund, EventKind.REFUNDED, CANCELLED): "refund: of a payment",
    Arrow(REFUNDED, Confirm, EventKind.REFUND_DUE, REFUNDED): "confirm: another payment",
    Arrow(REFUNDED, Refund, EventKind.REFUNDED, REFUNDED): "refund: of that",
}

_BOXES: Final = {
    SOLD: (188, 26, 80),
    HELD: (188, 142, 128),
    CANCELLED: (188, 364, 128),
    CONFIRMED: (488, 142, 130),
    EXPIRED: (488, 366, 126),
    REFUNDED: (788, 140, 130),
}
_WIDTH: Final = 192
_ROW: Final = 19


def draw() -> str:
    """Return the picture as an SVG, with the names of states and events as the code has them."""
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 512" width="1000" height="512" role="img" '
        'aria-labelledby="t" font-family="system-ui, sans-serif" font-size="13">',
        '  <title id="t">The life of an order: the states, and the commands that lead from one to another</title>',
        '  <defs><marker id="a" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
        '<path d="M0 0 9 4 0 8z" fill="#848d97"/></marker></defs>',
        '  <rect width="1000" height="512" rx="8" fill="#ffffff"/>',
        *(f'  <circle cx="96" cy="{y}" r="6" fill="#848d97"/>' for y in (66, 206)),
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
                lines.append(f'  <text x="{x + 14}" y="{at}" fill="#59636e">{label}</text>')
                at += _ROW
    return "\n".join([*lines, "</svg>", ""])
