"""Takes the pictures of the shop, the control room and a torture's time line (`make screenshots`), of real sales.

Needs Chromium and a font with Chinese (on Debian: apt-get install chromium fonts-noto-cjk). The control room is shown
in motion, at its important moments: an instance stands still while it holds the lock, its lease runs out,
the next in line sells, and the late write is refused.
"""

import asyncio
import io
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console

from lab.demo.stage import LockName, Stage, StageOptions, StoreName, set_up
from lab.torture.run import PICTURE

DOCS = Path(__file__).parent
_WITHIN_S = 60.0
_FRAME_S = 0.7
_LAST_S = 4.0  # how long the end is shown
_TORTURE = ("--duration", "24", "--nemesis", "pause,kill,lock-cut", "--ttl-s", "2", "--every", "6", "--seed", "3")


def main() -> None:
    """Start the sale, and take the pictures."""
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    if binary is None:
        sys.exit("Chromium is not on PATH; on Debian: apt-get install chromium")
    options = StageOptions(300, 2, (8080, 8090), None, LockName("etcd"), StoreName.REDIS, None, 5)
    with set_up(options, Console()) as stage:
        asyncio.run(stage.begin_sale(options.stock))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=binary, chromium_sandbox=False)
            _shop(browser, stage)
            _control(browser, stage)
            browser.close()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as report:
        _torture(Path(report))
        browser = playwright.chromium.launch(executable_path=binary, chromium_sandbox=False)
        _timeline(browser, Path(report) / PICTURE)
        browser.close()


def _shop(browser: Browser, stage: Stage) -> None:
    page = browser.new_context(viewport={"width": 390, "height": 760}, device_scale_factor=2).new_page()
    page.goto(f"{stage.instances[0].url}/")
    page.click("#buy[aria-disabled=false]")
    page.wait_for_selector("#order a")
    page.mouse.move(0, 0)
    time.sleep(1.5)  # transitions, and the button's rest
    page.screenshot(path=DOCS / "shop.png")


def _control(browser: Browser, stage: Stage) -> None:
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    close = browser.new_context(viewport={"width": 1000, "height": 800}, device_scale_factor=2).new_page()
    for one in (page, close):
        one.goto(f"{stage.instances[0].url}/control?token={stage.variables['ADMIN_TOKEN']}")
    time.sleep(3)  # a bit of a curve before it falls
    page.click("#guide button")
    frames: list[Image.Image] = []
    began = time.monotonic()
    told = False
    while not told and time.monotonic() < began + _WITHIN_S:
        frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        told = page.locator("#story[data-result=good]").is_visible()
        time.sleep(max(0.0, began + len(frames) * _FRAME_S - time.monotonic()))
    time.sleep(1.5)  # its lock was lost; the instance takes the next one
    frames.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
    close.locator("section.lanes").screenshot(path=DOCS / "lanes.png")
    durations = [int(_FRAME_S * 1000)] * (len(frames) - 1) + [int(_LAST_S * 1000)]
    frames[0].save(
        DOCS / "control.webp",
        save_all=True,
        append_images=frames[1:],
        duration=durations,
        loop=0,
        quality=60,
        method=6,
    )


def _torture(report: Path) -> None:
    """Run a short torture, with faults that are visible in its lanes."""
    command = [sys.executable, "-m", "app", "torture", *_TORTURE, "--report", str(report)]
    subprocess.run(command, check=True)


def _timeline(browser: Browser, picture: Path) -> None:
    page = browser.new_context(viewport={"width": 1100, "height": 800}, device_scale_factor=1.5).new_page()
    page.goto(picture.as_uri())
    page.locator("section").first.screenshot(path=DOCS / "timeline.png")


if __name__ == "__main__":
    main()
