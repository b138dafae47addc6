"""A purchase has only one parser: it understands real clients' requests, and ignores nothing silently."""

import asyncio
import json
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import httptools
import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from hypothesis import given
from hypothesis import strategies as st

from app.main import create_app
from app.orders import Answer, OrderId, Outcome, Purchase
from app.settings import load
from app.web.auth import AdminAuth
from app.web.call import asgi
from app.web.headers import with_headers
from app.web.identity import is_buyer
from app.web.purchase import ROUTE, parse
from app.web.state import State
from tests.harness.clients import BUYERS, FOREIGN_PAGES

Headers = list[tuple[bytes, bytes]]

WANTED = Purchase(2, "phone", "ann lee", "k-1")


UNSEEN = "\0\n\x85\xad\u034f\u061c\u180e\u200b\u2028\u202e\u3164\ufeff\uffa0\ufff9\ud800\U000e0041"


@pytest.mark.parametrize("odd", UNSEEN, ids=ascii)
def test_names_that_can_not_be_seen(odd: str) -> None:
    """Two buyers never look the same by a character that is not shown; names and emoji of all scripts are taken."""
    assert not is_buyer(odd) and not is_buyer(f"an{odd}n")
    persian, mongolian, emoji = (
        "\u0645\u06cc\u200c\u062e",
        "\u182e\u1823\u1829",
        "\U0001f469\u200d\U0001f680\u2764\ufe0f",
    )
    assert all(map(is_buyer, ("ann lee", "Zo\xeb", persian, mongolian, emoji, "\uae40")))


class Till:
    """A shop that sells everything, and remembers the purchases."""

    has_buyers = False

    def __init__(self) -> None:
        self.asked: list[Purchase] = []

    def turned_away(self, error: Exception) -> None:
        pass

    def join(self, purchase: Purchase, **_: Any) -> Answer:
        self.asked.append(purchase)
        return Answer(Outcome.SOLD, purchase.quantity, OrderId(purchase.sku, "1-1", 32 * "a"))


def ask(app: Any, method: str, query: bytes, headers: Headers) -> tuple[int, Headers, bytes, list[Purchase]]:
    """Return status, headers and body of an ASGI application's answer, and the purchases."""
    till: Any = Till()
    unused: Any = None
    state = State(
        **dict.fromkeys(State.__slots__, unused)
        | {"shop": till, "instance": "here", "quantity_max": 100, "buyer_max": 100, "auth": AdminAuth({})}
    )
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": "/stock/reduce",
        "raw_path": b"/stock/reduce",
        "root_path": "",
        "query_string": query,
        "headers": headers,
        "server": ("127.0.0.1", 8080),
        "client": ("127.0.0.1", 1),
        "state": {"seckill": state},
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], sorted(sent[0]["headers"]), body, till.asked


# -- what clients send -------------------------------------------------------------------------------------------------


class Head:
    """Parse the head of a request with the server's own parser: return its query, and its headers for ASGI."""

    def __init__(self, text: str) -> None:
        self.query = b""
        self.headers: Headers = []
        self.whole = False
        with suppress(httptools.HttpParserUpgrade):  # the upgrade is only requested; uvicorn goes on without one
            httptools.HttpRequestParser(self).feed_data(text.strip().replace("\n", "\r\n").encode() + b"\r\n\r\n")

    def on_url(self, url: bytes) -> None:
        self.query = httptools.parse_url(url).query or b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.whole = True


@pytest.mark.parametrize("space", ["+", "%20"])
@pytest.mark.parametrize("client", BUYERS)
def test_every_client_is_understood(client: str, space: str) -> None:
    """A POST without a body is the same purchase, whichever client sends it and however it says so."""
    head = Head(BUYERS[client].replace("?sku=phone", f"?sku=phone&quantity=2&buyer=ann{space}lee"))
    assert head.whole
    as_json = "application/json" in BUYERS[client]
    assert parse(head.query, head.headers, quantity_max=100) == (WANTED, as_json)
    status, _, _, asked = ask(partial(asgi, ROUTE), "POST", head.query, head.headers)
    assert (status, asked) == (200, [WANTED])


