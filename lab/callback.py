"""Callbacks, as all that pretend to be a payment provider here send them."""

import json
from datetime import UTC, datetime
from typing import Any

import standardwebhooks


def signed(secret: str, name: str, body: str, at: datetime | None = None) -> dict[str, str]:
    """Return the headers of a message, signed now or at another time, as Standard Webhooks has it."""
    at = at or datetime.now(UTC)
    return {
        "webhook-id": name,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": standardwebhooks.Webhook(secret).sign(name, at, body),
    }


def body_of(kind: str, data: dict[str, Any]) -> str:
    """Return the body of a callback; what is None is not said."""
    told = {name: value for name, value in data.items() if value is not None}
    return json.dumps({"type": kind, "timestamp": datetime.now(UTC).isoformat(), "data": told})
