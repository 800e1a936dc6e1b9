"""From data to a problem: the loss, the constraints, simulated measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from genprior import _batch, _random
from genprior.generators import Generator
from genprior.jobs.forward import ForwardModel
from genprior.jobs.settings import Recovery
from genprior.losses import LeastSquares, NonLinear, SquaredDistance
from genprior.operators import Identity, Operator
from genprior.problem import Problem
from genprior.terms import L1, Ball, Box, LInf, Term

_NORMS: dict[str, type[Term]] = {"l1": L1, "linf": LInf}
_SMOOTH = 0.01
"""Weight of the mean squared distance that is added to a norm, so that the loss has a smooth part."""


def check_loss(job: Recovery, operator: Operator) -> None:
    """Losses other than l2 are norms of ``w - y``, so y must be a signal."""
    if job.loss != "l2" and not isinstance(operator, Identity):
        raise ValueError(
            f"loss {job.loss} compares whole images, but the operator {job.operator!r} gives measurements: use the loss "
            "l2, or the operator identity (genprior denoise)"
        )


def pose(job: Recovery, generator: Generator, operator: Operator, y: Tensor) -> Problem:
    """l2: ``1/2 |A w - y|^2``; l1, linf: ``|w - y|`` in that norm plus 0.01 times the mean square; box on w, ball on z."""
    on_latent = None if job.latent_ball is None else Ball(job.latent_ball)
    if job.loss == "l2":
        on_signal = None if job.box is None else Box(*job.box)
        if isinstance(operator, ForwardModel):
            return Problem(generator, NonLinear(operator.function, y), on_signal, on_latent)
        return Problem(generator, LeastSquares(operator, y), on_signal, on_latent)
    smooth = SquaredDistance(y, weight=_SMOOTH / math.prod(generator.signal_shape))
    return Problem(generator, smooth, _NORMS[job.loss]().around(y), on_latent)


def simulate(operator: Operator, signals: Tensor, noise: float, seed: int, numbers: Sequence[int]) -> Tensor:
    """``A x + noise`` (no noise on masked entries); an item's noise depends on the seed and its number, not on its batch."""
    with torch.no_grad():
        y = operator(signals)
        if not noise:
            return y
        drawn = [_normal(y[0], seed, number) for number in numbers]
        return operator.measured(y + noise * torch.stack(drawn).to(y))


def relative_residual(operator: Operator, signals: Tensor, y: Tensor) -> Tensor:
    """``|A x - y| / |y|`` per item; NaN if y is zero."""
    with torch.no_grad():
        size = _size(y)
        return torch.where(size > 0, _batch.ratio(_size(operator(signals) - y), size), torch.nan)


def expected_noise(operator: Operator, y: Tensor, noise: float) -> Tensor | None:
    """Expected ``|noise| / |y|`` per item for this standard deviation; None if it is zero."""
    if not noise:
        return None
    one = operator.measured(torch.ones_like(y))
    return torch.where(_size(y) > 0, noise * _size(one) / _size(y), torch.nan)


def _size(values: Tensor) -> Tensor:
    return _batch.norm(torch.view_as_real(values) if values.is_complex() else values)


def _normal(like: Tensor, seed: int, number: int) -> Tensor:
    random = _random.stream("noise", seed, number)
    dtype = torch.complex128 if like.is_complex() else torch.float64
    return torch.randn(like.shape, generator=random, dtype=dtype, device="cpu").to(like.dtype)
