"""Laws of a linear operator: linearity, adjoint, independence of items, resolvent, norm."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from genprior import _batch
from genprior.checks.report import Finding, Report, small
from genprior.operators import Operator

_ITEMS = 3


def check_operator(
    operator: Operator,
    *,
    signal_shape: tuple[int, ...] | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Report:
    """Check that an operator keeps the laws that the solvers rely on, on random signals.

    Parameters
    ----------
    operator
        the operator to check.
    signal_shape
        needed only for an ``operators.Linear`` made without one.
    seed
        seed of the random signals.
    device, dtype
        where to check; by default those of the operator.
    """
    if not isinstance(operator, Operator):
        raise TypeError(f"operator must be a genprior Operator, got {type(operator).__name__}: wrap it first")
    shape = operator.signal_shape or signal_shape
    if shape is None:
        raise ValueError("signal_shape is needed: this operator was made without one")
    probe = _Probe(operator, shape, seed, device or operator.device or "cpu", dtype or operator.dtype or torch.float32)
    try:
        findings = probe.findings()
    except Exception as problem:
        findings = (Finding("runs", False, str(problem), "see the message"),)
    return Report(repr(operator), findings)


class _Probe:
    """Random signals and measurements, and the errors found on them."""

    def __init__(
        self, operator: Operator, shape: tuple[int, ...], seed: int, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        self.operator, self.shape = operator, shape
        self.random = torch.Generator().manual_seed(seed)
        self.device, self.dtype = torch.device(device), dtype
        self.items = operator.batch or _ITEMS
        self.limit = 100 * torch.finfo(dtype).eps ** 0.75

    def findings(self) -> tuple[Finding, ...]:
        """All laws."""
        with torch.no_grad():
            x, other = self._signals(), self._signals()
            image = self.operator(x)
            return (
                Finding("runs", True, f"signals {self.shape} to measurements {tuple(image.shape[1:])}"),
                self._linear(x, other, image),
                self._adjoint(x, image),
                self._independent(x, image),
                self._resolvent(x, image),
                *(() if self.operator.signal_shape is None else (self._norm(x, image),)),
            )

    def _signals(self) -> Tensor:
        return self._normal((self.items, *self.shape))

    def _normal(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self.random, dtype=torch.float64, device="cpu").to(self.device, self.dtype)

    def _linear(self, x: Tensor, other: Tensor, image: Tensor) -> Finding:
        error = self.operator(2 * x - 3 * other) - (2 * image - 3 * self.operator(other))
        size = _batch.norm(image) + _batch.norm(self.operator(other))
        advice = "the function is affine or non-linear: subtract its value at zero, or linearise it"
        return small("A(2x - 3u) = 2Ax - 3Au", _worst(error, size), self.limit, advice)

    def _adjoint(self, x: Tensor, image: Tensor) -> Finding:
        noise = self._normal(tuple(image.shape)).to(image.dtype)
        if image.is_complex():
            noise = noise + 1j * self._normal(tuple(image.shape))
        # Near the image of x: with a random y, <Ax, y> would be too small to reveal an adjoint of the wrong scale.
        y = image + noise * _batch.spread(_batch.norm(image) / _batch.norm(noise), image)
        back = self.operator.adjoint(y)
        error = (_batch.dot(image, y) - _batch.dot(x, back)).abs()
        size = _batch.norm(image) * _batch.norm(y) + _batch.norm(x) * _batch.norm(back)
        advice = "adjoint is not the transpose of fn: leave it out to have it derived"
        return small("<Ax, y> = <x, A^T y>", float(_batch.ratio(error, size).max()), self.limit / 10, advice)

    def _independent(self, x: Tensor, image: Tensor) -> Finding:
        index = torch.arange(self.items, device=x.device)
        alone = torch.cat([self.operator.rows(i[None])(x[i][None]) for i in index])
        error = _worst(alone - image, _batch.norm(image))
        return small("items do not influence each other", error, self.limit, "treat the first axis as the batch")

    def _resolvent(self, x: Tensor, image: Tensor) -> Finding:
        worst = 0.0
        gain = float((_batch.norm(image) / _batch.norm(x)).max())
        gain = gain if 0 < gain < math.inf else 1.0
        for share in (0.1, 10.0):
            rho = share * gain**2  # in the operator's units: for a much smaller rho rounding would dominate
            u = self.operator.resolvent(x, rho)
            residual = self.operator.adjoint(self.operator(u)) + rho * u - x
            error = _worst(residual, _batch.norm(x))
            worst = error if math.isnan(error) else max(worst, error)
        limit = max(self.limit, 10 * self.operator.tolerance)
        advice = f"computed by {self.operator.resolvent_method}: raise max_iterations if it is conjugate gradients"
        return small("(A^T A + rho) A.resolvent(v, rho) = v", worst, limit, advice)

    def _norm(self, x: Tensor, image: Tensor) -> Finding:
        gain = float((_batch.norm(image) / _batch.norm(x)).max())
        norm = float(self.operator.norm().max())
        return Finding(
            "|Ax| <= |A| |x|", gain <= norm * (1 + self.limit), f"gain {gain:.3g}, norm {norm:.3g}", "norm too small"
        )


def _worst(error: Tensor, size: Tensor) -> float:
    return float(_batch.ratio(_batch.norm(error), size).max())
