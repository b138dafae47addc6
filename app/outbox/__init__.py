"""Orders leave: the elected sender delivers the events of all journals to the shop's webhook."""

from app.outbox.sender import Sender
from app.outbox.state import Dead, Parked, State, Wish
from app.outbox.webhook import Webhook

__all__ = ["Dead", "Parked", "Sender", "State", "Webhook", "Wish"]