# -- who asks, and from where ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", FOREIGN_PAGES)
def test_a_page_of_another_origin_buys_nothing(page: str) -> None:
    """Neither an image nor a form in another origin's page buys, with Chromium's headers."""
    head = Head(FOREIGN_PAGES[page])
    turned_away(head.headers, "urn:seckill:foreign-origin")


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ([(b"sec-fetch-site", b"cross-site")], True),
        ([(b"sec-fetch-site", b"same-site")], True),
        ([(b"sec-fetch-site", b"same-origin")], False),
        ([(b"sec-fetch-site", b"none")], False),
        ([(b"origin", b"http://shop.example"), (b"host", b"shop.example")], False),
        ([(b"host", b"Shop.example:8080"), (b"origin", b"https://shop.Example:8080")], False),
        ([(b"origin", b"http://shop.example:81"), (b"host", b"shop.example")], True),
        ([(b"origin", b"http://evil.example"), (b"host", b"shop.example")], True),
        ([(b"origin", b"null"), (b"host", b"shop.example")], True),
        ([(b"origin", b"http://evil.example")], True),
        # A browser's Sec-Fetch-Site is more reliable than a proxy that changes the host.
        ([(b"origin", b"http://shop.example"), (b"host", b"10.0.0.1"), (b"sec-fetch-site", b"same-origin")], False),
    ],
)
def test_where_a_purchase_may_come_from(headers: Headers, foreign: bool) -> None:
    """A purchase may come from a page of this origin, or from no page at all."""
    if foreign:
        turned_away(headers, "urn:seckill:foreign-origin")
    else:
        assert ask(partial(asgi, ROUTE), "GET", b"", headers)[3] == [Purchase()]


@pytest.mark.parametrize("name", [b"sec-purpose", b"purpose", b"x-purpose", b"x-moz"])
@pytest.mark.parametrize("value", [b"prefetch", b"prefetch;prerender", b"Prefetch;anonymous-client-ip", b"preview"])
def test_a_browser_buys_nothing_ahead_of_time(name: bytes, value: bytes) -> None:
    """A page that a browser prefetches sells nothing."""
    turned_away([(b"sec-fetch-site", b"none"), (name, value)], "urn:seckill:prefetched")


def turned_away(headers: Headers, kind: str) -> None:
    """Check that the answer is 403 with the reason, and that nothing was bought."""
    for method in ("GET", "POST"):
        status, sent, body, asked = ask(partial(asgi, ROUTE), method, b"", headers)
        assert (status, asked) == (403, [])
        assert (b"content-type", b"application/problem+json") in sent
        assert json.loads(body)["type"] == kind


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", Purchase()),
        ("quantity=2&buyer=ann&sku=phone", Purchase(2, "phone", "ann")),
        ("quantity=100", Purchase(100)),
        ("quantity=%31", Purchase(1)),
        ("sku=A.b_c-9", Purchase(sku="A.b_c-9")),
        (f"sku={'x' * 64}", Purchase(sku="x" * 64)),
        ("buyer=ann+lee", Purchase(buyer="ann lee")),
        ("buyer=1%2B1%3D2%26", Purchase(buyer="1+1=2&")),
        ("buyer=a=b", Purchase(buyer="a=b")),
        ("buyer=50%25", Purchase(buyer="50%")),
        ("buyer=50%", Purchase(buyer="50%")),
        ("buyer=%E7%8E%8B%E8%8A%B3", Purchase(buyer="王芳")),
        ("buyer=王芳", Purchase(buyer="王芳")),
        ("buyer=%D8%B9%E2%80%8C%D9%84%DB%8C", Purchase(buyer="ع\u200cلی")),
        (f"buyer={quote('🛒' * 100)}", Purchase(buyer="🛒" * 100)),
    ],
)
def test_what_a_query_means(query: str, wanted: Purchase) -> None:
    """Parameters may be escaped or not, in any order; each missing one has its default."""
    assert parse(query.encode(), [], quantity_max=100) == (wanted, False)


FILLERS = "\u115f\u1160\u3164\uffa0"  # letters that show nothing
seen = st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters=FILLERS)
plain = st.text(seen, min_size=1, max_size=100)


@given(
    st.permutations(["sku", "quantity", "buyer"]),
    st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
    st.integers(1, 100),
    plain.filter(str.isprintable),
    st.booleans(),
)
def test_a_purchase_that_is_written_down_is_read_again(
    order: list[str], sku: str, quantity: int, buyer: str, as_form: bool
) -> None:
    """A purchase survives being written and read, whatever the buyer is called."""
    values = {"sku": sku, "quantity": str(quantity), "buyer": buyer}
    pairs = [(name, values[name]) for name in order]
    query = urlencode(pairs) if as_form else "&".join(f"{name}={quote(value)}" for name, value in pairs)
    assert parse(query.encode(), [], quantity_max=100) == (Purchase(quantity, sku, buyer), False)


