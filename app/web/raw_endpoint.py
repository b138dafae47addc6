"""The busiest endpoints are plain ASGI, as the framework's overhead is more than their own work."""

from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


class RawEndpoint(Response):
    """A plain ASGI endpoint as a response of the framework: for OpenAPI, and for an application that wraps ours."""

    def __init__(self, endpoint: ASGIApp) -> None:
        super().__init__()
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the endpoint answer."""
        await self._endpoint(scope, receive, send)
