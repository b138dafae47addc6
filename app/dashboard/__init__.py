"""The control room: instances report themselves, and obey an operator's commands. No sale depends on it."""

from app.dashboard.delay_injection import DelayingStore
from app.dashboard.journal import Journal
from app.dashboard.picture import Picture
from app.dashboard.room import ControlRoom

__all__ = ["ControlRoom", "DelayingStore", "Journal", "Picture"]
