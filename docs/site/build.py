"""Builds the documentation as a site (`make site`): in English and, below zh/, in Chinese.

The pages are those of docs/ and a few from elsewhere, as GitHub shows them; only their links are changed. A link to
something else leads to the repository, if its URL is known, or to a copy of the file. Any warning fails the build.
"""

import argparse
import contextlib
import functools
import http.server
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

OUTSIDE = {  # pages outside of docs/, and their places in the site
    "README.md": "readme.md",
    "README.zh-CN.md": "zh/readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
    "fencelock/README.md": "library.md",
}
DECISIONS = "docs/adr"  # a folder without an index, for which a page is written
WORDS = {
    "en": {"language": "English", "index": "docs/README.md", "home": "Documentation", "more": "Project"},
    "zh": {"language": "中文", "index": "docs/zh/README.md", "home": "文档", "more": "项目"},
}
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r'(!?\[(?P<label>[^\[\]]*)\]\(|<img src=")(?P<to>[^)"]+)([)"])')


def pages() -> dict[str, str]:
    """Return the places of the pages in the site, by their paths in the repository."""
    found = dict(OUTSIDE)
    for folder, below in (("docs", ""), ("deploy", "deploy/")):
        for file in sorted((ROOT / folder).rglob("*.md")):
            path = file.relative_to(ROOT / folder).as_posix()
            found[f"{folder}/{path}"] = below + re.sub(r"(^|/)README\.md$", r"\1index.md", path)
    return found


def shelves(index: str) -> dict[str, list[str]]:
    """Return the shelves of an index page, with the paths of what is on them."""
    found: dict[str, list[str]] = {}
    for title, link in re.findall(r"^## (.+)|^\| \[[^\]]+\]\(([^)]+)\)", (ROOT / index).read_text(), re.MULTILINE):
        if title:
            shelf = found.setdefault(title, [])
        else:
            shelf.append(posixpath.normpath(posixpath.join(posixpath.dirname(index), link)))
    return found


def title(path: str) -> str:
    """Return the title of a page."""
    return "Decisions" if path == DECISIONS else (ROOT / path).read_text().partition("\n")[0].removeprefix("# ")


def language_of(place: str) -> str:
    """Return the language of a place in the site."""
    return "zh" if place.startswith("zh/") else "en"


