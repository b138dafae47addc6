"""A lock of another Python package: `python -m tests.interop.peer CONTESTANT ADDRESS NAME TTL_S`; see client.py."""

import sys
import time
from pathlib import Path

from loadtest.bench.locks import CONTESTANTS
from tests.interop.contender import micros, obey


def main() -> None:
    contestant, address, name, _ = sys.argv[1:]
    lock = CONTESTANTS[contestant].open(address, name.strip("/").replace("/", "-"))

    def do(told: list[str]) -> str:
        match told:
            case ["race", ms, file]:
                turns = []
                end = time.monotonic() + int(ms) / 1000
                while time.monotonic() < end:
                    lock.take()
                    turns.append(f"{micros()} {micros()}\n")
                    lock.give()
                Path(file).write_text("".join(turns))
                return f"raced {len(turns)}"
            case _:
                raise ValueError(told)

    obey(do)


if __name__ == "__main__":
    main()
