"""uvicorn, told to close the shop when it is told to stop."""

import asyncio
import contextlib
import gc
import logging
import resource
import socket
from typing import Final

import uvicorn

from app.errors import ConfigurationError
from app.main import create_app
from app.settings import Settings
from app.web.connection import Connection
from app.web.state import State

_log = logging.getLogger(__name__)

_BACKLOG: Final = 8192  # a rush connects all at once
_OTHER_FILES: Final = 200  # that are open besides the buyers' connections
_TICKS_PER_SWEEP: Final = 10  # uvicorn ticks ten times a second


class Server(uvicorn.Server):
    """Serves until SIGTERM or Ctrl-C, then lets those who wait be served, or told to go elsewhere, and leaves.

    uvicorn by itself ends the application only after all requests have ended, and when they take too long it cancels
    them: those who waited would get a 500, not an answer.
    """

    def __init__(self, config: uvicorn.Config, *, drain_timeout_s: float, request_timeout_s: float) -> None:
        super().__init__(config)
        self._drain_timeout_s = drain_timeout_s
        self._request_timeout_s = request_timeout_s

    async def on_tick(self, counter: int) -> bool:
        """Close the connections whose request has been on its way for too long."""
        if counter % _TICKS_PER_SWEEP == 0:
            too_old = asyncio.get_running_loop().time() - self._request_timeout_s
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection) and (connection.waits_since or too_old) < too_old:
                    connection.refuse(408, f"no whole request within {self._request_timeout_s:g} s")
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the shop while uvicorn waits for the requests."""
        state = self.lifespan.state.get("seckill")
        if isinstance(state, State):
            _log.info("closing, %d buyers wait", sum(state.shop.waiting.values()))
            state.close_feeds()
            closing = asyncio.create_task(state.shop.close(within_s=self._drain_timeout_s))
            await super().shutdown(sockets)
            if self.force_exit:  # a second Ctrl-C
                closing.cancel()
            await asyncio.wait([closing])
        else:
            await super().shutdown(sockets)


def run(settings: Settings) -> None:
    """Serve on `settings.host` and `settings.port` until told to stop."""
    server, listener = prepare(settings)
    _calm_garbage_collection()
    server.run([listener])


def prepare(settings: Settings) -> tuple[Server, socket.socket]:
    """The server, and the socket that it is to be run on: `server.run([listener])`."""
    settings = settings.model_copy(update={"instance": settings.instance_on_port})
    listener = _listen(settings.host, settings.port)
    Connection.connections_max = min(settings.connections_max, max(1, raise_file_limit() - _OTHER_FILES))
    config = uvicorn.Config(
        create_app(settings),
        http=Connection,
        ws="none",
        proxy_headers=False,  # nobody here asks for a buyer's address
        log_config=None,  # our format for all
        log_level="warning",
        access_log=False,  # a line for each buyer would cost more than the sale
        backlog=_BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.drain_timeout_s) + 5,  # the shop is closed before that
    )
    server = Server(
        config, drain_timeout_s=settings.drain_timeout_s, request_timeout_s=settings.request_timeout_ms / 1000
    )
    return server, listener


def _calm_garbage_collection() -> None:
    """Look for cycles less often: what waits with 20,000 buyers is looked at in vain each time.

    Reference counts free nearly all that a purchase leaves. docs/performance.md has what it gives.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def raise_file_limit() -> int:
    """As many open files as the system lets us have; each buyer who is connected is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft not in {resource.RLIM_INFINITY, hard}:
        with contextlib.suppress(ValueError, OSError):  # macOS promises more than it gives
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def _listen(host: str, port: int) -> socket.socket:
    """Taken before anything is opened, so that a port in use is said at once, in one line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigurationError(
            f"SECKILL_HOST, SECKILL_PORT: can't listen on {host}:{port}: {error.strerror}"
        ) from None
