"""ADMM for ``min L(w) + R(w) + H(z)  s.t.  w = G(z)``, composed of a z step, a w step, a dual rule and a penalty rule."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from genprior import _batch
from genprior.losses.exact_step import Split
from genprior.problem import Problem
from genprior.solvers import z_steps
from genprior.solvers.admm import duals, penalties
from genprior.solvers.admm.exact import Memory, inner_error
from genprior.solvers.admm.w_steps import Exact, Linearized, WStep
from genprior.solvers.base import Common, Evidence, Multiplier, Solver, State
from genprior.solvers.estimates import hidden_by_rounding, latent_residual
from genprior.solvers.z_steps import Adam, Gradient, Momentum, Task, ZStep

if TYPE_CHECKING:
    from genprior.theory.certificate import Certificate


@dataclass(frozen=True)
class ADMMState(State):
    """The dual variable, its step, and the memories of the rules."""

    r: Tensor
    """``w - G(z)``."""
    primal_residual: Tensor
    """Its length."""
    moved: Tensor
    """``|G(z+) - G(z)|`` in the last step."""
    slope: Tensor | None
    """Gradient of L at x, where L is not convex and stays there; else None."""
    lam: Tensor
    sigma: Tensor
    extent: Tensor
    """``|G(z)|`` at the start; a tenth of it is the least unit of residuals, for solutions near zero."""
    first_rho: Tensor
    """The penalty before any change: step lengths given by the user are meant for it."""
    z_memory: object
    w_memory: Memory
    dual_memory: object


@dataclass(frozen=True)
class ADMM(Solver[ADMMState]):
    """Alternating direction method of multipliers with a generative prior.

    One iteration, from ``(z, w, lam)`` with ``x = G(z)`` known::

        g    = -DG(z)^T (lam + rho (w - x))        one backward pass
        z+   = z_step(z, g, H)                      prox_{beta H}(z - beta g), or a preconditioned variant
        x+   = G(z+)                                one forward pass
        w+   = w_step(w, lam, x+)                   one proximal gradient step, or the exact minimiser
        lam+ = lam + sigma (w+ - x+)                sigma from the dual rule

    ``x+`` and its graph are used for the next gradient, so an iteration costs exactly one forward and one backward
    pass, as gradient descent does (Gauss-Newton steps cost forward passes alone). Start: ``w = G(z)``, ``lam = 0``.

    A loss that is not convex stays at G(z): its gradient there is added to g's cotangent, and the w step has R alone.

    Parameters
    ----------
    z_step
        :mod:`genprior.z_steps` ``Gradient``, ``Momentum``, ``Adam``, ``Spectral`` or ``GaussNewton``.
    w_step
        :mod:`genprior.w_steps` ``Linearized`` or ``Exact``.
    dual
        :mod:`genprior.duals` ``Paper``, ``Constant`` or ``Adaptive``.
    penalty
        :mod:`genprior.penalties` ``Constant``, ``Doubling`` or ``Balanced``.

    References
    ----------
    Latorre, Eftekhari, Cevher: Fast and Provable ADMM for Learning with Generative Priors, NeurIPS 2019.
    """

    z_step: ZStep[Any] = field(default_factory=Gradient)
    w_step: WStep = field(default_factory=Exact)
    dual: duals.Dual[Any] = field(default_factory=duals.Paper)
    penalty: penalties.Penalty = field(default_factory=penalties.Constant)

    def __post_init__(self) -> None:
        expected = {"z_step": ZStep, "w_step": WStep, "dual": duals.Dual, "penalty": penalties.Penalty}
        for name, rule in expected.items():
            if not isinstance(getattr(self, name), rule):
                raise TypeError(f"{name} must be a {rule.__name__}, got {getattr(self, name)!r}")

    def start(self, problem: Problem, z: Tensor) -> ADMMState:
        """``w = G(z)``, ``lam = 0``."""
        at = problem.generator.evaluate(z)
        point = problem.evaluate(at.x, at.z)
        common = Common.first(problem, at, point, problem.loss.curvature(at.x)[1])
        zero, first = common.k, self.penalty.first(problem, at.x)
        rho = self.penalty(zero + 1, first, first, penalties.Residuals(zero, zero))
        return ADMMState(
            replace(common, rho=rho),
            r=torch.zeros_like(at.x),
            primal_residual=zero,
            moved=zero,
            slope=self._slope(problem, at.x, point.residual),
            lam=torch.zeros_like(at.x),
            sigma=zero,
            extent=_batch.norm(at.x),
            first_rho=first,
            z_memory=self.z_step.start(problem, at.z),
            w_memory=self.w_step.start(problem.of_w, at.x, point.residual),
            dual_memory=self.dual.start(zero),
        )

    def step(self, problem: Problem, state: ADMMState) -> ADMMState:
        """One iteration: one backward pass, one forward pass."""
        s, k = state, state.k + 1
        rho = self.penalty(k, s.first_rho, s.rho, penalties.Residuals(s.primal_residual, s.moved))
        f = torch.addcmul(s.lam, s.r, _batch.spread(rho, s.r)).neg_()  # grad_z = DG^T f
        f = f if s.slope is None else f + s.slope
        shrink = s.scale * s.first_rho / rho if self.z_step.follows_penalty else s.scale
        at, vjp, z_memory, exact = self.z_step.advance(problem, s, Task(f, self._curvature(s, rho), shrink), s.z_memory)
        point = problem.evaluate(at.x, at.z)

        split = Split(s.w, s.lam, at.x, point.residual, rho, s.sigma, s.scale, s.first_rho)
        w, r, w_memory = self.w_step(problem.of_w, split, s.w_memory)
        primal_residual = _batch.norm(r)
        progress = duals.Progress(primal_residual, torch.maximum(s.extent, _batch.norm(w)), k, rho, s.first_rho)
        sigma, dual_memory = self.dual(progress, s.dual_memory)
        sigma = s.scale * sigma
        moved, secant = s.common.moved(at, problem.generator.spread)
        evidence = Evidence.at(s.z, vjp, torch.maximum(vjp.ratio, secant)).where(exact, s.evidence)
        return ADMMState(
            s.common.next(at, point, torch.maximum(vjp.kappa, secant), evidence, w=w, rho=rho),
            r=r,
            primal_residual=primal_residual,
            moved=moved,
            slope=self._slope(problem, at.x, point.residual),
            lam=torch.addcmul(s.lam, _batch.spread(sigma, r), r),
            sigma=sigma,
            extent=s.extent,
            first_rho=s.first_rho,
            z_memory=z_memory,
            w_memory=w_memory,
            dual_memory=dual_memory,
        )

    def residuals(self, problem: Problem, state: ADMMState) -> tuple[Tensor, Tensor]:
        """Primal residual, and the larger of the residuals in w and in z, relative to ``unit + |lam|`` (times |DG| in z)."""
        s, e = state, state.evidence
        size = torch.maximum(_batch.norm(s.w), 0.1 * s.extent)
        in_z = _batch.ratio(
            latent_residual(problem, e.z, e.gradient, self._curvature(s, s.rho), e.jac_scale), e.jac_scale
        )
        drift = torch.maximum(s.rho, s.sigma - s.rho) * s.primal_residual  # at least |sigma - rho| |w - G(z)|
        in_w = self.w_step.residual(problem.of_w, s.w, s.lam, drift, s.rho) + inner_error(
            s.w_memory, s.units.smoothness, s.rho, size, _batch.norm(s.lam)
        )
        in_w = torch.maximum(in_w, hidden_by_rounding(s.primal_residual, s.rho, size, s.units.smoothness))
        stationarity = _batch.ratio(torch.maximum(in_z, in_w), s.units.gradient(size) + _batch.norm(s.lam))
        return _batch.ratio(s.primal_residual, size), e.infinite_if_unknown(problem, stationarity)

    @staticmethod
    def _slope(problem: Problem, x: Tensor, residual: Tensor) -> Tensor | None:
        return None if problem.loss.convex else problem.loss.gradient(x, residual)

    @staticmethod
    def _curvature(s: ADMMState, rho: Tensor) -> Tensor:
        """Of the function of the signal that the step in z lowers."""
        return rho if s.slope is None else rho + s.units.smoothness

    @property
    def dual_fades(self) -> bool:
        """True for the paper's rule."""
        return isinstance(self.dual, duals.Paper)

    def takes_jacobians(self, problem: Problem) -> bool:
        """True where the z step does."""
        return isinstance(self.z_step, z_steps.GaussNewton)

    def multiplier(self, problem: Problem, state: ADMMState) -> Multiplier | None:
        """Its dual variable and penalty."""
        return Multiplier(state.lam, state.rho) if problem.needs_splitting else None

    def plan(self, problem: Problem) -> str:
        """In words: the four rules, and how the w step is computed for this problem."""
        return (
            f"{type(self).__name__}: z moves by {self.z_step.description}. w is updated by {self.w_step.name(problem.of_w)}. "
            f"The dual step is {self.dual.description}. The penalty is {self.penalty.description}."
        )


