"""The error against a known truth, step by step; only experiments have a truth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch
from genprior.result import Result
from genprior.stopping import View


@dataclass(frozen=True)
class Trace:
    """How the error of the best iterate (by objective, as a user would pick it) went on."""

    seconds: Tensor
    """``(T,)``, without the time spent on recording."""
    passes: Tensor
    """``(T,)``, forward and backward."""
    errors: Tensor
    """``(T, B)``: ``|G(z) - truth| / |truth|``."""
    objectives: Tensor
    """``(T, B)``: the best so far."""


class ErrorRecorder:
    """A callback of ``solve`` that records errors; the solver's clock stops meanwhile.

    Examples
    --------
    >>> import genprior as gp
    >>> from genprior.generators.examples import soft_discs
    >>> from genprior.experiments.trace import ErrorRecorder
    >>> G = soft_discs()
    >>> truth = G(G.sample_latent(2, seed=1)).detach()
    >>> record = ErrorRecorder(truth)
    >>> p = gp.Problem(G, loss=gp.SquaredDistance(truth, weight=1.0))
    >>> r = gp.solve(p, gp.Adam(), stop=gp.MaxSteps(20), callbacks=[record])
    >>> record.trace(r).errors.shape
    torch.Size([21, 2])
    """

    def __init__(self, truth: Tensor) -> None:
        self._truth = truth
        self._size = _batch.norm(truth)
        self._best = torch.full_like(self._size, torch.inf)
        self._error = torch.full_like(self._size, torch.nan)
        self._rows: list[tuple[float, int, Tensor, Tensor]] = []

    def __call__(self, view: View) -> None:
        """Note one step."""
        errors = _batch.norm(view.state.x - self._truth[view.items]) / self._size[view.items]
        objective = view.state.objective
        for restart in range(view.per_item):
            here = view.restarts == restart
            items = view.items[here]
            better = objective[here] < self._best[items]
            self._best[items[better]] = objective[here][better]
            self._error[items[better]] = errors[here][better]
        self._rows.append((view.seconds, view.forwards + view.backwards, self._error.clone(), self._best.clone()))

    def trace(self, result: Result) -> Trace:
        """What was recorded and, as callbacks do not see the step in which the last item ends, the result; on the CPU."""
        error = _batch.norm(result.signal - self._truth) / self._size
        end = (result.seconds, result.forwards + result.backwards, error, result.objective)
        seconds, passes, errors, objectives = zip(*self._rows, end, strict=True)
        return Trace(
            torch.tensor(seconds), torch.tensor(passes), torch.stack(errors).cpu(), torch.stack(objectives).cpu()
        )
