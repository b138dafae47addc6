"""Alembic: `alembic upgrade head` in each container at its start, one after another.

It is the `env.py` that `alembic init` writes, for a database that is there, with a lock around it. The first one
migrates; the others wait for that, and find nothing left to do.
"""

import os

from alembic import context
from sqlalchemy import engine_from_config, pool

from fencelock import connect

config = context.config
engine = engine_from_config(config.get_section(config.config_ini_section, {}), poolclass=pool.NullPool)

with connect(os.environ["LOCKS"], ttl_s=30) as locks, locks.lock("/yourapp/alembic").holding(wait_s=600):
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=None)
        with context.begin_transaction():
            context.run_migrations()
