"""From a problem with non-smooth R and H to its certificate, its solver, and every iteration: the solution by brute force.

One latent: the minimiser over a fine grid is known whatever the terms are.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import genprior as gp
from genprior.theory import certify
from tests.theory.networks import Mild, bent, dense

STEPS = 150


def column(rows: int, seed: int) -> Tensor:
    x = torch.randn(rows, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / x.norm()


def noisy(generator: gp.Generator, z: float, noise: float, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(100 + seed)
    clean = generator(torch.tensor([[z]]).double()).detach()
    return clean + noise * torch.randn(clean.shape, generator=random, dtype=torch.float64)


@dataclass(frozen=True)
class Case:
    problem: gp.Problem
    status: str
    radius: float = 1.0
    start: float = 0.0
    dual: Callable[[Tensor, Tensor], float] | None = None
    """Bound on ``|lam*|`` from ``w*`` and ``grad L(w*)``, where the certificate has none of its own."""


def line(seed: int, signal: gp.terms.Term, latent: gp.terms.Term | None) -> gp.Problem:
    generator = gp.Generator(dense(1.3 * column(4, seed), 0.2 * column(4, seed + 50)[:, 0]), 1, 4)
    return gp.Problem(generator, gp.SquaredDistance(noisy(generator, 0.9, 0.5, seed), 0.5), signal, latent)


def curved(seed: int, net: torch.nn.Module, z: float, latent: gp.terms.Term) -> gp.Problem:
    generator = gp.Generator(net, 1, 6, dtype=torch.float64)
    return gp.Problem(generator, gp.SquaredDistance(noisy(generator, z, 0.02, seed), 0.5), None, latent)


def in_ball(seed: int) -> Case:
    """R is a ball that the solution touches: ``-(grad L + lam*)`` points outwards along ``w*``, and ``B^T lam* = 0``."""
    matrix = column(4, seed)
    generator = gp.Generator(dense(matrix), 1, 4)
    y = noisy(generator, 2.0, 0.3, seed)

    def dual(w: Tensor, slope: Tensor) -> float:
        outward = w / w.norm()
        return float((slope - outward * (slope @ matrix) / (outward @ matrix)).norm())

    return Case(gp.Problem(generator, gp.SquaredDistance(y, 0.5), gp.Ball(0.7)), "conditional", dual=dual)


def finite(most: float) -> Callable[[Tensor, Tensor], float]:
    """R has subgradients of at most this length."""
    return lambda w, slope: float(slope.norm()) + most


CASES: dict[str, Callable[[int], Case]] = {
    "L1 on the signal, latents in an active ball": lambda s: Case(
        line(s, 0.4 * gp.L1(), gp.Ball(0.5)), "guaranteed", 0.5, dual=finite(0.4 * 2)
    ),
    "l_inf around data, L1 on the latent": lambda s: Case(
        line(s, 0.5 * gp.LInf().around(0.3), 0.2 * gp.L1()), "guaranteed", dual=finite(0.5)
    ),
    "a box for the latents": lambda s: Case(line(s, 0.3 * gp.L2(), gp.Box(-0.4, 0.6)), "guaranteed", dual=finite(0.3)),
    "signals in a ball": in_ball,
    "curved, an active ball": lambda s: Case(
        curved(s, bent(column(6, s), 0.02), 1.2, gp.Ball(1.0)), "guaranteed", start=0.9
    ),
    "curved by the module's word, noise": lambda s: Case(
        curved(s, Mild(column(6, s), column(6, s + 9), 0.01), 0.4, gp.Ball(1.0)), "conditional", start=0.3
    ),
}


def brute_force(case: Case) -> Tensor:
    """The latent with the least objective, on a grid that is refined twice around its best point."""
    low, high = -3.0, 3.0
    for _ in range(3):
        grid = torch.linspace(low, high, 20_001, dtype=torch.float64)[:, None]
        values = _objectives(case.problem, grid)
        best, width = float(grid[values.argmin(), 0]), (high - low) / 1e3
        low, high = best - width, best + width
    return torch.tensor([[best]], dtype=torch.float64)


def _objectives(problem: gp.Problem, z: Tensor) -> Tensor:
    """Written out, for many latents of one item: the loss is ``1/2 |w - y|^2``."""
    with torch.no_grad():
        w = problem.generator.module(z)
    return 0.5 * (w - problem.loss.y).square().sum(dim=1) + problem.on_signal(w) + problem.on_latent(z)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CASES)
def test_every_iteration_obeys_the_certificate(name, seed):
    case = CASES[name](seed)
    z = brute_force(case)
    w = case.problem.generator(z).detach()
    slope = w - case.problem.loss.y
    dual = None if case.dual is None else case.dual(w[0], slope[0]) + 1e-9
    start = torch.tensor([[case.start]]).double()
    found = certify(case.problem, case.radius, z0=start, dual=dual, points=4, moves=1)
    assert found.status == case.status, found.verdict()
    solver, bounds = gp.LinearizedADMM.from_certificate(found), found.guarantee.bounds(STEPS)
    with torch.no_grad():
        state = solver.start(case.problem, found.z0)
        for t in range(STEPS + 1):
            lengths = {"signal": state.w - w, "latent": state.z - z, "gap": state.w - state.x}
            for length, difference in lengths.items():
                assert float(difference.norm()) <= float(bounds[length][t]) + 1e-6, (length, t)
            state = solver.step(case.problem, state)
    assert float((state.z - z).norm()) < 0.6 * float((start - z).norm()), "and the run got somewhere"


def test_the_solutions_are_not_smooth_ones():
    """Kinks and boundaries are met, or the cases would show nothing."""
    at_boundary = [float(brute_force(CASES[name](0)).abs()) for name in ("curved, an active ball",)]
    assert at_boundary == pytest.approx([1.0], abs=1e-6)
    inside = CASES["signals in a ball"](0)
    assert float(inside.problem.generator(brute_force(inside)).norm()) == pytest.approx(0.7, abs=1e-6)
