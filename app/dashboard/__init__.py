"""The control room: what instances tell of themselves, and what an operator has them do. No sale rests on it."""

from app.dashboard.delay_injection import DelayingStore
from app.dashboard.journal import Journal
from app.dashboard.picture import Picture
from app.dashboard.room import ControlRoom

__all__ = ["ControlRoom", "DelayingStore", "Journal", "Picture"]