# -- nothing is ignored in silence -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (b"colour=red", "colour"),
        (b"Quantity=1", "Quantity"),
        (b"QUANTITY=1", "QUANTITY"),
        (b"quantity%20=1", "quantity%20"),
        (b"%71uantity=1", "%71uantity"),
        (b"quantity[]=1", "quantity[]"),
        (b" sku=phone", " sku"),
        (b"k\xffy=1", "k\xffy"),
        (b"idempotency-key=k", "idempotency-key"),
        (b"=1", "query"),
        (b"&", "query"),
        (b"quantity=1&", "query"),
        (b"&&quantity=1", "query"),
        (b"quantity=1;buyer=ann", "quantity"),
        (b"quantity=1&quantity=1", "quantity"),
        (b"quantity=1&quantity=2", "quantity"),
        (b"buyer=ann&sku=phone&buyer=bob", "buyer"),
        (b"sku=phone&sku=", "sku"),
        (b"quantity", "quantity"),
        (b"quantity=", "quantity"),
        (b"quantity=0", "quantity"),
        (b"quantity=-1", "quantity"),
        (b"quantity=101", "quantity"),
        (b"quantity=+1", "quantity"),
        (b"quantity=%2B1", "quantity"),
        (b"quantity=01", "quantity"),
        (b"quantity=1_0", "quantity"),
        (b"quantity=1.0", "quantity"),
        (b"quantity=two", "quantity"),
        (b"quantity=1e1", "quantity"),
        (b"quantity=0x1", "quantity"),
        (b"quantity=%201", "quantity"),
        (b"quantity=1%0A", "quantity"),
        (b"quantity=%D9%A3", "quantity"),
        (b"quantity=" + b"9" * 5000, "quantity"),
        (b"sku", "sku"),
        (b"sku=", "sku"),
        (b"sku=a+b", "sku"),
        (b"sku=a%2Fb", "sku"),
        (b"sku=../x", "sku"),
        (b"sku=a%00", "sku"),
        (b"sku=a%0A", "sku"),
        (b"sku=" + b"x" * 65, "sku"),
        (b"buyer", "buyer"),
        (b"buyer=", "buyer"),
        (b"buyer=a%00", "buyer"),
        (b"buyer=a%0A", "buyer"),
        (b"buyer=%0Aa", "buyer"),
        (b"buyer=a%0Ab", "buyer"),
        (b"buyer=a%C2%85", "buyer"),  # a line break
        (b"buyer=a%E2%80%AEb", "buyer"),  # turns the reading direction around
        (b"buyer=a%D8%9Cb", "buyer"),  # likewise
        (b"buyer=ann%C2%AD", "buyer"),  # shows nothing
        (b"buyer=%E3%85%A4", "buyer"),  # likewise
        (b"buyer=ann%F3%A0%81%81", "buyer"),  # a tag
        (b"buyer=erased", "buyer"),  # what all are called whose names were erased
        (b"buyer=" + b"x" * 101, "buyer"),
        (b"buyer=%FF", "buyer"),
        (b"buyer=\xff", "buyer"),
        (b"buyer=%ED%A0%80", "buyer"),  # half of a surrogate pair
    ],
)
def test_a_parameter_that_is_not_understood_is_refused(query: bytes, field: str) -> None:
    """An unknown, repeated or invalid parameter gets 422 with its name, and nothing is bought."""
    refused(query, [], field)


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ([(b"content-length", b"1")], "body"),
        ([(b"content-length", b"10")], "body"),
        ([(b"content-length", b"00001")], "body"),
        ([(b"content-length", b"-0")], "body"),
        ([(b"content-length", b"0, 5")], "body"),
        ([(b"content-length", b"0"), (b"content-length", b"7")], "body"),
        ([(b"transfer-encoding", b"chunked")], "body"),
        ([(b"transfer-encoding", b"identity")], "body"),
        ([(b"content-length", b"0"), (b"transfer-encoding", b"chunked")], "body"),
        ([(b"idempotency-key", b"")], "Idempotency-Key"),
        ([(b"idempotency-key", b"a b")], "Idempotency-Key"),
        ([(b"idempotency-key", b'"a b"')], "Idempotency-Key"),
        ([(b"idempotency-key", b"a\tb")], "Idempotency-Key"),
        ([(b"idempotency-key", b"\xc3\xa4")], "Idempotency-Key"),
        ([(b"idempotency-key", b"k" * 101)], "Idempotency-Key"),
        ([(b"idempotency-key", b"a"), (b"idempotency-key", b"b")], "Idempotency-Key"),
        ([(b"idempotency-key", b"a"), (b"accept", b"*/*"), (b"idempotency-key", b"a")], "Idempotency-Key"),
    ],
)
def test_a_body_or_a_doubtful_key_is_refused(headers: Headers, field: str) -> None:
    """A body, however it is declared, gets 422, and so do two keys or one that is not visible ASCII."""
    refused(b"sku=phone", headers, field)


