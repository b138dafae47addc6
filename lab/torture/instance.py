"""An instance that can be hurt and watched: `python -m lab.torture.instance FOLDER [BUG]`.

SIGUSR1 stops its renewal for two TTLs, SIGUSR2 its event loop for three. FOLDER is for its beliefs about its locks;
BUG is one of `lab.torture.bugs`. The service itself has nothing of this; here it is `seckill serve` with all that.
"""

import signal
import sys
import time
from pathlib import Path

from app.server import prepare
from app.settings import Settings, load
from app.web.state import State
from lab.torture import asked, beliefs, bugs, long_hold


def main(folder: Path, bug: str = "") -> None:
    """Serve as the environment's settings say."""
    settings = load()
    name = settings.instance_name
    with beliefs.watch(folder / beliefs.FILE, name):
        if bug:
            bugs.BUGS[bug].plant()
        with asked.watch(folder / asked.FILE, name):
            _serve(settings, folder)


def _serve(settings: Settings, folder: Path) -> None:
    server, listeners = prepare(settings)
    pause_long_holds = long_hold.begin(settings, folder)

    def stop_renewing(number: int, frame: object) -> None:
        state = server.lifespan.state.get("seckill")
        if isinstance(state, State):
            state.readiness.pause_renewal(2 * settings.lock_ttl_s)
        pause_long_holds(2 * settings.lock_ttl_s)

    def hang(number: int, frame: object) -> None:
        time.sleep(3 * settings.lock_ttl_s)

    signal.signal(signal.SIGUSR1, stop_renewing)
    signal.signal(signal.SIGUSR2, hang)
    server.run(listeners)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
