"""Statistical learning with a generative prior (supplement A): how far the minimiser over samples is from the true one.

``L_m(w) = 1/m sum_i l(w, x_i)`` stands for ``L(w) = E l(w, x)``, whose minimiser is ``w_nat``. With probability at least
``1 - exp(-eps)``, for every w of the set W at once,

    |grad L_m(w) - grad L(w)| <= Y = 2 Rad_W + 3 spread sqrt((eps + 2) / (2 m)),

where Rad_W is the empirical Rademacher complexity of the gradients and ``spread`` the most by which exchanging one sample can
change a gradient. If L is ``zeta``-strongly convex on the convex set W, and w* minimises ``L_m``

- over W itself:                                   |w* - w_nat| <=   Y / zeta,
- over a part of W that contains w_nat (a range):  |w* - w_nat| <= 2 Y / zeta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.generators import Generator
from genprior.losses import EmpiricalRisk
from genprior.theory.sampled import ball_points, project

_STARTS = 4
"""Starting points of the ascent for one draw of signs."""

_ERRORS = 3.0
"""Standard errors added to an estimate without a bound on its error."""

_FEWEST = 8
"""With fewer draws the standard error itself is unreliable."""


@dataclass(frozen=True)
class Estimate:
    """A mean over random signs, with its standard error."""

    mean: float
    error: float
    draws: int
    side: str
    """"lower" or "upper": on which side of the Rademacher complexity the mean lies, up to its standard error."""
    swing: float | None = None
    """``sqrt(sum_i c_i^2)`` if the sign of sample i changes a value by at most ``c_i``; None if unknown.

    With it the error of the mean has a bound: it is below the expectation by more than ``swing sqrt(log(1/p) / (2 draws))``
    with probability at most p (McDiarmid's inequality, for the signs of all draws).
    """


@dataclass(frozen=True)
class Generalisation:
    """The bound and its parts."""

    rademacher: float
    spread: float
    samples: int
    zeta: float
    eps: float
    convex: bool
    estimated: bool = False
    """The Rademacher complexity is a mean plus three standard errors, without a known probability: an indication."""

    @property
    def probability(self) -> float:
        """Lower bound on the probability that it holds; if ``estimated``, provided the estimate is an upper bound."""
        return 1 - math.exp(-self.eps)

    @property
    def gradient(self) -> float:
        """``Y``: bound on ``|grad L_m - grad L|`` over W."""
        return 2 * self.rademacher + 3 * self.spread * math.sqrt((self.eps + 2) / (2 * self.samples))

    @property
    def distance(self) -> float:
        """Bound on ``|w* - w_nat|``."""
        return (1 if self.convex else 2) * self.gradient / self.zeta

    def bound(self, optimisation: float = 0.0) -> float:
        """Bound on ``|w_t - w_nat|`` for an iterate within ``optimisation`` of w*."""
        return _validate.number("optimisation", optimisation, least=0) + self.distance


def generalisation(
    rademacher: float | Estimate, spread: float, samples: int, zeta: float, *, eps: float = 3.0, convex: bool = False
) -> Generalisation:
    """The generalisation bound from its parts; ``convex`` if w* is the minimiser over a convex set, not over a range.

    An `Estimate` of the Rademacher complexity counts with a bound on its error on top: the three events, each of probability
    at most ``exp(-eps - 2)``, are together less likely than ``exp(-eps)``. One without ``swing`` counts with three
    standard errors, and the result is ``estimated``. A lower estimate is an error.

    Examples
    --------
    >>> import genprior as gp
    >>> found = gp.theory.generalisation(rademacher=0.01, spread=2.0, samples=10_000, zeta=1.0)
    >>> round(found.distance, 4), round(found.probability, 3)
    (0.2297, 0.95)
    """
    eps = _validate.number("eps", eps, above=0)
    return Generalisation(
        _validate.number("rademacher", _from_above(rademacher, eps), least=0),
        _validate.number("spread", spread, least=0),
        _validate.whole("samples", samples),
        _validate.number("zeta", zeta, above=0),
        eps,
        convex,
        isinstance(rademacher, Estimate) and rademacher.swing is None,
    )


def _from_above(rademacher: float | Estimate, eps: float) -> float:
    if not isinstance(rademacher, Estimate):
        return rademacher
    if rademacher.side != "upper":
        raise ValueError(
            f"rademacher is an estimate from the {rademacher.side} side, which bounds nothing: give one from above, "
            "as rademacher_regression does, or a number that is known to be one"
        )
    if rademacher.swing is not None:
        return rademacher.mean + rademacher.swing * math.sqrt((eps + 2) / (2 * rademacher.draws))
    if rademacher.draws < _FEWEST:
        raise ValueError(
            f"rademacher is a mean over {rademacher.draws} draws, whose standard error says little: take at least {_FEWEST}"
        )
    return rademacher.mean + _ERRORS * rademacher.error


def rademacher(
    risk: EmpiricalRisk, generator: Generator, radius: float, *, draws: int = 32, ascent: int = 20, seed: int = 0
) -> Estimate:
    """A lower estimate of Rad_W, W the range over the ball: for each draw of signs, the largest gradient that ascent finds.

    ``Rad_W = E_e max_w |1/m sum_i e_i grad l(w, x_i)|``. The risk's samples must be shared by all items.
    """
    if risk.per_item:
        raise ValueError("risk has samples per item: give one with samples that all items share")
    random, count = _validate.seed(seed), _validate.whole("draws", draws, 2)
    z = ball_points(generator, _STARTS * count, _validate.number("radius", radius, above=0), random)
    with torch.no_grad():
        m = risk.loss(generator(z[:1]), risk.samples).shape[1]
    signs = (torch.randint(0, 2, (count, m), generator=random, device="cpu") * 2 - 1).to(z)
    signs, length = signs.repeat(_STARTS, 1), 0.2 * radius
    best = z.new_zeros(len(signs))
    for _ in range(_validate.whole("ascent", ascent) + 1):
        value, slope = _signed_gradient(risk, generator, z, signs)
        best = torch.maximum(best, value)
        way = slope / _batch.spread(_batch.norm(slope).clamp_min(1e-30), slope)
        z, length = project(z + length * way, radius), 0.9 * length
    return _mean(best.reshape(_STARTS, count).amax(dim=0), "lower")


def rademacher_regression(
    inputs: Tensor, residuals: Tensor, width: float, *, draws: int = 64, seed: int = 0
) -> Estimate:
    """An upper estimate for linear regression ``l(w, (x, y)) = 1/2 (<w, x> - y)^2`` and W within ``width`` of a centre c.

    ``Rad_W <= E_e [ width |1/m sum e_i x_i x_i^T| + |1/m sum e_i r_i x_i| ]`` with the ``residuals`` ``r_i = <c, x_i> - y_i``;
    one sign changes the bracket by at most ``2/m (width |x_i|^2 + |r_i| |x_i|)``, from which the error of the mean is bounded.
    """
    _validate.number("width", width, least=0)
    if inputs.ndim != 2 or residuals.shape != inputs.shape[:1]:
        raise ValueError(
            f"inputs must have shape (m, d) and residuals (m,), got {tuple(inputs.shape)} and {tuple(residuals.shape)}"
        )
    random, m = _validate.seed(seed), len(inputs)
    values = []
    for _ in range(_validate.whole("draws", draws, 2)):
        signs = (torch.randint(0, 2, (m,), generator=random, device="cpu") * 2 - 1).to(inputs)
        matrix = (inputs * signs[:, None]).T @ inputs / m
        vector = (signs * residuals) @ inputs / m
        values.append(width * torch.linalg.matrix_norm(matrix, 2) + vector.norm())
    lengths = inputs.norm(dim=1)
    swing = float((2 / m * (width * lengths.square() + residuals.abs() * lengths)).norm())
    return _mean(torch.stack(values), "upper", swing)


def _signed_gradient(risk: EmpiricalRisk, generator: Generator, z: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
    """``|1/m sum_i e_i grad l(G(z), x_i)|`` per row, and its gradient in z."""
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        w = generator(leaf)
        values = (risk.loss(w, risk.samples) * signs).mean(dim=1)
        (gradient,) = torch.autograd.grad(values.sum(), w, create_graph=True)
        size = _batch.norm(gradient)
        if not size.requires_grad:  # a loss that is linear in w
            return size.detach(), torch.zeros_like(z)
        (slope,) = torch.autograd.grad(size.sum(), leaf)
    return size.detach(), slope


def _mean(values: Tensor, side: str, swing: float | None = None) -> Estimate:
    return Estimate(float(values.mean()), float(values.std()) / math.sqrt(len(values)), len(values), side, swing)
