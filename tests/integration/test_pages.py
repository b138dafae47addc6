"""The pages over HTTP: their files and headers. `tests/browser` looks at them as people do."""

import mimetypes
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app.embedded import EtcdMember, Valkey
from app.main import create_app
from tests.harness.shop import client, settings

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "app" / "web" / "static"


@pytest.fixture
async def http(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the service."""
    async with client(etcd.endpoint, valkey.url) as opened:
        yield opened


@pytest.mark.parametrize("path", ["/", "/?sku=%3Cscript%3E", *(f"/static/{file.name}" for file in STATIC.iterdir())])
async def test_a_file_and_its_headers(http: httpx.AsyncClient, path: str) -> None:
    """GET and HEAD send it, or 304 to a browser that has it; the headers say what a browser must not do with it."""
    answer = await http.get(path)
    assert answer.status_code == 200
    name = path.rpartition("/")[2] if path.startswith("/static/") else "shop.html"
    assert answer.content == (STATIC / name).read_bytes()
    assert answer.headers["content-type"].partition(";")[0] == mimetypes.guess_type(name)[0]
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {value for name, value in policy.items() if name.endswith("-src")} == {"'none'", "'self'"}
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cache-control"] == "no-cache"

    head = await http.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["etag"] == answer.headers["etag"]
    known = await http.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert (known.status_code, known.content) == (304, b"")
    assert known.headers["content-security-policy"] == answer.headers["content-security-policy"]


async def test_only_these_files_can_be_read(http: httpx.AsyncClient) -> None:
    """Other names, other folders and other methods get problem documents."""
    for path in ("nothing.js", "..%2fpages.py", "%2e%2e/pages.py", "%2fetc%2fpasswd", "%00", "x" * 300, ""):
        answer = await http.get(f"/static/{path}")
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json"), path
    for path in ("/", "/static/shop.js"):
        answer = await http.post(path)
        assert (answer.status_code, answer.headers["content-type"]) == (405, "application/problem+json"), path
        assert answer.headers["allow"] == "GET, HEAD"


def test_pages_are_no_part_of_the_api() -> None:
    """The OpenAPI document does not mention them."""
    app = create_app(settings("http://127.0.0.1:1", "redis://127.0.0.1:1"))
    assert [path for path in app.openapi()["paths"] if path == "/" or path.startswith("/static")] == []


def test_pages_need_no_other_server() -> None:
    """All parts of a page are in the package: no file has an address elsewhere, no HTML has a script or style in it."""
    for file in STATIC.iterdir():
        if file.name.startswith("uplot"):  # somebody else's, with their address in it; the policy holds for it, too
            continue
        text = file.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "").replace("http://127.0.0.1:8080/", "")
        assert not any(scheme in text for scheme in ("http:", "https:", "data:")), file
        assert not any(inline in text for inline in ("<style", "style=", "onclick", "innerHTML", "eval(")), file
        assert text.count("<script") == text.count('<script type="module" src="/static/'), file
