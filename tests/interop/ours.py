"""Run a contender with one of our locks: `python -m tests.interop.ours URL NAME TTL_S`. client.py has the protocol."""

import sys
import time

from fencelock import LockTimeout, connect
from tests.interop.contender import micros, obey, step


def main() -> None:
    url, name, ttl_s = sys.argv[1:]
    locks = connect(url, ttl_s=float(ttl_s))
    lock = locks.lock(name)
    leaderships = []

    def do(told: list[str]) -> str:
        match told:
            case ["acquire", wait_ms]:
                try:
                    grant = lock.acquire(wait_s=None if int(wait_ms) < 0 else int(wait_ms) / 1000)
                except LockTimeout:
                    return "timeout"
                return f"granted {grant.token} {micros()}"
            case ["release"]:
                at = micros()
                lock.release()
                return f"released {at}"
            case ["loop", rounds, rest_ms, *rest]:
                for _ in range(int(rounds)):
                    with lock:
                        step(*rest)
                    time.sleep(int(rest_ms) / 1000)
                return f"looped {rounds}"
            case ["campaign", value]:
                leaderships.append(locks.election(name).campaign(value))
                return "elected"
            case ["resign"]:
                leaderships.pop().resign()
                return "resigned"
            case _:
                raise ValueError(told)

    obey(do)


if __name__ == "__main__":
    main()
