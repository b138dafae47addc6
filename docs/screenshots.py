"""Takes the README's pictures of the shop and the control room (`make screenshots`), with a real sale behind them.

Needs Chromium (on Debian: apt-get install chromium). The control room is shown at the moment that it is there for: an
instance stood still with the lock in its hand, its lease has run out, and the next in line sells.
"""

import asyncio
import shutil
import sys
import time
from pathlib import Path

import httpx
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console

from app.commands.stage import LockName, Stage, StageOptions, StoreName, set_up

DOCS = Path(__file__).parent
_WITHIN_S = 60.0


def main() -> None:
    """Start the sale, and look at it."""
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


def _shop(browser: Browser, stage: Stage) -> None:
    page = browser.new_context(viewport={"width": 390, "height": 760}, device_scale_factor=2).new_page()
    page.goto(f"{stage.instances[0].url}/")
    page.click("#buy[aria-disabled=false]")
    page.wait_for_selector("#order a")
    page.mouse.move(0, 0)
    time.sleep(1.5)  # transitions, and the button's rest
    page.screenshot(path=DOCS / "shop.png")


def _control(browser: Browser, stage: Stage) -> None:
    token = stage.variables["ADMIN_TOKEN"]
    here = stage.instances[0].url
    with httpx.Client(base_url=here, headers={"Authorization": f"Bearer {token}"}) as operator:
        page = browser.new_context(viewport={"width": 1280, "height": 900}, device_scale_factor=1.5).new_page()
        page.goto(f"{here}/control?token={token}")
        time.sleep(3)  # a bit of a curve before it falls
        operator.post("/control/rush", json={"buyers": 260, "over_s": 26}).raise_for_status()
        time.sleep(8)
        operator.post("/control/pause", json={}).raise_for_status()
        until = time.monotonic() + _WITHIN_S
        while not _overtaken(operator.get("/control/picture").json()) and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(1)
        page.screenshot(path=DOCS / "control.png")


def _overtaken(picture: dict[str, object]) -> bool:
    """Whether somebody believes in a grant although another one has had the lock since."""
    believed = [int(one["token"]) for one in picture["instances"] if one["token"]]  # type: ignore[index,attr-defined]
    newest = max((int(one["token"]) for one in picture["grants"]), default=0)  # type: ignore[index,attr-defined]
    return any(token < newest for token in believed)


if __name__ == "__main__":
    main()
