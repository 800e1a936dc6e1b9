"""The default solver: a method chosen from the problem."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from genprior.generators.preconditioner import LARGEST_DENSE, has_matrix
from genprior.problem import Problem
from genprior.solvers import z_steps
from genprior.solvers.admm import ADMM, duals, penalties
from genprior.solvers.base import Choice, Solver
from genprior.solvers.trial import QuasiNewton

_PAIRS = 50
"""Curvature pairs that are kept where they fit."""
_FEWEST_PAIRS = 5
"""Fewest curvature pairs."""
_BYTES_OF_PAIRS = 2**25
"""Most bytes of an item's curvature pairs: 32 MB, which 50 pairs reach at a latent dimension of 84,000 in float32."""
_LARGEST_REFRESHED = 64
"""Largest latent dimension for which Jacobians are computed: one costs s/3 to s/2 iterations."""
_SOONEST = 10
"""Accepted steps between two Jacobians, at least: easy items are solved in fewer, without any."""


@dataclass(frozen=True)
class Auto(Choice):
    """Choose the method from the problem; needs no option. The default of :func:`genprior.solve`.

    :class:`QuasiNewton`, on ``L(G(z))`` itself where that is smooth, else on the augmented Lagrangian with w eliminated. For a
    latent dimension s up to 64, a Gauss-Newton matrix replaces the BFGS matrix every ``max(10, s)`` accepted
    steps: it costs s/3 to s/2 iterations, so about a third of the time, and makes progress where gradients alone do not.

    Above s = 1024 there is no matrix: BFGS begins with a multiple of the identity, and its memory is bounded in bytes. Where
    R is not smooth, these latents get ADMM with exact w, spectral z steps, adaptive dual and penalty.

    The choice depends on the problem alone, never on measured times, so that runs can be repeated and resumed.

    Its constants are the generator's preconditioner ``E[DG^T DG]`` (estimated by as many passes as six iterations of one
    item; none where it came with the generator), the scale of A on the first signal and the natural size of R.
    ``result.plan`` says what was chosen, and why.

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
        size, deviates = _size(problem), problem.in_range is not problem
        if not has_matrix(problem.in_range.generator) and problem.needs_splitting:
            return ADMM(z_step=z_steps.Spectral(), dual=duals.Adaptive(), penalty=penalties.Balanced())
        refresh = max(_SOONEST, size) if size <= _LARGEST_REFRESHED and not deviates else None
        return QuasiNewton(memory=_pairs(problem), refresh=refresh)

    def plan(self, problem: Problem) -> str:
        """What was chosen, and why."""
        size, method = _size(problem), self.choice(problem)
        if not isinstance(method, QuasiNewton):
            limit = f"The latent dimension, {size}, exceeds the limit of {LARGEST_DENSE} for a dense preconditioner."
            return f"Auto: {method.plan(problem)} {limit}"
        if not has_matrix(problem.in_range.generator):
            why = f"The latent dimension, {size}, exceeds the limit of {LARGEST_DENSE} for a preconditioner."
        elif problem.generator.no_jacobian is not None:
            why = "There are no Gauss-Newton matrices, because the generator has gradients but no Jacobian."
        elif method.refresh is None:
            why = f"There are no Jacobians, because their {size} columns would cost more than they save."
        else:
            why = f"A Gauss-Newton matrix replaces the BFGS matrix every {method.refresh} steps: its {size} columns are cheap."
        return f"Auto: {method.plan(problem)} {why}"


def _pairs(problem: Problem) -> int:
    """As many curvature pairs as fit into the bytes of an item."""
    fitting = _BYTES_OF_PAIRS // (2 * _size(problem) * problem.generator.dtype.itemsize)
    return max(_FEWEST_PAIRS, min(_PAIRS, fitting))


def _size(problem: Problem) -> int:
    return math.prod(problem.in_range.generator.latent_shape)