_STEADY = 0.03
"""Dual step of the linearized preset, relative to the penalty: with larger ones z does not follow lam where R is a norm."""
_N, _SCALES = 20, 3
"""n and the number of scales of the exact preset: the penalty reaches its last value, 8 rho, after 120 iterations."""
_NO_UNIT = 1e-30
"""Adam's epsilon in the exact preset: it avoids 0/0 and is otherwise negligible, however small the gradient."""


@dataclass(frozen=True, init=False)
class LinearizedADMM(ADMM):
    """Algorithm 1 of the paper: one step in z, one proximal gradient step in w, one in the dual.

    Without options the z step has momentum and the dual step is constant, 3% of the penalty. The paper's plain gradient step
    needs many times as many iterations on the bundled generators, and its decaying dual step stops before the primal residual
    vanishes where the multiplier is large, as for l1 and l_inf. ``beta=...`` and ``sigma=...`` together give the paper's own;
    ``z_steps.Gradient()`` and ``duals.Paper()`` without numbers have its form, with step sizes that follow the run.

    Parameters
    ----------
    rho
        penalty weight; omitted: in the problem's own units (the curvature of L, or that of a parabola like R).
    alpha
        step in w; omitted: ``1/(nu_L + rho)``.
    beta
        step of the paper's plain gradient step in z.
    sigma
        first step of the paper's decaying dual.
    z_step, dual, penalty
        another choice in place of these.
    """

    def __init__(
        self,
        rho: float | None = None,
        *,
        alpha: float | None = None,
        beta: float | None = None,
        sigma: float | None = None,
        z_step: ZStep[Any] | None = None,
        dual: duals.Dual[Any] | None = None,
        penalty: penalties.Penalty | None = None,
    ) -> None:
        _refuse_both("rho", rho, penalty)
        rule = Momentum() if z_step is None and beta is None else z_step
        steady = duals.Constant(share=_STEADY) if dual is None and sigma is None else dual
        fixed = penalties.Constant(rho)
        super().__init__(*_choices(Linearized(alpha), beta, rule, sigma, steady, penalty or fixed))

    @classmethod
    def from_certificate(cls, certificate: Certificate) -> LinearizedADMM:
        """The solver with the penalty and the three steps of a certificate by :func:`genprior.theory.certify`.

        Start it from ``certificate.z0``: the certificate holds for that start.
        """
        if certificate.status == "none":
            raise ValueError(f"the certificate gives no steps. {certificate.verdict()} Choose steps without it.")
        g = certificate.guarantee
        return cls(certificate.rho, alpha=g.alpha, beta=g.beta, sigma=certificate.sigma)


