"""The page: three cards with controls on the left, results on the right."""

from __future__ import annotations

from copy import copy
from pathlib import Path

from nicegui import Client, run, ui

from genprior.app import images, registry
from genprior.app.choices import Choices, seconds_scale
from genprior.app.queue import Owner
from genprior.app.race import Race
from genprior.app.recipe import Recipe
from genprior.app.state import ServerState
from genprior.app.view.damage_panel import DamagePanel
from genprior.app.view.image_panel import ImagePanel
from genprior.app.view.parts import Text, box, is_open
from genprior.app.view.race_panel import RacePanel
from genprior.app.view.results import Results

_TICK = 0.25
STYLE = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")


class Page:
    """One visitor's page. Closing the tab removes it and stops its race."""

    def __init__(self, shared: ServerState, owner: Owner, client: Client) -> None:
        self._shared, self._owner, self._client = shared, owner, client
        self._choices = Choices(seconds=seconds_scale(shared.time_limit).start)
        self._race: Race | None = None
        self._shown = -1
        self._stale = self._previewing = False
        client.on_delete(self.leave)
        with box("layout", "main"):
            with box("controls"):
                self._images = ImagePanel(self._choices, shared, client, self.changed_image)
                self._damage = DamagePanel(self._choices, self.changed)
                self._panel = RacePanel(self._choices, shared.time_limit, self.pressed)
            with box("results").props('id="results"'):
                self._results = Results()
        with box("", "footer"):
            ui.label("Everything is computed on the machine that runs genprior serve. No data leave it.")
        ui.timer(0.05, self._images.fill_samples, once=True)
        ui.timer(_TICK, self.tick)

    async def changed_image(self) -> None:
        """The image has changed, perhaps with the generator."""
        self._damage.follow()
        await self.changed()

    async def changed(self) -> None:
        """The image or damage has changed: show it, unless a race runs. One preview at a time; the last change wins."""
        self._stale = not self._busy
        if self._previewing:
            return
        self._previewing = True
        try:
            while self._stale:
                self._stale, self._race = False, None
                self._panel.show_running(False)
                shown = await run.io_bound(_preview, copy(self._choices))
                if not is_open(self._client):
                    return
                if shown is not None and self._race is None:  # no race was started meanwhile
                    self._results.preview(*shown)
        finally:
            self._previewing = False

    @property
    def _busy(self) -> bool:
        return self._race is not None and not self._race.snapshot.phase.over

    def pressed(self) -> None:
        """Start, or stop."""
        if self._race is not None and self._busy:
            self._shared.queue.stop(self._race)
            return
        try:
            recipe = self._choices.recipe(self._shared.time_limit)
            self._start(recipe)
        except ValueError as problem:
            ui.notify(str(problem), type="warning")

    def _start(self, recipe: Recipe) -> None:
        race = Race(recipe, patience=self._shared.patience)
        self._shared.queue.submit(race, self._owner)
        self._race, self._shown, self._stale = race, -1, False
        words = recipe.damage.words(recipe.truth.shape[1:])
        self._results.open(race, images.data_url(recipe.truth), words)
        self._panel.show_running(True)
        ui.run_javascript(
            "if (innerWidth < 960) document.getElementById('results').scrollIntoView({behavior: 'smooth'})"
        )
        self.tick()

    def tick(self) -> None:
        """Show the changes since the last tick."""
        if self._race is None:
            return
        snapshot = self._race.snapshot
        place = self._shared.queue.place(self._race)
        if snapshot.version == self._shown and not place:
            return
        self._shown = snapshot.version
        self._results.follow(self._race, snapshot, place)
        self._panel.show_running(not snapshot.phase.over)

    def leave(self) -> None:
        """The tab is closed: stop its race, and free large objects now instead of at the next garbage collection."""
        if self._race is not None:
            self._shared.queue.stop(self._race)
        self._race = self._choices.image = self._choices.known = None
        self._results.forget()


def header() -> None:
    """The header, shown before the rest."""
    with box("top", "header"):
        Text("h1", "genprior")
        Text("p", "Damage an image, and watch solvers recover it with a generative prior.")
        dark = box("icon-button", "button").props('type="button" aria-label="Light or dark" title="Light or dark"')
        dark.on("click", js_handler="() => Quasar.Dark.toggle()")
        with dark:
            ui.icon("contrast", size="1.2rem")


def _preview(choices: Choices) -> tuple[str, str, str] | None:
    """Truth, damaged image and its description."""
    truth = choices.image
    if truth is None:
        return None
    try:
        damage = choices.damage()
        damaged = damage.apply(truth, registry.generator(choices.generator))
    except ValueError as problem:
        return images.data_url(truth), "", str(problem)
    words = damage.words(truth.shape[1:])
    return images.data_url(truth), images.data_url(damaged.seen), " ".join([words, damaged.note]).strip()
