"""Default headers of every answer: keep it nowhere, guess no type, show it in no frame."""

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


async def with_headers(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Have an application answer, and add the default headers that the answer lacks."""

    async def send_on(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message["headers"]
            said = {name.lower() for name, _ in headers}
            message["headers"] = [*headers, *(one for one in HEADERS if one[0] not in said)]
        await send(message)

    await app(scope, receive, send_on)
