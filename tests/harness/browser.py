"""Drive a real Chromium, and collect every complaint of its pages."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.harness.servers import optional_server

# A CSP violation is an event of the document; its console message differs from version to version.
_REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy violated: ${event.effectiveDirective} ${event.blockedURI}`));
"""
# The lowest contrast, as WCAG computes it, between each element's own text and its background.
_CONTRASTS = """() => {
  document.getAnimations().filter((one) => one instanceof CSSTransition).forEach((one) => one.finish());
  const light = (color) => {
    const scale = color.startsWith("color(") ? 1 : 255;
    const [r, g, b] = color.match(/[\\d.]+/g).map((part) => part / scale)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const color = getComputedStyle(element).backgroundColor;
    return color === "rgba(0, 0, 0, 0)" ? behind(element.parentElement) : color;
  };
  return [...document.body.querySelectorAll("*")]
    .filter((one) => one.checkVisibility())
    .filter((one) => [...one.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim()))
    .map((one) => {
      const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((x, y) => y - x);
      return [one.textContent, (a + 0.05) / (b + 0.05)];
    });
}"""
_ENDS = """() => [...document.body.querySelectorAll("*")]
  .filter((one) => one.checkVisibility() && !one.closest("[role=region][tabindex='0']"))
  .map((one) => one.getBoundingClientRect().right)"""
# This is no failure: the page, or its end, cancelled a pending request.
_GIVEN_UP = "net::ERR_ABORTED"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Debian's Chromium, headless."""
    binary = optional_server("chromium", "chromium")
    sandbox = os.geteuid() != 0  # root can't have one
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, chromium_sandbox=sandbox)
        try:
            yield browser
        finally:
            browser.close()


def shows(page: Page, **texts: str | re.Pattern[str]) -> None:
    """Wait until elements have these texts; the names are their ids, with _ for -."""
    for name, text in texts.items():
        expect(page.locator(f"#{name.replace('_', '-')}")).to_have_text(text)


def contrasts(page: Page) -> list[tuple[str, float]]:
    """Return each visible text, and its contrast to its background."""
    return [(text, ratio) for text, ratio in page.evaluate(_CONTRASTS)]


def fits(page: Page) -> bool:
    """Whether all that is visible fits the width of the screen, except what scrolls by itself, for keyboards, too.

    The window is no measure: a mobile browser makes it wider if something sticks out.
    """
    assert page.viewport_size is not None
    return bool(max(page.evaluate(_ENDS)) <= page.viewport_size["width"])


def drawn(page: Page, plot: str) -> set[str]:
    """Return the colours on a chart, each as "red,green,blue"."""
    found: list[str] = page.evaluate(
        """(plot) => {
          const canvas = document.querySelector(`#${plot} canvas`);
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const found = new Set();
          for (let at = 0; at < data.length; at += 4) {
            if (data[at + 3] === 255) found.add(data.slice(at, at + 3).join());
          }
          return [...found];
        }""",
        plot,
    )
    return set(found)


class Visitors:
    """Visitors of pages, each with its own browser profile; the complaints of their pages are kept."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self._forgiven: list[str] = []
        self.complaints: list[str] = []  # console errors and warnings, exceptions, failed requests

    def visit(self, url: str, **options: Any) -> Page:
        """Open a page as a new visitor. `options` are those of a browser context: locale, viewport, color_scheme ..."""
        context = self._browser.new_context(**{"locale": "en-GB"} | options)
        self._contexts.append(context)
        context.add_init_script(_REPORT_VIOLATIONS)
        context.on("console", self._said)
        context.on("weberror", lambda error: self.complaints.append(f"exception: {error.error}"))
        context.on("requestfailed", self._failed)
        page = context.new_page()
        page.goto(url)
        return page

    def forgive(self, pattern: str) -> None:
        """Expect complaints that match the regular expression: this test provokes them."""
        self._forgiven.append(pattern)

    def unforgiven(self) -> list[str]:
        """Return the complaints that no test expects."""
        return [text for text in self.complaints if not any(re.search(pattern, text) for pattern in self._forgiven)]

    def leave(self) -> None:
        """Close everything that was opened."""
        for context in self._contexts:
            context.close()

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text} ({message.location['url']})")

    def _failed(self, request: Request) -> None:
        if request.failure != _GIVEN_UP:
            self.complaints.append(f"failed: {request.failure} ({request.url})")
