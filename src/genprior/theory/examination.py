"""Examines a generator: its constants, Proposition 1, a certificate, and a measured run with its bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _validate
from genprior.checks.report import Report
from genprior.generators import Generator
from genprior.loop.solve import solve
from genprior.operators import Operator
from genprior.problem import Problem
from genprior.solvers import LinearizedADMM, duals, z_steps
from genprior.stopping import MaxSteps
from genprior.theory.certificate import NONE, Certificate
from genprior.theory.certifying import certify, own_signal_problem
from genprior.theory.generator_constants import GeneratorConstants, constants
from genprior.theory.proposition import check_proposition1

Announce = Callable[[str], None]

_PAPER = LinearizedADMM(z_step=z_steps.Gradient(), dual=duals.Paper())
"""The form of Algorithm 1, for problems without a certificate: step sizes adapt, because Theorem 1 gives none."""


@dataclass(frozen=True)
class Measured:
    """A run of Algorithm 1 on the certificate's problem."""

    plan: str
    certified: bool
    """With the certificate's steps; otherwise with the solver's own."""
    objective: Tensor
    """Of ``G(z_t)``, for t = 0, 1, ...; the optimum is 0."""
    rate: float
    """Factor per iteration by which the objective fell in the run, on average."""
    bound: Tensor | None
    """The certificate's bound on the objective, if one applies."""

    @property
    def largest_share(self) -> float | None:
        """Largest ratio of the objective to its bound; above 1 if the bound is violated."""
        return None if self.bound is None else float((self.objective / self.bound[: len(self.objective)]).max())


@dataclass(frozen=True)
class Examination:
    """The results of ``genprior certify``."""

    name: str
    operator: str
    generator: Generator
    constants: GeneratorConstants
    proposition: Report
    certificate: Certificate
    measured: Measured


def examine(
    generator: Generator,
    name: str,
    *,
    operator: Operator | None = None,
    radius: float,
    points: int | None = None,
    moves: int | None = None,
    steps: int = 200,
    seed: int = 0,
    announce: Announce | None = None,
) -> Examination:
    """Examine a generator on the ball ``|z| <= radius``, with the problem of finding one of its own signals from ``A G(z)``.

    The signal is ``G(z)`` for a latent of the ball, so the optimum is 0 and attained; H keeps the latents in the ball.
    """
    say = announce or (lambda _: None)
    _validate.whole("steps", steps)
    found = constants(generator, radius, points=points, moves=moves, seed=seed, announce=announce)
    say("Proposition 1")
    proposition = check_proposition1(generator, chain=found.chain)
    problem, target = own_signal_problem(generator, radius, seed, operator)
    certificate = certify(problem, radius, target=target, seed=seed, known=found, announce=announce)
    say("a run of Algorithm 1")
    measured = _run(problem, certificate, steps)
    word = repr(operator) if operator is not None else "the whole signal"
    return Examination(name, word, generator, found, proposition, certificate, measured)


def _run(problem: Problem, certificate: Certificate, steps: int) -> Measured:
    certified = certificate.status != NONE
    solver = LinearizedADMM.from_certificate(certificate) if certified else _PAPER
    seen: list[Tensor] = []
    solve(
        problem,
        solver,
        stop=MaxSteps(steps),
        z0=certificate.z0,
        tolerance=1e-30,
        patience=10 * steps,
        callbacks=[lambda view: seen.append(view.state.objective.clone())],
        progress=False,
    )
    values = torch.cat(seen).cpu().double()
    return Measured(solver.plan(problem), certified, values, _rate(values), _objective_bound(certificate, steps))


def _rate(values: Tensor) -> float:
    """The mean factor per iteration from the start to the end of convergence (or to the noise floor)."""
    low = float(values.min())
    if not (low > 0 and values[0] > 0):
        return math.nan
    end = int((values <= 1.05 * low).nonzero()[0, 0])
    fell: float = float(values[end] / values[0]) ** (1 / max(end, 1))
    return fell


def _objective_bound(certificate: Certificate, steps: int) -> Tensor | None:
    """``1/2 nu_L |G(z) - w*|^2`` bounds ``L(G(z))`` if the optimum is 0; round-off adds up to the floors."""
    if certificate.status == NONE:
        return None
    bounds = certificate.guarantee.bounds(steps)
    hidden = certificate.floors["signal"] + certificate.floors["gap"]
    return 0.5 * certificate.loss.nu * (bounds["signal"] + bounds["gap"] + hidden) ** 2
