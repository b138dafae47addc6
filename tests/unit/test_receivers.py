"""What a setting says of the receivers of events, and what is odd about it is named."""

import pytest

from app.errors import ConfigurationError
from app.orders import EventKind
from app.outbox.receiver import Receiver, receivers_of
from app.outbox.webhook import Webhook
from tests.harness.receiver import SECRET


def test_receivers_are_urls_with_fragments() -> None:
    """The first one may go without a name; the fragment is never a part of the address."""
    found = receivers_of(
        "https://shop.example/events?a=b\n https://erp.example/in#name=erp&types=order.confirmed,order.refunded "
        "https://mail.example#types=order.held&name=mail-2"
    )
    assert found == [
        Receiver("https://shop.example/events?a=b"),
        Receiver("https://erp.example/in", "erp", frozenset({EventKind.CONFIRMED, EventKind.REFUNDED})),
        Receiver("https://mail.example", "mail-2", frozenset({EventKind.HELD})),
    ]
    assert [one.suffix for one in found] == ["", "erp", "mail-2"]
    assert receivers_of("https://shop.example/#name=shop") == [Receiver("https://shop.example/", "shop")]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("https://a/ https://b/", "URL 2 of 2: each receiver but the first needs a name"),
        ("https://a/#name=x https://b/#name=x", "URL 2 of 2: another one has the name 'x'"),
        ("https://a/#name=x https://b/#name=y https://c/#name=x", "URL 3 of 3: another one has the name 'x'"),
        ("https://a/ https://b/#name=default", "URL 2 of 2: each receiver but the first needs a name"),
        ("https://a/#name=Shop", "a name is a-z, 0-9 and '-', 32 characters at most"),
        (f"https://a/#name={'x' * 33}", "a name is a-z, 0-9 and '-', 32 characters at most"),
        ("https://a/#name=", "a name is a-z, 0-9 and '-', 32 characters at most"),
        ("https://a/#types=order.shipped", "no type 'order.shipped'; there are order.sold, order.waiting,"),
        ("https://a/#types=", "no type ''"),
        ("https://a/#types=held", "no type 'held'"),
        ("https://a/#name=a&name=b", "behind the # are name and types, each once"),
        ("https://a/#nam=a", "behind the # are name and types, each once"),
        ("https://a/#top", "behind the # are name and types, each once"),
    ],
)
def test_what_is_odd_is_named(setting: str, said: str) -> None:
    """And an address, which may be secret, is not."""
    with pytest.raises(ConfigurationError) as error:
        receivers_of(setting)
    assert said in str(error.value)
    assert "https://a" not in str(error.value)


@pytest.mark.parametrize("url", ["https://shop:pässword€@shop.example/", "https://a%3Ab:c@shop.example/"])
def test_credentials_that_cant_be_sent(url: str) -> None:
    """They are refused at the start, and not told."""
    with pytest.raises(ConfigurationError, match="Latin-1") as error:
        Webhook(Receiver(url), [SECRET], timeout_s=1, at_once=1)
    assert "shop" not in str(error.value)
    Webhook(Receiver("https://shop:pässword@shop.example/"), [SECRET], timeout_s=1, at_once=1)
