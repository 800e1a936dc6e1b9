"""A tab without a browser: what nicegui's JavaScript says to the server, said by Python."""

import asyncio
import contextlib
import html
import json
import re
import time
import uuid

import aiohttp
import socketio

_ESCAPES = re.compile(r"String\.raw`(.*?)`", re.DOTALL)


class Tab:
    """Opens the page, follows its elements, and sends events."""

    def __init__(self, address):
        self.address = address
        self.elements = {}
        self.changed = asyncio.Event()
        self.socket = socketio.AsyncClient(reconnection=False, handle_sigint=False)
        self.socket.on("update", self._update)

    async def open(self, **headers):
        """Fetch the page, then connect its socket."""
        await self.fetch(**headers)
        await self.connect(**headers)
        return self

    async def fetch(self, **headers):
        async with aiohttp.ClientSession() as session, session.get(self.address, headers=headers) as answer:
            text = await answer.text()
            assert answer.status == 200, text
        self.client_id = re.search(r"""['"]client_id['"]: ['"]([^'"]+)""", text).group(1)
        self._update(json.loads(html.unescape(_ESCAPES.search(text).group(1))))

    async def connect(self, transport="websocket", **headers):
        query = f"client_id={self.client_id}&next_message_id=0&implicit_handshake=true"
        query += f"&document_id={uuid.uuid4()}&tab_id={uuid.uuid4()}"
        place = f"{self.address}?{query}"
        path = "/_nicegui_ws/socket.io"
        await self.socket.connect(place, headers, transports=[transport], socketio_path=path, wait_timeout=30)

    def _update(self, changes):
        for key, element in changes.items():
            if element is None:
                self.elements.pop(str(key), None)
            elif key != "_id":
                self.elements[str(key)] = element
        self.changed.set()

    def find(self, **wanted):
        """The first element with this text, or these props."""
        wanted = {name.replace("_", "-"): value for name, value in wanted.items()}
        for key, element in self.elements.items():
            props = element.get("props", {})
            known = ((element if name in ("text", "tag") else props).get(name) for name in wanted)
            if all(found == value for found, value in zip(known, wanted.values(), strict=True)):
                return key
        return None

    async def wait(self, condition, seconds=30):
        """Until the condition holds. Looked at when the page changes: the server, in this process, needs the time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.changed.clear()
            found = condition()
            if found:
                return found
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), 0.1)
        raise AssertionError("waited in vain")

    async def send(self, key, kind="click", *args):
        """An event of this element."""
        listener = next(event for event in self.elements[key]["events"] if event["type"] == kind)
        message = {"id": int(key), "client_id": self.client_id, "listener_id": listener["listener_id"]}
        await self.socket.emit("event", {**message, "args": [json.dumps(value) for value in args]})

    async def click(self, **wanted):
        await self.send(await self.wait(lambda: self.find(**wanted)))

    async def ready(self):
        """Until the samples are there and a race can be started."""
        await self.wait(lambda: self.find(alt="sample 1"))
        await self.wait(lambda: self.elements[self.find(alt="Damaged")]["props"].get("src"))

    async def close(self):
        await self.socket.disconnect()
