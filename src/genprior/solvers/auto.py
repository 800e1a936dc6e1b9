"""The default solver: a method chosen from the problem."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from genprior.problem import Problem
from genprior.solvers import z_steps
from genprior.solvers.admm import ADMM, duals, penalties
from genprior.solvers.base import Choice, Solver
from genprior.solvers.trial import LBFGS, QuasiNewton

_LARGEST_DENSE = 1024
"""Largest latent dimension s for which the preconditioner, an s x s matrix, is decomposed."""
_LARGEST_REFRESHED = 64
"""Largest latent dimension for which Jacobians are computed: one costs s/3 to s/2 iterations."""
_SOONEST = 10
"""Accepted steps between two Jacobians, at least: easy items are solved in fewer, without any."""


@dataclass(frozen=True)
class Auto(Choice):
    """Choose the method from the problem; needs no option. The default of :func:`genprior.solve`.

    *Latent dimension s up to 1024*: :class:`QuasiNewton`, on ``L(G(z))`` itself where that is smooth, else on the augmented
    Lagrangian with w eliminated. Up to s = 64, a Gauss-Newton matrix replaces the BFGS matrix every ``max(10, s)`` accepted
    steps: it costs s/3 to s/2 iterations, so about a third of the time, and makes progress where gradients alone do not.

    *Above*: L-BFGS where the problem is smooth, else ADMM with exact w, spectral z steps, adaptive dual and penalty.

    The choice depends on the problem alone, never on measured times, so that runs can be repeated and resumed.

    Its constants are the generator's preconditioner ``E[DG^T DG]`` (estimated by passes that cost at most about 15% of the
    searches of all items; none where it came with the generator), the scale of A on the first signal and the natural size of
    R. ``result.plan`` says what was chosen, and why.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> _ = torch.manual_seed(0)
    >>> G = gp.Generator(torch.nn.Linear(3, 16), latent_shape=(3,), signal_shape=(16,))
    >>> y = G(G.sample_latent(2, seed=7)).detach()
    >>> r = gp.solve(gp.Problem(G, loss=gp.SquaredDistance(y)), seed=1)
    >>> r.converged
    True
    """

    def solver(self, problem: Problem) -> Solver[Any]:
        """The chosen solver, for this problem."""
        return self.choice(problem).solver(problem)

    def choice(self, problem: Problem) -> Choice:
        """The chosen method, with its options."""
        size = _size(problem)
        if size <= _LARGEST_DENSE:
            return QuasiNewton(refresh=max(_SOONEST, size) if size <= _LARGEST_REFRESHED else None)
        if not problem.needs_splitting:
            return LBFGS(memory=20)
        return ADMM(z_step=z_steps.Spectral(), dual=duals.Adaptive(), penalty=penalties.Balanced())

    def plan(self, problem: Problem) -> str:
        """What was chosen, and why."""
        size, method = _size(problem), self.choice(problem)
        if not isinstance(method, QuasiNewton):
            limit = f"The latent dimension, {size}, exceeds the limit of {_LARGEST_DENSE} for a dense preconditioner."
            return f"Auto: {method.plan(problem)} {limit}"
        if problem.generator.no_jacobian is not None:
            why = "There are no Gauss-Newton matrices, because the generator has gradients but no Jacobian."
        elif method.refresh is None:
            why = f"There are no Jacobians, because their {size} columns would cost more than they save."
        else:
            why = f"A Gauss-Newton matrix replaces the BFGS matrix every {method.refresh} steps: its {size} columns are cheap."
        return f"Auto: {method.plan(problem)} {why}"


def _size(problem: Problem) -> int:
    return math.prod(problem.generator.latent_shape)
