"""Send very many buyers from a separate process: together with the service one can't have all these sockets."""

import asyncio
import json
import subprocess
import sys
from collections import Counter

WITHIN_S = 90.0


class Crowd:
    """A crowd of buyers at one instance. `answers()` waits for all of them, and counts the answers."""

    def __init__(self, port: int, count: int) -> None:
        argv = [sys.executable, "-m", "tests.harness.crowd", str(port), str(count)]
        self._child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)

    def answers(self) -> Counter[str]:
        """Return the counts by status; "503 without Retry-After" and "lost" are counted apart."""
        try:
            said, _ = self._child.communicate(timeout=WITHIN_S + 30)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.communicate()
            raise
        return Counter(json.loads(said))


async def _buy(port: int, number: int) -> str:
    try:
        async with asyncio.timeout(WITHIN_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                line = f"GET /stock/reduce?buyer=b{number} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                writer.write(line.encode())
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
            finally:
                writer.close()
    except TimeoutError:
        return "no answer"
    except (OSError, asyncio.IncompleteReadError) as error:
        return f"lost: {type(error).__name__}"
    status = head.split()[1].decode()
    return "503 without Retry-After" if status == "503" and b"retry-after" not in head else status


async def _main(port: int, count: int) -> None:
    answers = await asyncio.gather(*(_buy(port, number) for number in range(count)))
    print(json.dumps(Counter(answers)))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
