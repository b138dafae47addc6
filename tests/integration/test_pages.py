"""The pages come over HTTP with the right files and headers. `tests/browser` tests them in a browser."""

import html
import json
import mimetypes
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app.main import create_app
from app.web.catalogue import built_in
from lab.servers import EtcdMember, Valkey
from tests.harness.shop import client, settings

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "app" / "web" / "static"


@pytest.fixture
async def http(etcd: EtcdMember, valkey: Valkey) -> AsyncIterator[httpx.AsyncClient]:
    """Open a client of the service."""
    async with client(etcd.endpoint, valkey.url) as opened:
        yield opened


async def digest_of(http: httpx.AsyncClient) -> str:
    """Return the digest in the addresses of this release's files."""
    (digest,) = set(re.findall(r'"/static/([0-9a-f]{12})/[a-z0-9.]+"', (await http.get("/")).text))
    return str(digest)


async def test_files_and_their_headers(http: httpx.AsyncClient) -> None:
    """A page's files come as they are, or are 304 if cached; headers restrict what a browser may do with them."""
    digest = await digest_of(http)
    for path in ("/", "/?sku=%3Cscript%3E", "/shop/order", "/shop/order?id=default~1-1~abc"):
        await judge(http, path, digest)
    for file in STATIC.iterdir():
        await judge(http, f"/static/{file.name}", digest)
        await judge(http, f"/static/{digest}/{file.name}", digest)


async def judge(http: httpx.AsyncClient, path: str, digest: str) -> None:
    answer = await http.get(path)
    assert answer.status_code == 200
    name = path.rpartition("/")[2] if path.startswith("/static/") else "shop.html"
    name = "order.html" if path.startswith("/shop/order") else name
    as_it_is = (STATIC / name).read_bytes()
    if name.endswith(".html"):
        as_it_is = as_it_is.replace(b'"/static/', f'"/static/{digest}/'.encode())
    if path in ("/", "/shop/order?id=default~1-1~abc"):
        as_it_is = with_meta(as_it_is, "item", built_in().told["default"])
    if not path.startswith("/static/"):
        shop = {"name": None, "list": False, "most": 100, "pay": ""}
        as_it_is = with_meta(as_it_is, "shop", json.dumps(shop))
    assert answer.content == as_it_is
    assert answer.headers["content-type"].partition(";")[0] == mimetypes.guess_type(name)[0]
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {value for name, value in policy.items() if name.endswith("-src")} == {"'none'", "'self'"}
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    keep = "public, max-age=31536000, immutable" if digest in path else "no-cache"
    assert answer.headers["cache-control"] == keep
    known = await http.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert (known.status_code, known.content) == (304, b"")


def with_meta(page: bytes, name: str, told: str) -> bytes:
    meta = '<meta name="%s" content="%s">'
    return page.replace((meta % (name, "{}")).encode(), (meta % (name, html.escape(told))).encode())


async def test_a_page_of_another_release(http: httpx.AsyncClient) -> None:
    """Asked for another release's file during an upgrade, an instance sends its own, and forbids caching it."""
    ours = await http.get(f"/static/{await digest_of(http)}/shop.js")
    other = await http.get("/static/0123456789ab/shop.js")
    assert (other.status_code, other.content) == (200, ours.content)
    assert other.headers["cache-control"] == "no-store"
    unknown = await http.get("/static/0123456789ab/of-the-next-release.js")
    assert (unknown.status_code, unknown.headers["cache-control"]) == (404, "no-store")
    missing = await http.get(f"/static/{await digest_of(http)}/nothing.js")
    assert (missing.status_code, missing.headers["cache-control"]) == (404, "no-store")


async def test_what_a_page_is_told_of_its_item(etcd: EtcdMember, valkey: Valkey, tmp_path: Path) -> None:
    """The catalogue's text, whatever it is, is in one attribute; pictures are cached for good, and run no script."""
    name = """"><script>alert('&amp;')</script>"""
    (tmp_path / "a.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>')
    (tmp_path / "items.toml").write_text(
        f"shop = {{ en = 'Tea & <b>', zh = '茶' }}\n[items.tea]\nname = {json.dumps(name)}\npicture = 'a.svg'\n"
    )
    async with client(etcd.endpoint, valkey.url, catalogue=tmp_path / "items.toml") as http:
        pages = [(await http.get(path)).text for path in ("/?sku=tea", "/shop/order?id=tea~1-1~abc")]
        nothing = [(await http.get(path)).text for path in ("/?sku=coffee", "/shop/order?id=coffee~1-1~abc")]
        (whole,) = re.findall('<meta name="item" content="([^"]*)">', (await http.get("/")).text)
        assert json.loads(html.unescape(whole))["tea"]["name"]["en"] == name
        for page in pages:
            (told,) = re.findall('<meta name="item" content="([^"]*)">', page)
            assert "<" not in told
            item = json.loads(html.unescape(told))
            assert item["name"]["zh"] == name
        (shop,) = {text for page in pages for text in re.findall('<meta name="shop" content="([^"]*)">', page)}
        assert json.loads(html.unescape(shop)) == {
            "name": {"en": "Tea & <b>", "zh": "茶"},
            "list": True,
            "most": 100,
            "pay": "",
        }
        for page in nothing:
            assert '<meta name="item" content="{}">' in page
        picture = await http.get(item["picture"])
        assert picture.content == (tmp_path / "a.svg").read_bytes()
        assert picture.headers["content-type"] == "image/svg+xml"
        assert picture.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert picture.headers["x-content-type-options"] == "nosniff"
        policy = picture.headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "sandbox"} < set(policy)
        assert not any(part.startswith("script-src") for part in policy)
        for path in ("nothing.svg", "..%2fitems.toml", "a.svg"):
            answer = await http.get(f"/shop/pictures/{path}")
            assert (answer.status_code, answer.headers["cache-control"]) == (404, "no-store")


async def test_only_these_files_can_be_read(http: httpx.AsyncClient) -> None:
    """Other names, other folders and other methods get problem documents."""
    odd = ("nothing.js", "..%2fpages.py", "%2e%2e/pages.py", "%2fetc%2fpasswd", "%00", "x" * 300, "")
    for path in (*odd, "0123456789ab/..%2fpages.py", "0123456789AB/shop.js", "0123456789ab/", "0123456789ab/a/shop.js"):
        answer = await http.get(f"/static/{path}")
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json"), path
    for path in ("/", "/static/shop.js"):
        answer = await http.post(path)
        assert (answer.status_code, answer.headers["content-type"]) == (405, "application/problem+json"), path
        assert answer.headers["allow"] == "GET, HEAD"


def test_pages_are_no_part_of_the_api() -> None:
    """The OpenAPI document does not mention them."""
    app = create_app(settings("http://127.0.0.1:1", "redis://127.0.0.1:1"))
    assert [path for path in app.openapi()["paths"] if path == "/" or path.startswith(("/static", "/shop"))] == []


def test_pages_need_no_other_server() -> None:
    """All parts of a page are in the package: no file has an outside address, no HTML an inline script or style."""
    for file in STATIC.iterdir():
        if file.name.startswith("uplot"):  # a third party's, with its address in it; the policy holds for it, too
            continue
        text = file.read_text().replace('"http://www.w3.org/2000/svg"', "").replace("http://127.0.0.1:8080/", "")
        assert not any(scheme in text for scheme in ("http:", "https:", "data:")), file
        assert not any(inline in text for inline in ("<style", "style=", "onclick", "innerHTML", "eval(")), file
        assert text.count("<script") == text.count('<script type="module" src="/static/'), file
