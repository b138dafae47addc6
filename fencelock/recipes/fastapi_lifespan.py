"""A background job that runs in one of the workers of `uvicorn --workers 4`, or of several machines.

    LOCKS=redis://127.0.0.1:6379 uvicorn fastapi_lifespan:app --workers 4

Each worker runs the lifespan; one leads. If it dies, another one goes on within a TTL.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI

from fencelock import AsyncLeadership, LockLost, aio

EVERY_S = float(os.environ.get("EVERY_S", "60"))


async def work(term: AsyncLeadership) -> None:
    """Do the job, again and again; it is cancelled when the term is lost."""
    while True:
        print(f"worker {os.getpid()} works under token {term.token}", flush=True)
        await asyncio.sleep(EVERY_S)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Stand for the lead for as long as the worker lives."""
    async with aio.connect(os.environ["LOCKS"], ttl_s=5) as locks:
        leading = locks.leading("/jobs/work", f"worker {os.getpid()}")(work)
        task = asyncio.create_task(leading())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError, LockLost):
            await task


app = FastAPI(lifespan=lifespan)
