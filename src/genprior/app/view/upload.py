"""A button that uploads a file, and the one address to which all pages upload.

nicegui's own upload element makes an address for each element, and fastapi remembers every address it ever had, with all that
hangs on it: the page, its race and its results.
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
    """A place to choose a file or drop it; ``take`` gets its name and content."""
    client.storage[_TAKE] = take  # goes with the client
    element = ui.element("q-uploader").classes("upload").props('flat auto-upload accept="image/*"')
    element.props["label"], element.props["max-file-size"] = label, most
    element.props["url"] = f"upload/{client.id}"  # relative: a proxy may have put the page below a path
    for event in ("rejected", "failed"):
        element.on(event, on_rejected, args=[])
    return element


def add_upload_route() -> None:
    """The address for uploads. The id in it is known to the tab alone that the client belongs to."""

    @app.post("/upload/{client_id}")
    async def upload(client_id: str, request: Request) -> dict[str, int]:
        client = Client.instances.get(client_id)
        if client is None or _TAKE not in client.storage:
            raise HTTPException(404, "there is no such page any more")
        try:
            async with request.form(max_files=1, max_fields=0) as form:
                files = [part for part in form.values() if isinstance(part, UploadFile)]
                found = [(file.filename or "the file", await file.read()) for file in files]
        except ClientDisconnect:
            raise HTTPException(400, "the file did not arrive whole") from None
        for name, content in found:
            background_tasks.create(_hand_over(client, name, content), name="take an upload")
        return {"files": len(found)}


async def _hand_over(client: Client, name: str, content: bytes) -> None:
    with client:
        await client.storage[_TAKE](name, content)
