"""The third card: solvers, time, Start and Stop."""

from __future__ import annotations

from collections.abc import Callable

from genprior.app import registry
from genprior.app.choices import Choices, seconds_scale
from genprior.app.view.chart import COLOURS
from genprior.app.view.parts import Segments, Slider, Text, box, card, press

_RESTARTS = {"1": "1", "4": "4", "8": "8"}


class RacePanel:
    """Solvers, time, starts, and the Start button."""

    def __init__(self, choices: Choices, limit: float, on_press: Callable[[], object]) -> None:
        self._choices, self._limit = choices, limit
        with card("Race", 3):
            with box("chips").props('role="group" aria-label="Solvers"'):
                self._chips = {name: self._chip(name) for name in registry.SOLVERS}
            self._time = Slider("Seconds for each solver", self._take_seconds)
            self._time.set("Seconds for each solver", seconds_scale(limit), choices.seconds)
            self._note = Text("p", "", "hint")
            with box("row-line"):
                Text("span", "Starts", "field-label")
                Segments(_RESTARTS, str(choices.restarts), self._take_restarts, "Starts")
        with box("start"):
            self._button = Text("button", "Start the race", "main-button").props('type="button"').on("click", on_press)
        self._follow()

    def show_running(self, running: bool) -> None:
        """Label the button Stop or Start."""
        self._button.text = "Stop" if running else "Start the race"
        self._button.classes(**{"add" if running else "remove": "stop"})

    def _chip(self, name: str) -> Text:
        chip = Text("button", name).props(f'type="button" data-solver="{name}"').style(f"--tone: {COLOURS[name]}")
        chip.props["title"] = registry.SOLVERS[name].description
        return chip.on("click", lambda: self._toggle(name))

    def _toggle(self, name: str) -> None:
        chosen = self._choices.solvers
        if name in chosen:
            chosen.remove(name)
        else:
            chosen.append(name)
        self._follow()

    def _take_seconds(self, seconds: float) -> None:
        self._choices.take_seconds(seconds, self._limit)
        self._follow()

    def _take_restarts(self, restarts: str) -> None:
        self._choices.restarts = int(restarts)

    def _follow(self) -> None:
        for name, chip in self._chips.items():
            press(chip, name in self._choices.solvers)
        seconds = self._choices.fair_seconds(self._limit)
        short = seconds < self._choices.seconds
        self._note.text = _share(seconds, self._limit) if short else ""
        self._note.classes(**{"remove" if short else "add": "hidden"})


def _share(seconds: float, limit: float) -> str:
    return f"{round(seconds, 1):g} s each: the solvers share {limit:g} s."
