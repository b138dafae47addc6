"""Django: `manage.py migrate` in each container at its start, one after another.

Save it as `yourapp/management/commands/migrate.py`, with `yourapp` in INSTALLED_APPS: it takes the place of Django's
own. The first one migrates; the others wait for that, and find nothing left to do.
"""

import os
from typing import Any

from django.core.management.commands.migrate import Command as Migrate

from fencelock import connect


class Command(Migrate):
    """Django's `migrate`, under a lock."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Migrate, once nobody else does."""
        with connect(os.environ["LOCKS"], ttl_s=30) as locks, locks.lock("/yourapp/migrate").holding(wait_s=600):
            super().handle(*args, **options)