@dataclass(frozen=True, init=False)
class ExactADMM(ADMM):
    """Algorithm 2 of the paper: exact minimisation over w, and scales in which the penalty doubles.

    The z step is Adam's by default: on the bundled generators a plain gradient step, as printed in the paper, needs many
    times as many iterations. ``beta=...`` or ``z_step=z_steps.Gradient()`` gives that one.

    Parameters
    ----------
    rho
        penalty weight before the first doubling: the k-th scale has ``2^k rho``; omitted: in the problem's own units.
    beta
        step of a plain gradient step in z before the first doubling.
    sigma
        first dual step; omitted: ``0.01 rho``.
    n, scales
        the k-th scale has ``2^k n`` iterations, k = 1 .. scales; the last one has no end. 20 and 3 unless given.
    z_step, dual, penalty
        another choice in place of Adam's and the paper's.
    """

    def __init__(
        self,
        rho: float | None = None,
        *,
        beta: float | None = None,
        sigma: float | None = None,
        n: int | None = None,
        scales: int | None = None,
        z_step: ZStep[Any] | None = None,
        dual: duals.Dual[Any] | None = None,
        penalty: penalties.Penalty | None = None,
    ) -> None:
        for name, value in (("rho", rho), ("n", n), ("scales", scales)):
            _refuse_both(name, value, penalty)
        doubling = penalties.Doubling(rho, _N if n is None else n, _SCALES if scales is None else scales)
        rule = Adam(epsilon=_NO_UNIT) if z_step is None and beta is None else z_step
        super().__init__(*_choices(Exact(), beta, rule, sigma, dual, penalty or doubling))


def _refuse_both(name: str, value: float | None, penalty: penalties.Penalty | None) -> None:
    if value is not None and penalty is not None:
        raise ValueError(f"{name}={value} and penalty={penalty} both set the penalty: give one")


def _choices(
    w_step: WStep,
    beta: float | None,
    z_step: ZStep[Any] | None,
    sigma: float | None,
    dual: duals.Dual[Any] | None,
    penalty: penalties.Penalty,
) -> tuple[ZStep[Any], WStep, duals.Dual[Any], penalties.Penalty]:
    if z_step is not None and beta is not None:
        raise ValueError(f"beta={beta} and z_step={z_step} both set the z step: give one")
    if dual is not None and sigma is not None:
        raise ValueError(f"sigma={sigma} and dual={dual} both set the dual step: give one")
    return z_step or Gradient(beta), w_step, dual or duals.Paper(sigma), penalty
