"""The documentation's site in a browser, opened as files: its search, and its width on a phone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.harness.browser import Visitors
from tests.harness.site import make_site

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_site(tmp_path_factory.mktemp("site"))


@pytest.fixture
def visitors(browser: Browser) -> Iterator[Visitors]:
    """People who need no servers; nothing may go wrong in any of their pages."""
    people = Visitors(browser)
    yield people
    people.leave()
    assert people.unforgiven() == []


@pytest.mark.parametrize(("words", "found"), [("fencing token", "fence"), ("栅栏令牌", "栅栏")])
def test_the_search_finds_words(built: Path, visitors: Visitors, words: str, found: str) -> None:
    """A search in a page that is a file finds what the pages of both languages say."""
    shown = visitors.visit((built / "index.html").as_uri(), offline=True)
    shown.get_by_role("button", name="Search").click()
    shown.get_by_role("combobox").fill(words)
    expect(shown.get_by_role("option").first).to_contain_text(found)


@pytest.mark.exhaustive
def test_the_pages_fit_on_a_phone(built: Path, visitors: Visitors) -> None:
    """No page is wider than a phone: tables and code scroll by themselves."""
    shown = visitors.visit((built / "index.html").as_uri(), viewport={"width": 390, "height": 800})
    for page in built.rglob("*.html"):
        if page.name != "404.html":
            shown.goto(page.as_uri())
            assert shown.evaluate("document.documentElement.scrollWidth") <= 390, page.name
