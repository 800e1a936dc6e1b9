"""Constants of L: everywhere, and restricted to differences of points in the range of G."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.generators import Generator, Passes
from genprior.losses import EmpiricalRisk, LeastSquares, Loss, SquaredDistance
from genprior.operators import (
    Blur,
    Dense,
    Downsample,
    Gaussian,
    Identity,
    Mask,
    Scaled,
    SubsampledFourier,
    SubsampledHadamard,
)
from genprior.problem import Problem
from genprior.theory.sampled import ball_points

_FLAT = 1e-6
"""Directions with a derivative below this share of the largest are ignored as round-off."""

_NEAR = 0.03
"""Share of the largest distance below which a pair is ignored, because its ratio would be round-off."""
_LOST = 8
"""A divergence below this many eps of the values that it is the difference of is ignored as round-off."""
GIVEN = "given by you, with the loss"
_ITEMS = 64
"""Number of items evaluated if their losses differ in more than their measurements."""
_EXACT = (Identity, Mask, Downsample, SubsampledFourier, SubsampledHadamard)
"""Operators with known extreme eigenvalues. Subclasses are excluded, because they may compute something else."""
_COMPUTED = (Dense, Gaussian, Blur)
"""Operators whose eigenvalues are computed, up to round-off."""


@dataclass(frozen=True)
class LossConstants:
    """``mu/2 |w - w'|^2 <= D_L(w, w') <= nu/2 |w - w'|^2`` with the Bregman divergence D_L."""

    mu: float
    nu: float
    proved: bool
    """Whether ``mu`` and ``nu`` are exact, or bounds that the user declared."""
    source: str
    restricted_mu: float
    """The smallest ratio seen between points of the range: never below the restricted constant."""
    restricted_nu: float
    """The largest one."""
    samples: str

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "mu": self.mu,
            "nu": self.nu,
            "proved": self.proved,
            "source": self.source,
            "restricted": {
                "mu": self.restricted_mu,
                "nu": self.restricted_nu,
                "label": "sampled",
                "samples": self.samples,
            },
        }


def loss_constants(
    problem: Problem, radius: float, *, points: int = 128, tangents: int = 4, seed: int = 0
) -> LossConstants:
    """Strong convexity and smoothness of a problem's loss; the worst over its items.

    The restricted ones are sampled: over secants between ``points`` points of the range and, for least squares, over all
    tangents of the range at ``tangents`` of them.
    """
    _validate.whole("points", points, 2)
    generator = problem.generator.counting(Passes())
    z = ball_points(generator, points, _validate.number("radius", radius, above=0), _validate.seed(seed))
    with torch.no_grad():
        x = torch.cat([generator(part) for part in _batch.pieces(z, 64)])
        low, high, pairs = _secants(problem.loss, x)
        if isinstance(problem.loss, LeastSquares) and problem.loss.whitened.batch is None and tangents:
            values = torch.cat([_tangents(generator, problem.loss, one) for one in _batch.pieces(z[:tangents], 1)])
            low, high = min(low, float(values.min())), max(high, float(values.max()))
            said = f"{pairs} secants, all tangents at {min(tangents, points)} points"
        else:
            said = f"{pairs} secants"
        if (problem.loss.batch or 1) > _items(problem.loss) > 1:
            said += f" ({_items(problem.loss)} of {problem.loss.batch} items)"
        mu, nu = _curvature(problem.loss, _like(problem, x))
    proved, source = source_of(problem.loss)
    return LossConstants(float(mu.min()), float(nu.max()), proved, source, low, high, said)


def _curvature(loss: Loss, w: Tensor) -> tuple[Tensor, Tensor]:
    """``mu`` and ``nu`` per item; computed eigenvalues are moved outwards by their round-off, and tiny ones are zero."""
    low, high = (value.cpu().double() for value in loss.curvature(w))  # not every device has float64
    if not (type(loss) is LeastSquares and _type_of(loss) in _COMPUTED):
        return low, high
    error = w[0].numel() * torch.finfo(w.dtype).eps * high
    return torch.where(low > 10 * error, low - error, 0.0), high + error


