"""A button that uploads a file, and the single upload address of all pages.

nicegui's own upload element makes an address for each element. fastapi keeps every address, and with it the page, its race
and its results, so memory would grow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nicegui import Client, app, background_tasks, ui
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

Take = Callable[[str, bytes], Awaitable[None]]
_TAKE = "upload"


def make_upload(client: Client, label: str, most: int, take: Take, on_rejected: Callable[[], None]) -> ui.element:
    """A button and drop zone for a file; ``take`` gets its name and content."""
    client.storage[_TAKE] = take  # removed with the client
    element = ui.element("q-uploader").classes("upload").props('flat auto-upload accept="image/*"')
    element.props["label"], element.props["max-file-size"] = label, most
    element.props["url"] = f"upload/{client.id}"  # relative, because a proxy may serve the page under a path
    for event in ("rejected", "failed"):
        element.on(event, on_rejected, args=[])
    return element


def add_upload_route() -> None:
    """The upload address. Only the client's own tab knows the id in it."""

    @app.post("/upload/{client_id}")
    async def upload(client_id: str, request: Request) -> dict[str, int]:
        client = Client.instances.get(client_id)
        if client is None or _TAKE not in client.storage:
            raise HTTPException(404, "this page is no longer open")
        try:
            async with request.form(max_files=1, max_fields=0) as form:
                files = [part for part in form.values() if isinstance(part, UploadFile)]
                found = [(file.filename or "the file", await file.read()) for file in files]
        except ClientDisconnect:
            raise HTTPException(400, "the file arrived incomplete") from None
        for name, content in found:
            background_tasks.create(_hand_over(client, name, content), name="take an upload")
        return {"files": len(found)}


async def _hand_over(client: Client, name: str, content: bytes) -> None:
    with client:
        await client.storage[_TAKE](name, content)
