"""`make site`: the pages as HTML, without a dead link and with nothing from elsewhere; both tutorials say the same."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import fencelock.fence
from fencelock import kit
from tests.harness.site import make_site

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


class Page(HTMLParser):
    """A page's links, its ids, and what a browser loads with it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.nav: list[str] = []
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        self.ids |= {has[name] for name in ("id", "name") if name in has}
        if tag == "a" and "href" in has:
            self.links.append(has["href"])
            self.nav += [has["href"]] if "md-nav__link" in has.get("class", "") else []
        elif "src" in has or (tag == "link" and has.get("rel") not in ("next", "prev")):
            self.loaded.append(has.get("src") or has["href"])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[Path, Page]:
    # The 404 page may be shown at any address: its links are absolute.
    return {file: Page(file) for file in built.rglob("*.html") if file.name != "404.html"}


@pytest.mark.slow
def test_what_is_not_found_is_a_page_with_links(tmp_path: Path) -> None:
    """It may be shown at any address below the site's, which the workflow says: all that it links to is there."""
    built = make_site(tmp_path, "https://own.github.io/shop/")
    page = Page(built / "404.html")
    links = {link for link in (*page.links, *page.loaded) if not link.startswith(("https://", "#"))}
    assert len(links) > 30
    for link in links:
        assert link.startswith("/shop/"), link
        assert (built / unquote(link).removeprefix("/shop/")).exists(), link


@pytest.mark.slow
def test_every_link_leads_somewhere(pages: dict[Path, Page]) -> None:
    """Links and pictures lead to files of the site, and anchors to what is on them."""
    dead = []
    for file, page in pages.items():
        for link in {*page.links, *page.loaded}:
            name, _, anchor = unquote(link).partition("#")
            target = (file.parent / name).resolve() if name else file
            if link.startswith("https://") and link not in page.loaded:
                continue
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].ids):
                dead.append((file.name, link))
    assert not dead


@pytest.mark.slow
def test_nothing_comes_from_elsewhere(built: Path, pages: dict[Path, Page]) -> None:
    """No page and no style sheet loads a font, a script or a picture from another host."""
    assert not [one for page in pages.values() for one in page.loaded if re.match(r"(\w+:)?//", one)]
    for sheet in built.rglob("*.css"):
        assert not re.search(r"(url\(|@import)[\"' ]*(https?:)?//", sheet.read_text()), sheet.name


@pytest.mark.slow
def test_each_page_is_in_the_navigation(built: Path, pages: dict[Path, Page]) -> None:
    """Each page is in the navigation, and each of docs/*.md in the tables of docs/README.md."""
    home = built / "index.html"
    linked = {(built / link.partition("#")[0]).resolve() for link in pages[home].nav if link[0] != "#"}
    assert linked | {home} == {*pages}
    shelved = set(re.findall(r"^\| \[[^\]]+\]\(([^)]+)\)", (ROOT / "docs" / "README.md").read_text(), re.MULTILINE))
    assert {file.name for file in (ROOT / "docs").glob("*.md")} - {"README.md"} <= shelved


@pytest.mark.slow
def test_the_reference_has_each_public_name(built: Path, pages: dict[Path, Page]) -> None:
    """Each public name of fencelock, of its fence and of its kit has a place, and typed examples are code."""
    page = built / "docs" / "fencelock.html"
    named = {anchor.rpartition(".")[2] for anchor in pages[page].ids}
    assert {*fencelock.__all__, *fencelock.fence.__all__, *kit.__all__} <= named
    text = page.read_text()
    assert "<blockquote" not in text
    assert "├" in text


@pytest.mark.slow
def test_the_search_knows_all_pages(built: Path) -> None:
    """The index of the search has the last word of a page in each language, also for a page that is a file."""
    items = json.loads((built / "search.json").read_text())["items"]
    for page, kind in (("docs/glossary", r"[a-z]{6,}"), ("docs/zh/tutorial", r"[一-龥]{3,}")):
        word = re.findall(kind, (ROOT / f"{page}.md").read_text())[-1]
        assert any(item["location"].startswith(f"{page}.html") and word in item["text"] for item in items), (page, word)
        assert word in (built / "search.js").read_text()


def parts(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield what two languages of a page have in common."""
    yield "code blocks", FENCED.findall(text)
    prose = FENCED.sub("", text)
    yield "headings", re.findall(r"^#+ ", prose, re.MULTILINE)
    yield "tables", re.findall(r"^\|", prose, re.MULTILINE)
    yield "code in the text", sorted(set(re.findall(r"`[^`]+`", prose)))


def test_both_tutorials_say_the_same() -> None:
    """The Chinese tutorial has the code, the headings and the tables of the English one."""
    english, chinese = ((ROOT / "docs" / page).read_text() for page in ("tutorial.md", "zh/tutorial.md"))
    for (what, mine), (_, theirs) in zip(parts(english), parts(chinese), strict=True):
        lacks, more = [one for one in mine if one not in theirs], [one for one in theirs if one not in mine]
        assert mine == theirs, f"they differ in their {what}: the Chinese one lacks {lacks}, and has {more}"
