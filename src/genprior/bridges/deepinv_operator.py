"""Physics of the package deepinv: linear ones as operators, others as forward models. deepinv itself is not imported."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from genprior import _validate
from genprior._batch import PerItem, norm, spread
from genprior.checks.operator import check_operator
from genprior.operators.base import Operator

RESOLVENTS = ("auto", "prox_l2", "cg")
_PROBE_RHO = (0.1, 10.0)


def from_deepinv(
    physics: Any,
    signal_shape: int | Sequence[int] | None = None,
    *,
    resolvent: str = "auto",
    items: int | None = None,
    verify: bool = True,
    tolerance: float = 1e-6,
    max_iterations: int = 200,
) -> DeepinvOperator | DeepinvForward:
    """Make an operator from a deepinv ``LinearPhysics``: its ``A``, its ``A_adjoint`` and, for exact steps, its ``prox_l2``.

    A physics that is not linear gives a :class:`DeepinvForward`, its ``A`` alone, for ``gp.NonLinear(forward, y)``.

    The noise and sensor models of the physics are not part of the operator. The physics is copied: later changes to
    the caller's object have no effect, and this operator never modifies it.

    Parameters
    ----------
    physics
        any object with ``A(x)`` on batches; with ``A_adjoint(y)`` if it is linear.
    signal_shape
        shape of one image, such as (1, 28, 28); needed if the physics has no ``img_size``, or one without channels. If both
        are given, this one is used, provided ``A`` and ``A_adjoint`` accept it.
    resolvent
        how ``(A^T A + rho I)^-1`` is computed: ``"prox_l2"``, the method of the physics; ``"cg"``, by conjugate gradients with
        ``tolerance`` and ``max_iterations``; ``"auto"``: its ``prox_l2`` if it exists and is exact on random signals
        (closed forms are; deepinv's iterations, which stop at 1e-4, are not), else conjugate gradients.
    items
        number of images, for a physics that has parameters of its own for every image and refuses single ones.
    verify
        whether to check linearity, adjoint and resolvent on random signals, once, here.
    tolerance, max_iterations
        of conjugate gradients, where they are used.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> class Halves:  # stands for a deepinv physics
    ...     img_size = (1, 2, 2)
    ...     def A(self, x): return x / 2
    ...     def A_adjoint(self, y): return y / 2
    >>> A = gp.operators.from_deepinv(Halves())
    >>> A(torch.ones(1, 1, 2, 2)).sum()
    tensor(2.)
    """
    if resolvent not in RESOLVENTS:
        raise ValueError(f"resolvent must be one of {', '.join(RESOLVENTS)}, got {resolvent!r}")
    if not _is_linear(physics):
        return DeepinvForward(physics)
    operator = DeepinvOperator(physics, _shape(physics, signal_shape), items)
    operator.tolerance = _validate.number("tolerance", tolerance, above=0)
    operator.max_iterations = _validate.whole("max_iterations", max_iterations)
    operator.choose_resolvent(resolvent)
    if verify:
        _verify(operator)
    return operator


class DeepinvOperator(Operator):
    """``A x = physics.A(x)`` with ``physics.A_adjoint``; made by :func:`from_deepinv`.

    ``physics.prox_l2(z, y, gamma)`` is ``argmin gamma/2 |A x - y|^2 + 1/2 |x - z|^2``; with ``y = 0``, ``gamma = 1/rho`` and
    ``z = v/rho`` it is ``(A^T A + rho I)^-1 v``.
    """

    def __init__(self, physics: Any, signal_shape: tuple[int, ...], items: int | None = None) -> None:
        self._physics = _copied(physics)
        self.signal_shape = signal_shape
        self.device, self.dtype = _place(self._physics)
        image = self._probe(items)
        self.measurement_shape = tuple(image.shape[1:])
        self.complex_measurements = image.is_complex()
        self.batch = len(image) if len(image) > 1 else None
        self._exact = self._exact_per_item = False

    @property
    def resolvent_method(self) -> str:
        """How `resolvent` is computed, in words."""
        return f"prox_l2 of deepinv's {type(self._physics).__name__}" if self._exact else super().resolvent_method

    def choose_resolvent(self, how: str) -> None:
        """Decide once between the physics' own ``prox_l2`` and conjugate gradients."""
        if how == "cg":
            return
        if not callable(getattr(self._physics, "prox_l2", None)):
            if how == "prox_l2":
                raise ValueError(f"{type(self._physics).__name__} has no prox_l2: use resolvent='auto' or 'cg'")
            return
        self._exact = how == "prox_l2" or self._holds(lambda rho, count: rho)
        self._exact_per_item = self._exact and self._holds(lambda rho, count: rho * (1 + torch.arange(float(count))))

    def rows(self, index: Tensor) -> Operator:
        """The operator for the items in ``index``: those rows of every tensor of the physics that has one per item."""
        if self.batch is None:
            return self
        index, count = self._check_index(index), self.batch
        picked = copy.copy(self)
        picked._physics = _copied(self._physics)
        _change(picked._physics, lambda t: t.index_select(0, index) if t.ndim > 1 and len(t) == count else t)
        picked.batch = len(index)
        picked._bounds = None if self._bounds is None else (self._bounds[0][index], self._bounds[1][index])
        return picked

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> None:
        self._physics = _copied(self._physics)
        _change(self._physics, change)

    def _forward(self, x: Tensor) -> Tensor:
        image: Tensor = self._physics.A(x)
        return image

    def _adjoint(self, y: Tensor) -> Tensor:
        back: Tensor = self._physics.A_adjoint(y)
        return back

    def _resolvent(self, v: Tensor, rho: PerItem, start: Tensor | None) -> Tensor:
        if not self._exact:
            return super()._resolvent(v, rho, start)
        if not isinstance(rho, Tensor) or rho.numel() == 1:
            return self._prox(v, float(rho))
        rho = rho.reshape(-1)
        if self._exact_per_item:
            return self._prox(v, rho)
        each = torch.arange(len(v), device=v.device)
        return torch.cat([self.rows(b[None])._resolvent(v[b][None], float(rho[b]), None) for b in each])

    def _prox(self, v: Tensor, rho: PerItem) -> Tensor:
        """``(A^T A + rho I)^-1 v`` by ``prox_l2``; ``rho`` a number or ``(B,)``."""
        wide = rho.reshape(-1, *(1,) * (v.ndim - 1)) if isinstance(rho, Tensor) else rho
        zero = torch.zeros_like(self._physics.A(v))
        answer: Tensor = self._physics.prox_l2(v / wide, zero, 1 / wide)
        return answer

    def _holds(self, penalties: Callable[[float, int], PerItem]) -> bool:
        """Whether ``(A^T A + rho) _prox(v, rho) = v`` to rounding, on random signals; a prox that fails does not hold."""
        v = self._random((self.batch or 2, *(self.signal_shape or ())))
        limit = 100 * torch.finfo(v.dtype).eps
        return all(self._residual(v, penalties(rho, len(v))) <= limit for rho in _PROBE_RHO)

    def _residual(self, v: Tensor, rho: PerItem) -> float:
        rho = rho.to(v) if isinstance(rho, Tensor) else rho
        try:
            with torch.no_grad():
                u = self._prox(v, rho)
                rest = self._adjoint(self._forward(u)) + spread(rho, u) * u - v
            return float((norm(rest) / norm(v)).max()) if rest.dtype == v.dtype else math.inf
        except Exception:  # third-party code may raise anything; conjugate gradients remain
            return math.inf

    def _random(self, shape: tuple[int, ...]) -> Tensor:
        random = torch.Generator().manual_seed(0)
        return torch.randn(shape, generator=random, device="cpu").to(self.device, self.dtype or torch.float32)

    def _probe(self, items: int | None) -> Tensor:
        """The image of one zero signal, or of as many as there are items."""
        counts = (1,) if items is None else (1, _validate.whole("items", items))
        shape, name = self.signal_shape or (), type(self._physics).__name__
        known = _known_size(self._physics)
        for count in counts:
            zero = torch.zeros(count, *shape, device=self.device, dtype=self.dtype or torch.float32)
            try:
                with torch.no_grad():
                    image = self._physics.A(zero)
                    if isinstance(image, Tensor):
                        _check_back(self._physics.A_adjoint(image), zero)
            except Exception as problem:  # third-party code
                failure = problem
            else:
                return _measurements(image, name)
        if known not in (None, shape):
            raise ValueError(
                f"signal_shape is {shape}, but the physics is made for images of {known} ({failure}): make the physics with "
                f"img_size={shape}, or use another generator"
            )
        raise ValueError(
            f"physics {name} failed on a signal of shape {shape} ({failure}): correct signal_shape, which has channels, such "
            "as (1, 28, 28); if it has its own parameters for every image, give items=, the number of images"
        )


class DeepinvForward:
    """``x -> physics.A(x)`` of a physics that is not linear, made by :func:`from_deepinv`."""

    def __init__(self, physics: Any) -> None:
        self.physics = _copied(physics)

    def __call__(self, x: Tensor) -> Tensor:
        """The measurements, without noise."""
        return _measurements(self.physics.A(x), type(self.physics).__name__)

    def __repr__(self) -> str:
        return f"DeepinvForward({type(self.physics).__name__})"


def _is_linear(physics: Any) -> bool:
    """Whether a physics claims to be linear: deepinv's as a ``LinearPhysics``, others by their ``A_adjoint``."""
    if not callable(getattr(physics, "A", None)):
        raise TypeError(f"physics must have a method A, as those of deepinv.physics, got {type(physics).__name__}")
    names = {base.__name__ for base in type(physics).__mro__ if base.__module__.partition(".")[0] == "deepinv"}
    if "Physics" in names:
        return "LinearPhysics" in names
    return callable(getattr(physics, "A_adjoint", None))


def _shape(physics: Any, given: int | Sequence[int] | None) -> tuple[int, ...]:
    wanted = _known_size(physics) if given is None else given
    if wanted is None:
        raise ValueError(f"signal_shape is needed: {type(physics).__name__} does not state the size of its images")
    return _validate.shape("signal_shape", wanted)


def _known_size(physics: Any) -> tuple[int, ...] | None:
    """The size that the physics states; some omit the channels, some hold a default until first used."""
    known = getattr(physics, "img_size", None) or getattr(physics, "imsize", None)
    return None if known is None else tuple(known)


def _check_back(back: Any, signals: Tensor) -> None:
    """Sizes that merely broadcast, or have the same number of values, are not returned by the adjoint."""
    if isinstance(back, Tensor) and back.shape[1:] != signals.shape[1:]:
        raise ValueError(f"A_adjoint gives signals of shape {tuple(back.shape[1:])}")


def _measurements(image: Any, name: str) -> Tensor:
    if not isinstance(image, Tensor) or image.ndim < 2:
        given = f"shape {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
        raise ValueError(
            f"physics {name} gives {given}, expected one tensor (B, ...): stacked physics are not supported"
        )
    return image


def _verify(operator: DeepinvOperator) -> None:
    failures = check_operator(operator).failures
    if failures:
        first, name = failures[0], type(operator._physics).__name__
        raise ValueError(
            f"physics {name} violates {first.law} ({first.measured}): {first.advice}; of what is "
            "not linear, give gp.NonLinear(physics.A, y)"
        )


def _copied(physics: Any) -> Any:
    """A copy of its own; deepinv's ``clone`` knows what a plain deep copy does not (random generators)."""
    clone = getattr(physics, "clone", None)
    return clone() if callable(clone) else copy.deepcopy(physics)


def _place(physics: Any) -> tuple[torch.device | None, torch.dtype | None]:
    """Device and real dtype of the tensors of a physics, if it has any."""
    held = [*physics.parameters(), *physics.buffers()] if isinstance(physics, nn.Module) else []
    numbers = [t for t in held if t.is_floating_point() or t.is_complex()]
    return (held[0].device if held else None), (numbers[0].dtype.to_real() if numbers else None)


def _change(physics: Any, change: Callable[[Tensor], Tensor]) -> None:
    if not isinstance(physics, nn.Module):
        return
    physics._apply(change)  # type: ignore[no-untyped-call]
    for part in physics.modules():
        kinds = {name: value for name, value in vars(part).items() if isinstance(value, torch.dtype)}
        for name, kind in kinds.items():  # some physics convert to the dtype they were made with
            setattr(part, name, change(torch.empty((), dtype=kind)).dtype)
