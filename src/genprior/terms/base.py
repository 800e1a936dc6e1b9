"""What a term is, and its small algebra: ``f + g``, ``c * f``, ``f.around(y)`` and ``f.through(A)``.

One convention everywhere: ``prox_{t f}(v) = argmin_x  t f(x) + 1/2 |x - v|^2``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from genprior import _validate
from genprior._batch import PerItem, column, spread
from genprior.terms.parameters import describe, keep, one_per_item, replaced, step_per_entry, times

if TYPE_CHECKING:
    from genprior.operators import Operator
    from genprior.terms.through import Through

ROUNDINGS = 8.0
"""Units of rounding that an entry may be off by the few operations that made it."""


class Quadratic(NamedTuple):
    """``c/2 |x - centre|^2``, with a weight c and a centre that are numbers, or one per item."""

    weight: PerItem
    centre: PerItem

    @classmethod
    def of(cls, term: Term) -> Quadratic:
        """The term as a quadratic; that of weight 0 where it is none."""
        return cls(*(term.as_quadratic() or (0.0, 0.0)))

    def gradient(self, x: Tensor) -> Tensor:
        """``c (x - centre)``."""
        return spread(self.weight, x) * (x - spread(self.centre, x))

    def linear(self, like: Tensor) -> PerItem:
        """``c centre``, which broadcasts against ``like``: minus the gradient at 0."""
        return spread(self.weight, like) * spread(self.centre, like)

    def curvature(self, like: Tensor) -> Tensor:
        """``c`` for each item, shape ``(B,)``."""
        return column(self.weight, like)


class Term(ABC):
    """A convex function f of each item of a batch ``(B, *shape)``, with values in ``(-inf, inf]`` and an easy prox.

    Terms are immutable and pure: no method changes its arguments, keeps a state or mixes the rows of a batch.
    A new term gives ``__call__``, ``prox`` and ``subgradient``; constraint sets derive from ``Indicator``.
    Tensor attributes of one axis are taken as per item (see ``is_per_item``).
    """

    __array_ufunc__ = None  # a NumPy number times a term is left to __rmul__

    @property
    def separable(self) -> bool:
        """Whether f is a sum over entries, so that the prox takes a step for each entry."""
        return False

    @property
    def is_indicator(self) -> bool:
        """Whether f is 0 on a set and infinite elsewhere."""
        return False

    @property
    def constraint(self) -> Term | None:
        """The indicator of the domain of f; None where f is finite everywhere."""
        return self if self.is_indicator else None

    @property
    def finite(self) -> Term:
        """What is left of f without its constraint: ``Zero()`` for an indicator."""
        return Zero() if self.is_indicator else self

    @property
    def tolerance(self) -> float:
        """Relative accuracy of the prox where it is iterative; 0: exact."""
        return 0.0

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """Value of each item, shape ``(B,)``; ``inf`` where infeasible."""

    @abstractmethod
    def prox(self, v: Tensor, t: PerItem) -> Tensor:
        """``argmin_x t f(x) + 1/2 |x - v|^2`` for each item, with ``t >= 0`` a number or one per item."""

    @abstractmethod
    def subgradient(self, x: Tensor) -> Tensor:
        """One element of the subdifferential at each item; the smallest, or zero, where there are many."""

    def violation(self, x: Tensor) -> Tensor:
        """Euclidean distance of each item to the domain of f, shape ``(B,)``."""
        return x.new_zeros(x.shape[0])

    def feasible(self, x: Tensor, rounding_scale: PerItem = 0.0) -> Tensor:
        """Whether each item lies in the domain of f, up to rounding, shape ``(B,)``.

        ``rounding_scale`` is the size, entry by entry, of the numbers whose difference x is: x is rounded at that size.
        """
        return self(x) < math.inf

    def start_score(self, x: Tensor) -> Tensor:
        """Value of each item by which starts are compared, the lower the better: f itself, and finite.

        A term whose values say little far from its minimum gives another measure of distance.
        """
        return self(x)

    def as_quadratic(self) -> tuple[PerItem, PerItem] | None:
        """Give ``(c, centre)`` when ``f(x) = c/2 |x - centre|^2`` up to a constant, else None."""
        return None

    def is_per_item(self, name: str, value: Tensor) -> bool:
        """Whether the tensor attribute ``name`` holds one entry per item along its first axis."""
        return value.ndim == 1

    @property
    def batch(self) -> int | None:
        """Number of items that the parameters are made for; None when they serve any number."""
        sizes = {name: size for name, size in self._batch_sizes() if size is not None}
        if len(set(sizes.values())) > 1:
            given = ", ".join(f"{name}: {size}" for name, size in sizes.items())
            raise ValueError(f"the parts of {self!r} are for different numbers of items ({given}): make them equal")
        return next(iter(sizes.values()), None)

    def rows(self, index: Tensor) -> Self:
        """Give the term for the selected items; ``index`` is a 1-D tensor of whole numbers and may repeat."""

        def select(name: str, value: Any) -> Any:
            if isinstance(value, Term):
                return value.rows(index)
            return value[index] if isinstance(value, Tensor) and self.is_per_item(name, value) else value

        return replaced(self, select)

    def to(self, device: torch.device | str | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Self:
        """Give the term with its tensors on another device or in another dtype."""
        if isinstance(device, torch.dtype):  # as with tensors
            device, dtype = None, device

        def move(_: str, value: Any) -> Any:
            return value.to(device=device, dtype=dtype) if isinstance(value, Term | Tensor) else value

        return replaced(self, move)

    def check(self, name: str, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """Raise a clear error when the term does not fit signals of this shape (without batch), device and dtype."""
        if not dtype.is_floating_point:
            raise TypeError(f"{name} needs real floating-point signals, got {dtype}: convert them first")
        for part, value in self._members():
            if isinstance(value, Tensor):
                _validate.same_place(f"{part} of {name}", value, torch.device(device), dtype, "the signal")
            elif isinstance(value, Term):
                value.check(name, shape, device, dtype)

    def around(self, y: PerItem, *, shared: bool = False) -> Around:
        """Give ``f(x - y)``.

        A tensor ``y`` is **per item**, shape ``(B, *shape)``: each item has its own centre, as noisy images have.
        With ``shared=True`` its shape is ``(*shape)`` and all items have the same centre; so it is with a number.
        """
        return Around(self, y, shared)

    def through(self, operator: Operator) -> Through:
        """Give ``f(A x)``: a term of measurements, as ``L1().around(y).through(A)``; see `genprior.terms.Through`."""
        from genprior.terms.through import Through  # noqa: PLC0415  # it is a term itself

        return Through(self, operator)

    def __mul__(self, c: PerItem) -> Term:
        """Give ``c f`` with ``c >= 0``, a number or one per item; the number 0 drops the term (also a constraint)."""
        if not isinstance(c, Real | Tensor):
            return NotImplemented
        factor = _validate.per_item("the factor of a term", c, least=0.0)
        return Zero() if not isinstance(factor, Tensor) and factor == 0 else Scaled(factor, self)

    __rmul__ = __mul__

    def __add__(self, other: Term) -> Term:
        """Give ``f + g``; see `genprior.terms.Sum` for its prox."""
        from genprior.terms.sums import total  # noqa: PLC0415  # a sum is a term itself

        if not isinstance(other, Term):
            return NotImplemented
        return total(self, other)

    def __radd__(self, other: int) -> Term:
        """Give f for ``0 + f``, with which ``sum([f, g, h])`` begins."""
        if not isinstance(other, Real) or other != 0:
            return NotImplemented
        return self

    def _members(self) -> Iterator[tuple[str, Any]]:
        """The attributes, those in tuples one by one."""
        for name, value in vars(self).items():
            if isinstance(value, tuple):
                yield from ((f"{name}[{k}]", part) for k, part in enumerate(value))
            else:
                yield name, value

    def _batch_sizes(self) -> Iterator[tuple[str, int | None]]:
        for name, value in self._members():
            if isinstance(value, Term):
                yield name, value.batch
            elif isinstance(value, Tensor) and self.is_per_item(name, value):
                yield name, value.shape[0]


def indicator(feasible: Tensor, x: Tensor) -> Tensor:
    """0 where feasible, else infinite, in the dtype of x."""
    return torch.zeros_like(feasible, dtype=x.dtype).masked_fill_(~feasible, math.inf)


@dataclass(frozen=True)
class Zero(Term):
    """No term: ``f(x) = 0``, ``prox(v) = v``."""

    separable = True

    def __call__(self, x: Tensor) -> Tensor:
        """0 for each item."""
        return x.new_zeros(x.shape[0])

    def prox(self, v: Tensor, t: PerItem) -> Tensor:
        """Give ``v`` itself."""
        step_per_entry(t, v)
        return v

    def subgradient(self, x: Tensor) -> Tensor:
        """0."""
        return torch.zeros_like(x)

    def as_quadratic(self) -> tuple[PerItem, PerItem]:
        """``0/2 |x - 0|^2``."""
        return 0.0, 0.0

    def __mul__(self, c: PerItem) -> Term:
        """Stay zero."""
        scaled = super().__mul__(c)
        return self if isinstance(scaled, Scaled) else scaled

    __rmul__ = __mul__


class Wrapped(Term):
    """A term made of another one, with the same domain up to a shift: says of itself what that one says."""

    term: Term

    @property
    def separable(self) -> bool:
        """As the term."""
        return self.term.separable

    @property
    def is_indicator(self) -> bool:
        """As the term."""
        return self.term.is_indicator

    @property
    def constraint(self) -> Term | None:
        """The term's constraint, wrapped alike."""
        part = self.term.constraint
        return None if part is None else self._rewrapped(part)

    @property
    def finite(self) -> Term:
        """The finite part of the term, wrapped alike."""
        part = self.term.finite
        return part if isinstance(part, Zero) else self._rewrapped(part)

    @property
    def tolerance(self) -> float:
        """As the term."""
        return self.term.tolerance

    def _rewrapped(self, part: Term) -> Term:
        """``part`` in place of the term."""
        return replaced(self, lambda name, value: part if name == "term" else value)


