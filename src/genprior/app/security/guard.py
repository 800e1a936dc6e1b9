"""First check of every request: refuses unknown hosts and foreign sites, and adds security headers."""

from __future__ import annotations

import logging

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genprior.app.security.hosts import Hosts

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' ws://{host} wss://{host}; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""nicegui evaluates code that the server sends, so scripts cannot be restricted further; but nothing can be fetched from
another host or sent to it."""

_log = logging.getLogger(__name__)


class Guard:
    """Passes on requests to a known host from a known site, and adds security headers to the answers."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        problem = self._problem(headers)
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send, problem is None)
            return
        host = headers.get("host", "")

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer.update(_HEADERS)
                answer["Content-Security-Policy"] = _POLICY.format(host=host if problem is None else "localhost")
            await send(message)

        if problem is not None:
            await PlainTextResponse(problem[1] + "\n", status_code=problem[0])(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)

    async def _socket(self, scope: Scope, receive: Receive, send: Send, welcome: bool) -> None:
        """A socket: refused, or open until a message cannot be read."""
        if not welcome:
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            await self._app(scope, receive, send)
        except Exception:
            _log.debug("a socket failed", exc_info=True)

    def _problem(self, headers: Headers) -> tuple[int, str] | None:
        """Status and message, if the request is not for this server or not from its page."""
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not self._hosts.know(hosts[0]):
            return 400, "unknown host: to reach the page by this name, start genprior serve with --allow-host NAME"
        if not all(self._hosts.trust(origin, hosts[0]) for origin in origins):
            return 403, "foreign origin: only the page itself may send requests to this server"
        return None
