"""The documentation's site in a browser, opened as files: its search, and its width on a phone."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.harness.browser import Visitors

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    build = Path(__file__).parents[2] / "docs" / "site" / "build.py"
    subprocess.run([sys.executable, build, "--into", folder], check=True)
    return folder


@pytest.fixture
def visitors(browser: Browser) -> Iterator[Visitors]:
    """People who need no servers; nothing may go wrong in any of their pages."""
    people = Visitors(browser)
    yield people
    people.leave()
    assert people.unforgiven() == []


@pytest.mark.parametrize(
    ("page", "words", "found"), [("index", "fencing token", "fence"), ("zh/index", "栅栏令牌", "栅栏")]
)
def test_the_search_finds_words(built: Path, visitors: Visitors, page: str, words: str, found: str) -> None:
    """A search in a page that is a file finds what the pages of its language say."""
    shown = visitors.visit((built / f"{page}.html").as_uri(), offline=True)
    shown.get_by_role("button", name="Search" if page == "index" else "查找").click()
    shown.get_by_role("combobox").fill(words)
    expect(shown.get_by_role("option").first).to_contain_text(found)


@pytest.mark.exhaustive
def test_the_pages_fit_on_a_phone(built: Path, visitors: Visitors) -> None:
    """No page is wider than a phone: tables and code scroll by themselves."""
    shown = visitors.visit((built / "index.html").as_uri(), viewport={"width": 390, "height": 800})
    for page in (*built.glob("*.html"), *built.glob("zh/*.html")):
        if page.name != "404.html":
            shown.goto(page.as_uri())
            assert shown.evaluate("document.documentElement.scrollWidth") <= 390, page.name
