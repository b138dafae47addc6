"""The pages, and the files that they are made of. All else a browser does by itself, through everybody's API.

The page about the API is Swagger UI, from a package that brings it: nothing is loaded from elsewhere.
"""

from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.staticfiles import StaticFiles

router = APIRouter(include_in_schema=False)

# A page runs and shows what this service sent as a file of its own, talks to it alone, and is in nobody's frame.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # ask each time whether it is still the same: a new version is seen at once
}
READING: Final = ["GET", "HEAD"]
_files: Final = StaticFiles(directory=Path(__file__).parent / "static")
_swagger: Final = StaticFiles(packages=[("fastapi_offline", "static")])
_DOCS_HEADERS: Final = _HEADERS | {
    "Content-Security-Policy": _POLICY.replace("img-src 'self'", "img-src 'self' data:")  # its icons are in its styles
}


async def page(request: Request, name: str) -> Response:
    """A file from `static`, with the headers that every page has; 304 to a browser that has it already.

    Raises `HTTPException` 404 if there is no such file.
    """
    response = await _files.get_response(name, request.scope)
    response.headers.update(_HEADERS)
    return response


@router.api_route("/", methods=READING)
async def shop(request: Request) -> Response:
    """The shop, for buyers."""
    return await page(request, "shop.html")


@router.api_route("/docs", methods=READING)
async def docs(request: Request) -> Response:
    """The API, to read and to try."""
    response = await page(request, "docs.html")
    response.headers.update(_DOCS_HEADERS)
    return response


@router.api_route("/docs/{name}", methods=READING)
async def swagger(request: Request, name: str) -> Response:
    """What that page is made of."""
    response = await _swagger.get_response(name, request.scope)
    response.headers.update(_HEADERS)
    return response


@router.api_route("/static/{name}", methods=READING)
async def static(request: Request, name: str) -> Response:
    """What the pages are made of."""
    return await page(request, name)


@router.api_route("/favicon.ico", methods=READING)
async def favicon(request: Request) -> Response:
    """What browsers ask for beside all that is no page of ours: an order, the stock."""
    return await page(request, "icon.svg")
