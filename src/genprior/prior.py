"""The generator's latent distribution as a term on z: the prior of the maximum a posteriori problem."""

from __future__ import annotations

import math

from genprior import _validate
from genprior.generators import Generator, LatentDistribution, Normal, TruncatedNormal, Uniform
from genprior.losses import LeastSquares, Loss, NonLinear
from genprior.problem import Problem
from genprior.terms import Ball, Box, SquaredL2, Term

WIDEN = 1.8
"""Factor on the standard deviation of normal latents. Real signals lie outside of the range, and the latents that fit them
best lie farther out than draws: those of real digits are about twice as long. The textbook's prior (factor 1) pulls them in,
which costs up to 11% of error where there is little noise; no prior costs up to 35% where there is much (docs/noise.md)."""
_CUT = 3.0
"""Standard deviations beyond sqrt(s) at which a truncation cuts off next to nothing of a normal latent, and is left out."""


def prior_term(generator: Generator, widen: float = WIDEN) -> Term:
    """``-log p(z)`` up to a constant, of the generator's latent distribution, a normal one with ``widen`` times its deviation.

    Normal: ``1/2 |z|^2 / (widen scale)^2``. Truncated: within the ball besides, where that cuts anything off. Uniform: a box.
    """
    _validate.number("widen", widen, above=0)
    return _term(generator.latent, math.prod(generator.latent_shape), widen)


def map_problem(generator: Generator, loss: Loss, on_signal: Term | None = None, *, widen: float = WIDEN) -> Problem:
    """The maximum a posteriori problem, ``minimise -log p(y | G(z)) - log p(z)``, with the generator's latent distribution.

    The loss must be a negative log likelihood: least squares or :class:`NonLinear` with a noise level, :class:`Poisson`,
    :class:`Huber`, or :class:`SquaredDistance` with the weight ``1 / (2 sigma^2)``.

    Parameters
    ----------
    generator, loss, on_signal
        as for :class:`genprior.Problem`.
    widen
        factor on the standard deviation of a normal latent distribution. 1: the textbook, right for signals that the generator
        makes. The default is for real signals, which lie near its range.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> G = gp.Generator(torch.nn.Linear(3, 8), latent_shape=(3,), signal_shape=(8,))
    >>> loss = gp.LeastSquares(gp.operators.Identity(8), torch.zeros(2, 8), noise=0.1)
    >>> gp.map_problem(G, loss, widen=1).on_latent
    1 * SquaredL2()
    """
    unknown = isinstance(loss, LeastSquares) and loss.noise is None
    if unknown or (isinstance(loss, NonLinear) and loss.noise is None and loss.likelihood is None):
        form = "LeastSquares(A, y, noise=sigma)" if unknown else "NonLinear(forward, y, noise=sigma)"
        raise ValueError(
            f"map_problem weighs the prior against the noise, but {loss!r} has no noise level: give {form}"
        )
    return Problem(generator, loss, on_signal, prior_term(generator, widen))


def _term(latent: LatentDistribution, size: int, widen: float) -> Term:
    if isinstance(latent, Uniform):
        return Box(latent.low, latent.high)
    if not isinstance(latent, Normal | TruncatedNormal):
        raise TypeError(
            f"the density of {latent!r} is not known, expected Normal, TruncatedNormal or Uniform: give on_latent"
        )
    square = (1 / (widen * latent.scale) ** 2) * SquaredL2()
    cut = isinstance(latent, TruncatedNormal) and latent.radius < latent.scale * (math.sqrt(size) + _CUT)
    return square + Ball(widen * latent.radius) if cut and isinstance(latent, TruncatedNormal) else square
