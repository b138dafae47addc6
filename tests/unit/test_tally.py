"""Callbacks that are refused are seen, and a stranger's one or two are not."""

import pytest

from app.payments.tally import AGAIN, INVALID, NO_ADDRESS, NOT_SIGNED, SWITCHED_OFF, TAKEN, Tally


@pytest.mark.parametrize(
    ("said", "warned"),
    [
        ([("stripe", NOT_SIGNED)] * 2, []),
        ([("stripe", NOT_SIGNED)] * 3, ["3 callbacks of stripe were refused, and none was taken since: not signed"]),
        ([("stripe", INVALID), ("webhook", INVALID)] * 2, []),
        ([("stripe", NOT_SIGNED)] * 2 + [("stripe", INVALID)], ["3 callbacks of stripe were refused"]),
        ([("stripe", AGAIN)] * 9, []),
        (
            [("alipay", SWITCHED_OFF), ("", NO_ADDRESS)] * 3,
            ["3 callbacks of a payment provider", "3 callbacks of alip"],
        ),
        ([("alipay", SWITCHED_OFF), ("", NO_ADDRESS)] * 3 + [("stripe", TAKEN)], ["3 callbacks of alipay"]),
        ([("alipay", SWITCHED_OFF)] * 3 + [("alipay", TAKEN), ("alipay", INVALID)], []),
    ],
)
def test_warnings(said: list[tuple[str, str]], warned: list[str]) -> None:
    """From the third refusal of a provider on, until one is taken, or an hour has passed; each is counted."""
    now, counted = 0.0, list[tuple[str, str]]()
    tally = Tally(lambda *one: counted.append(one), clock=lambda: now)
    for one in said:
        tally.add(*one)
    now = 3600.0
    assert [begin for one, begin in zip(tally.warnings, warned, strict=True) if one.startswith(begin)] == warned
    assert counted == said
    now = 3601.0
    assert tally.warnings == []
