"""The first card: generator and image."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from nicegui import Client, run, ui
from torch import Tensor

from genprior.app import images, registry
from genprior.app.choices import Choices
from genprior.app.state import ServerState
from genprior.app.view.parts import Segments, Text, box, card, image, is_open, press
from genprior.app.view.sketchpad import Sketchpad
from genprior.app.view.upload import make_upload

_SOURCES = {"samples": "Samples", "draw": "Draw", "upload": "Upload"}


class ImagePanel:
    """Samples, a sketchpad, an upload."""

    def __init__(
        self, choices: Choices, shared: ServerState, client: Client, on_change: Callable[[], Awaitable[None]]
    ) -> None:
        self._choices, self._client, self._on_change = choices, client, on_change
        self._limit, self._decoder = shared.upload_limit, shared.decoder
        self._reading = False
        self._thumbs: list[ui.element] = []
        with card("Image", 1):
            Segments(registry.GENERATORS, choices.generator, self.take_generator, "Generator")
            self._sources = Segments(_SOURCES, "samples", self._show_source, "Where the image comes from")
            self._places = {"samples": box("thumbs"), "draw": box("stack"), "upload": box("stack")}
            with self._places["draw"]:
                self._make_sketchpad()
            with self._places["upload"]:
                self._make_upload(client)
        self._show_source("samples")

    async def take_generator(self, name: str) -> None:
        """Change the generator; choose the first of its samples."""
        self._choices.take_generator(name)
        self._sources.show_option("draw", name == "mnist")
        self._sources.mark("samples")
        self._show_source("samples")
        await self.fill_samples()

    async def fill_samples(self) -> None:
        """Show the samples of the generator; loading one for the first time takes a moment."""
        name = self._choices.generator
        found = await run.io_bound(registry.sample_images, name)
        if (
            found is None or not is_open(self._client) or name != self._choices.generator
        ):  # closed, or another generator was chosen
            return
        place = self._places["samples"]
        place.clear()
        self._thumbs = []
        with place:
            for number in range(len(found)):
                label = f"sample {number + 1}"
                with box("", "button").props(f'type="button" aria-label="{label}"') as thumb:
                    image(label, images.data_url(found[number : number + 1]))
                thumb.on("click", lambda number=number: self._take_sample(name, number))
                self._thumbs.append(thumb)
        await self._take_sample(name, 0)

    async def _take_sample(self, generator: str, number: int) -> None:
        if generator != self._choices.generator:  # a click on a sample that is being replaced
            return
        self._choices.take_sample(number)
        for place, thumb in enumerate(self._thumbs):
            press(thumb, place == number)
        await self._on_change()

    def _show_source(self, source: str) -> None:
        for name, place in self._places.items():
            place.classes(**{"remove" if name == source else "add": "hidden"})

    def _make_sketchpad(self) -> None:
        hint = "Draw a digit with mouse or finger"
        self._pad = Sketchpad(self._drawn, ink="#ffffff", brush=22, hint=hint, label="sketchpad for a digit")
        Text("button", "Clear", "quiet-button").props('type="button"').on("click", self._pad.clear_strokes)

    async def _drawn(self, data_url: str) -> None:
        found = await run.io_bound(_or_problem, images.read_drawing, data_url, registry.SHAPES["mnist"])
        await self._take("mnist", found)

    def _make_upload(self, client: Client) -> None:
        most = round(self._limit * 2**20)
        self._upload = make_upload(client, "Choose an image, or drop it here", most, self._uploaded, self._rejected)
        Text("p", f"PNG or JPEG, up to {self._limit:g} MB. The middle square is used.", "hint")

    async def _uploaded(self, title: str, data: bytes) -> None:
        self._upload.run_method("reset")
        if len(data) > self._limit * 2**20:
            self._rejected()
            return
        if self._reading:
            ui.notify("not uploaded: your last image is still being read, wait for it", type="warning")
            return
        self._reading = True
        try:
            name = self._choices.generator
            read = partial(_or_problem, images.read_upload, data, registry.SHAPES[name], title)
            found = await self._decoder.read(read)
        finally:
            self._reading = False
        await self._take(name, found)

    def _rejected(self) -> None:
        self._upload.run_method("reset")
        ui.notify(f"not uploaded: the file is larger than {self._limit:g} MB, or it is not an image", type="negative")

    async def _take(self, generator: str, found: Tensor | ValueError | None) -> None:
        """Use the image that was read, unless the generator has changed meanwhile; show errors."""
        if not is_open(self._client):
            return
        if isinstance(found, ValueError):
            ui.notify(str(found), type="negative")
            return
        if found is None or generator != self._choices.generator:
            return
        self._choices.take_image(found)
        for thumb in self._thumbs:
            press(thumb, False)
        await self._on_change()


def _or_problem(read: Callable[..., Tensor], *given: object) -> Tensor | ValueError:
    try:
        return read(*given)
    except ValueError as problem:
        return problem
