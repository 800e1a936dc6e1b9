"""Problems whose optimum is known from elsewhere: closed form or cvxpy. Everything in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor, nn

import genprior as gp

ITEMS, LATENT, SIGNAL = 3, 4, 12


class Affine(nn.Module):
    """G(z) = B z + c."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        random = np.random.default_rng(seed)
        left, _ = np.linalg.qr(random.normal(size=(SIGNAL, LATENT)))
        right, _ = np.linalg.qr(random.normal(size=(LATENT, LATENT)))
        self.register_buffer("matrix", torch.tensor(left * np.linspace(1.0, 2.0, LATENT) @ right))
        self.register_buffer("offset", torch.tensor(0.3 * random.normal(size=SIGNAL)))

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.matrix.T + self.offset


@dataclass(frozen=True)
class Certified:
    """A problem and its optimal values, one per item."""

    name: str
    problem: gp.Problem
    optimum: np.ndarray
    smooth: bool


def affine_generator() -> gp.Generator:
    return gp.Generator(Affine(), (LATENT,), (SIGNAL,))


def starts(count: int = ITEMS, seed: int = 11) -> torch.Tensor:
    return affine_generator().sample_latent(count, seed=seed).double()


def _data(seed: int) -> tuple[gp.Generator, np.ndarray, np.ndarray, np.random.Generator]:
    generator = affine_generator()
    module = generator.module
    return generator, module.matrix.numpy(), module.offset.numpy(), np.random.default_rng(seed)


_KNOWN: dict[str, np.ndarray] = {}
"""Optima by the name of their problem: cvxpy is asked once in a process."""


def _optima(name: str, objective: Callable[[int, cp.Variable], tuple[cp.Expression, list]]) -> np.ndarray:
    if name not in _KNOWN:
        values = []
        for item in range(ITEMS):
            z = cp.Variable(LATENT)
            expression, constraints = objective(item, z)
            problem = cp.Problem(cp.Minimize(expression), constraints)
            problem.solve(solver=cp.CLARABEL)
            values.append(problem.value)
        _KNOWN[name] = np.array(values)
    return _KNOWN[name].copy()


def noisy_least_squares() -> Certified:
    """Closed form: z = pinv(A B) (y - A c)."""
    generator, matrix, offset, random = _data(1)
    operator = gp.operators.Gaussian(8, (SIGNAL,), seed=3, dtype=torch.float64)
    y = random.normal(size=(ITEMS, 8))
    reduced = operator.matrix.numpy() @ matrix
    rest = y - operator.matrix.numpy() @ offset
    z = rest @ np.linalg.pinv(reduced).T
    optimum = 0.5 * ((z @ reduced.T - rest) ** 2).sum(axis=1)
    return Certified("least squares", gp.Problem(generator, gp.LeastSquares(operator, torch.tensor(y))), optimum, True)


def in_range_least_squares() -> Certified:
    """The truth lies in the range: optimum 0."""
    generator = affine_generator()
    operator = gp.operators.Gaussian(8, (SIGNAL,), seed=3, dtype=torch.float64)
    y = operator(generator(generator.sample_latent(ITEMS, seed=5).double()))
    return Certified("in range", gp.Problem(generator, gp.LeastSquares(operator, y)), np.zeros(ITEMS), True)


def _with_latent_term(name: str, term: gp.Term, expression: Callable, *, smooth: bool) -> Certified:
    generator, matrix, offset, random = _data(2)
    y = 2 * random.normal(size=(ITEMS, SIGNAL))

    def objective(item: int, z: cp.Variable) -> tuple[cp.Expression, list]:
        value, constraints = expression(z)
        return 0.7 * cp.sum_squares(matrix @ z + offset - y[item]) + value, constraints

    problem = gp.Problem(generator, gp.SquaredDistance(torch.tensor(y), 0.7), on_latent=term)
    return Certified(name, problem, _optima(name, objective), smooth)


def _with_signal_term(
    name: str, term: Callable[[Tensor], gp.Term], expression: Callable, weight: float, *constraints: Callable
) -> Certified:
    generator, matrix, offset, random = _data(3)
    y = random.normal(size=(ITEMS, SIGNAL))

    def objective(item: int, z: cp.Variable) -> tuple[cp.Expression, list]:
        w = matrix @ z + offset
        return weight * cp.sum_squares(w - y[item]) + expression(w, y[item]), [c(w) for c in constraints]

    loss = gp.SquaredDistance(torch.tensor(y), weight) if weight else None
    problem = gp.Problem(generator, loss, on_signal=term(torch.tensor(y)))
    return Certified(name, problem, _optima(name, objective), False)


CERTIFIED: dict[str, Callable[[], Certified]] = {
    "noisy": noisy_least_squares,
    "in range": in_range_least_squares,
    "ridge": lambda: _with_latent_term(
        "ridge", 0.5 * gp.SquaredL2(), lambda z: (0.25 * cp.sum_squares(z), []), smooth=True
    ),
    "latent box": lambda: _with_latent_term(
        "latent box", gp.Box(-0.4, 0.4), lambda z: (0.0, [cp.abs(z) <= 0.4]), smooth=True
    ),
    "latent ball": lambda: _with_latent_term(
        "latent ball", gp.Ball(0.5), lambda z: (0.0, [cp.norm(z) <= 0.5]), smooth=True
    ),
    "latent l1": lambda: _with_latent_term("latent l1", 2.0 * gp.L1(), lambda z: (2.0 * cp.norm1(z), []), smooth=True),
    "signal l1": lambda: _with_signal_term(
        "signal l1", lambda y: 0.3 * gp.L1().around(y), lambda w, y: 0.3 * cp.norm1(w - y), 0.5
    ),
    "signal l1 in a box": lambda: _with_signal_term(
        "signal l1 in a box",
        lambda y: 0.3 * gp.L1() + gp.Box(-0.9, 0.9),
        lambda w, y: 0.3 * cp.norm1(w),
        0.5,
        lambda w: cp.abs(w) <= 0.9,
    ),
    "signal linf": lambda: _with_signal_term(
        "signal linf", lambda y: gp.LInf().around(y), lambda w, y: cp.norm_inf(w - y), 0.0
    ),
}
SMOOTH = [name for name in CERTIFIED if not name.startswith("signal")]
NONSMOOTH = [name for name in CERTIFIED if name.startswith("signal")]
