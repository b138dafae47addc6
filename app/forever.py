"""Work that goes on until it is cancelled, and its end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Never

from app.errors import EXPECTED
from fencelock.kit import settled


async def run_forever(
    step: Callable[[], Awaitable[object]], *, every_s: float, log: logging.Logger, what: str
) -> Never:
    """Await `step` again and again, with `every_s` seconds in between, whatever it raises; `what` is for the log."""
    while True:
        try:
            await step()
        except EXPECTED as error:
            log.debug("%s: %s", what, error)
        except Exception:
            log.exception("unexpected error in %s", what)
        await asyncio.sleep(every_s)


async def end(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel them, and wait until they are over, even if the caller is cancelled meanwhile: see `settled`."""
    for task in tasks:
        task.cancel()
    await settled(asyncio.gather(*tasks, return_exceptions=True))