@dataclass(frozen=True, eq=False, repr=False)
class Scaled(Wrapped):
    """``c f(x)`` with ``c >= 0``, a number or one per item: ``prox_{t (c f)} = prox_{(t c) f}``.

    A factor leaves a constraint as it is, and must be positive there. Factors of factors are multiplied out.
    """

    factor: PerItem
    term: Term

    def __post_init__(self) -> None:
        limits = {"least": 0.0} if self.term.constraint is None else {"above": 0.0}
        keep(self, "factor", _validate.per_item("the factor of a term", self.factor, **limits))
        _ = self.batch  # refuses parts made for different numbers of items
        if isinstance(self.term, Scaled):
            product = _validate.per_item("the product of factors", self.factor * self.term.factor, least=0.0)
            object.__setattr__(self, "factor", product)
            object.__setattr__(self, "term", self.term.term)

    def __call__(self, x: Tensor) -> Tensor:
        """``c f(x)``, and 0 where ``c = 0``."""
        value, factor = self.term(x), one_per_item("the factor of a term", self.factor, x)
        if self.is_indicator:
            return value
        return torch.where((factor == 0) & torch.isinf(value), torch.zeros_like(value), factor * value)

    def prox(self, v: Tensor, t: PerItem) -> Tensor:
        """``prox_{(t c) f}(v)``."""
        return self.term.prox(v, t if self.is_indicator else times(self.factor, t))

    def subgradient(self, x: Tensor) -> Tensor:
        """``c`` times a subgradient of f."""
        return spread(one_per_item("the factor of a term", self.factor, x), x) * self.term.subgradient(x)

    def violation(self, x: Tensor) -> Tensor:
        """As the term."""
        return self.term.violation(x)

    def feasible(self, x: Tensor, rounding_scale: PerItem = 0.0) -> Tensor:
        """As the term."""
        return self.term.feasible(x, rounding_scale)

    def start_score(self, x: Tensor) -> Tensor:
        """``c`` times that of the term; of a constraint that of the term."""
        score = self.term.start_score(x)
        return score if self.is_indicator else one_per_item("the factor of a term", self.factor, x) * score

    def as_quadratic(self) -> tuple[PerItem, PerItem] | None:
        """Multiply the curvature of the term, if it is a quadratic."""
        inner = self.term.as_quadratic()
        return None if inner is None else (self.factor * inner[0], inner[1])

    def __repr__(self) -> str:
        return f"{describe(self.factor)} * {self.term!r}"


