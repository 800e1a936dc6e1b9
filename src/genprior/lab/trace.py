"""Measures of the best iterate, step by step: mainly the error against a known truth, which only experiments have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch
from genprior.result import Result
from genprior.stopping import View

Measure = Callable[[Tensor, Tensor], Tensor]
"""Signals of some items, and their indices, to one number per item."""


_Row = tuple[float, int, Tensor, dict[str, Tensor]]


@dataclass(frozen=True)
class Course:
    """Measures of the best iterate (by objective) over the run; on the CPU."""

    seconds: Tensor
    """``(T,)``, without the time spent on recording."""
    passes: Tensor
    """``(T,)``, forward and backward."""
    objectives: Tensor
    """``(T, B)``: the best so far."""
    measures: dict[str, Tensor]
    """``(T, B)`` each."""


class Recorder:
    """A callback of ``solve`` that records measures of the best iterate; the solver's clock stops meanwhile."""

    def __init__(self, measures: Mapping[str, Measure], like: Tensor) -> None:
        self._measures = dict(measures)
        self._best = torch.full_like(like, torch.inf)
        self._values = {name: torch.full_like(like, torch.nan) for name in self._measures}
        self._rows: list[_Row] = []

    def __call__(self, view: View) -> None:
        """Record one step."""
        state = view.state
        for restart in range(view.per_item):
            here = view.restarts == restart
            self._improve(view.items[here], state.objective[here], state.x[here])
        self._rows.append(_row(view.seconds, view.forwards + view.backwards, self._best, self._values))

    def add(self, seconds: float, passes: int, objective: Tensor, signal: Tensor) -> None:
        """Record one evaluation of all items by a method of another program, which has no :class:`View`."""
        self._improve(torch.arange(len(objective), device=objective.device), objective, signal)
        self._rows.append(_row(seconds, passes, self._best, self._values))

    def _improve(self, items: Tensor, objective: Tensor, signal: Tensor) -> None:
        """Keep what is better than the best so far; each item occurs once."""
        better = objective < self._best[items]
        chosen = items[better]
        if len(chosen) == 0:
            return
        self._best[chosen] = objective[better]
        for name, measure in self._measures.items():
            self._values[name][chosen] = measure(signal[better], chosen)

    def latest(self, name: str) -> Tensor:
        """A measure of the best iterate so far, per item; NaN before the first one."""
        return self._values[name]

    def course(self, result: Result | None = None) -> Course:
        """The record, with the result, where there is one, in place of the last step."""
        rows = self._rows
        if result is not None:
            items = torch.arange(len(result.signal), device=result.signal.device)
            ends = {name: measure(result.signal, items) for name, measure in self._measures.items()}
            rows = [*rows[:-1], _row(result.seconds, result.forwards + result.backwards, result.objective, ends)]
        seconds, passes, objectives, values = zip(*rows, strict=True)
        return Course(
            torch.tensor(seconds),
            torch.tensor(passes),
            torch.stack(objectives).cpu(),
            {name: torch.stack([row[name] for row in values]).cpu() for name in self._measures},
        )


@dataclass(frozen=True)
class Trace:
    """The error of the best iterate (by objective) over the run."""

    seconds: Tensor
    """``(T,)``, without the time spent on recording."""
    passes: Tensor
    """``(T,)``, forward and backward."""
    errors: Tensor
    """``(T, B)``: ``|G(z) - truth| / |truth|``."""
    objectives: Tensor
    """``(T, B)``: the best so far."""


class ErrorRecorder(Recorder):
    """A :class:`Recorder` of the relative error.

    Examples
    --------
    >>> import genprior as gp
    >>> from genprior.models.examples import soft_discs
    >>> from genprior.lab.trace import ErrorRecorder
    >>> G = soft_discs()
    >>> truth = G(G.sample_latent(2, seed=1)).detach()
    >>> record = ErrorRecorder(truth)
    >>> p = gp.Problem(G, loss=gp.SquaredDistance(truth, weight=1.0))
    >>> r = gp.solve(p, gp.Adam(), stop=gp.MaxSteps(20), callbacks=[record])
    >>> record.trace(r).errors.shape
    torch.Size([21, 2])
    """

    def __init__(self, truth: Tensor) -> None:
        super().__init__({"error": relative_error(truth)}, truth.flatten(1)[:, 0])

    def trace(self, result: Result | None = None) -> Trace:
        """The record, and the result where there is one."""
        course = self.course(result)
        return Trace(course.seconds, course.passes, course.measures["error"], course.objectives)


def relative_error(truth: Tensor) -> Measure:
    """``|x - truth| / |truth|`` per item."""
    size = _batch.norm(truth)
    return lambda signals, items: _batch.norm(signals - truth[items]) / size[items]


def _row(seconds: float, passes: int, best: Tensor, values: dict[str, Tensor]) -> _Row:
    """A copy that later changes do not affect."""
    return seconds, passes, best.clone(), {name: value.clone() for name, value in values.items()}
