"""Losses that are the negative log likelihood of measurements ``A w``: counts, noise with outliers, your own."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from genprior import _batch, _validate
from genprior.losses.base import Loss
from genprior.losses.exact_step import EntrywiseProx
from genprior.losses.least_squares import fit_measurements
from genprior.losses.likelihoods import HuberLikelihood, Likelihood, PoissonLikelihood
from genprior.losses.noise import Misfit, ones_of
from genprior.operators import Identity, Mask, Operator
from genprior.terms import Quadratic, Term, Zero


class LikelihoodLoss(Loss):
    """``L(w) = sum_i l((A w)_i; y_i)`` with a :class:`genprior.losses.Likelihood` l of single measurements.

    What the operator does not measure (the zeros of a mask) is left out. For the identity and for masks the exact w step is a
    closed form where R is zero, quadratic, or an interval for each entry.

    Parameters
    ----------
    operator
        a :class:`genprior.operators.Operator` with real measurements.
    y
        measurements, ``(B, *operator.measurement_shape)``.
    likelihood
        of each of them.
    """

    def __init__(self, operator: Operator, y: Tensor, likelihood: Likelihood) -> None:
        _validate.batch("y", _validate.tensor("y", y, complex_too=True), None)
        fit_measurements(operator, y)
        self.likelihood = likelihood.checked(y)
        self.y = _validate.kept("y", y)  # the caller may change theirs
        self.batch = len(y)
        self._measure_with(operator)

    def evaluate(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The sum per item, infinite outside of the domain, and ``A w``."""
        expected = (self.batch, *(self.operator.signal_shape or w.shape[1:]))
        if w.shape != expected:
            raise ValueError(f"signals have shape {tuple(w.shape)}, expected {expected}: one signal per item of y")
        a = self.operator(w)
        return self._sum(self.likelihood.value(a, self.y)), a

    def gradient(self, w: Tensor, residual: Tensor) -> Tensor:
        """``A^T l'(A w)``."""
        return self.operator.adjoint(self._kept(self.likelihood.slope(residual, self.y)))

    def curvature(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """0, and ``|A|^2`` times the largest ``l''``, at w where that is unbounded; of masks entry by entry."""
        most = self._kept(self.likelihood.most_curvature(self.operator(w), self.y))
        if isinstance(self.operator, Mask | Identity):
            form = self.operator.gram_form()
            most = most * (form.shift if form.values is None else form.values)
            nu = _batch.flat(most).amax(dim=1)
        else:
            nu = _batch.flat(most).amax(dim=1) * _batch.column(self.operator.gram_bounds()[1], w)
        return torch.zeros_like(nu), nu

    def typical_curvature(self, w: Tensor) -> Tensor:
        """``sum_i l''_i (A w)_i^2 / |w|^2``."""
        a = self.operator(w)
        bent = self._sum(self.likelihood.curvature(a, self.y) * a.square())
        along = _batch.ratio(bent, _batch.square(w))
        return torch.where((along > 0) & along.isfinite(), along, self.curvature(w)[1])

    def exact_step(self, term: Term) -> EntrywiseProx | None:
        """In closed form for the identity and masks, where R is zero, quadratic, or an interval for each entry."""
        weights: float | Tensor | None = 1.0 if isinstance(self.operator, Identity) else None
        if isinstance(self.operator, Mask):
            weights = self.operator(torch.ones_like(self.y))
        is_interval = term.is_indicator and term.separable
        if weights is None or not (is_interval or term.as_quadratic() is not None):
            return None
        return EntrywiseProx(self.likelihood, self.y, weights, Quadratic.of(term), term if is_interval else Zero())

    def bound(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Loss:
        """The loss with an operator that knows its shapes and its place."""
        operator = self.operator.bound(signal_shape, device, dtype)
        if operator is self.operator:
            return self
        fit_measurements(operator, self.y)
        part = copy.copy(self)
        part._measure_with(operator)
        return part

    def start_scores(self, signals: Tensor, items: int) -> Tensor:
        """The loss, item by item, from one application of the operator to all signals where the items share it."""
        if self.operator.batch is not None:
            return super().start_scores(signals, items)
        seen = self.operator(signals)
        rows = [torch.full((len(seen),), item, device=seen.device) for item in range(items)]
        return torch.stack([self.rows(row)._sum_of(seen) for row in rows])

    def observed(self) -> tuple[Operator, Tensor]:
        """Operator and measurements, in its own units."""
        return self.operator, self.operator.measured(self.likelihood.plain(self.y))

    def misfit(self, w: Tensor) -> Misfit:
        """That of the likelihood, summed over what was measured."""
        kept = ones_of(self._measured.to(self.y.dtype))
        return Misfit(self._sum(self.likelihood.misfit(self.operator(w), self.y)), self.likelihood.expected * kept)

    def rows(self, index: Tensor) -> LikelihoodLoss:
        """The loss of the selected items."""
        part = copy.copy(self)
        part.operator, part.likelihood = self.operator.rows(index), self.likelihood.rows(index)
        part.y, part._measured, part.batch = self.y[index], self._measured[index], len(index)
        return part

    def check(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """Operator and measurements must fit the generator's signals."""
        self.operator.check("operator", signal_shape, device, dtype)
        _validate.same_place("y", self.y, device, dtype, "the generator")

    def _measure_with(self, operator: Operator) -> None:
        if operator.complex_measurements:
            raise TypeError(
                f"{operator!r} gives complex measurements, but {type(self).__name__} takes real ones: use LeastSquares"
            )
        self.operator = operator
        self._measured = operator.measured(torch.ones_like(self.y)) != 0

    def _sum_of(self, seen: Tensor) -> Tensor:
        return self._sum(self.likelihood.value(seen, self.y))

    def _sum(self, entries: Tensor) -> Tensor:
        return _batch.flat(self._kept(entries)).sum(dim=1)

    def _kept(self, entries: Tensor) -> Tensor:
        return torch.where(self._measured, entries, 0.0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.operator!r}, y {tuple(self.y.shape)}, {self.likelihood!r})"


class Poisson(LikelihoodLoss):
    """Counts ``y`` with the mean ``u = gain A w + background``: ``L(w) = sum(u - y log u)``, shifted to be 0 at ``u = y``.

    Infinite where a mean is negative, or zero although something was counted. There is no noise level to give, because the
    variance of a count is its mean.

    Parameters
    ----------
    operator
        a :class:`genprior.operators.Operator`.
    y
        counts, at least 0, ``(B, *operator.measurement_shape)``, as floating-point numbers.
    gain
        counts for a measurement of 1.
    background
        mean count where ``A w`` is 0, such as a dark current; however small, it makes a stray count possible.
    readout
        standard deviation, in counts, of normal noise on top of the counts: of the electronics, or of what the generator
        cannot make, which is a share of the gain (3% for the bundled digits). Its square is added to counts and means, so
        that the variance is ``u + readout^2``, as it should be (Snyder, Hammoud and White 1993).

    Examples
    --------
    >>> import torch, genprior as gp
    >>> A = gp.operators.Identity(3)
    >>> gp.Poisson(A, torch.tensor([[20.0, 0.0, 5.0]]), gain=20)(torch.tensor([[1.0, 0.1, 0.25]]))
    tensor([2.])
    """

    def __init__(
        self, operator: Operator, y: Tensor, gain: float = 1.0, background: float = 0.0, readout: float = 0.0
    ) -> None:
        variance = _validate.number("readout", readout, least=0) ** 2
        likelihood = PoissonLikelihood(gain, _validate.number("background", background, least=0) + variance)
        super().__init__(operator, _validate.tensor("y", y, complex_too=True) + variance, likelihood)


class Huber(LikelihoodLoss):
    """Gaussian noise with outliers: ``L(w) = sum h((A w - y)/sigma)``, ``h(r) = r^2/2`` up to ``|r| = delta``, then linear.

    Parameters
    ----------
    operator
        a :class:`genprior.operators.Operator`.
    y
        measurements, ``(B, *operator.measurement_shape)``.
    delta
        in units of the noise: larger residuals count as outliers. 1.345 loses 5% of the efficiency where there are none.
    noise
        sigma, as in :class:`LeastSquares`; omitted: 1, so that delta is in the units of y.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> gp.Huber(gp.operators.Identity(2), torch.zeros(1, 2), delta=1.0)(torch.tensor([[0.5, 10.0]]))
    tensor([9.6250])
    """

    def __init__(self, operator: Operator, y: Tensor, delta: float = 1.345, noise: float | Tensor = 1.0) -> None:
        super().__init__(operator, y, HuberLikelihood(delta, noise))
