"""A user's own linear functions as an operator."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from genprior import _validate
from genprior._batch import norm
from genprior.operators.base import Operator

_WRONG = 1e-3
"""Relative error beyond which a function is not linear, or an adjoint not that of its function."""


class Linear(Operator):
    """``A x = fn(x)`` for a linear ``fn`` on batches of signals, with ``adjoint`` given or derived.

    Without ``adjoint``, ``A^T y`` is the vector-Jacobian product of ``fn``, by autograd; ``fn`` must then be made of
    differentiable torch operations and ``signal_shape`` must be given. Without ``signal_shape`` no shapes are checked.
    With it, a missing ``measurement_shape`` is found by applying ``fn`` to one zero signal on ``device`` in ``dtype``
    (by default CPU and float32), and a few random signals show whether ``fn`` is linear and ``adjoint`` its
    own. Where both shapes are given, ``fn`` is not tried out (:func:`genprior.checks.check_operator` does that). The
    resolvent uses conjugate gradients with ``tolerance`` and ``max_iterations``.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> gp.operators.Linear(lambda x: x[..., ::2], signal_shape=(1, 8, 8))(torch.ones(2, 1, 8, 8)).shape
    torch.Size([2, 1, 8, 4])
    """

    complex_measurements = None

    def __init__(
        self,
        fn: Callable[[Tensor], Tensor],
        adjoint: Callable[[Tensor], Tensor] | None = None,
        signal_shape: int | Sequence[int] | None = None,
        measurement_shape: int | Sequence[int] | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        tolerance: float = 1e-6,
        max_iterations: int = 200,
    ) -> None:
        if not callable(fn) or not (adjoint is None or callable(adjoint)):
            raise TypeError(
                f"fn and adjoint must be functions of a batch, got {_described(fn)} and {_described(adjoint)}: "
                "for a matrix use operators.Dense(matrix)"
            )
        if adjoint is None and signal_shape is None:
            raise ValueError("adjoint=None is derived by autograd, which needs signal_shape: give one of the two")
        self._fn, self._given_adjoint = fn, adjoint
        self.signal_shape = None if signal_shape is None else _validate.shape("signal_shape", signal_shape)
        self.device = None if device is None else torch.empty(0, device=device).device
        self.dtype = dtype
        self.tolerance = _validate.number("tolerance", tolerance, above=0)
        self.max_iterations = _validate.whole("max_iterations", max_iterations)
        if measurement_shape is not None:
            self.measurement_shape = _validate.shape("measurement_shape", measurement_shape)
        else:
            self.measurement_shape = None if self.signal_shape is None else self._probe(self.signal_shape)

    def bound(self, signal_shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Operator:
        """The operator for these signals: with its shapes found by applying ``fn`` to one zero signal, and its place known."""
        if self.signal_shape is not None:
            if self.device is not None and self.dtype is not None:
                return self
            placed = copy.copy(self)
            placed.device, placed.dtype = self.device or device, self.dtype or dtype
            return placed
        return Linear(
            self._fn,
            self._given_adjoint,
            signal_shape,
            device=device,
            dtype=dtype,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
        )

    def _probe(self, signal_shape: tuple[int, ...]) -> tuple[int, ...]:
        zero = torch.zeros(1, *signal_shape, device=self.device, dtype=self.dtype or torch.float32)
        with torch.no_grad():
            image = self._fn(zero)
        if not isinstance(image, Tensor) or image.ndim < 2 or len(image) != 1:
            hint = "" if isinstance(image, Tensor) else ": fn must use torch, not numpy"
            raise ValueError(
                f"fn must give measurements (B, ...) for signals (B, ...), got {_described(image)} for one signal{hint}"
            )
        if not bool(norm(image) == 0):
            raise ValueError(f"fn is not linear: fn(0) has norm {float(norm(image)):g}, expected 0")
        self.complex_measurements = image.is_complex()
        self._refuse_wrong(zero, image)
        return tuple(image.shape[1:])

    def _refuse_wrong(self, zero: Tensor, image: Tensor) -> None:
        """Random signals u and v, the same each time, show a function that is not linear and an adjoint of another one."""
        random = torch.Generator().manual_seed(0)
        u, v = (_normal(zero, random) for _ in range(2))
        with torch.no_grad():
            of_u, of_v = self._fn(u), self._fn(v)
            apart = norm(self._fn(u + 2 * v) - of_u - 2 * of_v)
            if not bool(apart <= _WRONG * (norm(of_u) + 2 * norm(of_v))):
                raise ValueError(
                    "fn is not linear: fn(u + 2v) differs from fn(u) + 2 fn(v): for a model that is not linear "
                    "give loss=gp.NonLinear(fn, y)"
                )
            if self._given_adjoint is None:
                return
            y = of_u + _normal(image, random) * norm(of_u) / image.numel() ** 0.5
            back = self._given_adjoint(y)
        if back.shape != u.shape:
            raise ValueError(
                f"adjoint gives shape {tuple(back.shape)}, expected signals {tuple(u.shape)}: "
                "correct it, or leave it out to have it derived"
            )
        if not bool((_real_dot(of_u, y) - _real_dot(u, back)).abs() <= _WRONG * norm(of_u) * norm(y)):
            raise ValueError(
                "adjoint is not that of fn: <fn(u), y> differs from <u, adjoint(y)>: correct it, or leave it out to have "
                "it derived"
            )

    def _forward(self, x: Tensor) -> Tensor:
        return self._fn(x)

    def _adjoint(self, y: Tensor) -> Tensor:
        if self._given_adjoint is not None:
            return self._given_adjoint(y)
        with torch.enable_grad():
            x = torch.zeros(
                len(y), *(self.signal_shape or ()), device=y.device, dtype=y.dtype.to_real(), requires_grad=True
            )
            (back,) = torch.autograd.grad(self._fn(x), x, y, create_graph=y.requires_grad)
        return back


def _normal(like: Tensor, random: torch.Generator) -> Tensor:
    dtype = torch.complex128 if like.is_complex() else torch.float64
    return torch.randn(like.shape, generator=random, dtype=dtype, device="cpu").to(like.dtype).to(like.device)


def _real_dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b.conj()).sum().real


def _described(value: object) -> str:
    return type(value).__name__ if not hasattr(value, "shape") else f"{type(value).__name__} {tuple(value.shape)}"
