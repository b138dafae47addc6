"""`make site`: the pages as HTML, in English and Chinese, without a dead link and with nothing from elsewhere."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "docs" / "site" / "build.py"
_spec = importlib.util.spec_from_file_location("site_build", BUILD)
assert _spec
assert _spec.loader
site = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(site)


class Page(HTMLParser):
    """A page's links, its ids, and what a browser loads with it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.nav: list[str] = []
        self.language = ""
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        self.ids |= {has[name] for name in ("id", "name") if name in has}
        self.language = has["lang"] if tag == "html" else self.language
        if tag == "a" and "href" in has:
            self.links.append(has["href"])
            self.nav += [has["href"]] if "md-nav__link" in has.get("class", "") else []
        elif "src" in has or (tag == "link" and has.get("rel") not in ("next", "prev")):
            self.loaded.append(has.get("src") or has["href"])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    quiet = {name: value for name, value in os.environ.items() if name != "GITHUB_REPOSITORY"}
    done = subprocess.run([sys.executable, BUILD, "--into", folder], env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[Path, Page]:
    # The 404 page may be shown at any address: its links are absolute.
    return {file: Page(file) for file in built.rglob("*.html") if file.name != "404.html"}


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


def test_nothing_comes_from_elsewhere(built: Path, pages: dict[Path, Page]) -> None:
    """No page and no style sheet loads a font, a script or a picture from another host."""
    assert not [one for page in pages.values() for one in page.loaded if re.match(r"(\w+:)?//", one)]
    for sheet in built.rglob("*.css"):
        assert not re.search(r"(url\(|@import)[\"' ]*(https?:)?//", sheet.read_text()), sheet.name


def test_each_page_is_in_the_navigation(built: Path, pages: dict[Path, Page]) -> None:
    """Each page is built and in the navigation, and those of docs are on one of the shelves."""
    shelved = {
        one for index in ("docs/README.md", "docs/zh/README.md") for of in site.shelves(index).values() for one in of
    }
    for path, place in site.pages().items():
        language, name = site.language_of(place), site.html(place.removeprefix("zh/"))
        home = built / "zh" if language == "zh" else built
        assert {(home / link).resolve() for link in pages[home / "index.html"].nav} >= {home / name}, path
        assert pages[home / name].language == language
        assert (
            Path(path).name == "README.md" or not path.startswith("docs/") or {path, str(Path(path).parent)} & shelved
        ), path


def test_the_search_knows_all_pages(built: Path) -> None:
    """The index of the search has the last word of the last page of each language, also for a page that is a file."""
    for index, folder, kind in (("docs/README.md", "", r"[a-z]{6,}"), ("docs/zh/README.md", "zh", r"[一-龥]{3,}")):
        last = list(site.shelves(index).values())[-1][-1]
        word = re.findall(kind, (ROOT / last).read_text())[-1]
        items = json.loads((built / folder / "search.json").read_text())["items"]
        place = site.html(site.pages()[last].removeprefix("zh/"))
        assert any(item["location"].startswith(place) and word in item["text"] for item in items), (place, word)
        assert word in (built / folder / "search.js").read_text()


def test_links_to_code_lead_to_the_repository(built: Path, tmp_path: Path) -> None:
    """A file of the code is a copy in the site, or a link to the repository where its URL is known."""
    copy = built / "source" / "examples" / "nginx.conf.txt"
    assert copy.read_bytes() == (ROOT / "examples" / "nginx.conf").read_bytes()
    site.Site(tmp_path, "https://example.org/shop")
    assert (
        "](https://example.org/shop/blob/HEAD/examples/nginx.conf)" in (tmp_path / "en" / "operations.md").read_text()
    )


def parts(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield what two languages of a page have in common."""
    yield "code blocks", site.FENCED.findall(text)
    prose = site.FENCED.sub("", text)
    yield "headings", re.findall(r"^#+ ", prose, re.MULTILINE)
    yield "tables", re.findall(r"^\|", prose, re.MULTILINE)
    yield "code in the text", sorted(set(re.findall(r"`[^`]+`", prose)))


def test_both_languages_say_the_same() -> None:
    """The Chinese index has the English shelf to start with, and each page on it the same code, headings and tables."""
    places = site.pages()
    english, chinese = (next(iter(site.shelves(index).values())) for index in ("docs/README.md", "docs/zh/README.md"))
    english = [one if one in places else f"{one}/README.md" for one in english]
    assert [f"zh/{places[one]}" for one in english] == [places[one] for one in chinese], "the shelves differ"
    for here, there in zip(english, chinese, strict=True):
        texts = [(ROOT / path).read_text() for path in (here, there)]
        for (what, mine), (_, theirs) in zip(*map(parts, texts), strict=True):
            lacks, more = [one for one in mine if one not in theirs], [one for one in theirs if one not in mine]
            assert mine == theirs, (
                f"{there} differs from {here} in its {what}: it lacks {lacks}, and {more} is not in English"
            )
