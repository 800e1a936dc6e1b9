"""The assumptions of a certificate beyond its conditions, and which of them are checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior._batch import PerItem
from genprior.losses import LeastSquares, Loss, SquaredDistance
from genprior.problem import Problem
from genprior.terms import (
    L1,
    L2,
    Around,
    Ball,
    Box,
    L1Ball,
    LInf,
    Scaled,
    Simplex,
    SquaredL2,
    Term,
    TotalVariation,
    Zero,
)
from genprior.theory.certificate import Assumption
from genprior.theory.generator_constants import GeneratorConstants
from genprior.theory.loss_constants import GIVEN, LossConstants
from genprior.theory.theorem import DUAL_SUM, Condition, Guarantee

_KNOWN = (Zero, L1, L2, LInf, SquaredL2, TotalVariation, Ball, Box, L1Ball, Simplex)
"""Convex, non-negative terms. Subclasses are excluded, because they may compute something else."""


def dual_bound(problem: Problem, loss: LossConstants, lowest: float, dual: float | None) -> tuple[float, Assumption]:
    """A bound on ``|lam*|``, and its justification."""
    text = "|lam*| is at most {:.3g}"
    if dual is not None:
        value = _validate.number("dual", dual, least=0)
        return value, Assumption(text.format(value), True, "given by you", given=True)
    value = math.inf if math.isinf(lowest) else (2 * loss.nu * lowest) ** 0.5
    quadratic = is_quadratic(problem.loss)
    plain = type(problem.on_signal) is Zero
    if quadratic and plain and lowest == 0:
        return 0.0, Assumption(text.format(0.0), True, "optimum known: 0 is attained, where grad L(w*) = 0")
    if quadratic and plain and loss.proved:
        text += " at a global minimiser (w*, z*)"
        note = "|grad L(w*)|^2 <= 2 nu_L L(w*), and L(w*) is at most the objective of any feasible point"
        return value, Assumption(text.format(value), True, note)
    note = "R is not zero, or L is not a sum of squares with known nu_L: give dual="
    return value, Assumption(text.format(value), False, note)


def assumptions_of(
    problem: Problem,
    found: GeneratorConstants,
    loss: LossConstants,
    g: Guarantee,
    level: str,
    dual: Assumption,
    z0: Tensor,
    floors: dict[str, float],
) -> Iterator[Assumption]:
    """All assumptions of a statement about a problem, beyond its conditions; ``floors``: see `Certificate`."""
    rigorous = level == "rigorous"
    note = "proved from the weights" if rigorous else "sampled: attained somewhere, not bounds"
    yield Assumption("iota, kappa and nu_G hold on the ball", rigorous, note)
    if rigorous and found.vouched:
        note = "vouched for by the module; compared at two points only"
        yield Assumption(f"branches() add up to what is computed in {found.vouched}", False, note)
    name = "the restricted constant of L" if g.setting.restricted else "mu_L and nu_L"
    sure = loss.proved and not g.setting.restricted
    yield Assumption(
        f"{name} hold" + ("s" if g.setting.restricted else ""),
        sure,
        loss.samples if g.setting.restricted else loss.source,
        given=sure and loss.source == GIVEN,
    )
    yield dual
    yield _never_negative(problem)
    yield _convex(problem)
    yield _exact_proxes(problem)
    yield _multiplier(problem)
    yield _contained(problem, found, g, z0)
    yield Assumption("w0 = G(z0) and lam0 = 0", True, "as the solver starts")
    yield _arithmetic(floors)
    if any(part._backward_hooks or part._backward_pre_hooks for part in problem.generator.module.modules()):
        yield Assumption("gradients are those of G", False, "hooks of the backward pass may change them")


def is_quadratic(loss: Loss) -> bool:
    """Whether it is certainly a sum of squares; a subclass may not be."""
    return type(loss) in (LeastSquares, SquaredDistance)


def _innermost(term: Term) -> Term:
    """The term without factors and shifts, which change neither its sign nor its convexity."""
    while type(term) in (Scaled, Around):
        term = term.term  # type: ignore[attr-defined]
    return term


def _known_terms(problem: Problem) -> bool:
    return all(type(_innermost(term)) in _KNOWN for term in (problem.on_signal, problem.on_latent))


def _never_negative(problem: Problem) -> Assumption:
    """If the objective is non-negative, its value at the start bounds Delta_0."""
    sure = _known_terms(problem) and is_quadratic(problem.loss)
    note = "L is a sum of squares, R and H are norms or sets" if sure else "a user-defined loss or term: not known"
    return Assumption("no part of the objective is ever negative", sure, note)


def _convex(problem: Problem) -> Assumption:
    sure = _known_terms(problem)
    return Assumption("R and H are convex", sure, "norms or sets" if sure else "a user-defined term: not known")


def _exact_proxes(problem: Problem) -> Assumption:
    kinds = [type(_innermost(term)) for term in (problem.on_signal, problem.on_latent)]
    rough = next((kind.__name__ for kind in kinds if kind not in _KNOWN or kind is TotalVariation), None)
    note = "closed forms" if rough is None else f"that of {rough} is iterative, or not known"
    return Assumption("proxes are exact", rough is None, note)


def _multiplier(problem: Problem) -> Assumption:
    """A minimiser z* has one if R is finite: then ``0 in DG^T (grad L + dR) + dH`` by the chain rule. R may be zero."""
    inner = _innermost(problem.on_signal)
    if type(inner) is Zero:
        return Assumption("a minimiser has a multiplier lam*", True, "R = 0: lam* = -grad L(w*)")
    finite = type(inner) in _KNOWN and not inner.is_indicator
    note = (
        "R is finite and convex: the chain rule"
        if finite
        else "R is a set, or not known: needs a constraint qualification"
    )
    return Assumption("a minimiser has a multiplier lam*", finite, note)


def round_off_floors(problem: Problem, g: Guarantee, z0: Tensor) -> dict[str, float]:
    """Approximate accumulated round-off: ``eps`` of the largest value per iteration, contracted by ``1 - eta / 2``.

    Signals are computed from latents, and steps in latents from signals: round-off is passed on times, or divided by, kappa.
    """
    if not g.applies:
        return dict.fromkeys(("signal", "latent", "gap"), math.inf)
    first, kappa = g.bounds(0), g.setting.kappa
    with torch.no_grad():
        signal = float(_batch.norm(problem.generator(z0)).max()) + float(first["signal"][0])
    latent = float(_batch.norm(z0).max()) + float(first["latent"][0])
    unit = 2 * float(torch.finfo(problem.generator.dtype).eps) / g.eta
    in_signal = unit * max(signal, kappa * latent)
    return {"signal": in_signal, "latent": unit * max(latent, signal / kappa), "gap": in_signal}


def above_round_off(problem: Problem, g: Guarantee, z0: Tensor) -> Guarantee:
    """The statement with one more condition if all others hold: its bound is not below round-off."""
    if not g.applies:
        return g
    floor, bound = round_off_floors(problem, g, z0)["signal"], float(g.bounds(0)["signal"][0])
    holds = floor < bound or bound == 0  # a start at the solution
    advice = "better conditioned L and G, or float64"
    extra = Condition("round-off stays below the bound at the start", floor, bound, holds, advice)
    return dataclasses.replace(g, conditions=(*g.conditions, extra))


def _arithmetic(floors: dict[str, float]) -> Assumption:
    """The proof assumes exact arithmetic."""
    if math.isinf(floors["signal"]):
        return Assumption("arithmetic is exact", True, "no bound is given")
    text = f"arithmetic is exact, down to lengths of about {floors['signal']:.1g} in w and {floors['latent']:.1g} in z"
    return Assumption(
        text, True, "2 eps / eta of what is added up: shorter lengths are round-off, which no bound counts"
    )


def _contained(problem: Problem, found: GeneratorConstants, g: Guarantee, z0: Tensor) -> Assumption:
    """Whether z* and all iterates lie in the ball on which the constants hold."""
    text = f"a solution and all iterates have |z| <= {found.radius:g}"
    if found.everywhere:
        return Assumption("a solution and all iterates lie where the constants hold", True, "G is affine: everywhere")
    plain = problem.on_latent
    term = plain.term if type(plain) is Scaled else plain  # a factor does not change a set
    if type(term) is Ball and _largest(term.radius) <= found.radius * (1 + 1e-9):
        return Assumption(text, True, f"H keeps them in the ball of radius {_largest(term.radius):g}")
    note = "add on_latent=gp.Ball(radius) to be sure"
    reach = _reach(problem, g, z0)
    if reach <= found.radius:  # then it follows by induction; a longer reach leaves the ball and proves nothing
        note = f"if a solution does, all iterates stay within {reach:.3g}; {note}"
    return Assumption(text, False, note)


def _largest(value: PerItem) -> float:
    return float(value.max()) if isinstance(value, Tensor) else float(value)


def _reach(problem: Problem, g: Guarantee, z0: Tensor) -> float:
    """Bound on the length of the iterates, if the constants hold there: ``|z0| + |z0 - z*| + |z* - z|`` and one more step."""
    still = type(problem.on_latent) is Zero or problem.on_latent.is_indicator  # the prox is non-expansive
    if not (g.applies and still):
        return math.inf
    s = g.setting
    far = math.sqrt(g.latent[0] * (g.first + DUAL_SUM * s.sigma * g.gap_max) + g.latent[1])
    step = g.beta * s.kappa * (s.spread + s.rho * g.gap_max)
    return float(_batch.norm(z0).max()) + 2 * far + step
