"""One server for all browser tests, inside this process, and a browser without a window."""

import os
import shutil
import threading
import time

import pytest

from genprior.app.queue import Queue
from genprior.app.state import ServerState

REQUIRED = os.environ.get("GENPRIOR_REQUIRE_BROWSER") == "1"
UPLOAD_LIMIT = 0.5


def missing(what):
    """Skip, unless browser tests are required."""
    (pytest.fail if REQUIRED else pytest.skip)(f"{what} is not there: browser tests cannot run")


@pytest.fixture(scope="session")
def shared():
    return ServerState(Queue(jobs=2), time_limit=20, upload_limit=UPLOAD_LIMIT)


@pytest.fixture(scope="session")
def address(shared):
    """The page's address; nicegui allows one server for each process."""
    pytest.importorskip("nicegui")
    from genprior.app.server import bound_socket, make_server

    up = threading.Event()
    bound = bound_socket("127.0.0.1", 0)
    server = make_server(shared, up.set)
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    assert up.wait(60)
    yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        missing("chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    flags += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]  # nothing gets out, even if it is asked for
    with sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=chromium, args=flags)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def context(browser):
    """A browser's profile, with its cache, for all tabs."""
    return browser.new_context(accept_downloads=True, has_touch=True)


@pytest.fixture
def visit(context, address):
    """Open the page in a tab of its own; at the end no outside request and no error in the browser may have been seen."""
    pages, troubles = [], []

    def asked(request):
        if not request.url.startswith((address, address.replace("http", "ws"), "data:", "blob:")):
            troubles.append(f"asked another host: {request.url}")

    def open_page(size=(1366, 768), scheme="light"):
        page = context.new_page()
        pages.append(page)
        page.set_default_timeout(90_000)
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.emulate_media(color_scheme=scheme)
        page.on("request", asked)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        page.goto(address)
        page.wait_for_selector('[data-tile="Damaged"] img:not(.hidden)')
        return page

    yield open_page
    for page in pages:
        page.close()
    assert not troubles


@pytest.fixture
def until():
    def wait(condition, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.02)

    return wait
