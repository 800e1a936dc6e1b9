"""The progress of a run, and its bar."""

from __future__ import annotations

import time

from genprior._progress import Bar
from genprior.stopping import FirstOf, MaxSteps, Seconds, StopRule, View

_INTERVAL = 0.1
"""Least seconds between two updates: faster ones cannot be read."""


class ProgressBar(Bar):
    """The progress of a run, drawn at most ten times a second."""

    def __init__(self, visible: bool | None, items: int) -> None:
        super().__init__("solving", visible=visible)
        self._items = items
        self._finished = 0
        self._drawn_at = 0.0

    def batch_done(self, items: int) -> None:
        """Count the items of a finished batch."""
        self._finished += items

    def due(self) -> bool:
        """Whether it is time to draw again."""
        return self.drawn and time.monotonic() - self._drawn_at >= _INTERVAL

    def update(self, view: View, stop: StopRule, items: int) -> None:
        """Draw the state of the running batch of so many items."""
        self._drawn_at = time.monotonic()
        done = (self._finished + items * share_done(stop, view, items)) / self._items
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
