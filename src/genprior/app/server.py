"""The web server of the page."""

from __future__ import annotations

import gc
import secrets
import socket
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress

import uvicorn
from fastapi import Depends, FastAPI, HTTPException
from nicegui import Client, app, core, ui
from nicegui.client import ClientConnectionTimeout
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from genprior.app import registry
from genprior.app.queue import Owner
from genprior.app.security.body import UploadLimit
from genprior.app.security.connections import Connection
from genprior.app.security.events import drop_forged_events
from genprior.app.security.guard import Guard
from genprior.app.security.hosts import network
from genprior.app.state import ServerState
from genprior.app.view.page import STYLE, Page, header
from genprior.app.view.parts import is_open
from genprior.app.view.upload import add_upload_route

TITLE = "genprior"
_SLACK = 2**16
"""Bytes of an upload request beyond the file itself."""
_LARGEST_MESSAGE = 2**21
"""Bytes of one message from a page; the largest is a sketch."""
_CONNECT_SECONDS = 30.0
"""For a browser to open the page's socket."""
_ANSWER_SECONDS = 15.0
"""For a browser to answer, and for the server to notice."""
MOST_PAGES = 256
"""Pages open at once; at most half of them from one address."""
_TAB_SECONDS = 600.0
"""After which nicegui drops the storage of a tab, which the page does not use."""
_LAST_WAIT = 20.0
_FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="8" fill="#2e6fd6"/>'
    '<path d="M6 8c4 0 5 15 11 15 4 0 5-3 9-3" fill="none" stroke="#fff" stroke-width="3.4" stroke-linecap="round"/></svg>'
)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket on this port, or an error that says why there is none."""
    try:
        family, socket_type, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, socket_type, protocol)
    except socket.gaierror as problem:
        raise ValueError(f"host {host!r} cannot be resolved ({problem.strerror}): give 127.0.0.1 or 0.0.0.0") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError as problem:
        found.close()
        raise OSError(
            f"port {port} on {host} cannot be used ({problem.strerror}): another program has it; try `port={port + 1}`"
        ) from None
    return found


def make_server(shared: ServerState, announce: Callable[[], object] = lambda: None) -> uvicorn.Server:
    """The server; ``announce`` is called when it is up. nicegui allows one per process."""
    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    outer.add_middleware(UploadLimit, most=round(shared.upload_limit * 2**20) + _SLACK)
    outer.add_middleware(Guard, hosts=shared.hosts)
    _add_pages(shared)

    def close() -> None:  # without an argument, because nicegui would pass itself
        shared.close()

    ui.run_with(
        outer,
        title=TITLE,
        favicon=_FAVICON,
        dark=None,
        tailwind=False,
        storage_secret=secrets.token_hex(16),
        show_welcome_message=False,
    )
    app.on_startup(_answer_late)
    app.on_startup(announce)
    app.on_shutdown(close)
    app.storage.max_tab_storage_age = _TAB_SECONDS
    drop_forged_events()
    # nicegui searches all objects for its server, and some deprecated objects of torch warn when accessed
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*torch.distributed")
    return uvicorn.Server(
        uvicorn.Config(
            outer,
            log_level="warning",
            http=Connection,
            ws_max_size=_LARGEST_MESSAGE,
            server_header=False,
            proxy_headers=bool(shared.hosts.allowed),  # without a proxy, forwarding headers are forged
        )
    )


def _add_pages(shared: ServerState) -> None:
    """The page and its upload address, nothing else."""
    ui.add_css(STYLE, shared=True)
    add_upload_route()

    @ui.page("/", dependencies=[Depends(_check_page_count)])
    async def front(client: Client) -> None:
        owner = Owner(network(client.ip), app.storage.browser["id"])
        header()
        with suppress(ClientConnectionTimeout):  # build the page only for clients that open its socket
            await client.connected(timeout=_CONNECT_SECONDS)
        if client.has_socket_connection:
            Page(shared, owner, client)
        elif is_open(client):
            client.delete()

    def not_found(request: Request, problem: Exception) -> PlainTextResponse:  # nicegui would render a page
        return PlainTextResponse("not found\n", status_code=404)

    app.add_exception_handler(404, not_found)


def _answer_late() -> None:
    """Wait longer than nicegui's two seconds for an answer, because the machine may be busy computing."""
    core.sio.eio.ping_timeout = _ANSWER_SECONDS


def _check_page_count(request: Request) -> None:
    """Refuse another page if too many are open."""
    here = network(request.client.host) if request.client is not None else ""
    near = sum(network(client.ip) == here for client in Client.instances.values())
    if near >= MOST_PAGES // 2 or len(Client.instances) >= MOST_PAGES:
        raise HTTPException(503, "too many pages are open: close some tabs, or try again in a minute")


def serve(bound: socket.socket, shared: ServerState, announce: Callable[[], object] = lambda: None) -> None:
    """Serve until interrupted, then stop running races: a process must not exit while torch is computing."""
    over = threading.Event()
    warming = threading.Thread(target=_warm, args=(over,), daemon=True)
    warming.start()
    gc.freeze()  # keeps garbage collection of closed pages fast: it need not scan all of torch
    try:
        make_server(shared, announce).run(sockets=[bound])
    finally:
        over.set()
        shared.close(wait=_LAST_WAIT)
        warming.join(_LAST_WAIT)


def _warm(over: threading.Event) -> None:
    """Load the generators in the background."""
    for name in registry.GENERATORS:
        if not over.is_set():
            registry.sample_images(name)
