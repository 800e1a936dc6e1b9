"""Limits on the size of a request and the time it takes to arrive."""

from __future__ import annotations

import asyncio

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_SECONDS = 120.0
"""For the body of a request to arrive: 5 MB in 120 s is a third of a megabit per second."""


class UploadLimit:
    """Refuses requests whose body is too large, as announced or as received, or takes too long."""

    def __init__(self, app: ASGIApp, most: int, seconds: float = BODY_SECONDS) -> None:
        self._app, self._most, self._seconds = app, most, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on requests that are small enough."""
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
            if whole:  # later messages only tell whether the client is still connected
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), end - asyncio.get_running_loop().time())
            except TimeoutError:
                return {"type": "http.disconnect"}
            arrived += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            return message if arrived <= self._most else {"type": "http.disconnect"}

        return counted