def refused(query: bytes, headers: Headers, field: str) -> None:
    """Check that the answer is 422 and names the field, and that nothing was bought."""
    for method in ("GET", "POST"):
        status, sent, body, asked = ask(partial(asgi, ROUTE), method, query, headers)
        assert (status, asked) == (422, [])
        assert (b"content-type", b"application/problem+json") in sent
        problem = json.loads(body)
        assert problem["type"] == "urn:seckill:invalid-request"
        assert [error["field"] for error in problem["errors"]] == [field]
        assert problem["errors"][0]["message"]


@pytest.mark.parametrize("length", [b"0", b"00"])
def test_an_empty_body_is_none(length: bytes) -> None:
    """`Content-Length: 0` declares that there is no body."""
    assert parse(b"", [(b"content-length", length)], quantity_max=1) == (Purchase(), False)


@pytest.mark.parametrize(
    ("sent", "key"),
    [
        *((key, key.decode()) for key in (b"k", b"k/1", b"!~", b"k" * 100, b'"', b'k"', b'""', b'"k"k"')),
        (b'"8e03978e"', "8e03978e"),
        (rb'"a\"b\\c"', 'a"b\\c'),
        (b"k\t", "k"),
        (b'"k" ', "k"),
    ],
)
def test_a_key_is_visible_ascii(sent: bytes, key: str) -> None:
    """An Idempotency-Key is taken as it is, but for blanks at its end; the draft's form in quotes is the same key."""
    assert parse(b"", [(b"idempotency-key", sent)], quantity_max=1) == (Purchase(key=key), False)


@pytest.mark.parametrize(
    ("accept", "as_json"),
    [
        (b"application/json", True),
        (b"Application/JSON", True),
        (b"text/html, application/json;q=0.9", True),
        (b"application/json ; q=0.001", True),
        (b"application/json;charset=utf-8", True),
        (b"*/*", False),
        (b"text/plain", False),
        (b"application/*", False),
        (b"application/json;q=0", False),
        (b"application/json; q=0.00", False),
        (b"application/jsonp", False),
        (b"application/problem+json", False),
        (b"text/json", False),
        (b"", False),
    ],
)
def test_json_is_for_those_who_ask_for_it(accept: bytes, as_json: bool) -> None:
    """Only a client that accepts application/json by name gets JSON; the others get the articles' text."""
    assert parse(b"", [(b"accept", accept)], quantity_max=1)[1] is as_json
    assert parse(b"", [(b"accept", b"text/html"), (b"accept", accept)], quantity_max=1)[1] is as_json


# -- whatever is asked -------------------------------------------------------------------------------------------------

text = st.text("abcXYZ019._-", max_size=70)
odd = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=12)
name = st.sampled_from(["sku", "quantity", "buyer", "Sku", "other", ""])
value = st.one_of(
    text, st.integers(-2, 200).map(str), st.sampled_from(["1", "01", "+1", "1.0", "%31", "1_0", "9" * 30]), odd
)
queries = (st.lists(st.builds("{}={}".format, name, value), max_size=4).map("&".join) | odd).map(
    lambda text: text.encode("latin-1")
)
header = st.tuples(
    st.sampled_from([b"accept", b"idempotency-key", b"content-length", b"x-other"]),
    st.one_of(
        odd.map(lambda text: text.encode("latin-1")),
        st.sampled_from([b"application/json", b"text/html, application/json;q=0.9", b"0", b"k"]),
    ),
)


@given(queries, st.lists(header, max_size=3))
def test_any_request_is_bought_as_asked_or_refused(query: bytes, headers: Headers) -> None:
    """Any request is either a purchase with exactly these parameters, or an error that names one field."""
    try:
        understood, _ = parse(query, headers, quantity_max=100)
    except RequestValidationError as error:
        assert len(error.errors()) == 1
        return
    given = [part.partition(b"=")[0].decode("latin-1") for part in query.split(b"&")] if query else []
    assert len(given) == len(set(given))
    assert set(given) <= {"sku", "quantity", "buyer"}
    assert 1 <= understood.quantity <= 100
    assert (understood.buyer is not None) == ("buyer" in given)
    keys = [value.decode("latin-1") for name, value in headers if name == b"idempotency-key"]
    assert keys == ([] if understood.key is None else [understood.key])


APP = create_app(load())


@given(st.sampled_from(["GET", "POST", "HEAD", "PUT", "OPTIONS"]), queries, st.lists(header, max_size=3))
def test_the_frameworks_route_does_the_same(method: str, query: bytes, headers: Headers) -> None:
    """Purchases bypass the framework; its route, for users who wrap it, answers alike."""
    framework = partial(with_headers, partial(FastAPI.__call__, APP))
    assert ask(APP, method, query, headers) == ask(framework, method, query, headers)
