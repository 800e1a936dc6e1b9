"""The solver for people who do not want to choose one."""

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
"""Most latent numbers for which the eigenvectors of the metric, an s x s matrix, are taken."""
_LARGEST_REFRESHED = 64
"""Most latent numbers for which Jacobians are taken: one costs s/3 to s/2 iterations."""
_SOONEST = 10


@dataclass(frozen=True)
class Auto(Choice):
    """Choose the method from the problem; needs no option. The default of :func:`genprior.solve`.

    *Up to 1024 latent numbers*: :class:`QuasiNewton`, on ``L(G(z))`` itself where that is smooth, on the augmented Lagrangian
    with w eliminated where R is not. Up to 64 latent numbers, an item that is not done after ``max(10, s)`` accepted steps
    gets a Gauss-Newton matrix in place of what BFGS has learnt, and again after as many: such a matrix costs s/3 to s/2
    iterations, so about a third of the time goes there, and it leads out of places in which first-order information is stuck.

    *More*: L-BFGS where the problem is smooth, else ADMM with exact w, spectral z steps, adaptive dual and penalty.

    The choice depends on the problem alone, never on measured times, so that runs can be repeated and resumed.

    Constants come from a few passes, which are counted: the generator's metric ``E[DG^T DG]`` (one forward, eight backward,
    once per generator), the scale of A on the first signal, the natural size of R. ``result.plan`` says what was chosen and
    why.

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
        """What is used for this problem."""
        return self.choice(problem).solver(problem)

    def choice(self, problem: Problem) -> Choice:
        """The method by its name and options."""
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
            return (
                f"Auto: latent dimension {size} exceeds the limit for a dense preconditioner, so {method.plan(problem)}"
            )
        if problem.generator.no_jacobian is not None:
            why = "no Gauss-Newton matrices, because the generator has gradients but no Jacobian"
        elif method.refresh is None:
            why = f"no Jacobians, because {size} columns cost more than they save"
        else:
            why = f"a Gauss-Newton matrix every {method.refresh} steps, because {size} columns are cheap"
        return f"Auto: {method.plan(problem)}; {why}"


def _size(problem: Problem) -> int:
    return math.prod(problem.generator.latent_shape)
