"""Small convex problems whose optimum is known from their construction, for tests of solvers.

The generator is affine, ``G(z) = B z + c``. First the solution z* is chosen, then one subgradient h of H there (r of R), and
last data for which the optimality condition ``B^T (grad L(w*) + r) + h = 0`` holds. No solver is involved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from genprior.generators import Generator
from genprior.losses import LeastSquares, SquaredDistance
from genprior.operators import Gaussian
from genprior.problem import Problem
from genprior.terms import L1, Ball, Box, LInf, SquaredL2, Term
from genprior.testing.laws import F64, random

ITEMS, LATENT, SIGNAL, MEASURED = 3, 4, 12, 8


@dataclass(frozen=True)
class KnownOptimum:
    """A problem and its least objective, one number per item."""

    problem: Problem
    optimum: Tensor

    @property
    def starts(self) -> Tensor:
        """The same for every solver; independent of the data."""
        return self.problem.generator.sample_latent(len(self.optimum), seed=11).to(self.problem.generator.dtype)


class _Affine(nn.Module):
    """``G(z) = B z + c`` with singular values from 1 to 2."""

    def __init__(self) -> None:
        super().__init__()
        left, _ = torch.linalg.qr(random(SIGNAL, LATENT, seed=1))
        right, _ = torch.linalg.qr(random(LATENT, LATENT, seed=2))
        self.register_buffer("matrix", left * torch.linspace(1.0, 2.0, LATENT, dtype=F64) @ right)
        self.register_buffer("offset", 0.3 * random(SIGNAL, seed=3))

    def forward(self, z: Tensor) -> Tensor:
        """Batches of latents to batches of signals."""
        moved: Tensor = z @ self.get_buffer("matrix").T + self.get_buffer("offset")
        return moved


def _parts(matrix: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The matrix's pseudo-inverse, and the vectors without their parts in its range."""
    inverse = torch.linalg.pinv(matrix)
    return inverse, vectors - vectors @ inverse.T @ matrix.T


def _generator() -> tuple[Generator, Tensor]:
    module = _Affine()
    return Generator(module, LATENT, SIGNAL), module.get_buffer("matrix")


def _measured(noise: float) -> KnownOptimum:
    """Least squares; the noise is orthogonal to all that G and A can make."""
    G, matrix = _generator()
    A = Gaussian(MEASURED, G.signal_shape, seed=3, dtype=F64)
    _, rest = _parts(A.matrix @ matrix, noise * random(ITEMS, MEASURED, seed=4))
    y = A(G(0.8 * random(ITEMS, LATENT, seed=5)).detach()) + rest
    return KnownOptimum(Problem(G, LeastSquares(A, y)), 0.5 * rest.square().sum(dim=1))


def _latent_term(term: Term, z: Tensor, h: Tensor) -> KnownOptimum:
    """``0.7 |w - y|^2 + H(z)`` with ``h in dH(z)``: y such that ``B^T 1.4 (w - y) = -h``."""
    G, matrix = _generator()
    inverse, rest = _parts(matrix, random(ITEMS, SIGNAL, seed=6))
    q = h @ inverse + rest
    y = G(z).detach() + q / 1.4
    problem = Problem(G, SquaredDistance(y, 0.7), on_latent=term)
    return KnownOptimum(problem, 0.7 * (q / 1.4).square().sum(dim=1) + term(z))


def _ridge() -> KnownOptimum:
    z = random(ITEMS, LATENT, seed=7)
    return _latent_term(0.5 * SquaredL2(), z, 0.5 * z)


def _box() -> KnownOptimum:
    free = random(ITEMS, LATENT, seed=8)
    z = (0.6 * free).clamp(-0.4, 0.4)
    return _latent_term(Box(-0.4, 0.4), z, torch.where(z.abs() == 0.4, free, 0.0))


def _ball() -> KnownOptimum:
    free = random(ITEMS, LATENT, seed=9)
    z = 0.5 * (1 - 1e-15) * free / free.norm(dim=1, keepdim=True)
    return _latent_term(Ball(0.5), z, 3.0 * z)


def _sparse() -> KnownOptimum:
    free = random(ITEMS, LATENT, seed=10)
    z = torch.where(free.abs() > 0.6, free, 0.0)
    h = torch.where(z == 0, 2.0 * free, 2.0 * z.sign())
    return _latent_term(2.0 * L1(), z, h)


def _signal_l1() -> KnownOptimum:
    """``1/2 |w - y|^2 + 0.3 |w - u|_1``: w meets u in about half of the entries."""
    G, matrix = _generator()
    w = G(random(ITEMS, LATENT, seed=12)).detach()
    free = random(ITEMS, SIGNAL, seed=13)
    away = torch.where(free.abs() > 0.7, free, 0.0)
    r = 0.3 * torch.where(away == 0, free, away.sign())
    _, rest = _parts(matrix, random(ITEMS, SIGNAL, seed=14))
    y = w + r - rest
    problem = Problem(G, SquaredDistance(y, 0.5), on_signal=0.3 * L1().around(w - away))
    return KnownOptimum(problem, 0.5 * (r - rest).square().sum(dim=1) + 0.3 * away.abs().sum(dim=1))


def _signal_linf() -> KnownOptimum:
    """``|w - u|_inf`` alone: all entries are as far away, with signs of a vector that is orthogonal to the range of B."""
    G, matrix = _generator()
    w = G(random(ITEMS, LATENT, seed=15)).detach()
    _, r = _parts(matrix, random(ITEMS, SIGNAL, seed=16))
    return KnownOptimum(Problem(G, on_signal=LInf().around(w - 0.9 * r.sign())), torch.full((ITEMS,), 0.9, dtype=F64))


def smooth_problems() -> dict[str, Callable[[], KnownOptimum]]:
    """Problems whose R is zero: every solver must find their optimum."""
    return {
        "noisy": lambda: _measured(1.0),
        "in range": lambda: _measured(0.0),
        "ridge": _ridge,
        "latent box": _box,
        "latent ball": _ball,
        "latent l1": _sparse,
    }


def nonsmooth_problems() -> dict[str, Callable[[], KnownOptimum]]:
    """Problems with a kinked R: solvers that split find their optimum, the others come nearer."""
    return {"signal l1": _signal_l1, "signal linf": _signal_linf}