@dataclass(frozen=True, eq=False, repr=False)
class Around(Wrapped):
    """``f(x - y)``: ``prox_{t f(. - y)}(v) = y + prox_{t f}(v - y)``. Made by ``term.around(y)``."""

    term: Term
    centre: PerItem
    shared: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.centre, int | float):
            object.__setattr__(self, "centre", _validate.number("y of around(y)", self.centre))
            return
        _validate.tensor("y of around(y)", self.centre)
        object.__setattr__(self, "centre", self.centre.detach().clone())  # the caller may change theirs
        if not self.shared and self.centre.ndim < 2:
            raise ValueError(
                f"y of around(y) has shape {tuple(self.centre.shape)}, expected (B, *shape), one centre per item: "
                f"use around(y[None]) for a single item, around(y, shared=True) for one centre common to all"
            )
        _ = self.batch  # refuses parts made for different numbers of items

    def is_per_item(self, name: str, value: Tensor) -> bool:
        """Whether the centre was given per item."""
        return not self.shared

    def __call__(self, x: Tensor) -> Tensor:
        """``f(x - y)``."""
        if self.term.constraint is None:
            return self.term(x - self.centred(x))
        domain = indicator(self.feasible(x), x)
        return domain if self.is_indicator else domain + self.term.finite(x - self.centred(x))

    def prox(self, v: Tensor, t: PerItem) -> Tensor:
        """``y + prox_{t f}(v - y)``."""
        y = self.centred(v)
        return y + self.term.prox(v - y, t)

    def subgradient(self, x: Tensor) -> Tensor:
        """Subgradient of f at ``x - y``."""
        return self.term.subgradient(x - self.centred(x))

    def violation(self, x: Tensor) -> Tensor:
        """Distance of ``x - y`` to the domain of f."""
        return self.term.violation(x - self.centred(x))

    def feasible(self, x: Tensor, rounding_scale: PerItem = 0.0) -> Tensor:
        """Whether ``x - y``, which is rounded at the size of x and y, lies in the domain of f."""
        y = self.centred(x)
        size = y.abs() if isinstance(y, Tensor) else abs(y)
        return self.term.feasible(x - y, x.abs() + size + rounding_scale)

    def start_score(self, x: Tensor) -> Tensor:
        """That of f at ``x - y``."""
        return self.term.start_score(x - self.centred(x))

    def as_quadratic(self) -> tuple[PerItem, PerItem] | None:
        """Shift the centre of the term, if it is a quadratic."""
        inner = self.term.as_quadratic()
        if inner is None:
            return None
        shared_tensor = self.shared and isinstance(self.centre, Tensor)
        return inner[0], inner[1] + (self.centre[None] if shared_tensor else self.centre)  # type: ignore[index]

    def check(self, name: str, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """Check also that the centre has the shape of the signal."""
        super().check(name, shape, device, dtype)
        if isinstance(self.centre, Tensor):
            self._check_shape(f"{name}: y of around(y)", self.centre, shape)

    def _check_shape(self, name: str, y: Tensor, shape: tuple[int, ...]) -> None:
        if self.shared and tuple(y.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(y.shape)}, expected {shape}: leave shared out for one per item")
        if not self.shared:
            _validate.batch(name, y, shape, "was y made for another generator or image size?")

    def centred(self, x: Tensor) -> PerItem:
        """Centre that broadcasts against ``x``, in its dtype."""
        y = self.centre
        if not isinstance(y, Tensor):
            return y
        if y.shape != (x.shape[1:] if self.shared else x.shape):
            self._check_shape("y of around(y)", y, tuple(x.shape[1:]))
            raise ValueError(
                f"y of around(y) has {y.shape[0]} items, but the batch has {x.shape[0]}: "
                f"select the items with term.rows(index), or use around(y, shared=True)"
            )
        return y.to(x)

    def __repr__(self) -> str:
        inner = f"({self.term!r})" if isinstance(self.term, Scaled) else repr(self.term)
        return f"{inner}.around({describe(self.centre)}{', shared=True' if self.shared else ''})"
