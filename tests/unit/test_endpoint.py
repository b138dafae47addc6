"""What a receiver gets with a request, and what is made of its answer, whatever that is."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
import standardwebhooks

from app.errors import ConfigurationError
from app.orders import Event, EventKind, OrderId, Units
from app.orders.facts import Facts
from app.outbox.endpoint import Result, ShopEndpoint
from app.outbox.message import Message
from app.outbox.receiver import Receiver
from app.outbox.webhook import Webhook
from tests.harness.receiver import SECRET

OTHER = "whsec_" + "b3RoZXI=" * 4
Requests = list[tuple[dict[str, str], bytes]]


@asynccontextmanager
async def answering(*answers: bytes | None) -> AsyncIterator[tuple[str, Requests]]:
    """An address that gives these answers, one for each request, and what it got; None: it says nothing."""
    got, left = Requests(), list(answers)

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while left:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
                head = {name.lower(): text for name, text in (line.split(": ", 1) for line in lines)}
                got.append((head | {"": first}, await reader.readexactly(int(head["content-length"]))))
                if (answer := left.pop(0)) is None:
                    await reader.read()
                else:
                    writer.write(answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}/events", got


def said(status: str, body: bytes = b"", *heads: str) -> bytes:
    head = "\r\n".join((f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *heads))
    return f"{head}\r\n\r\n".encode("latin-1") + body


async def result_of(answer: bytes | None) -> Result:
    async with answering(answer, said("200 never asked")) as (url, got):
        endpoint = ShopEndpoint(f"http://{url}", [SECRET], timeout_s=0.5, at_once=2)
        try:
            return await endpoint.post("a~1", b"{}")
        finally:
            await endpoint.close()
            assert len(got) == 1  # what is signed goes nowhere else, and not twice


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (said("200 OK", b"well"), Result(200, body=b"well")),
        (said("204 No Content"), Result(204)),
        (
            b"HTTP/1.1 202 Accepted\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 99_999,
            Result(202, body=b"x" * 65_536),
        ),
        (said("300 Choose", b"a"), Result(300, "answered 300 Choose")),
        (said("307 Elsewhere", b"", "Location: /other"), Result(307, "answered 307 Elsewhere")),
        (said("410 "), Result(410, "answered 410")),
        (said(f"500 \x1b[31mso\xff {'x' * 300}"), Result(500, f"answered 500 [31mso {'x' * 100}"[: 13 + 100])),
        (said("503 Busy", b"", "Retry-After: 7"), Result(503, "answered 503 Busy", 7.0)),
        (said("503 Busy", b"", "Retry-After: -7"), Result(503, "answered 503 Busy")),
        (said("503 Busy", b"", "Retry-After: \xb2"), Result(503, "answered 503 Busy")),
        (said("503 Busy", b"", "Retry-After: Mon, 01 Jan 2001 00:00:00 GMT"), Result(503, "answered 503 Busy")),
        (
            said("503 Busy", b"", "Retry-After: 1 Jan 99999999999999999999 00:00:00 GMT"),
            Result(503, "answered 503 Busy"),
        ),
        (None, Result(0, "no answer within 0.5 s")),
        (b"", Result(0, "no answer within 0.5 s")),
    ],
)
async def test_what_is_made_of_an_answer(answer: bytes | None, result: Result) -> None:
    """Any 2xx is well, and all else is a failure with its reason, as far as people read it."""
    assert await result_of(answer) == result


async def test_a_moment_to_wait_for() -> None:
    """A receiver may name it instead of the seconds."""
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert 50 < (await result_of(said("429 Busy", b"", f"Retry-After: {then}"))).retry_after_s <= 60


async def test_nobody_is_there() -> None:
    """The name of the failure is said."""
    endpoint = ShopEndpoint("http://127.0.0.1:9/", [SECRET], timeout_s=5, at_once=1)
    status, why, *_ = await endpoint.post("a~1", b"{}")
    assert (status, why) == (0, "ClientConnectorError: no connection, or none that lasts")
    await endpoint.close()


async def test_what_a_receiver_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its secrets verifies it; no cookie comes back, and no proxy is asked for an address on this machine."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with answering(*[said("200 OK", b"", "Set-Cookie: a=b")] * 3) as (url, got):
        named = url.replace("127.0.0.1", "localhost")  # as a cookie belongs to a name
        webhook = Webhook(Receiver(f"http://ann:s3cret@{named}"), [SECRET, OTHER], timeout_s=5, at_once=1)
        assert webhook.where == f"http://{named.removesuffix('/events')}"
        one, two = Message("a~1", b'{"n":1}', "00-trace"), Message("a~2", b'{"n":2}')
        assert [await webhook.post([message]) for message in (one, two)] == [Result(200)] * 2
        await webhook.close()
        many = Webhook(Receiver(f"http://{url}", "erp"), [SECRET], timeout_s=5, at_once=1, batch=10)
        assert many.where == f"erp http://{url.removesuffix('/events')}"
        assert await many.post([two]) == Result(200)
        await many.close()
    for head, body in got[:2]:
        for secret in (SECRET, OTHER):
            standardwebhooks.Webhook(secret).verify(body, head)
    about = [
        (head[""], body, head["webhook-id"], head.get("traceparent"), head.get("authorization")) for head, body in got
    ]
    line, basic = "POST /events HTTP/1.1", "Basic YW5uOnMzY3JldA=="
    batch = b'{"type":"batch","events":[{"id":"a~2","n":2}]}'
    assert about == [
        (line, one.body, "a~1", "00-trace", basic),
        (line, two.body, "a~2", None, basic),
        (line, batch, Message.batch([two]).id, None, None),
    ]
    assert not any("cookie" in head for head, _ in got)
    assert {(head["content-type"], head["user-agent"]) for head, _ in got} == {("application/json", "seckill")}


async def test_so_many_at_once() -> None:
    """The others wait for one of these."""
    async with answering(*[None] * 3) as (url, got):
        endpoint = ShopEndpoint(f"http://{url}", [SECRET], timeout_s=0.5, at_once=2)
        await asyncio.gather(*(endpoint.post(name, b"{}") for name in "abc"))
        assert [head["webhook-id"] for head, _ in got] == ["a", "b"]
        await endpoint.close()


def test_an_event_and_its_message() -> None:
    """The id is that of the entry, the same each time; the trace is that of the request which began the order."""
    order, facts = OrderId("lamp", "7-0", "s"), Facts(traceparent="00-trace")
    event = Event("9-1", EventKind.SOLD, order, 1, 1, "ann", None, 50.0, "a", 1, "b", 0, Units(-1, 0, 1), facts)
    name, body, trace = Message.of(event, "cart-1")
    told = json.loads(body)
    assert (name, trace, told["type"], told["data"]["ref"]) == ("lamp~9-1", "00-trace", "order.sold", "cart-1")
    assert Message.of(replace(event, facts={}), None).traceparent == ""


def test_the_id_of_a_batch() -> None:
    """It is the same for the same events, and another one for all others: a receiver may forget what has that id."""
    one, two, three = (Message(f"lamp~{number}", b"{}") for number in range(3))
    ids = {Message.batch(some).id for some in ([one], [one, two], [one, three], [two, one], [one, two, three])}
    assert len(ids) == 5
    assert Message.batch([one, two]).id == Message.batch([one, two]).id


@pytest.mark.parametrize("url", ["ftp://shop.example/s3cret", "https:///s3cret", "s3cret", "http://[s3cret"])
def test_an_address_that_is_none(url: str) -> None:
    """It is refused at the start, with the receiver's name, and not told."""
    for receiver, name in ((Receiver(url), ""), (Receiver(url, "erp"), "the receiver erp: ")):
        with pytest.raises(ConfigurationError, match=f"^{name}not a URL such as") as error:
            Webhook(receiver, [SECRET], timeout_s=1, at_once=1)
        assert "s3cret" not in str(error.value)
