"""From data to a problem: the loss, the constraints, simulated measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from genprior import _batch, _random
from genprior.generators import Generator
from genprior.jobs.forward import ForwardModel
from genprior.jobs.settings import Recovery
from genprior.losses import LeastSquares, Loss, NonLinear, SquaredDistance, gaussian_misfit
from genprior.losses.noise import ones_of
from genprior.operators import Identity, Operator
from genprior.operators.bases import parse_basis
from genprior.prior import prior_term
from genprior.problem import Problem
from genprior.result import Result
from genprior.terms import L1, Ball, Box, LInf, Term

_NORMS: dict[str, type[Term]] = {"l1": L1, "linf": LInf}
_LEAST_MEASURED = 2
"""Measurements for each free number of an answer, above which the noise is estimated from the residual."""
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
    """l2: ``1/2 |A w - y|^2``, with a noise level over its square and with the prior on z; box on w, ball on z.

    l1, linf: ``|w - y|`` in that norm plus 0.01 times the mean square. With a deviation, ``w = G(z) + Psi v``, its l1 norm
    with the weight of the job.
    """
    basis, weight = basis_of(job, generator), job.weight_of_deviation
    deviation: Term | Literal["auto"] | None = (
        None if weight is None else "auto" if isinstance(weight, str) else weight * L1()
    )
    on_latent: Term | None = None if job.latent_ball is None else Ball(job.latent_ball)
    if job.loss == "l2":
        on_signal = None if job.box is None else Box(*job.box)
        if job.noise_level is not None:
            prior = prior_term(generator)
            on_latent = prior if on_latent is None else prior + on_latent
        loss: Loss = (
            NonLinear(operator.function, y, noise=job.noise_level)
            if isinstance(operator, ForwardModel)
            else LeastSquares(operator, y, job.noise_level)
        )
        return Problem(generator, loss, on_signal, on_latent, deviation=deviation, basis=basis)
    smooth = SquaredDistance(y, weight=_SMOOTH / math.prod(generator.signal_shape))
    norm = _NORMS[job.loss]().around(y)
    return Problem(generator, smooth, norm, on_latent, deviation=deviation, basis=basis)


def basis_of(job: Recovery, generator: Generator) -> Operator | None:
    """The basis of the deviation, for the generator's signals; None: the identity, or there is no deviation."""
    if job.basis is None:
        return None
    try:
        return parse_basis(job.basis, generator.signal_shape, device=generator.device, dtype=generator.dtype)
    except ValueError as problem:
        raise ValueError(f"basis {job.basis!r}: {problem}") from problem


def simulate(operator: Operator, signals: Tensor, noise: float, seed: int, numbers: Sequence[int]) -> Tensor:
    """``A x + noise`` (no noise on masked entries); an item's noise depends on the seed and its number, not on its batch.

    Complex measurements get noise of this standard deviation in the real and in the imaginary part.
    """
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
    one = torch.complex(one.real, one.real) if one.is_complex() else one
    return torch.where(_size(y) > 0, noise * _size(one) / _size(y), torch.nan)


def estimated_noise(generator: Generator, operator: Operator, result: Result, y: Tensor) -> Tensor | None:
    """The standard deviation of what is left of the measurements, ``|A x - y| / sqrt(n - s - k)``, per item.

    The fit has taken up at most as many of the n numbers measured as it has free ones: the s of the latent, and the k
    coefficients of a deviation that are not zero. NaN for an item where n is not above ``2 (s + k)``, None where it is so for
    none. What neither can make counts as noise too.
    """
    free: Tensor | int = math.prod(generator.latent_shape)
    with torch.no_grad():
        if result.coefficients is not None:
            free = free + ones_of(result.coefficients)
        found = gaussian_misfit(operator, y, 1.0, result.signal)
        known = found.expected > _LEAST_MEASURED * free
        if not bool(known.any()):
            return None
        return torch.where(known, found.value / (found.expected - free), torch.nan).sqrt()


def _size(values: Tensor) -> Tensor:
    return _batch.norm(torch.view_as_real(values) if values.is_complex() else values)


def _normal(like: Tensor, seed: int, number: int) -> Tensor:
    random = _random.stream("noise", seed, number)
    shape = (*like.shape, 2) if like.is_complex() else like.shape
    drawn = torch.randn(shape, generator=random, dtype=torch.float64, device="cpu")
    return (torch.view_as_complex(drawn) if like.is_complex() else drawn).to(like.dtype)
