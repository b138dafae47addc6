"""What `/readyz` says of an instance: whether it can sell, and what is worth a warning although it can."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.errors import StockBehind, StockUnavailable
from app.web import health

WELL = {"etcd": "ok", "store": "ok"}


def warned(*texts: str) -> Any:
    return SimpleNamespace(warnings=list(texts))


async def stands(checks: dict[str, str] = WELL, unpriced: Any = (), **own: Any) -> health.ReadyView:
    """How an instance stands: nothing is wrong with it but what is named."""

    async def ready() -> Any:
        return checks, ["b"]

    async def items() -> Any:
        if isinstance(unpriced, Exception):
            raise unpriced
        return list(unpriced) if unpriced is not None else await asyncio.Event().wait()

    about: dict[str, Any] = {"instance": "a", "warnings": [], "senders": [], "tally": warned(), "callbacks": {}}
    about |= {"shop": SimpleNamespace(leaving=False, errors={}), "auditor": None, "cashier": None, "pay_url": ""}
    about |= {"ready": SimpleNamespace(at=ready), "unpriced": SimpleNamespace(at=items)}
    about |= {"readiness": SimpleNamespace(mode="lock", clocks=warned())}
    return await health.standing(SimpleNamespace(**about | own))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("checks", "leaving", "ready"),
    [
        (WELL, False, True),
        (WELL | {"etcd": "away"}, False, True),  # and sold is without a lock
        (WELL | {"store": "not available"}, False, False),
        (WELL, True, False),
    ],
)
async def test_whether_it_can_sell(checks: dict[str, str], leaving: bool, ready: bool) -> None:
    """An instance that is about to stop says so, and that it is no more to be asked."""
    found = await stands(checks, shop=SimpleNamespace(leaving=leaving, errors={}))
    assert (found.ready, found.checks) == (ready, checks | ({"shop": "closing"} if leaving else {}))
    assert (found.instance, found.mode, found.waits_for, found.warnings) == ("a", "lock", ["b"], [])


async def test_everybody_has_a_warning() -> None:
    """Those of the start come first; of very many items some are named."""
    errors = {f"item-{n:02}": StockBehind("lost") for n in reversed(range(21))}
    shop = SimpleNamespace(leaving=False, errors=errors)
    readiness = SimpleNamespace(mode="lock", clocks=warned("clock"))
    parts: dict[str, Any] = {"shop": shop, "warnings": ["start"], "senders": [warned("sender")], "readiness": readiness}
    parts |= {"tally": warned("tally"), "cashier": warned("cashier"), "auditor": SimpleNamespace(owed=2)}
    found = (await stands(unpriced=["free"], pay_url="https://pay.example", **parts)).warnings
    assert found[:3] == ["start", "clock", "item-00 can't be sold: Stock is being looked into"]
    assert [one for one in found[2:] if not one.startswith("item-")] == [
        *("and 1 more items", "sender", "tally", "cashier"),
        "2 payments to give back, or of a wrong amount: `seckill orders list --state attention`",
        "free has no price: it is sold for nothing",
    ]
    assert len(found) == 2 + 20 + 6
    one = (await stands(auditor=SimpleNamespace(owed=1))).warnings
    assert one == ["1 payment to give back, or of a wrong amount: `seckill orders list --state attention`"]


@pytest.mark.parametrize("set_up", [{"callbacks": {"webhook": None}}, {"pay_url": "https://pay.example"}])
async def test_what_is_given_away(set_up: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where payments are set up; no slow look is waited for, and one that fails is another check's to say."""
    names = [f"item-{n:02}" for n in range(20)]
    assert len((await stands(unpriced=names, **set_up)).warnings) == 20
    assert (await stands(unpriced=names)).warnings == []
    assert (await stands(unpriced=StockUnavailable("no"), **set_up)).warnings == []
    monkeypatch.setattr(health, "_PATIENCE_S", 0.01)
    assert (await asyncio.wait_for(stands(unpriced=None, **set_up), 15)).warnings == []
