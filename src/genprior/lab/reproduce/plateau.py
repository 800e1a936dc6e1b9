"""Theory in practice: the plateau against the penalty, the rate against the conditioning of G, the three dual rules.

The generators here are ``G(z) = U diag(s) (z + 0.2 tanh z)`` with orthonormal U: ``kappa/iota`` lies within a factor
of 1.2 of the largest over the smallest entry of s. The data lie off the range, so that neither the optimal dual
nor the primal residual is zero at first.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from genprior import _batch
from genprior.generators import Generator
from genprior.lab.reproduce.contest import Contest, Setting, network, race, seconds
from genprior.lab.reproduce.parts import Array, Found, Part, Results
from genprior.loop.solve import solve
from genprior.losses import SquaredDistance
from genprior.problem import Problem
from genprior.solvers import ADMM, Choice, LevenbergMarquardt, LinearizedADMM, duals, penalties, z_steps
from genprior.solvers.admm import ADMMState
from genprior.stopping import MaxSteps, View

PREFIX = "plateau"
_LATENT, _SIGNAL, _ITEMS = 6, 24, 4
_OFF = 0.5
"""Distance of the data from the range, relative to their length."""
_BEND = 0.2
_SIGMA = 0.01
"""First dual step of the paper's rule for the plateau: small, so that the dual stays near zero."""
_AT_REST = 1e-12
"""The same for the rate: a slowly growing dual would move the plateau and hide the decrease towards it."""
_WEIGHT = 0.5
"""``L = 1/2 |w - y|^2``."""
LARGEST_PENALTY = 2 * _WEIGHT / 2
"""Theorem 1 needs ``mu_L - 2 rho > 0``, and ``mu_L`` is twice the weight."""
DUALS: dict[str, duals.Dual[Any]] = {
    "paper, small": duals.Paper(0.01),
    "paper, large": duals.Paper(1.0),
    "constant": duals.Constant(),
    "adaptive": duals.Adaptive(),
}


class Bent(nn.Module):
    """``U diag(s) (z + bend tanh z)``."""

    def __init__(self, conditioning: float, seed: int) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(seed)
        basis = torch.linalg.qr(torch.randn(_SIGNAL, _LATENT, generator=random, dtype=torch.float64)).Q
        sizes = torch.logspace(0, -float(np.log10(conditioning)), _LATENT, dtype=torch.float64)
        self.matrix = nn.Parameter((basis * sizes).T.contiguous())

    def forward(self, z: Tensor) -> Tensor:
        """Signals."""
        return (z + _BEND * torch.tanh(z)) @ self.matrix


def parts(setting: Setting) -> list[Part]:
    """Penalties, conditionings and duals on small generators, penalties on digits."""
    size = setting.size.plateau
    found = [
        Part(f"{PREFIX}.rho.{rho:g}", partial(_penalty, setting, rho), 0.0015 * _needed(setting, rho))
        for rho in size.penalties
    ]
    found += [
        Part(f"{PREFIX}.rate.{one:g}", partial(_rate, setting, one), 0.0015 * _rate_steps(setting, one))
        for one in size.conditionings
    ]
    found += [
        Part(f"{PREFIX}.dual.{name.replace(', ', '-')}", partial(_dual, setting, rule), 0.0015 * size.dual_iterations)
        for name, rule in DUALS.items()
    ]
    cost = seconds("mnist", size.digit_iterations, size.digits)
    found += [Part(f"{PREFIX}.digits.{rho:g}", partial(_digits, setting, rho), cost) for rho in size.digit_penalties]
    return found


def _needed(setting: Setting, rho: float) -> int:
    """A gradient step in z covers about 1/(1 + rho) of the way: fifteen times as many for the plateau to show."""
    return int(setting.size.plateau.iterations + 15 * (1 + rho))


def _rate_steps(setting: Setting, conditioning: float) -> int:
    """A step covers about 1/conditioning^2 of the slowest direction."""
    return int(setting.size.plateau.iterations + 20 * conditioning**2)


def synthetic(seed: int, conditioning: float) -> tuple[Problem, Tensor, Tensor]:
    """A problem in float64, a start, and its solution ``w* = G(z*)`` from Levenberg-Marquardt."""
    generator = Generator(Bent(conditioning, seed), _LATENT, _SIGNAL, dtype=torch.float64)
    random = torch.Generator().manual_seed(100 + seed)
    with torch.no_grad():
        inside = generator(generator.sample_latent(_ITEMS, seed=seed))
    noise = torch.randn(inside.shape, generator=random, dtype=torch.float64)
    y = inside + _OFF * noise * (_batch.norm(inside) / _batch.norm(noise))[:, None]
    problem = Problem(generator, loss=SquaredDistance(y, _WEIGHT))
    start = generator.sample_latent(_ITEMS, seed=50 + seed)
    best = solve(problem, LevenbergMarquardt(), stop=MaxSteps(40), z0=start, tolerance=1e-13, progress=False)
    return problem, start, best.signal


