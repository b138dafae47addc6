"""Files that are sent from memory, compressed once at the start, not for each request."""

import gzip
import hashlib
import mimetypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

ASK_EACH_TIME: Final = "no-cache"  # to revalidate: a new version is seen at once
FOR_GOOD: Final = "public, max-age=31536000, immutable"  # for files whose name changes with their content
NOT_AT_ALL: Final = "no-store"
_TAKES_GZIP: Final = re.compile(r"(?:^|,)\s*gzip\s*(?:$|,|;\s*q=(?:1|0\.0*[1-9]))")
_PIECE_BYTES: Final = 65_536


class _InPieces(Response):
    """Sends the body in pieces, as fast as the client reads: else each slow client would have all of it in memory."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for begin in range(0, len(self.body), _PIECE_BYTES):
            await send(
                {"type": "http.response.body", "body": self.body[begin : begin + _PIECE_BYTES], "more_body": True}
            )
        await send({"type": "http.response.body", "body": b""})


@dataclass(frozen=True, slots=True)
class File:
    """A file to send. `packed`: compressed with gzip, if that is shorter; `digest`: of its content."""

    media_type: str
    body: bytes
    packed: bytes | None
    digest: str

    @classmethod
    def of(cls, name: str, body: bytes) -> Self:
        """Make a file; its type is that of the name's ending."""
        packed = gzip.compress(body, mtime=0)  # without the time: instances of one release send the same
        return cls(
            mimetypes.guess_type(name)[0] or "application/octet-stream",
            body,
            packed if len(packed) < len(body) else None,
            hashlib.sha256(body).hexdigest()[:16],
        )

    def answer(self, request: Request, *, keep: str, headers: Mapping[str, str]) -> Response:
        """The file with these headers, or 304 to a browser that has it; `keep`: for how long it may."""
        body, etag = self.body, f'"{self.digest}"'
        if self.packed is not None and _TAKES_GZIP.search(request.headers.get("accept-encoding", "")):
            # Other bytes, so another tag.
            body, etag = self.packed, f'"{self.digest}-gzip"'
            headers = {**headers, "Content-Encoding": "gzip"}
        headers = {**headers, "Cache-Control": keep, "ETag": etag, "Vary": "Accept-Encoding"}
        known = request.headers.get("if-none-match", "")
        if etag in (one.strip().removeprefix("W/") for one in known.split(",")):
            return Response(status_code=304, headers={k: v for k, v in headers.items() if k != "Content-Encoding"})
        headers["Content-Length"] = str(len(body))
        return _InPieces(b"" if request.method == "HEAD" else body, headers=headers, media_type=self.media_type)
