"""How large a request may be, and how long it may take to arrive."""

from __future__ import annotations

import asyncio

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_SECONDS = 120.0
"""For the body of a request to arrive: 5 MB in 120 s is a third of a megabit a second."""


class UploadLimit:
    """Refuses requests with too large a body, by what they announce and by what arrives, and those that take too long."""

    def __init__(self, app: ASGIApp, most: int, seconds: float = BODY_SECONDS) -> None:
        self._app, self._most, self._seconds = app, most, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is small enough."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > self._most:
            await PlainTextResponse("the file is too large", status_code=413)(scope, receive, send)
            return
        await self._app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        end = asyncio.get_running_loop().time() + self._seconds
        arrived, whole = 0, False

        async def counted() -> Message:
            nonlocal arrived, whole
            if whole:  # what follows is only whether the client is still there
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), end - asyncio.get_running_loop().time())
            except TimeoutError:
                return {"type": "http.disconnect"}
            arrived += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            return message if arrived <= self._most else {"type": "http.disconnect"}

        return counted
