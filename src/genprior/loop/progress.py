"""How far a run is, and the bar that shows it."""

from __future__ import annotations

import time

from genprior._progress import Bar
from genprior.stopping import FirstOf, MaxSteps, Seconds, StopRule, View

_INTERVAL = 0.1
"""Seconds between two looks at a run."""


class ProgressBar(Bar):
    """Shows how far a run is, at most ten times a second."""

    def __init__(self, visible: bool | None, items: int) -> None:
        super().__init__("solving", visible=visible)
        self._items = items
        self._finished = 0
        self._looked = 0.0

    def chunk_done(self, items: int) -> None:
        """Note that a chunk of items is finished."""
        self._finished += items

    def due(self) -> bool:
        """Whether it is time to draw again."""
        return self.drawn and time.monotonic() - self._looked >= _INTERVAL

    def update(self, view: View, stop: StopRule, chunk: int) -> None:
        """Draw the state of the running chunk."""
        self._looked = time.monotonic()
        done = (self._finished + chunk * share_done(stop, view, chunk)) / self._items
        median = view.best_objective.median().item()
        self.show(done, 1.0, f"step {view.step}, {len(view.rows)} running, median objective {median:.3g}")


def share_done(stop: StopRule, view: View, items: int) -> float:
    """How much of the work on so many items is done, at most 1: by the budget used, or the items that have ended."""
    running = len(view.rows) / (items * view.per_item)
    return min(1.0, max(fraction_done(stop, view), 1 - running))


def fraction_done(stop: StopRule, view: View) -> float:
    """How much of the budget in a stop rule is used, 0 where it has none."""
    if isinstance(stop, MaxSteps):
        return view.step / max(1, stop.steps)
    if isinstance(stop, Seconds):
        return view.seconds / stop.seconds if stop.seconds else 1.0
    if isinstance(stop, FirstOf):
        return max(fraction_done(stop.first, view), fraction_done(stop.second, view))
    return 0.0
