"""The judge explains what a store was asked and has said by the model of the protocol, or says that nothing does."""

from typing import Any

import pytest

from lab.model.protocol import Mechanism
from lab.torture.asked import REFUSED
from lab.torture.history import StoreCall
from lab.torture.judge_protocol import StoreFollower, Written


def asked(
    verb: str, token: int, batch: str, sent_at: float, done_at: float | None, said: Any, **more: Any
) -> StoreCall:
    stock = more.get("stock", 5 if verb == "commit" else None)
    return StoreCall("one", verb, "ticket", token, "etcd", batch, stock, sent_at, done_at, said)


SALE = asked("sale", 1, "", 0, 0.1, 5, stock=5)
# A reads and is late; B reads and writes; A's commit comes then, and A reads once more.
OVERTAKEN = [
    SALE,
    asked("prepare", 10, "a", 1, 1.1, 5),
    asked("prepare", 11, "b", 2, 2.1, 5),
    asked("commit", 10, "a", 2.2, 2.9, REFUSED),
    asked("commit", 11, "b", 3, 3.1, 1),
    asked("prepare", 10, "c", 4, 4.1, REFUSED),
    asked("prepare", 12, "d", 5, 5.1, 4),
]
# A's commit is not answered, and B reads: with it, or without it.
IN_DOUBT = [SALE, asked("prepare", 10, "a", 1, 1.1, 5), asked("commit", 10, "a", 2, None, None)]
A, B = Written("a", -1), Written("b", -1)
# One writes after the other.
IN_TURN = [
    *OVERTAKEN[:2],
    asked("commit", 10, "a", 2, 2.1, 1),
    asked("prepare", 11, "b", 3, 3.1, 4),
    asked("commit", 11, "b", 4, 4.1, 1, stock=4),
]


def wrong(requests: list[StoreCall], *batches: Written, without: frozenset[str] = frozenset()) -> list[str]:
    return list(StoreFollower(requests, batches, without).follow())


def test_a_run_of_the_model_is_explained() -> None:
    """Late commits are refused, and what was not answered has come, or has not."""
    assert not wrong(OVERTAKEN, B)
    assert not wrong(IN_TURN, A, B)
    assert not wrong([*IN_DOUBT, asked("prepare", 11, "b", 3, 3.1, 5)])
    assert not wrong([*IN_DOUBT, asked("prepare", 11, "b", 3, 3.1, 4)], A)
    assert not wrong([*IN_DOUBT, asked("add", 11, "", 3, 3.1, 7, stock=3)], A)


@pytest.mark.parametrize(
    ("requests", "batches"),
    [
        pytest.param([*OVERTAKEN[:3], asked("commit", 10, "a", 3, 3.1, 1)], [A], id="written, though another read"),
        pytest.param([*OVERTAKEN[:3], asked("prepare", 10, "c", 4, 4.1, 5)], [], id="an older token reads"),
        pytest.param([*OVERTAKEN[:6], asked("prepare", 12, "d", 5, 5.1, 5)], [B], id="a read without the last write"),
        pytest.param([*IN_DOUBT, asked("prepare", 11, "b", 3, 3.1, 5)], [A], id="written behind a read"),
        pytest.param(OVERTAKEN, [], id="told of an order that is not there"),
        pytest.param(OVERTAKEN, [B._replace(begun=2)], id="two orders written, and one told"),
        pytest.param(OVERTAKEN, [B, A], id="an order that came from nowhere"),
        pytest.param(IN_TURN, [B, A], id="written in another order than the journal has"),
        pytest.param(
            [*OVERTAKEN[:3], asked("sale", 10, "", 4, 4.1, 9, stock=9)], [], id="a late operator begins a sale"
        ),
        pytest.param([*OVERTAKEN[:3], asked("add", 12, "", 4, 4.1, REFUSED, stock=9)], [], id="an operator is refused"),
        pytest.param([SALE, asked("prepare", 2, "a", 1, 1.1, 6)], [], id="a unit too many"),
        pytest.param(
            [*OVERTAKEN[:2], asked("add", 11, "", 1.5, 1.6, 8, stock=3), asked("commit", 10, "a", 2, 2.1, 1)],
            [A],
            id="written, though units were added since",
        ),
    ],
)
def test_what_no_state_explains_is_told(requests: list[StoreCall], batches: list[Written]) -> None:
    """A store that breaks its rule is noticed by its answers."""
    assert wrong(requests, *batches)


@pytest.mark.parametrize("mechanism", [Mechanism.TOKENS, Mechanism.FENCE_AT_READ, Mechanism.FENCE_AT_WRITE])
def test_a_model_that_is_broken_alone_is_noticed(mechanism: Mechanism) -> None:
    """A model without a mechanism of the store does not explain what the store has refused."""
    assert wrong(OVERTAKEN, B, without=frozenset({mechanism}))
