"""Make docs/page.png: the web page after a race of the four solvers that are chosen at first.

python tools/page_picture.py docs/page.png

Needs the extras app and test, and a chromium. The race takes 20 seconds of computing: draw it on a quiet machine.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from genprior.app.queue import Queue
from genprior.app.server import bound_socket, make_server
from genprior.app.state import ServerState

SIZE = {"width": 1366, "height": 1010}
SAMPLE = "sample 8"
PATIENCE = 600_000  # milliseconds


def main(path: Path) -> None:
    """Open the page, let the solvers race, take a screenshot."""
    with served() as address, opened(address) as page:
        page.get_by_label(SAMPLE, exact=True).click()
        page.get_by_role("button", name="Start the race").click()
        page.locator('[role="status"]', has_text="done").wait_for()
        page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
        page.wait_for_timeout(2000)  # the chart moves to its end
        page.screenshot(path=path)
        print(page.locator("table.outcome tbody").inner_text())
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)  # a third of the size


@contextmanager
def served() -> Iterator[str]:
    """The page on a free port."""
    up = threading.Event()
    bound = bound_socket("127.0.0.1", 0)
    server = make_server(ServerState(Queue(jobs=1), time_limit=30, upload_limit=1), up.set)
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    up.wait()
    yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    server.should_exit = True
    thread.join(20)


@contextmanager
def opened(address: str) -> Iterator[Page]:
    """A browser without a window that shows it."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("there is no chromium: install it, for example by apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.set_default_timeout(PATIENCE)
        page.goto(address)
        page.wait_for_selector('[data-tile="Damaged"] img:not(.hidden)')
        yield page
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
