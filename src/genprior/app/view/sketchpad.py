"""A square canvas."""

from __future__ import annotations

from collections.abc import Callable

from nicegui import ui
from nicegui.events import GenericEventArguments


class Sketchpad(ui.element, component="sketchpad.js"):
    """Strokes by mouse, pen or finger; ``on_sketch`` gets the layer as a data URL after each stroke."""

    def __init__(self, on_sketch: Callable[[str], object], *, ink: str, brush: int, hint: str, label: str) -> None:
        super().__init__()
        self._props.update({"ink": ink, "brush": brush, "hint": hint, "label": label, "image": ""})
        self.on("sketch", lambda event: on_sketch(_text(event)))

    def show(self, image: str) -> None:
        """Change the image under the strokes."""
        self._props["image"] = image
        self.update()

    def use_brush(self, width: int) -> None:
        """Change the brush width, in 280ths of the square."""
        self._props["brush"] = width
        self.update()

    def clear_strokes(self) -> None:
        """Remove all strokes."""
        self.run_method("clear")


def _text(event: GenericEventArguments) -> str:
    return event.args if isinstance(event.args, str) else ""