def source_of(loss: Loss) -> tuple[bool, str]:
    """Whether the constants of a loss are exact or given, and their source in words."""
    if type(loss) is SquaredDistance:
        return True, "mu = nu = 2 weight"
    if type(loss) is LeastSquares:
        kind = _type_of(loss)
        if kind in _EXACT:
            return True, "extreme eigenvalues of A^T A, known"
        if kind in _COMPUTED:
            return True, "extreme eigenvalues of A^T A, computed, with an allowance for round-off"
        return False, f"estimated for {kind.__name__}: nu by Lanczos, mu taken as 0"
    if type(loss) is EmpiricalRisk and loss.smoothness is not None:
        return True, GIVEN
    return False, "estimated at a few points"


def _type_of(loss: LeastSquares) -> type:
    """The type of its operator, to which a noise level that is one number only adds a factor."""
    return type(loss.whitened.operator if type(loss.whitened) is Scaled else loss.whitened)


def _like(problem: Problem, x: Tensor) -> Tensor:
    count = problem.batch or 1
    return x[:1].expand(count, *x.shape[1:])


def _items(loss: Loss) -> int:
    """Number of items to evaluate: one if their divergences are all the same."""
    shared = isinstance(loss, LeastSquares) and loss.whitened.batch is None
    return 1 if shared else min(loss.batch or 1, _ITEMS)


def _secants(loss: Loss, x: Tensor) -> tuple[float, float, int]:
    """``2 D_L(x, x') / |x - x'|^2`` for each point and a few others, over the items."""
    low, high, pairs = math.inf, 0.0, 0
    for item in range(_items(loss)):
        index = torch.full((len(x),), item, device=x.device)
        copies = loss if loss.batch is None else loss.rows(index)  # one item's loss for every pair
        for shift in (1, 2, 3):
            apart = _batch.norm(x - x.roll(shift, 0))
            ratio = _bregman_ratio(copies, x, x.roll(shift, 0))
            ratio = ratio[(apart > _NEAR * apart.max()) & ~ratio.isnan()]
            pairs += len(ratio)
            if len(ratio):
                low, high = min(low, float(ratio.min())), max(high, float(ratio.max()))
    return (0.0 if math.isinf(low) else max(low, 0.0)), high, pairs


def _bregman_ratio(loss: Loss, a: Tensor, b: Tensor) -> Tensor:
    """``2 D_L(a, b) / |a - b|^2``, NaN where it is round-off."""
    if type(loss) is SquaredDistance:
        return 2 * _batch.column(loss.weight, a)
    if isinstance(loss, LeastSquares):  # D_L = 1/2 |A (a - b)|^2, without cancellation
        image = loss.whitened(a - b)
        ratio: Tensor = _batch.square(image) / _batch.square(a - b)
        return ratio
    value, residual = loss.evaluate(b)
    ahead, along = loss(a), _batch.dot(loss.gradient(b, residual), a - b)
    divergence, terms = ahead - value - along, ahead.abs() + value.abs() + along.abs()
    lost = divergence.abs() < _LOST * torch.finfo(a.dtype).eps * terms
    return torch.where(lost, torch.nan, 2 * divergence / _batch.square(a - b))


def _tangents(generator: Generator, loss: LeastSquares, z: Tensor) -> Tensor:
    """Eigenvalues of ``Q^T A^T A Q`` for an orthonormal basis Q of the range of ``DG(z)``."""
    u, s, _ = torch.linalg.svd(generator.jacobian(z)[0].cpu().double(), full_matrices=False)
    basis = u[:, s > _FLAT * s[0]].T.to(z).reshape(-1, *generator.signal_shape)
    if not len(basis):  # DG is zero here
        return torch.zeros(1, dtype=torch.float64, device="cpu")
    images = torch.cat([_batch.flat(loss.whitened(part)) for part in _batch.pieces(basis, 64)]).cpu().double()
    values: Tensor = torch.linalg.eigvalsh(images @ images.T).clamp_min(0)
    return values
