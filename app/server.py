"""uvicorn, told to close the shop when it is told to stop."""

import asyncio
import socket

import uvicorn

from app.main import create_app
from app.settings import Settings
from app.web.state import State


class Server(uvicorn.Server):
    """Serves until SIGTERM or Ctrl-C, then lets those who wait be served, or told to go elsewhere, and leaves.

    uvicorn by itself ends the application only after all requests have ended, and when they take too long it cancels
    them: those who waited would get a 500, not an answer.
    """

    def __init__(self, config: uvicorn.Config, *, drain_timeout_s: float) -> None:
        super().__init__(config)
        self._drain_timeout_s = drain_timeout_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the shop while uvicorn waits for the requests."""
        state = self.lifespan.state.get("seckill")
        if isinstance(state, State):
            await asyncio.gather(state.shop.close(within_s=self._drain_timeout_s), super().shutdown(sockets))
        else:
            await super().shutdown(sockets)


def run(settings: Settings) -> None:
    """Serve on `settings.host` and `settings.port` until told to stop."""
    settings = settings.model_copy(update={"instance": settings.instance_on_port})
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,  # a line for each buyer would cost more than the sale
        backlog=8192,  # a rush connects all at once
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.drain_timeout_s) + 5,  # the shop is closed before that
    )
    Server(config, drain_timeout_s=settings.drain_timeout_s).run()