class Site:
    """The sources of both languages, each in a folder, with their links changed."""

    def __init__(self, folder: Path, repository: str | None = None, url: str | None = None) -> None:
        self.folder, self.repository, self.url = folder, repository, url
        self.places = pages() | {DECISIONS: "adr/index.md"}
        for path, place in pages().items():
            parts = FENCED.split((ROOT / path).read_text())
            parts[::2] = [LINK.sub(functools.partial(self._link, path), part) for part in parts[::2]]
            self.write(place, "".join(parts))
        decisions = [path for path in pages() if path.startswith(f"{DECISIONS}/")]
        entries = "".join(f"- [{title(path)}]({posixpath.basename(path)})\n" for path in decisions)
        self.write(
            "adr/index.md", f"# {title(DECISIONS)}\n\nWhy it is done this way, and what was rejected.\n\n{entries}"
        )
        for file in (*HERE.glob("*.css"), *HERE.glob("iframe-worker*"), ROOT / "app" / "web" / "static" / "icon.svg"):
            self.write(file.name, file.read_bytes())
            self.write(f"zh/{file.name}", file.read_bytes())

    def write(self, place: str, content: str | bytes) -> None:
        """Write a file of the site."""
        file = self.folder / language_of(place) / place.removeprefix("zh/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    def settings(self, language: str) -> dict[str, Any]:
        """Return the settings of the site in one language."""
        words, [other] = WORDS[language], [one for one in WORDS if one != language]
        mine = {path: place for path, place in self.places.items() if language_of(place) == language}
        nav: list[Any] = [{words["home"]: "index.md"}]
        left = mine.keys() - {words["index"]}
        for shelf, paths in shelves(words["index"]).items():
            entries: list[Any] = []
            for path in paths:
                page = path if path in mine else f"{path}/README.md"
                below = [one for one in mine if one.startswith(f"{page}/")]
                left -= {page, *below}
                places = [mine[one].removeprefix("zh/") for one in (page, *below)]
                entries.append({title(page): places} if below else places[0])
            nav.append({shelf: entries})
        nav.append({words["more"]: [mine[path].removeprefix("zh/") for path in mine if path in left]})
        found: dict[str, Any] = tomllib.loads((HERE / "zensical.toml").read_text())["project"]
        found |= {"docs_dir": language, "site_dir": f"site/{language}", "nav": nav}
        found["site_url"] = self.url and self.url + ("zh/" if language == "zh" else "")
        found["theme"] |= {"language": language, "custom_dir": str(HERE / "overrides")}
        up = "../" if language == "zh" else ""
        twins = {  # the same page in the other language
            html(place.removeprefix("zh/")): up + html(twin)
            for place in mine.values()
            for twin in self.places.values()
            if twin.removeprefix("zh/") == place.removeprefix("zh/") and language_of(twin) == other
        }
        # `True` and not a list, which would put links into the head, for whose sitemap the script would ask, in vain.
        found["extra"] |= {
            "alternate": True,
            "twins": twins,
            "other": {"language": other, "name": WORDS[other]["language"]},
        }
        return found

    def _link(self, page: str, match: re.Match[str]) -> str:
        """Return a link of a page as the site has it."""
        name, hash_, anchor = match["to"].partition("#")
        if not name or name.startswith("https:"):
            return match[0]
        here, path = self.places[page], posixpath.normpath(posixpath.join(posixpath.dirname(page), name))
        before = match[1]
        page = path if path in self.places else f"{path}/README.md"
        if place := self.places.get(page):
            if match["label"] in (name, posixpath.basename(name)):
                before = f"[{title(page)}]("  # a site calls its pages by their titles
            place = place if language_of(place) == language_of(here) else html(place)
        elif path.startswith("docs/") and Path(path).suffix in (".svg", ".png", ".webp"):
            place = path.removeprefix("docs/")
            self.write(place, (ROOT / path).read_bytes())
        elif not (ROOT / path).exists():
            return match[0]  # of which zensical will warn
        elif self.repository:
            return f"{match[1]}{self.repository}/blob/HEAD/{path}{hash_}{anchor}{match[4]}"
        elif (ROOT / path).is_dir():
            return match["label"]
        else:
            place = f"source/{path}.txt"
            self.write(place, (ROOT / path).read_bytes())
        return f"{before}{posixpath.relpath(place, posixpath.dirname(here))}{hash_}{anchor}{match[4]}"


def html(place: str) -> str:
    """Return the name of the file that a page becomes."""
    return place.removesuffix(".md") + ".html"


def build(into: Path, repository: str | None = None, url: str | None = None) -> None:
    """Build the site of both languages into a folder. Ends the program if there is a warning."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        site = Site(folder, repository, url)
        for language in WORDS:
            config = folder / f"{language}.yml"  # JSON is YAML
            config.write_text(json.dumps(site.settings(language)))
            program = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(config)]
            if status := subprocess.run(program).returncode:
                sys.exit(status)
        shutil.rmtree(into, ignore_errors=True)
        shutil.copytree(folder / "site" / "en", into)
        shutil.copytree(folder / "site" / "zh", into / "zh")


def main() -> None:
    """Build the site, and show it if asked to."""
    place = os.environ.get("GITHUB_REPOSITORY")
    parser = argparse.ArgumentParser(description="Builds the documentation as a site.")
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "site", help="a folder, which is replaced")
    parser.add_argument(
        "--repository", default=place and f"https://github.com/{place}", help="where links to code lead"
    )
    parser.add_argument("--url", help="where the site will be, with a / at its end; its page for 404 needs it")
    parser.add_argument("--serve", action="store_true", help="then show it, until Ctrl-C")
    asked = parser.parse_args()
    build(asked.into, asked.repository, asked.url)
    if asked.serve:
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=asked.into)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 8000), handler) as server:
            print(f"http://127.0.0.1:{server.server_port}/")
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
    else:
        print(asked.into / "index.html")


if __name__ == "__main__":
    main()
