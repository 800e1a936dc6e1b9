"""Quasi-Newton steps in z on the augmented Lagrangian with w eliminated."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.generators.jacobian import OnlyGradients
from genprior.problem import Point, Problem
from genprior.solvers import envelope
from genprior.solvers.admm import penalties
from genprior.solvers.admm.exact import Memory
from genprior.solvers.base import Common, Evidence, Multiplier, Solver, State, Vjp
from genprior.solvers.envelope import Sight
from genprior.solvers.estimates import hidden_force, is_long, latent_residual, noise, secant_of
from genprior.solvers.latent_model import proximal_direction
from genprior.solvers.levenberg import affords_jacobian
from genprior.solvers.secants import SecantModel
from genprior.terms import Zero

_ARMIJO = 1e-4
_BACKTRACK = 0.4
_MOST_TRIALS = 10
_SHORTEST = 1e-2
_TURNS = 2
"""Rejected trials after each of which the direction is made anew, before the search only shortens it."""
_CLEAR_BEND = 1e-3
"""Least cosine between a rejected step and the bend of the gradient over it for the pair to teach anything."""
_FLOOR = 1e-3
"""The metric's eigenvalues are raised by this share of the largest one."""
_RIDGE_DECAY = 0.92
_RIDGE_POWER = 1.2
"""The weight of the pull falls with this power of the energy: strong while the picture is found, weak while it is refined."""
_FAR = 0.15
"""Starts whose energy is a larger share of what a linear generator would have at random are far: the pull is at its full."""
_RIDGE_HASTE = 0.8
_SLOW = 0.01
"""Where a step lowers the energy by a smaller share, the pull decays faster: it may be what holds the energy up."""
_SETTLED = 2e-3
_RIDGE_LEAP = 0.3
_SPENT = 1e-3
"""The dual moves early where a step promises less than this share of ``rho |w - x|^2``."""
"""Where a step promises a smaller share of the energy, the function is at its minimum for this pull, which leaps down."""
_RIDGE_END = 1e-4
"""The pull towards the law ends when it has decayed to this share."""
_MOST_GROWTH = 1e3
"""Of the penalty."""
_REFRESH_SHARE = 0.25
"""Most of what is left of a limited run that Gauss-Newton matrices may take."""
_TOGETHER = 1e-6
"""A smaller gap, relative to the signal, is none."""


@dataclass(frozen=True)
class QuasiNewtonState(State):
    """The last accepted point ("base"), the search from it, the model of the Hessian, the dual. ``at`` is the trial point."""

    energy: Tensor
    """Envelope at the trial point."""
    force_x: Tensor
    """Its gradient in x."""
    r: Tensor
    """``w - G(z)`` at the trial point."""
    lam: Tensor
    w_memory: Memory
    residual: Tensor
    """What the loss keeps of its evaluation at the trial point."""
    loss: Tensor
    extent: Tensor
    """``|G(z)|`` at the start."""
    first_energy: Tensor
    first_rho: Tensor
    first_force: Tensor
    """Length of the first pull: the unit of stationarity where L has none."""
    curvature: Tensor
    """Scale of the first Hessian: it is this times the generator's metric."""
    first_ridge: Tensor
    """Weight of the pull towards the law at the start."""
    base_z: Tensor
    base_x: Tensor
    base_pull: Tensor
    """``DG^T force`` at the base."""
    base_energy: Tensor
    base_force: Tensor
    """Length of what was pulled back there."""
    base_gap: Tensor
    """``|w - G(z)|`` there."""
    model: SecantModel
    """Of the envelope's Hessian in z: without the pull, and without H."""
    direction: Tensor
    length: Tensor
    slope: Tensor
    """Predicted change of the function along the direction."""
    ridge: Tensor
    """Weight of the pull towards the law."""
    share: Tensor
    """What is left of it, before it falls with the energy."""
    trials: Tensor
    accepted: Tensor
    """Accepted steps."""
    age: Tensor
    """Accepted steps since the dual last moved."""


