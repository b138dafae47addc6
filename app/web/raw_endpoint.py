"""Endpoints that most requests are for are plain ASGI: the framework's way to them costs more than they do."""

from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


class RawEndpoint(Response):
    """Such an endpoint through the framework: for OpenAPI, and for an application that wraps ours."""

    def __init__(self, endpoint: ASGIApp) -> None:
        super().__init__()
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have it answer."""
        await self._endpoint(scope, receive, send)
