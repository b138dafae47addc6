"""The short way and the long way of a purchase agree, whatever is asked."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.main import create_app
from app.sale import Answer, Outcome, Purchase
from app.settings import load
from app.web.short_way import ShortWay
from app.web.state import State


class Till:
    """Sells all that is asked for, and remembers what that was."""

    def __init__(self) -> None:
        self.asked: list[Purchase] = []

    async def buy(self, purchase: Purchase) -> Answer:
        self.asked.append(purchase)
        return Answer(Outcome.SOLD, purchase.quantity, f"{purchase.sku}~1-1~{32 * 'a'}")


APP: Any = create_app(load())


def ask(way: Any, method: str, query: bytes, headers: list[tuple[bytes, bytes]]) -> tuple[Any, ...]:
    """Status, headers and body of the answer, and what was bought."""
    till = Till()
    state = State(till, lambda: b"", "here", 100, *[None] * 4)  # type: ignore[arg-type]
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

    asyncio.run(way(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], sorted(sent[0]["headers"]), body, till.asked


plain = st.text("abcXYZ019._-", min_size=0, max_size=70)
odd = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
name = st.sampled_from(["sku", "quantity", "buyer", "Sku", "other", ""])
value = st.one_of(
    plain, st.integers(-2, 200).map(str), st.sampled_from(["1", "01", "+1", "1.0", "%31", "1_0", "9" * 30]), odd
)
query = st.lists(st.builds("{}={}".format, name, value), max_size=4).map("&".join) | odd
header = st.tuples(
    st.sampled_from([b"accept", b"idempotency-key", b"content-length", b"x-other"]),
    st.one_of(
        odd.map(str.encode), st.sampled_from([b"application/json", b"text/html, application/json;q=0.9", b"0", b"k"])
    ),
)


@given(
    st.sampled_from(["GET", "POST", "HEAD", "PUT", "OPTIONS"]),
    query.map(lambda text: text.encode("latin-1")),
    st.lists(header, max_size=3),
)
def test_both_ways_agree(method: str, query: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    """Status, headers, body, and the purchase that was understood."""
    assert ask(APP, method, query, headers) == ask(APP.long_way, method, query, headers)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("query", "headers", "purchase"),
    [
        (b"", [], Purchase()),
        (b"quantity=2&buyer=ann&sku=phone", [], Purchase(2, "phone", "ann")),
        (
            b"buyer=b-1",
            [(b"idempotency-key", b"k/1"), (b"accept", b"application/json")],
            Purchase(1, buyer="b-1", key="k/1"),
        ),
    ],
)
def test_the_usual_is_short(method: str, query: bytes, headers: list[tuple[bytes, bytes]], purchase: Purchase) -> None:
    """A load test's requests, and those of a careful client, never see the framework."""

    async def never(*_: Any) -> None:
        raise AssertionError("the long way")

    status, _, _, asked = ask(ShortWay(never), method, query, headers)
    assert (status, asked) == (200, [purchase])
