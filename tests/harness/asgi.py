"""Run an ASGI application under a real uvicorn, in this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tests.harness.waiting import WITHIN_S, eventually


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve the application on a free loopback port, and yield its URL."""
    config = uvicorn.Config(app, port=0, lifespan="off", log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="uvicorn", daemon=True)
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive(), "it listens")
        [listener] = server.servers[0].sockets
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(WITHIN_S)
        assert not thread.is_alive()
