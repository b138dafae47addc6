"""An instance that can be hurt: SIGUSR1 stops its renewal thread for two TTLs, SIGUSR2 its event loop.

Nothing of this is in the service itself; here it is `seckill serve` with two signals more.
"""

import signal
import time

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

    def hang(number: int, frame: object) -> None:
        time.sleep(3 * settings.lock_ttl_s)

    signal.signal(signal.SIGUSR1, stop_renewing)
    signal.signal(signal.SIGUSR2, hang)
    server.run(listeners)


if __name__ == "__main__":
    main()
