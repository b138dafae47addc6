"""How much of a request's body is read at most, and how long: what we understand is small."""

import asyncio
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.problems import problem

BODY_MAX_BYTES: Final = 65_536
_TITLE: Final = "Content Too Large"
_DETAIL: Final = f"the body is larger than {BODY_MAX_BYTES} bytes"


class BodyLimit:
    """ASGI middleware: a body above the limit is refused with 413, before it is read if its length was declared.

    One that is not there `timeout_s` after it was asked for is refused with 408.
    """

    def __init__(self, app: ASGIApp, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with a `receive` that counts."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        left = BODY_MAX_BYTES
        until = asyncio.get_running_loop().time() + self._timeout_s
        complete = False

        async def limited() -> Message:
            nonlocal left, complete
            if complete:  # what is awaited now is the end of the connection
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(
                    408, f"no whole body within {self._timeout_s:g} s", {"Connection": "close"}
                ) from None
            complete = not message.get("more_body", False)
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, _DETAIL)
            return message

        if declared.isdigit() and int(declared) > BODY_MAX_BYTES:
            await problem(413, "http-413", _TITLE, _DETAIL, headers={"Connection": "close"})(scope, receive, send)
            return
        await self._app(scope, limited, send)