def _watched(problem: Problem, start: Tensor, solution: Tensor, solver: Choice, steps: int) -> dict[str, Array]:
    """Primal residual, distance to the solution and length of the dual, at each step."""
    size = _batch.norm(solution)

    def watch(view: View) -> dict[str, Tensor]:
        state = view.state
        assert isinstance(state, ADMMState)
        return {
            "gap": _batch.norm(state.r) / size,
            "distance": _batch.norm(state.w - solution) / size,
            "image": _batch.norm(state.x - solution) / size,
            "dual": _batch.norm(state.lam),
        }

    return race(Contest(problem, start, {}, watch), solver, steps).arrays


def _penalty(setting: Setting, rho: float, results: Results) -> Found:
    """Final primal residual and distance at one penalty."""
    problem, start, solution = synthetic(setting.seed, 1.0)
    solver = LinearizedADMM(rho, sigma=_SIGMA, z_step=z_steps.Gradient())
    found = _watched(problem, start, solution, solver, _needed(setting, rho))
    return Found(_ends(found) | {"rho": rho, "steps": _needed(setting, rho)}, _thinned(found))


def _rate(setting: Setting, conditioning: float, results: Results) -> Found:
    """The rate at which G(z) converges to the solution with the dual at zero, at one conditioning of G.

    With ``L = 1/2 |w - y|^2`` and no dual, z moves on ``rho/(1 + rho)/2 |G(z) - y|^2``, whose minimiser is the solution:
    there is no plateau in z, and the rate can be seen down to rounding.
    """
    problem, start, solution = synthetic(setting.seed, conditioning)
    steps = _rate_steps(setting, conditioning)
    found = _watched(problem, start, solution, LinearizedADMM(0.4, sigma=_AT_REST, z_step=z_steps.Gradient()), steps)
    return Found({"conditioning": conditioning, "rate": fitted_rate(found["image"])}, _thinned(found))


def fitted_rate(distance: Array) -> float:
    """``eta`` of ``d ~ (1 - eta)^t``: the late slope of the logarithm, when the slowest direction remains.

    Median over items.
    """
    rates = []
    for fall in distance.T:
        places = np.flatnonzero((fall < 1e-3 * fall[0]) & (fall > 1e-6 * fall[0]))
        if len(places) >= 3:
            first, last = places[0], places[-1] + 1
            slope = np.polyfit(np.arange(first, last), np.log(fall[first:last]), 1)[0]
            rates.append(1 - float(np.exp(slope)))
    return float(np.median(rates)) if rates else float("nan")


def _dual(setting: Setting, rule: duals.Dual[Any], results: Results) -> Found:
    """One dual rule at penalty 1."""
    problem, start, solution = synthetic(setting.seed, 2.0)
    solver = ADMM(z_step=z_steps.Gradient(), dual=rule, penalty=penalties.Constant(1.0))
    found = _watched(problem, start, solution, solver, setting.size.plateau.dual_iterations)
    return Found(_ends(found) | {"rule": repr(rule)}, _thinned(found))


def _digits(setting: Setting, rho: float, results: Results) -> Found:
    """The primal residual on the bundled generator: noisy digits, exact ADMM with Adam's z step, the paper's dual rule."""
    size = setting.size.plateau
    net = network("mnist", setting.device)
    with torch.no_grad():
        truth = net(net.sample_latent(size.digits, seed=1000 + setting.seed))
    noise = torch.randn(truth.shape, generator=torch.Generator().manual_seed(setting.seed)).to(truth)
    problem = Problem(net, loss=SquaredDistance(truth + 0.2 * noise, 0.5))
    solver = ADMM(z_step=z_steps.Adam(0.05), dual=duals.Paper(_SIGMA), penalty=penalties.Constant(rho))
    start = net.sample_latent(size.digits, seed=2000 + setting.seed)
    found = _watched(problem, start, truth, solver, size.digit_iterations)
    return Found(_ends(found) | {"rho": rho}, _thinned(found))


def _ends(found: dict[str, Array]) -> dict[str, Any]:
    """Medians over the items at the last step, and the largest dual of the run."""
    return {
        "gap": float(np.median(found["gap"][-1])),
        "distance": float(np.median(found["distance"][-1])),
        "largest_dual": float(found["dual"].max()),
    }


def _thinned(found: dict[str, Array], most: int = 400) -> dict[str, Array]:
    """Medians over the items, at a limited number of steps."""
    count = len(found["gap"])
    places = np.unique(
        np.concatenate([np.arange(min(50, count)), np.linspace(0, count - 1, min(most, count)).astype(int)])
    )
    return {"step": places, **{name: np.median(found[name], axis=1)[places] for name in ("gap", "distance", "dual")}}