@dataclass(frozen=True)
class QuasiNewton(Solver[QuasiNewtonState]):
    """BFGS in the latent, on a smooth function whatever R is, one independent problem per item.

    *The function.* ``phi(z) = e(G(z)) + H(z) + c/2 |z - centre|^2``. Where R is zero or quadratic, ``e = L + R``.
    Otherwise e is the augmented Lagrangian with w eliminated exactly,
    ``e(x) = min_w L(w) + R(w) + <w - x, lam> + rho/2 |w - x|^2``: smooth, although R is not. Every ``dual_every`` accepted
    steps ``lam+ = lam + rho (w - x)`` and rho grows by the factor ``growth``: the method of multipliers, ADMM with its w step
    taken after every look at z.

    *The steps.* ``z+ = z - t B^-1 grad phi``, with backtracking. B comes from BFGS updates and, first, the generator's metric
    ``E[DG^T DG]``: latent directions that move the signal much and those that hardly do start at their right scale. Updates
    concern ``e(G(z))`` alone; the curvature of the pull and of a quadratic H is known, and added. Where H is neither zero nor
    quadratic, the direction minimises the quadratic model with H. A rejected trial teaches as well, for its gradient is paid
    for: it updates B, and up to twice the search turns to the new direction instead of shortening the old one.

    *The pull* ``c/2 |z - centre|^2`` towards the generator's law keeps the first iterates where the generator was trained, and
    its curvature is moderate: at first ``ridge`` times u, the mean of the first Hessian's eigenvalues. It is less, by the
    square, where the energy of the start is less than ``0.15 s u``, for s latent numbers of unit size (a linear generator has
    about ``s u`` between two random points): warm starts must not be left. The weight falls with the power 1.2 of the share of
    the energy that is left, or of a number that falls by 8% a step (20% once steps gain less than 1%, 70% where phi is at its
    minimum), whichever is less, and ends at zero: it bends the way, not the answer.

    One iteration is one trial of the line search: one forward and one backward pass.

    Parameters
    ----------
    ridge
        weight of the pull at the start, relative to the typical curvature in z; 0: none.
    dual_every, growth
        accepted steps between two moves of the dual, and the growth of rho at each.
    rho
        first penalty; omitted: from the problem's own units. Without effect where R is zero or quadratic.
    memory
        number of steps from which the Hessian is learnt: the last ones.
    refresh
        accepted steps between two Gauss-Newton matrices ``DG^T (d2e) DG`` that replace B; omitted: never. Each costs a
        Jacobian, s/3 to s/2 iterations.

    References
    ----------
    Nocedal and Wright, Numerical Optimization, chapters 6, 7 and 17.
    """

    ridge: float = 3.0
    dual_every: int = 16
    growth: float = 1.5
    rho: float | None = None
    memory: int = 50
    refresh: int | None = None

    def __post_init__(self) -> None:
        _validate.number("ridge", self.ridge, least=0)
        _validate.whole("dual_every", self.dual_every)
        _validate.number("growth", self.growth, least=1)
        if self.rho is not None:
            _validate.number("rho", self.rho, above=0)
        _validate.whole("memory", self.memory)
        if self.refresh is not None:
            _validate.whole("refresh", self.refresh)

    # -- the start -------------------------------------------------------------------------------------------------

    @property
    def patience(self) -> int:
        """Less than methods without curvature need: a plateau that still led somewhere had 103 steps at most."""
        return 100

    def start(self, problem: Problem, z: Tensor) -> QuasiNewtonState:
        """The trial point is the start itself; its gradient is taken in the first step."""
        at = problem.generator.evaluate(z)  # first: a limited run must know how long a pass takes
        problem.generator.metric()
        point = problem.evaluate(at.x, at.z)
        common = Common.first(problem, at, point, envelope.smoothness(problem, at.x))
        zero, flat = common.k, _batch.flat(at.z)
        rho = penalties.Constant(self.rho).first(problem, at.x) if problem.needs_splitting else zero
        lam = torch.zeros_like(at.x)
        sight = envelope.look(problem, at.x, point, None, lam, rho)
        curvature = envelope.curvature(problem, at.x, rho)
        return QuasiNewtonState(
            replace(common, rho=rho, w=sight.w),
            energy=sight.energy,
            force_x=sight.force,
            r=sight.r,
            lam=lam,
            w_memory=sight.w_memory,
            residual=point.residual,
            loss=point.loss,
            extent=_batch.norm(at.x),
            first_energy=sight.energy.abs(),
            first_rho=rho,
            first_force=zero,
            curvature=curvature,
            first_ridge=self._first_ridge(problem, curvature, sight.energy),
            base_z=flat,
            base_x=at.x,
            base_pull=torch.zeros_like(flat),
            base_energy=sight.energy,
            base_force=zero,
            base_gap=zero,
            model=self._first_model(problem, curvature),
            direction=torch.zeros_like(flat),
            length=zero,
            slope=zero,
            ridge=zero,
            share=torch.ones_like(zero),
            trials=zero,
            accepted=zero,
            age=zero,
        )

    def _first_model(self, problem: Problem, curvature: Tensor) -> SecantModel:
        first, shared = self._first_modes(problem, curvature)
        return SecantModel.fresh(first, shared, self.memory, own_bases=self.refresh is not None)

    @staticmethod
    def _first_modes(problem: Problem, curvature: Tensor) -> tuple[Tensor, Tensor]:
        """Eigenvalues of ``curvature metric`` per item, and the eigenvectors, the same for all."""
        values, vectors = problem.generator.metric_modes()
        return curvature[:, None] * (values + _FLOOR * values[-1]), vectors

    # -- one iteration ---------------------------------------------------------------------------------------------

    def step(self, problem: Problem, state: QuasiNewtonState) -> QuasiNewtonState:
        """Judge the trial point; move the dual where it is due; then the next trial."""
        accepted = self._judge(problem, state)
        s, moved = self._dual(problem, state, accepted)
        vjp = Vjp.of(s, s.force_x)
        s, taught = self._learn(problem, s, vjp, accepted, moved)
        s = self._renewed(problem, s, accepted)
        s = self._aim(problem, s, accepted, taught)

        z = (s.base_z + s.length[:, None] * s.direction).reshape(s.z.shape)
        at = problem.generator.evaluate(z)
        point = problem.evaluate(at.x, at.z)
        sight = envelope.look(problem, at.x, point, self._sight(s), s.lam, s.rho)
        _, secant = s.common.moved(at, problem.generator.spread)
        kappa = torch.maximum(vjp.kappa, secant)
        return replace(
            s,
            common=s.common.next(at, point, kappa, s.evidence, w=sight.w),
            energy=sight.energy,
            force_x=sight.force,
            r=sight.r,
            w_memory=sight.w_memory,
            residual=point.residual,
            loss=point.loss,
        )

    def _judge(self, problem: Problem, s: QuasiNewtonState) -> Tensor:
        """Sufficient decrease of phi; differences below rounding count as no increase."""
        base = self._value(problem, s, s.base_energy, s.base_z)
        trial = self._value(problem, s, s.energy, _batch.flat(s.z))
        rounding = noise(base.abs() + s.base_energy.abs(), s.base_force, s.base_x)
        return (trial <= base + _ARMIJO * s.length * s.slope + rounding) | (s.k == 0)

    def _value(self, problem: Problem, s: QuasiNewtonState, energy: Tensor, z: Tensor) -> Tensor:
        """``phi``."""
        value = energy + 0.5 * s.ridge * _batch.square(z - problem.generator.law.centre)
        return value if isinstance(problem.on_latent, Zero) else value + problem.on_latent(z.reshape(s.z.shape))

    def _dual(self, problem: Problem, s: QuasiNewtonState, accepted: Tensor) -> tuple[QuasiNewtonState, Tensor]:
        """``lam+ = lam + rho (w - x)`` and a larger rho, where it is due; and where it was."""
        spent = (s.k > 0) & (-s.slope < _SPENT * s.rho * _batch.square(s.r))  # little is to be had before lam moves
        due = accepted & ((s.age + 1 >= self.dual_every) | spent)
        if not problem.needs_splitting or not bool(due.any()):
            return s, torch.zeros_like(due)
        grows = due & self._parted(s) & (s.rho < _MOST_GROWTH * s.first_rho)
        factor = torch.where(grows, self.growth * torch.ones_like(s.rho), 1.0)
        lam = torch.where(_batch.spread(due, s.r), s.lam + _batch.spread(s.rho, s.r) * s.r, s.lam)
        rho = s.rho * factor
        point = Point(s.objective, s.score, s.residual, s.loss)
        sight = envelope.look(problem, s.x, point, self._sight(s), lam, rho)
        moved = replace(
            s,
            lam=lam,
            curvature=s.curvature * factor,
            energy=torch.where(due, sight.energy, s.energy),
            force_x=torch.where(_batch.spread(due, s.x), sight.force, s.force_x),
            r=torch.where(_batch.spread(due, s.x), sight.r, s.r),
            common=replace(s.common, rho=rho, w=torch.where(_batch.spread(due, s.x), sight.w, s.w)),
            model=s.model.scaled(factor),
        )
        return moved, due

    @staticmethod
    def _parted(s: QuasiNewtonState) -> Tensor:
        """Whether w and G(z) still differ by more than rounding: a larger penalty would only blunt the steps elsewhere."""
        return _batch.norm(s.r) > _TOGETHER * torch.maximum(_batch.norm(s.x), 0.1 * s.extent)

    def _learn(
        self, problem: Problem, s: QuasiNewtonState, vjp: Vjp, accepted: Tensor, moved: Tensor
    ) -> tuple[QuasiNewtonState, Tensor]:
        """The trial updates the model, and where accepted it becomes the base; and where it taught something."""
        z, gradient = _batch.flat(s.z), _batch.flat(vjp.gradient)
        step = z - s.base_z
        bend = gradient - s.base_pull
        long = is_long(step, z)
        clear = accepted | (_batch.dot(step, bend) > _CLEAR_BEND * _batch.norm(step) * _batch.norm(bend))
        model, taught = s.model.learned(~moved & (s.k > 0) & long & clear, step, bend, self._basis(problem))
        take = accepted[:, None]
        energy = torch.where(accepted, s.energy, s.base_energy)
        slow = ~moved & (s.base_energy - energy < _SLOW * s.base_energy.abs())  # a moved dual is another function
        settled = -s.slope < _SETTLED * s.base_energy.abs()
        decay = torch.where(settled, _RIDGE_LEAP, torch.where(slow, _RIDGE_HASTE, _RIDGE_DECAY))
        # The leap is from where the pull stands: the share alone may be above what the energy allows, and leap for nothing.
        left = torch.where(settled, torch.minimum(s.share, self._left(s, energy)), s.share)
        share = torch.where(accepted & (s.k > 0), decay.to(s.share) * left, s.share)
        evidence = Evidence.at(s.z, vjp, self._jac_scale(s, step, vjp)).where(accepted, s.evidence)
        learned = replace(
            s,
            common=replace(s.common, evidence=evidence),
            model=model,
            base_z=torch.where(take, z, s.base_z),
            base_x=torch.where(_batch.spread(accepted, s.x), s.x, s.base_x),
            base_pull=torch.where(take, gradient, s.base_pull),
            base_energy=energy,
            base_force=torch.where(accepted, vjp.cotangent, s.base_force),
            first_force=torch.where(s.k == 0, vjp.cotangent, s.first_force),
            base_gap=torch.where(accepted, _batch.norm(s.r), s.base_gap),
            accepted=s.accepted + accepted,
            age=torch.where(moved, 0.0, s.age + accepted),
            share=share,
            ridge=self._ridge(s, energy, share),
        )
        return learned, taught

    @staticmethod
    def _jac_scale(s: QuasiNewtonState, step: Tensor, vjp: Vjp) -> Tensor:
        """What the move to the trial point and the pull there tell about ``|DG|``; a move too short tells nothing new."""
        secant = secant_of(s.x - s.base_x, step, _batch.flat(s.z))
        return torch.maximum(vjp.ratio, torch.where(secant.isinf(), s.evidence.jac_scale, secant))

    def _renewed(self, problem: Problem, s: QuasiNewtonState, accepted: Tensor) -> QuasiNewtonState:
        """The Gauss-Newton matrix at the base, where it is due."""
        if self.refresh is None:
            return s
        index = (accepted & (s.accepted % self.refresh == 0)).nonzero()[:, 0]
        if len(index) == 0 or not affords_jacobian(problem, len(index), _REFRESH_SHARE):
            return s
        base = s.base_z[index].reshape(-1, *s.z.shape[1:])
        try:
            gram = envelope.gauss_newton(problem.rows(index), base, s.rho[index])
        except OnlyGradients:
            return s  # BFGS goes on
        return replace(s, model=s.model.replaced(index, gram, _FLOOR))

    @staticmethod
    def _left(s: QuasiNewtonState, energy: Tensor) -> Tensor:
        """The share of the first energy that is left."""
        return _batch.ratio(energy.clamp_min(0), s.first_energy)

    @staticmethod
    def _ridge(s: QuasiNewtonState, energy: Tensor, share: Tensor) -> Tensor:
        """The weight of the pull: falls with the energy and with the steps, and ends."""
        weight = s.first_ridge * torch.minimum(QuasiNewton._left(s, energy), share) ** _RIDGE_POWER
        return torch.where((share > _RIDGE_END) & weight.isfinite(), weight, 0.0)

    def _first_ridge(self, problem: Problem, curvature: Tensor, energy: Tensor) -> Tensor:
        """The weight of the pull at a start of this energy; none where that is not a number."""
        values, _ = problem.generator.metric_modes()
        typical = curvature * values.mean()
        at_random = typical * len(values) * problem.generator.spread**2
        far = _batch.ratio(energy.abs(), _FAR * at_random).clamp_max(1.0)
        return torch.where(energy.isfinite(), self.ridge * typical * far.square(), 0.0)

    def _own_curvature(self, problem: Problem, s: QuasiNewtonState) -> Tensor:
        """Second derivative of what the function adds in z by itself: the pull, and H where it is quadratic."""
        weight, _ = problem.on_latent.as_quadratic() or (0.0, 0.0)
        return s.ridge + _batch.column(weight, s.ridge)

    def _aim(self, problem: Problem, s: QuasiNewtonState, accepted: Tensor, taught: Tensor) -> QuasiNewtonState:
        """A new direction from a new base, or from the old one with what a rejected trial taught; else a shorter step."""
        lost = ~accepted & (s.trials + 1 >= _MOST_TRIALS)
        if bool(lost.any()):
            first, shared = self._first_modes(problem, s.curvature / s.length.clamp_min(_SHORTEST))
            s = replace(s, model=s.model.begun_anew(lost, first, shared))
        over = accepted | lost
        new = over | (taught & (s.trials < _TURNS))
        direction, slope = self._direction(problem, s)
        return replace(
            s,
            direction=torch.where(new[:, None], direction, s.direction),
            slope=torch.where(new, slope, s.slope),
            length=torch.where(new, s.scale, _BACKTRACK * s.length),
            trials=torch.where(over, 0.0, s.trials + 1),
        )

    def _direction(self, problem: Problem, s: QuasiNewtonState) -> tuple[Tensor, Tensor]:
        """The minimiser of the quadratic model at the base, and the change that its linear part and H predict."""
        term, z = problem.on_latent, s.base_z
        weight, centre = term.as_quadratic() or (0.0, 0.0)
        own = _batch.spread(weight, z) * (z - (_batch.flat(centre) if isinstance(centre, Tensor) else centre))
        gradient = s.base_pull + s.ridge[:, None] * (z - problem.generator.law.centre) + own
        basis, known = self._basis(problem), self._own_curvature(problem, s)
        newton = s.model.newton(gradient, known, basis)
        slope = _batch.dot(gradient, newton)
        if not bool((slope < 0).all()):  # also where rounding spoilt the model
            newton = torch.where((slope < 0)[:, None], newton, s.model.plain(gradient, known, basis))
            slope = _batch.dot(gradient, newton)
        if term.as_quadratic() is not None:
            return newton, slope
        direction = proximal_direction(s.model.hessian(known, basis), gradient, z, newton, term, s.z.shape)
        there, here = (term(point.reshape(s.z.shape)) for point in (z + direction, z))
        return direction, _batch.dot(gradient, direction) + there - here

    @staticmethod
    def _basis(problem: Problem) -> Tensor:
        """The eigenvectors of the metric, which items without a Gauss-Newton matrix of their own share."""
        return problem.generator.metric_modes()[1]

    @staticmethod
    def _sight(s: QuasiNewtonState) -> Sight:
        return Sight(s.energy, s.force_x, s.w, s.r, s.w_memory)

    def standing(self, state: QuasiNewtonState) -> Tensor:
        """The envelope at the base: a trial that went astray is no divergence."""
        return state.base_energy

    # -- what is known about the end -------------------------------------------------------------------------------

    def residuals(self, problem: Problem, state: QuasiNewtonState) -> tuple[Tensor, Tensor]:
        """Gap and stationarity; w is exact for the multiplier ``lam + rho (w - x)``, so only z and the gap can be off."""
        s, e, nu = state, state.evidence, state.units.smoothness
        curvature = s.rho if problem.needs_splitting else nu
        in_z = _batch.ratio(latent_residual(problem, e.z, e.gradient, curvature, e.jac_scale), e.jac_scale)
        size = _batch.norm(s.base_x)
        if not problem.needs_splitting:
            slope = _batch.ratio(in_z, s.units.gradient(size) + e.cotangent)
            return torch.zeros_like(slope), e.infinite_if_unknown(problem, slope)
        size = torch.maximum(size, 0.1 * s.extent)
        inner = s.w_memory.get("inner_residual")
        steepest = nu if inner is None else torch.maximum(nu, s.w_memory["smoothness"])
        error = 0.0 if inner is None else inner * ((steepest + s.rho) * size + e.cotangent)
        cotangent = torch.where(nu > 0, e.cotangent, torch.maximum(e.cotangent, s.first_force))
        error = error + hidden_force(s.base_gap, s.rho, size, nu)
        stationarity = _batch.ratio(in_z + error, s.units.gradient(size) + cotangent)
        return _batch.ratio(s.base_gap, size), e.infinite_if_unknown(problem, stationarity)

    def takes_jacobians(self, problem: Problem) -> bool:
        """For Gauss-Newton matrices."""
        return self.refresh is not None

    def multiplier(self, problem: Problem, state: QuasiNewtonState) -> Multiplier | None:
        """Its dual variable and penalty."""
        return Multiplier(state.lam, state.rho) if problem.needs_splitting else None

    def plan(self, problem: Problem) -> str:
        """In words."""
        text = "quasi-Newton steps in z (BFGS, started from the generator's metric)"
        if problem.needs_splitting:
            return f"{text} on the augmented Lagrangian, w eliminated by {envelope.method_name(problem)}"
        return f"{text} on L(G(z)), which is smooth: no splitting is needed"
