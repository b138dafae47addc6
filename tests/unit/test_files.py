"""Files from memory: packed for those who unpack, and not sent again to those who have them."""

import asyncio
import gzip
from typing import Any

import pytest
from starlette.requests import Request

from app.web.files import File

TEXT = b"the same again and " * 10_000
PACKED, SMALL = File.of("a.css", TEXT), File.of("a.png", b"\x00\x01")
PLAIN, ZIPPED = f'"{PACKED.digest}"', f'"{PACKED.digest}-gzip"'


def asked(file: File, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes, int]:
    """Status, headers and body of an answer, and the size of its largest piece."""
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "headers": raw}
    answer, sent = file.answer(Request(scope), keep="no-cache", headers={"X-Frame": "none"}), list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(answer(scope, lambda: None, send))  # type: ignore[arg-type, return-value]
    pieces = [one.get("body", b"") for one in sent[1:]]
    assert [one.get("more_body", False) for one in sent[1:]] == [True] * (len(pieces) - 1) + [False]
    told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], told, b"".join(pieces), max(map(len, pieces))


@pytest.mark.parametrize(
    ("takes", "zipped"),
    [
        *(("gzip", True), ("deflate, gzip;q=0.5, br", True), ("gzip;q=1", True), ("br, gzip", True)),
        *(("", False), ("gzip;q=0", False), ("gzip;q=0.000", False), ("br", False), ("x-gzip", False)),
    ],
)
def test_packed_or_not(takes: str, zipped: bool) -> None:
    """Each form has a tag of its own, and says that there is another one."""
    status, told, body, largest = asked(PACKED, accept_encoding=takes)
    assert (status, told["etag"], told.get("content-encoding")) == (
        (200, ZIPPED, "gzip") if zipped else (200, PLAIN, None)
    )
    assert (gzip.decompress(body) if zipped else body) == TEXT
    assert (told["vary"], told["content-length"], told["cache-control"]) == (
        "Accept-Encoding",
        str(len(body)),
        "no-cache",
    )
    assert (told["x-frame"], told["content-type"]) == ("none", "text/css; charset=utf-8")
    assert largest <= 65_536
    assert asked(PACKED, "HEAD", accept_encoding=takes)[1:3] == (told, b"")


def test_what_is_not_shorter_is_not_packed() -> None:
    """A small picture is sent as it is."""
    status, told, body, _ = asked(SMALL, accept_encoding="gzip")
    assert (status, body, told["content-type"], "content-encoding" in told) == (200, b"\x00\x01", "image/png", False)


@pytest.mark.parametrize("takes", ["gzip", ""])
def test_who_has_it_is_not_sent_it_again(takes: str) -> None:
    """By the tag of this form, also among others, and as a proxy may have weakened it."""
    mine, other = (ZIPPED, PLAIN) if takes else (PLAIN, ZIPPED)
    for known in (mine, f"W/{mine}", f'"x", {mine}'):
        status, told, body, _ = asked(PACKED, accept_encoding=takes, if_none_match=known)
        assert (status, body, told["etag"], told["x-frame"]) == (304, b"", mine, "none")
        assert "content-encoding" not in told
    for known in (other, mine[1:-1], '"x"', "*x"):
        assert asked(PACKED, accept_encoding=takes, if_none_match=known)[0] == 200
