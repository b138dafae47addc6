"""An instance that can be told to stop renewing its leases: SIGUSR1 stops its renewal thread for two TTLs.

Nothing of this is in the service itself; here it is `seckill serve` with one signal more.
"""

import signal

from app.server import prepare
from app.settings import load
from app.web.state import State


def main() -> None:
    """Serve as the environment says."""
    settings = load()
    server, listeners = prepare(settings)

    def stop_renewing(number: int, frame: object) -> None:
        state = server.lifespan.state.get("seckill")
        if isinstance(state, State):
            state.admin.pause_renewal(2 * settings.lock_ttl_s)

    signal.signal(signal.SIGUSR1, stop_renewing)
    server.run(listeners)


if __name__ == "__main__":
    main()
