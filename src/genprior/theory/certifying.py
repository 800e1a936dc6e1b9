"""From a problem to its certificate: gather the constants, try the statements, check the assumptions."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from genprior import _batch, _random, _validate
from genprior.generators import Generator
from genprior.loop.solve import Unrepresentable, solve
from genprior.losses import LeastSquares, SquaredDistance
from genprior.operators import Identity, Operator
from genprior.problem import Problem
from genprior.stopping import MaxSteps
from genprior.terms import Ball
from genprior.theory.assumptions import above_round_off, assumptions_of, dual_bound, is_quadratic, round_off_floors
from genprior.theory.certificate import CONDITIONAL, GUARANTEED, NONE, Certificate
from genprior.theory.generator_constants import (
    GeneratorConstants,
    constants,
    default_radius,
    known_values,
    weights_mark,
)
from genprior.theory.loss_constants import LossConstants, loss_constants
from genprior.theory.theorem import DUAL_SUM, Guarantee, Setting, corrected, sharpened

_RHOS = (1.0, 0.3, 0.1, 3.0, 0.03, 10.0, 0.01, 100.0)
"""Penalties that are tried, in this order, in units of mu_L."""
_SIGMAS = (0.01, 1e-3, 1e-4, 0.0)
"""First dual steps that are tried, in units of rho, or of the problem if that is smaller: see `_Maker`."""


def certify(
    problem: Problem | Generator,
    radius: float | None = None,
    *,
    z0: Tensor | None = None,
    rho: float | None = None,
    sigma: float | None = None,
    dual: float | None = None,
    target: Tensor | None = None,
    points: int | None = None,
    moves: int | None = None,
    seed: int = 0,
    known: GeneratorConstants | None = None,
    announce: Callable[[str], None] | None = None,
) -> Certificate:
    """A certificate for Algorithm 1 on a problem (for a generator: recovering one of its signals, measured completely).

    Parameters
    ----------
    problem
        the problem; one certificate covers all its items, by the worst of them.
    radius
        of the ball of latents; by default that of the latent distribution, or 10.
    z0
        the starts that the solver will be given; by default drawn with ``seed``: ``solve(..., z0=certificate.z0)``.
    rho, sigma
        penalty and first dual step; by default searched for.
    dual
        an upper bound on ``|lam*|``, if known. Without it, and with R = 0, ``sqrt(2 nu_L F)`` for the best feasible
        value F found.
    target
        latents of low objective, if known (the truth of a simulation), from which F is computed; by default a short solve
        finds some.
    points, moves
        how much is sampled, as in :func:`constants`.
    seed
        of samples and starts.
    known
        constants of the generator computed before, by :func:`constants` with the same radius.
    announce
        callback that receives progress messages.
    """
    if isinstance(problem, Generator):
        problem, target = own_signal_problem(problem, radius, seed)
    if not problem.loss.convex:
        raise ValueError(
            f"a certificate needs a convex loss, such as LeastSquares or SquaredDistance, got {type(problem.loss).__name__}: "
            "for measurements that are not linear the theory says nothing"
        )
    say = announce or (lambda _: None)
    radius = default_radius(problem.generator) if radius is None else _validate.number("radius", radius, above=0)
    if known is not None:
        _check_known(known, problem.generator, radius)
    found = known or constants(problem.generator, radius, points=points, moves=moves, seed=seed, announce=announce)
    say("constants of the loss")
    loss = loss_constants(problem, radius, seed=seed)
    z0 = problem.generator.draw(problem.batch or 1, _random.stream("starts", seed)) if z0 is None else z0
    say("a feasible point")
    z0 = z0 if problem.on_latent.constraint is None else problem.on_latent.constraint.prox(z0, 1.0)
    start, lowest = _values(
        problem, z0, z0 if found.kappa.sampled == 0 else target
    )  # G is constant: every latent is optimal
    bound, source = dual_bound(problem, loss, lowest, dual)
    maker = _Maker(found, loss, bound, start, rho, sigma, problem, z0)
    tried = tuple((level, above_round_off(problem, g, z0)) for level, g in maker.all())
    level, best = max(tried, key=_rank)
    floors = round_off_floors(problem, best, z0)
    assumptions = tuple(assumptions_of(problem, found, loss, best, level, source, z0, floors))
    proved = all(assumption.checked for assumption in assumptions)
    status = NONE if not best.applies else GUARANTEED if proved else CONDITIONAL
    return Certificate(status, best, level, assumptions, found, loss, tried, z0, floors)


def _check_known(known: GeneratorConstants, generator: Generator, radius: float) -> None:
    if known.weights != weights_mark(generator):
        raise ValueError("known has the constants of another generator, or of other weights: compute them again")
    now, then = known_values(generator, known.seen.points), known.values
    share = 1e3 * torch.finfo(generator.dtype).eps * float(then.abs().max())
    if not torch.allclose(now, then, rtol=0.0, atol=share, equal_nan=True):
        raise ValueError(
            f"known has the constants of another generator: this one gives signals that differ by up to "
            f"{float((now - then).abs().max()):.2g}: compute them again"
        )
    if known.radius < radius and not known.everywhere:
        raise ValueError(f"known holds for |z| <= {known.radius:g}, but radius is {radius:g}: compute it for that ball")


def own_signal_problem(
    generator: Generator, radius: float | None = None, seed: int = 0, operator: Operator | None = None
) -> tuple[Problem, Tensor]:
    """The recovery of a signal of the generator, measured completely or by an operator, and its latent in the ball.

    The optimum is 0.
    """
    domain = Ball(default_radius(generator) if radius is None else _validate.number("radius", radius, above=0))
    target = domain.prox(generator.sample_latent(1, seed + 1), 1.0)
    operator = Identity(generator.signal_shape) if operator is None else operator
    with torch.no_grad():
        y = operator(generator(target))
    return Problem(generator, LeastSquares(operator, y), on_latent=domain), target


def _values(problem: Problem, z0: Tensor, target: Tensor | None) -> tuple[float, float]:
    """Over the items: the largest objective at the start, and the largest of the best ones that are known or quickly found."""
    first = _objective(problem, z0)
    if target is None:
        try:
            target = solve(problem, stop=MaxSteps(60), z0=z0, progress=False).z
        except Unrepresentable:  # the conditions on the dtype will report it
            target = z0
    low = _objective(problem, target)
    return max(float(first.max()), 0.0), max(float(torch.minimum(first, low).max()), 0.0)


def _objective(problem: Problem, z: Tensor) -> Tensor:
    """As :meth:`Problem.objective`, with squares summed in float64, on the CPU: zero only where the residual is."""
    with torch.no_grad():
        x = problem.generator(z)
        value, residual = problem.loss.evaluate(x)
        loss = value.cpu().double()  # not every device has float64
        if is_quadratic(problem.loss):
            weight = problem.loss.weight if isinstance(problem.loss, SquaredDistance) else 0.5
            flat = _batch.flat(residual).cpu().double()
            weight = weight.cpu() if isinstance(weight, Tensor) else weight
            loss = _batch.column(weight, flat) * _batch.square(flat)
            loss = torch.where((flat != 0).any(dim=1), loss.clamp_min(sys.float_info.min), loss)
        return loss + problem.on_signal(x).cpu().double() + problem.on_latent(z).cpu().double()


@dataclass(frozen=True)
class _Maker:
    """Puts constants of one level into the statements."""

    found: GeneratorConstants
    loss: LossConstants
    dual: float
    start: float
    rho: float | None
    sigma: float | None
    problem: Problem
    z0: Tensor

    def all(self) -> Iterator[tuple[str, Guarantee]]:
        """Each statement with each level of constants, at its best rho and sigma."""
        for level in ("rigorous", "sampled"):
            values = self._values(level)
            if values is None:
                continue
            for restricted in (False, True) if is_quadratic(self.problem.loss) and level == "sampled" else (False,):
                for statement in (sharpened, corrected):
                    yield level, self._best(statement, values, restricted)

    def _values(self, level: str) -> tuple[float, float, float] | None:
        trio = [getattr(constant, level) for constant in (self.found.iota, self.found.kappa, self.found.nu_G)]
        if any(value is None for value in trio):
            return None
        iota = trio[0] if level == "rigorous" or trio[0] > self.found.resolution else 0.0
        iota = 0.0 if self.found.iota.refuted else iota
        kappa = min(trio[1] or 1.0, sys.float_info.max)  # a constant map: any number is a bound
        return iota, kappa, math.inf if self.found.nu_G.refuted else trio[2]

    def _best(
        self, statement: Callable[[Setting], Guarantee], values: tuple[float, float, float], restricted: bool
    ) -> Guarantee:
        mu = self.loss.restricted_mu if restricted else self.loss.mu
        unit = next((value for value in (mu, self.loss.nu) if value > 0), 1.0)
        words: dict[str, Any] = {"largest": torch.finfo(self.problem.generator.dtype).max, "infinite": self._infinite()}
        options = []
        for rho in [self.rho] if self.rho is not None else [share * unit for share in _RHOS]:
            for sigma in [self.sigma] if self.sigma is not None else self._sigmas(rho):
                setting = Setting(*values, mu, self.loss.nu, rho, sigma, self.dual, self.start, restricted, **words)
                options.append(statement(setting))
        applying = [option for option in options if option.applies]
        return (
            applying[0]
            if applying
            else max(options, key=lambda o: (-len(o.failures), min(c.margin for c in o.conditions)))
        )

    def _sigmas(self, rho: float) -> list[float]:
        """Shares of rho; and such that what the dual variable adds, ``(c sigma)^2 / rho``, is a share of Delta_0."""
        unit = min(rho, math.sqrt(rho * self.start) / DUAL_SUM)
        return [share * unit for share in _SIGMAS]

    def _infinite(self) -> str:
        """The condition that fails if the objective is infinite at the start."""
        if math.isfinite(self.start):
            return ""
        with torch.no_grad():
            outside = self.problem.on_signal(self.problem.generator(self.z0)).isinf().any()
        return "G(z0) lies in the set of R" if self.problem.on_signal.is_indicator and outside else ""


def _rank(candidate: tuple[str, Guarantee]) -> tuple[bool, bool, bool, bool, int, float]:
    """A statement that applies, better with proved constants, unrestricted, sharpened; else the least broken one."""
    level, g = candidate
    return (
        g.applies,
        g.applies and level == "rigorous",
        g.applies and not g.setting.restricted,
        g.statement == "sharpened",
        -len(g.failures),
        min(condition.margin for condition in g.conditions),
    )
