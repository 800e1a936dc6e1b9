"""Small elements of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from nicegui import Client, ui
from nicegui.elements.mixins.text_element import TextElement

from genprior.app.choices import Scale


class Text(TextElement):
    """An HTML element with text."""

    def __init__(self, tag: str, text: str = "", classes: str = "") -> None:
        super().__init__(tag=tag, text=text)
        self.classes(classes)


def box(classes: str, tag: str = "div") -> ui.element:
    """An HTML element that contains others."""
    return ui.element(tag).classes(classes)


def is_open(client: Client) -> bool:
    """Whether the tab is still open."""
    return client.id in Client.instances


@contextmanager
def card(title: str, number: int | None = None) -> Iterator[ui.element]:
    """A card with a heading; its content is stacked vertically."""
    with box("card", "section") as outer:
        Text("h2", title if number is None else f"{number}  {title}")
        with box("stack"):
            yield outer


def image(alt: str, source: str = "") -> ui.element:
    """An image."""
    element = ui.element("img").props(f'alt="{alt}"')
    return show(element, source)


def show(element: ui.element, source: str) -> ui.element:
    """Change the source of an image; without one it is hidden."""
    if source and element.props.get("src") != source:
        element.props["src"] = source
    element.classes(**{"remove" if source else "add": "hidden"})
    return element


def press(element: ui.element, pressed: bool) -> None:
    """Show whether a button is pressed."""
    element.props["aria-pressed"] = "true" if pressed else "false"


class Segments:
    """A few buttons in a row, one of them pressed."""

    def __init__(self, options: Mapping[str, str], value: str, on_pick: Callable[[str], object], name: str) -> None:
        self._on_pick = on_pick
        self._buttons: dict[str, Text] = {}
        with box("segments").props(f'role="group" aria-label="{name}"'):
            for key, title in options.items():
                self._buttons[key] = Text("button", title).props(f'type="button" data-pick="{key}"')
                self._buttons[key].on("click", lambda key=key: self._pick(key))
        self.mark(value)

    def mark(self, value: str) -> None:
        """Show one as pressed."""
        for key, button in self._buttons.items():
            press(button, key == value)

    def show_option(self, key: str, visible: bool) -> None:
        """Show or hide an option."""
        self._buttons[key].classes(**{"remove" if visible else "add": "hidden"})

    def _pick(self, key: str) -> object:
        self.mark(key)
        return self._on_pick(key)


class _Slider(ui.slider):
    """Moves at once, without waiting for the server's echo."""

    LOOPBACK = False


class Slider:
    """A slider with a label and its value."""

    def __init__(self, label: str, on_change: Callable[[float], object]) -> None:
        self._on_change = on_change
        self._quiet = False
        with box("") as self.root:
            with box("row-line"):
                self._label = Text("span", label, "field-label")
                self._value = Text("span", "", "value")
            self._slider = _Slider(min=0, max=1, step=1, value=0, on_change=lambda event: self._changed(event.value))
            self._slider.props(f'aria-label="{label}"')

    def set(self, label: str, scale: Scale, value: float) -> None:
        """Change the scale without calling ``on_change``."""
        self._label.text = label
        self._quiet = True
        self._slider.props(f'min={scale.low} max={scale.high} step={scale.step} aria-label="{label}"')
        self._slider.value = value
        self._quiet = False
        self._value.text = f"{value:g}"

    def _changed(self, value: float) -> object:
        self._value.text = f"{value}"
        return None if self._quiet else self._on_change(value)
