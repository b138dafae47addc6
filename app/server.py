"""uvicorn, extended to close the shop when it is to stop."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Final

import uvicorn
from typing_extensions import override

from app.errors import ConfigurationError
from app.main import create_app
from app.settings import Settings
from app.web.connection import ClientConnection
from app.web.connection_limits import Places
from app.web.state import State

_log = logging.getLogger(__name__)

_BACKLOG: Final = 8192  # a rush connects all at once
_OTHER_FILES: Final = 200  # open besides the buyers' connections
_TICKS_PER_SWEEP: Final = 10  # uvicorn ticks ten times a second; to look at 10,000 connections at once would take 60 ms
_READING_TIMEOUT_S: Final = 10.0
_READING_TIMEOUT_AT_END_S: Final = 1.0


class Server(uvicorn.Server):
    """Serves until SIGTERM or Ctrl-C, then serves or refuses the waiting buyers, and ends.

    uvicorn by itself ends the application only after all requests have ended, and when they take too long it cancels
    them: the waiting buyers would get a 500, not an answer.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        drain_timeout_s: float,
        request_timeout_s: float,
        drain_delay_s: float = 0.0,
    ) -> None:
        super().__init__(config)
        self.server_state = Places()
        self._drain_delay_s = drain_delay_s
        self._leaves_at: float | None = None  # by the loop's clock, once it is to stop
        self._drain_timeout_s = drain_timeout_s
        self._request_timeout_s = request_timeout_s
        self._to_sweep: list[object] = []
        self._closing = False
        self.where = ""  # in words

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _log.info("serving %s", self.where)

    async def on_tick(self, counter: int) -> bool:
        """Sweep each connection once a second, some at each tick."""
        turn = counter % _TICKS_PER_SWEEP
        if turn == 0:
            self._to_sweep = list(self.server_state.connections)
        self._sweep(self._to_sweep[turn::_TICKS_PER_SWEEP], _READING_TIMEOUT_S)
        return await super().on_tick(counter) and self._may_leave()

    def _may_leave(self) -> bool:
        """Return whether the balancer in front has had time to see /readyz 503; buyers are served until then."""
        state, now = self.lifespan.state.get("seckill"), asyncio.get_running_loop().time()
        if self._leaves_at is None:
            self._leaves_at = now + self._drain_delay_s
            if isinstance(state, State):
                state.shop.leaving = True
            if self._drain_delay_s:
                _log.info(
                    "leaving in %g s, until then not ready; the same signal again skips that", self._drain_delay_s
                )
        return now >= self._leaves_at

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._leaves_at is not None and not self._closing:
            self._leaves_at = 0.0
        else:
            super().handle_exit(sig, frame)

    def _sweep(self, connections: Iterable[object], reading_timeout_s: float) -> None:
        now = asyncio.get_running_loop().time()
        for connection in connections:
            if isinstance(connection, ClientConnection):
                connection.sweep(now, request_timeout_s=self._request_timeout_s, reading_timeout_s=reading_timeout_s)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the shop while uvicorn waits for the requests."""
        state = self.lifespan.state.get("seckill")
        if not isinstance(state, State):
            await super().shutdown(sockets)
            return
        _log.info("closing, %d buyers wait", state.shop.buyers_waiting)
        self._closing = state.shop.leaving = True
        state.close_feeds()
        closing = asyncio.create_task(state.shop.close(within_s=self._drain_timeout_s))
        sweeping = asyncio.create_task(self._sweep_to_the_end())
        await super().shutdown(sockets)
        sweeping.cancel()
        if self.force_exit:  # a second Ctrl-C
            closing.cancel()
        await asyncio.wait([closing])

    async def _sweep_to_the_end(self) -> None:
        while True:  # a client that reads nothing must not delay the end
            await asyncio.sleep(_READING_TIMEOUT_AT_END_S / 2)
            self._sweep(list(self.server_state.connections), _READING_TIMEOUT_AT_END_S)


def run(settings: Settings) -> None:
    """Serve on `settings.host` and `settings.port` until a signal to stop."""
    server, listeners = prepare(settings)
    _calm_garbage_collection()
    if getattr(signal.getsignal(signal.SIGTERM), "came", False):
        sys.exit(128 + signal.SIGTERM)
    # In the end uvicorn raises the signal that ended it once more. By itself SIGTERM would then end the process at
    # once, without the exit handlers: OpenTelemetry sends the last spans in one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    server.run(listeners)


def prepare(settings: Settings) -> tuple[Server, list[socket.socket]]:
    """The server and its sockets: `server.run(listeners)`."""
    settings = settings.model_copy(update={"instance": settings.instance_on_port})
    application = create_app(settings)  # first, as a wrong setting is a better answer than a port that is taken
    ports = [("SECKILL_PORT", settings.port), ("SECKILL_OPERATOR_PORT", settings.operator_port)]
    listeners = [_listen(settings.host, port, name) for name, port in ports if port is not None]
    ClientConnection.connections_max = min(settings.connections_max, max(1, raise_file_limit() - _OTHER_FILES))
    config = uvicorn.Config(
        application,
        http=ClientConnection,
        ws="none",
        proxy_headers=bool(settings.proxies),
        forwarded_allow_ips=settings.proxies,
        log_config=None,  # our format for all
        log_level="warning",
        access_log=False,  # a line for each buyer would cost more than the sale
        backlog=_BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.drain_timeout_s) + 5,  # the shop is closed before that
    )
    server = Server(
        config,
        drain_delay_s=settings.drain_delay_s,
        drain_timeout_s=settings.drain_timeout_s,
        request_timeout_s=settings.request_timeout_ms / 1000,
    )
    at = [
        f"http://{f'[{settings.host}]' if ':' in settings.host else settings.host}:{port}" for _, port in ports if port
    ]
    server.where = f"buyers on {at[0]}/, the operator on {at[-1]}/control"
    return server, listeners


def _calm_garbage_collection() -> None:
    """Look for cycles less often: the objects of 20,000 waiting buyers are scanned in vain each time.

    Reference counts free nearly all that a purchase leaves. Not much less often, either: 100,000 objects at once take
    20 ms, mostly under the lock, where most of them are made. docs/performance.md has the effect.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 100)


def raise_file_limit() -> int:
    """Raise the limit of open files as far as the system allows, and return it; each connected buyer is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft not in {resource.RLIM_INFINITY, hard}:
        with contextlib.suppress(ValueError, OSError):  # macOS reports a higher limit than it grants
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def _listen(host: str, port: int, name: str) -> socket.socket:
    """Listen before anything else is opened, so that a port in use is reported at once, in one line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = str(error.strerror).partition(" (while ")[0]  # which Python adds, with the address once more
        raise ConfigurationError(f"SECKILL_HOST, {name}: can't listen on {host}:{port}: {reason}") from None
