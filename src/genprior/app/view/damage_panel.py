"""The second card: the damage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nicegui import ui

from genprior.app import images, registry
from genprior.app.choices import DAMAGES, NOISE, Choices
from genprior.app.view.parts import Segments, Slider, Text, box, card
from genprior.app.view.sketchpad import Sketchpad

_BRUSHES = {"20": "Fine", "45": "Medium", "80": "Broad"}


class DamagePanel:
    """Type, amount, noise, and a sketchpad for painting over the image."""

    def __init__(self, choices: Choices, on_change: Callable[[], Awaitable[None]]) -> None:
        self._choices, self._on_change = choices, on_change
        self._strokes = False
        with card("Damage", 2):
            self._damage_type = ui.select(
                choices.damage_types, value=choices.damage_type, on_change=lambda event: self._take(event.value)
            )
            self._damage_type.props('outlined dense options-dense aria-label="Type of damage"').classes("damage-type")
            self._hint = Text("p", "", "hint")
            with box("stack") as self._painting:
                self._make_pad()
            self._amount = Slider("", self._take_amount)
            self._stops_place = box("hidden")
            self._noise = Slider("Added noise", self._take_noise)
        self.follow()

    def follow(self) -> None:
        """Update after the generator, the image or the damage has changed."""
        choices = self._choices
        self._damage_type.set_options(choices.damage_types, value=choices.damage_type)
        chosen, scale = DAMAGES[choices.damage_type], choices.scale
        self._hint.text = chosen.hint
        _show(self._painting, choices.damage_type == "mask")
        _show(self._amount.root, bool(chosen.amount) and not scale.stops)
        self._amount.set(chosen.amount, scale, choices.amount)
        _show(self._stops_place, bool(scale.stops))
        self._stops_place.clear()
        if scale.stops:
            with self._stops_place, box("stack"):
                Text("span", chosen.amount, "field-label")
                options = {str(stop): str(stop) for stop in scale.stops}
                Segments(options, f"{choices.amount:g}", lambda stop: self._take_amount(float(stop)), chosen.amount)
        _show(self._noise.root, chosen.noisy)
        self._noise.set("Added noise", NOISE, choices.noise)
        if choices.image is not None:
            self._pad.show(images.data_url(choices.image))
        if self._strokes and choices.known is None:  # strokes stay visible while they are the mask
            self._wipe()

    def _make_pad(self) -> None:
        hint = "Paint over a part"
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
            self._choices.known = images.read_mask(data_url, registry.SHAPES[self._choices.generator])
        except ValueError as problem:
            self._choices.known = None  # an older mask would not match the screen
            ui.notify(str(problem), type="warning")
        await self._on_change()

    async def _take(self, name: str) -> None:
        if name != self._choices.damage_type and name in self._choices.damage_types:
            self._choices.take_damage(name)
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
