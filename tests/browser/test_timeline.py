"""The time line of a torture: a page that is opened from the disk, with all that it needs in it."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from lab.torture.history import Belief, Count, Fault, History, HttpCall, Item, Setup
from lab.torture.judge import Finding
from lab.torture.picture import draw
from tests.harness.browser import Visitors, contrasts, drawn

pytestmark = pytest.mark.slow  # a browser

BLUE, TEAL, RED, GREEN, BAND = "29,95,209", "11,127,115", "200,20,47", "29,125,63", "255,243,220"


def belief(instance: str, token: int, since: float, until: float, **others: bool) -> Belief:
    return Belief(instance, "/seckill/lock/all", token, since, until, **others)


def made() -> History:
    """`a` held the lock and was killed with token 5, after `b` had lost token 4 to it."""
    setup = Setup((Item("default", 9),), 2, 2.0, 4.0, "etcd", "redis", "fence", 7, ("pause", "kill"))
    history = History(setup)
    history.beliefs = [
        belief("a", 3, 0.0, 2.0),
        belief("b", 4, 2.0, 5.0, lost=True),
        belief("a", 5, 5.0, 5.0, ended=False),
        belief("b", 6, 8.0, 10.0),
    ]
    history.attempts = [
        HttpCall("buy", f"w{number}", "default", "ann", 1, "a", number, number + 0.1, 200, outcome="sold")
        for number in range(10)
    ]
    history.faults = [Fault("pause", "b </script><b>", True, 3.0, 6.0, 3.0, 10.0, 3.0)]
    history.counts = [Count(5.0, 6.0, "b", "fenced", 1)]
    return history


@pytest.fixture
def visitors(browser: Browser) -> Visitors:
    return Visitors(browser)


def opened(visitors: Visitors, folder: Path, *findings: Finding, **options: object) -> Page:
    picture = folder / "timeline.html"
    picture.write_text(draw(made(), list(findings)))
    page = visitors.visit(picture.as_uri(), offline=True, **options)
    expect(page.locator("#lanes canvas")).to_be_visible()
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_shows_who_had_the_lock(visitors: Visitors, tmp_path: Path, scheme: str) -> None:
    """It has lanes with grants, a shield, faults as bands, and where a promise was broken; nothing is loaded."""
    broken = Finding("locks.exclusive", "I5", "one owner <at a time>", "4 grants", ("two at 5.5 s",))
    page = opened(visitors, tmp_path, broken, Finding("sale.adds_up", "I1", "kept", "all", ()), color_scheme=scheme)
    if scheme == "light":
        assert {BLUE, TEAL, RED, GREEN, BAND} <= drawn(page, "lanes")
        assert {GREEN, BAND} <= drawn(page, "answers")
    expect(page.get_by_role("cell", name="1 violations")).to_be_visible()
    expect(page.get_by_role("cell", name="b </script><b>")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="two at 5.5 s")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="sold")).to_have_count(1)
    assert min(ratio for _, ratio in contrasts(page)) >= 4.5
    visitors.leave()
    assert visitors.unforgiven() == []


def test_one_looks_closer(visitors: Visitors, tmp_path: Path) -> None:
    """The arrow keys lead from grant to grant; dragging looks closer, and a button leads back."""
    page = opened(visitors, tmp_path)
    said, lanes, back = page.locator("#said"), page.locator("#lanes"), page.get_by_role("button", name="all")
    lanes.focus()
    for expected in (
        "a · token 3 · at 0 s · held for 2 s · waited 0 s",
        "b · token 4 · at 2 s · held for 3 s, and lost",
        "a · token 5 · at 5 s · killed while it had it",
    ):
        page.keyboard.press("ArrowRight")
        expect(said).to_contain_text(expected)
    expect(back).to_be_hidden()
    page.keyboard.press("Escape")
    expect(said).to_contain_text("Point at a bar")
    box = page.locator("#lanes .u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 1, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.15, box["y"] + 5, steps=4)
    page.mouse.up()
    expect(back).to_be_visible()
    assert TEAL not in drawn(page, "lanes")  # what b had is out of sight
    visitors.leave()
    assert visitors.unforgiven() == []
