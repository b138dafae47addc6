"""The pages, and the files that they are made of. The browser does all else through the public API.

A page is revalidated each time, and its files are kept by the browser for good: the page names them by a digest of
all of them. So a reload is one request.

The page about the API is Swagger UI, from a package that brings it: nothing is loaded from elsewhere.
"""

import hashlib
import html
import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from app.orders import DEFAULT_SKU, OrderId
from app.web import files
from app.web.catalogue import NOTHING, PICTURES
from app.web.files import File
from app.web.state import state_of

router = APIRouter(include_in_schema=False)

# A page runs and shows only files of this service, talks to it alone, and is in nobody's frame.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# A picture comes from outside: opened by itself it is shown, but nothing in it runs or is loaded.
_PICTURE_HEADERS: Final = _HEADERS | {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'"
}
READING: Final = ["GET", "HEAD"]
_FOLDER: Final = Path(__file__).parent / "static"
_DIGEST: Final = re.compile(r"[0-9a-f]{12}")
_META: Final = '<meta name="%s" content="%s">'
_swagger: Final = StaticFiles(packages=[("fastapi_offline", "static")])
_DOCS_HEADERS: Final = _HEADERS | {
    "Content-Security-Policy": _POLICY.replace("img-src 'self'", "img-src 'self' data:")  # its icons are in its styles
}


@dataclass(frozen=True, slots=True)
class _Static:
    """The folder `static`, as it was at the start. `digest`: of all of it, as parts of a page must go together."""

    digest: str
    files: dict[str, File]


_folders: Final = [_FOLDER]


@cache
def _static() -> _Static:
    found = {path.name: path.read_bytes() for folder in _folders for path in sorted(folder.iterdir()) if path.is_file()}
    whole = hashlib.sha256()
    for name, body in found.items():
        whole.update(b"%s\0%d\0%s" % (name.encode(), len(body), body))
    digest = whole.hexdigest()[:12]
    for name, body in found.items():
        if name.endswith(".html"):
            found[name] = body.replace(b'"/static/', b'"/static/%s/' % digest.encode())
    return _Static(digest, {name: File.of(name, body) for name, body in found.items()})


def load(more: Path | None = None) -> None:
    """Read and pack all files now, and not when the first buyer comes; `more`: an extension's folder."""
    if more is not None and more not in _folders:
        _folders.append(more)
        _static.cache_clear()
    _static()


def _named(name: str) -> File:
    file = _static().files.get(name)
    if file is None:
        raise HTTPException(404)
    return file


@lru_cache(1000)
def _about(name: str, told: str, shop: str) -> File:
    """Make a page with the descriptions of an item, or of all, and of the shop in it."""
    text = _named(name).body.decode()
    for what, content in (("item", told), ("shop", shop)):
        text = text.replace(_META % (what, html.escape(NOTHING)), _META % (what, html.escape(content)))
    return File.of(name, text.encode())


async def page(request: Request, name: str) -> Response:
    """A page from `static`, with the headers that every page has; 304 to a browser that has it already.

    Raises `HTTPException` 404 if there is no such file.
    """
    return _named(name).answer(request, keep=files.ASK_EACH_TIME, headers=_HEADERS)


def missing(request: Request) -> Response | None:
    """The page that a browser gets for a path that isn't there; None for any other client."""
    if request.method not in READING or "text/html" not in request.headers.get("accept", ""):
        return None
    body = _named("missing.html").body
    return Response(body, 404, headers=_HEADERS | {"Cache-Control": files.NOT_AT_ALL}, media_type="text/html")


def _page_about(request: Request, name: str, told: str) -> Response:
    state = state_of(request)
    shop = {
        "name": state.catalogue.shop,
        "list": state.catalogue.has_list,
        "most": state.quantity_max,
        "pay": state.pay_url,
    }
    made = _about(name, told, json.dumps(shop, ensure_ascii=False))
    return made.answer(request, keep=files.ASK_EACH_TIME, headers=_HEADERS)


@router.api_route("/", methods=READING)
async def shop(request: Request) -> Response:
    """The shop, for buyers: an item; without one the catalogue, if it is a list."""
    catalogue = state_of(request).catalogue
    if "sku" not in request.query_params and catalogue.has_list:
        return _page_about(request, "front.html", catalogue.whole)
    return _page_about(request, "shop.html", catalogue.told.get(request.query_params.get("sku", DEFAULT_SKU), NOTHING))


@router.api_route("/shop/order", methods=READING)
async def order_page(request: Request) -> Response:
    """An order, for people; an order's id begins with its item's name."""
    sku = OrderId.sku_of(request.query_params.get("id", ""))
    return _page_about(request, "order.html", state_of(request).catalogue.told.get(sku, NOTHING))


@router.api_route(PICTURES + "/{name}", methods=READING)
async def picture(request: Request, name: str) -> Response:
    """A picture of the catalogue's."""
    file = state_of(request).catalogue.pictures.get(name)
    if file is None:
        raise HTTPException(404)
    return file.answer(request, keep=files.FOR_GOOD, headers=_PICTURE_HEADERS)


@router.api_route("/docs", methods=READING)
async def docs(request: Request) -> Response:
    """The API, to read and to try."""
    response = await page(request, "docs.html")
    response.headers.update(_DOCS_HEADERS)
    return response


@router.api_route("/docs/{name}", methods=READING)
async def swagger(request: Request, name: str) -> Response:
    """The files of that page."""
    response = await _swagger.get_response(name, request.scope)
    response.headers.update(_HEADERS | {"Cache-Control": files.ASK_EACH_TIME})
    return response


@router.api_route("/static/{digest}/{name}", methods=READING)
async def static(request: Request, digest: str, name: str) -> Response:
    """The files of the pages.

    During an upgrade a page of one release may ask an instance of another for its files. It gets that one's, as
    most releases are compatible and a page without its script is useless; but nobody keeps that answer, so that the
    next reload after the upgrade is whole. (A redirect to the digest that we have could come to the other release
    again, and would have a module be there twice, under both its names.)
    """
    if not _DIGEST.fullmatch(digest):
        raise HTTPException(404)
    keep = files.FOR_GOOD if digest == _static().digest else files.NOT_AT_ALL
    return _named(name).answer(request, keep=keep, headers=_HEADERS)


@router.api_route("/static/{name}", methods=READING)
async def static_by_name(request: Request, name: str) -> Response:
    """The files of the pages, for links from outside."""
    return await page(request, name)


@router.api_route("/favicon.ico", methods=READING)
async def favicon(request: Request) -> Response:
    """The icon that browsers ask for beside answers that are no pages, such as the stock."""
    return await page(request, "icon.svg")
