"""The right side: images, curves, verdicts, downloads."""

from __future__ import annotations

import math

from nicegui import run, ui

from genprior.app import bundle
from genprior.app.race import Race
from genprior.app.snapshot import Lane, Phase, Snapshot
from genprior.app.view.chart import COLOURS, COLUMNS, Chart
from genprior.app.view.parts import Segments, Text, box, image, show
from genprior.app.view.verdicts import short, table

_LEGEND = "★ Lowest objective: the one to choose if the truth is unknown. Its error need not be the smallest."

_STORY = {
    "A generator knows what images look like": "It turns a latent vector z of 128 values into an image G(z): a digit or "
    "a face. It was trained on many images, but not on yours.",
    "The data are not enough": "There are fewer measurements than pixels, or a part is missing, or there is noise. Many "
    "images agree with such data, and nearly all of them are nonsense.",
    "Solvers combine both": "They look for an image G(z) that agrees with the data. All start from the same random z and "
    "have the same time. The error is computed from the truth, which the solvers never use.",
}


class Tile:
    """An image with a name and a line of text."""

    def __init__(self, name: str, colour: str | None = None) -> None:
        with box("tile").props(f'data-tile="{name}"') as self.root:
            if colour is not None:
                self.root.style(f"--tone: {colour}")
            with box("frame"):
                self._image = image(name)
            Text("div", name, "name")
            self._detail = Text("div", "", "detail")

    def set(self, source: str | None, detail: str, best: bool = False) -> None:
        """Change the image (None: keep it) and the line."""
        if source is not None:
            show(self._image, source)
        self._detail.text = detail
        self.root.classes(**{"add" if best else "remove": "best"})


class Results:
    """Images, chart, table and downloads."""

    def __init__(self) -> None:
        with box("card", "section"):
            with box("card-head"):
                Text("h2", "Images")
                self._state = Text("span", "", "hint").props('role="status"')
            with box("tiles"):
                self._truth, self._seen = Tile("Truth"), Tile("Damaged")
                self._lanes_place = box("").style("display: contents")
            self._legend = Text("p", _LEGEND, "hint hidden").style("margin-top: .6rem")
            with box("progress hidden") as self._progress:
                self._bar = box("")
            self._banner = Text("div", "", "banner hidden").style("margin-top: .7rem").props('role="alert"')
        self._how = _how()
        with box("card hidden", "section") as self._chart_card:
            with box("card-head"):
                Text("h2", "Best so far against time")
                Segments({name: name for name in COLUMNS}, "Error", self._take_column, "Curve")
            self._chart = Chart()
        with box("card hidden", "section") as self._verdict_card:
            Text("h2", "How each solver ended")
            self._table = ui.html("", sanitize=False).classes("wide")
        with box("card hidden", "section") as self._download_card:
            self._downloads = Downloads()
        self._tiles: dict[str, Tile] = {}

    def _take_column(self, name: str) -> None:
        self._chart.take_column(name)

    def preview(self, truth: str, seen: str | None, words: str) -> None:
        """Before a race: the image and its damage."""
        self._truth.set(truth, "")
        self._seen.set(seen, words)
        self._lanes_place.clear()
        self._tiles = {}
        self._state.text = ""
        self._how.classes(remove="hidden")
        for part in (
            self._chart_card,
            self._verdict_card,
            self._download_card,
            self._progress,
            self._banner,
            self._legend,
        ):
            part.classes(add="hidden")

    def open(self, race: Race, truth: str, words: str) -> None:
        """A race begins; the preview stays until the race has damaged the image itself."""
        self.preview(truth, None, words)
        with self._lanes_place:
            self._tiles = {name: Tile(name, COLOURS[name]) for name in race.recipe.solvers}
        self._how.classes(add="hidden")
        self._chart_card.classes(remove="hidden")
        self._progress.classes(remove="hidden")

    def forget(self) -> None:
        """Drop the race."""
        self._downloads.forget()
        self._chart.forget()

    def follow(self, race: Race, snapshot: Snapshot, place: int) -> None:
        """Show the current state of the race."""
        self._state.text = _state(snapshot, place)
        words = race.recipe.damage.words(race.recipe.truth.shape[1:])
        self._seen.set(snapshot.seen or None, " ".join([words, snapshot.note]).strip())
        best = _best(snapshot)
        self._legend.classes(**{"add" if best is None else "remove": "hidden"})
        for lane in snapshot.lanes:
            self._tiles[lane.name].set(lane.image, _detail(lane), best=lane.name == best)
        self._chart.draw(snapshot.lanes, race.recipe.seconds)
        done = race.seconds / (race.recipe.seconds * len(snapshot.lanes))
        self._bar.style(f"width: {100 if snapshot.phase.over else min(100, 100 * done):.0f}%")
        self._banner.text = snapshot.message
        self._banner.classes(**{"remove" if snapshot.message else "add": "hidden"})
        if snapshot.phase is Phase.FAILED:
            self._banner.classes(add="bad")
        self._table.content = table(snapshot.lanes)
        self._verdict_card.classes(remove="hidden")
        if snapshot.phase.over:
            self._progress.classes(add="hidden")
        if snapshot.phase.over and race.results:
            self._downloads.offer(race)
            self._download_card.classes(remove="hidden")


class Downloads:
    """Files, and the equivalent command and script."""

    def __init__(self) -> None:
        self._race: Race | None = None
        with box("card-head"):
            Text("h2", "Downloads")
        with box("stack"):
            with box("downloads"):
                for name, title in bundle.FILES.items():
                    button = Text("button", title, "quiet-button").props(f'type="button" data-file="{name}"')
                    button.on("click", lambda name=name: self._send(name))
            Text("span", "As a command, with the files in the zip", "field-label")
            self._command = Text("pre", "", "code wrap").props('data-code="command"')
            Text("span", "As a Python script, with the files in the zip", "field-label")
            self._script = Text("pre", "", "code").props('data-code="python"')

    def offer(self, race: Race) -> None:
        """The files of this race."""
        self._race = race
        self._command.text = bundle.command(race)
        self._script.text = bundle.script(race)

    def forget(self) -> None:
        """Drop the race."""
        self._race = None

    async def _send(self, name: str) -> None:
        if self._race is None:
            return
        content = await run.io_bound(bundle.content, self._race, name)
        if content is not None:
            ui.download.content(content, name)


def _how() -> ui.element:
    """Explanation of the page, shown before the first race."""
    with box("card", "section") as place:
        Text("h2", "How it works")
        with box("how"):
            for title, words in _STORY.items():
                with box("", "p"):
                    Text("b", title)
                    Text("span", words)
        Text("p", "minimise  L(w) + R(w) + H(z)   subject to   w = G(z)", "formula").style("margin-top: .8rem")
    return place


def _state(snapshot: Snapshot, place: int) -> str:
    if snapshot.phase is Phase.WAITING:
        return f"waiting: place {place} in the queue" if place else "starting"
    return str(snapshot.phase.value)


def _best(snapshot: Snapshot) -> str | None:
    """The solver with the lowest final objective: the choice of a user without the truth."""
    lanes = [lane for lane in snapshot.lanes if lane.over and not math.isnan(lane.objective)]
    return min(lanes, key=lambda lane: lane.objective).name if snapshot.phase.over and lanes else None


def _detail(lane: Lane) -> str:
    if lane.problem:
        return "not possible here"
    words = f"error {short(lane.error)}" if lane.points else lane.status
    return f"{words}, {lane.remark}" if lane.remark else words
