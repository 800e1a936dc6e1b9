"""The second card: how the picture is damaged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nicegui import ui

from genprior.app import pictures, registry
from genprior.app.choices import KINDS, NOISE, Choices
from genprior.app.view.parts import Segments, Slider, Text, box, card
from genprior.app.view.sketchpad import Sketchpad

_BRUSHES = {"20": "Fine", "45": "Medium", "80": "Broad"}


class DamagePanel:
    """Kind, amount, noise, and a sketchpad for what is painted over."""

    def __init__(self, choices: Choices, on_change: Callable[[], Awaitable[None]]) -> None:
        self._choices, self._on_change = choices, on_change
        self._strokes = False
        with card("Damage", 2):
            self._kind = ui.select(choices.kinds, value=choices.kind, on_change=lambda event: self._take(event.value))
            self._kind.props('outlined dense options-dense aria-label="Kind of damage"').classes("kind")
            self._hint = Text("p", "", "hint")
            with box("stack") as self._painting:
                self._make_pad()
            self._amount = Slider("", self._take_amount)
            self._stops_place = box("hidden")
            self._noise = Slider("Noise on top", self._take_noise)
        self.follow()

    def follow(self) -> None:
        """Show what is chosen, after the generator or the picture has changed."""
        choices = self._choices
        self._kind.set_options(choices.kinds, value=choices.kind)
        kind, scale = KINDS[choices.kind], choices.scale
        self._hint.text = kind.hint
        _show(self._painting, choices.kind == "mask")
        _show(self._amount.root, bool(kind.amount) and not scale.stops)
        self._amount.set(kind.amount, scale, choices.amount)
        _show(self._stops_place, bool(scale.stops))
        self._stops_place.clear()
        if scale.stops:
            with self._stops_place, box("stack"):
                Text("span", kind.amount, "field-label")
                options = {str(stop): str(stop) for stop in scale.stops}
                Segments(options, f"{choices.amount:g}", lambda stop: self._take_amount(float(stop)), kind.amount)
        _show(self._noise.root, kind.noisy)
        self._noise.set("Noise on top", NOISE, choices.noise)
        if choices.picture is not None:
            self._pad.show(pictures.data_url(choices.picture))
        if self._strokes and choices.known is None:  # strokes stay on the screen while they are the mask
            self._wipe()

    def _make_pad(self) -> None:
        hint = "Paint over what is lost"
        self._pad = Sketchpad(self._painted, ink="#e4402e", brush=45, hint=hint, label="sketchpad for the mask")
        with box("row-line"):
            Segments(_BRUSHES, "45", lambda width: self._pad.use_brush(int(width)), "Brush")
            Text("button", "Clear", "quiet-button").props('type="button"').on("click", self._clear)

    async def _clear(self) -> None:
        self._wipe()
        self._choices.known = None
        await self._on_change()

    def _wipe(self) -> None:
        self._pad.clear_strokes()
        self._strokes = False

    async def _painted(self, data_url: str) -> None:
        self._strokes = True
        try:
            self._choices.known = pictures.read_mask(data_url, registry.SHAPES[self._choices.generator])
        except ValueError as problem:
            self._choices.known = None  # an older mask is not what is on the screen
            ui.notify(str(problem), type="warning")
        await self._on_change()

    async def _take(self, kind: str) -> None:
        if kind != self._choices.kind and kind in self._choices.kinds:
            self._choices.take_kind(kind)
            self.follow()
            await self._on_change()

    def _take_amount(self, amount: float) -> Awaitable[None]:
        self._choices.take_amount(amount)
        return self._on_change()

    def _take_noise(self, noise: float) -> Awaitable[None]:
        self._choices.take_noise(noise)
        return self._on_change()


def _show(element: ui.element, visible: bool) -> None:
    element.classes(**{"remove" if visible else "add": "hidden"})
