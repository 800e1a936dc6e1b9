"""Puts the page on a port."""

from __future__ import annotations

import secrets
import socket
import threading
import warnings
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI
from nicegui import Client, app, ui
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genprior.app import stock
from genprior.app.house import House
from genprior.app.view.page import Page

TITLE = "genprior"
_SLACK = 2**16
"""Bytes of a request beside the file in it."""
_LAST_WAIT = 20.0
_FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="8" fill="#2e6fd6"/>'
    '<path d="M6 8c4 0 5 15 11 15 4 0 5-3 9-3" fill="none" stroke="#fff" stroke-width="3.4" stroke-linecap="round"/></svg>'
)


class UploadLimit:
    """Refuses requests with too large a body: by what they announce, and by what arrives."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is small enough."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > self._most:
            await PlainTextResponse("the file is too large", status_code=413)(scope, receive, send)
            return
        arrived = 0

        async def counted() -> Message:
            nonlocal arrived
            message = await receive()
            arrived += len(message.get("body", b""))
            return message if arrived <= self._most else {"type": "http.disconnect"}

        await self._app(scope, counted, send)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket on this port, or an error that says why there is none."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except socket.gaierror as problem:
        raise ValueError(f"host {host!r} is not known here ({problem.strerror}): give 127.0.0.1 or 0.0.0.0") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError as problem:
        found.close()
        raise OSError(
            f"port {port} on {host} cannot be used ({problem.strerror}): another program has it; try --port {port + 1}"
        ) from None
    return found


def make_server(house: House, announce: Callable[[], object] = lambda: None) -> uvicorn.Server:
    """The server of the page; ``announce`` is called when it is up. One for each process, as nicegui has it."""
    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    outer.add_middleware(UploadLimit, most=round(house.upload_limit * 2**20) + _SLACK)

    @ui.page("/")
    def front(client: Client) -> None:
        Page(house, app.storage.browser["id"], client)

    def close() -> None:  # nicegui hands itself to what takes an argument
        house.close()

    ui.run_with(
        outer,
        title=TITLE,
        favicon=_FAVICON,
        dark=None,
        tailwind=False,
        storage_secret=secrets.token_hex(16),
        show_welcome_message=False,
    )
    app.on_startup(announce)
    app.on_shutdown(close)
    # nicegui looks for its server among all objects, and torch has deprecated ones that complain when looked at
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*torch.distributed")
    return uvicorn.Server(uvicorn.Config(outer, log_level="warning"))


def serve(bound: socket.socket, house: House, announce: Callable[[], object] = lambda: None) -> None:
    """Serve until interrupted; then end what still computes, for a process must not end in the middle of it."""
    over = threading.Event()
    warming = threading.Thread(target=_warm, args=(over,), daemon=True)
    warming.start()
    try:
        make_server(house, announce).run(sockets=[bound])
    finally:
        over.set()
        house.close(wait=_LAST_WAIT)
        warming.join(_LAST_WAIT)


def _warm(over: threading.Event) -> None:
    """Load what visitors will need while they look at the page."""
    for name in stock.GENERATORS:
        if not over.is_set():
            stock.sample_pictures(name)
