"""Pages that look on: control rooms, so many of each instance, that read the events and do nothing with them.

    python -m loadtest.bench.onlookers --pages 20 --token TOKEN --urls http://127.0.0.1:8080 http://127.0.0.1:8090

Says "looking" when each of them has received something, and goes on until it is stopped.
"""

import argparse
import asyncio
from urllib.parse import urlsplit


async def _look(url: str, token: str, looking: asyncio.Barrier) -> None:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(
        f"GET /control/live HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"answered {head[:60]!r}")
    await reader.readuntil(b"data: ")
    await looking.wait()
    while await reader.read(65536):
        pass
    raise RuntimeError("the instance let us go")


async def _look_on(urls: list[str], pages: int, token: str) -> None:
    looking = asyncio.Barrier(pages + 1)
    async with asyncio.TaskGroup() as group:
        for number in range(pages):
            group.create_task(_look(urls[number % len(urls)], token, looking))
        await looking.wait()
        print("looking", flush=True)


def main() -> None:
    """Open the pages, and look on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument("--token", required=True)
    parser.add_argument("--urls", nargs="+", required=True)
    options = parser.parse_args()
    asyncio.run(_look_on(options.urls, options.pages, options.token))


if __name__ == "__main__":
    main()
