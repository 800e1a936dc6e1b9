"""The progress bar, shown only on a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from genprior.stopping import FirstOf, MaxSteps, Seconds, StopRule, View

_INTERVAL = 0.1


class ProgressBar:
    """Shows how far a run is, at most ten times a second. Silent unless ``visible``."""

    def __init__(self, visible: bool | None, items: int) -> None:
        self._visible = sys.stderr.isatty() if visible is None else visible
        self._items = items
        self._finished = 0
        self._last = 0.0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ProgressBar:
        if self._visible:
            from rich.console import Console  # noqa: PLC0415 - only where something is drawn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
            )
            console = Console(stderr=True)
            # Into a file or a pipe rich draws once, at the end, and only what is not transient.
            self._bar = Progress(*columns, console=console, transient=console.is_terminal)
            self._bar.start()
            self._task = self._bar.add_task("solving", total=1.0, note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def chunk_done(self, items: int) -> None:
        """Note that a chunk of items is finished."""
        self._finished += items

    def due(self) -> bool:
        """Whether it is time to draw again."""
        return self._bar is not None and time.monotonic() - self._last >= _INTERVAL

    def update(self, view: View, stop: StopRule, chunk: int) -> None:
        """Draw the state of the running chunk."""
        if self._bar is None or self._task is None:
            return
        self._last = time.monotonic()
        running = len(view.rows) / (chunk * view.per_item)
        inside = max(fraction_done(stop, view), 1 - running)
        done = (self._finished + chunk * min(1.0, inside)) / self._items
        median = view.best_objective.median().item()
        note = f"step {view.step}, {len(view.rows)} running, median objective {median:.3g}"
        self._bar.update(self._task, completed=done, note=note)


def fraction_done(stop: StopRule, view: View) -> float:
    """How much of the budget in a stop rule is used, 0 where it has none."""
    if isinstance(stop, MaxSteps):
        return view.step / max(1, stop.steps)
    if isinstance(stop, Seconds):
        return view.seconds / stop.seconds if stop.seconds else 1.0
    if isinstance(stop, FirstOf):
        return max(fraction_done(stop.first, view), fraction_done(stop.second, view))
    return 0.0
