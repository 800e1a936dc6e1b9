"""Observers of a run: callbacks, history, progress bar, checkpoint. The clock is stopped for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from genprior.history import Counts, Recorder
from genprior.loop.progress import ProgressBar
from genprior.loop.storage import Finished, Keeper, Storable
from genprior.stopping import StopRule, View

if TYPE_CHECKING:
    from genprior.loop.rows import Rows
    from genprior.solvers.base import S

Callback = Callable[[View], object]


@dataclass(frozen=True)
class Observers:
    """The observers of one batch. Bar, checkpoint and finished batches are shared by the whole run."""

    callbacks: tuple[Callback, ...]
    history: Recorder
    bar: ProgressBar
    keeper: Keeper
    done: list[Finished]

    def wait_for_results(self, step: int) -> bool:
        """Whether results are read after this step, so that the clock must include the device's pending work."""
        return bool(self.callbacks) or self.bar.due() or self.keeper.due(step)

    def ask_to_stop(self, view: View) -> bool:
        """Call the callbacks with all running rows, also those that this step ends. True where one asks to stop."""
        return any([_says_stop(callback(view)) for callback in self.callbacks])

    def record(self, counts: Counts, rows: Rows[S], *, measured: bool) -> None:
        """Record the running rows; residuals only where they were measured."""
        if self.history.wants(counts[0]):
            residuals = (rows.primal_residual, rows.stationarity) if measured else (None, None)
            self.history.record(counts, rows.index, (rows.state.objective, *residuals, rows.state.rho))

    def record_ends(self, counts: Counts, rows: Rows[S], leaving: Tensor) -> None:
        """Record the last values of the rows that are retired."""
        values = (rows.state.objective, rows.primal_residual, rows.stationarity, rows.state.rho)
        self.history.end(counts, rows.index[leaving], tuple(value[leaving] for value in values))

    def show(self, view: Callable[[], View], stop: StopRule, items: int) -> None:
        """Draw the progress bar, if it is due."""
        if self.bar.due():
            self.bar.update(view(), stop, items)

    def store(self, batch: Storable, step: int | None = None) -> None:
        """Write the checkpoint, if it is due; at once without a step."""
        if step is None or self.keeper.due(step):
            self.keeper.write(self.done, batch)


def _says_stop(answer: object) -> bool:
    """Whether a callback returned True, as Python's, NumPy's or torch's."""
    if isinstance(answer, Tensor):
        return answer.ndim == 0 and answer.dtype == torch.bool and bool(answer)
    return isinstance(answer, bool | np.bool_) and bool(answer)
