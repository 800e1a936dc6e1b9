"""Sums of terms, ``f + g + ...``, and their prox."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from genprior import _validate
from genprior._batch import PerItem, norm, ratio, spread
from genprior.terms import dual
from genprior.terms.base import Around, Quadratic, Scaled, Term, Zero
from genprior.terms.norms import L1, L2, LInf
from genprior.terms.parameters import step_per_entry, step_per_item, times
from genprior.terms.sets import Ball, Box
from genprior.terms.through import Through
from genprior.terms.total_variation import TotalVariation

APART = 1e-2
"""Sets whose nearest points are so far from each other, relative to them, have no point in common."""


@dataclass(frozen=True, eq=False, repr=False)
class Sum(Term):
    """``f_1(x) + f_2(x) + ...``. Made by ``f + g`` or ``sum([f, g, ...])``.

    The prox has a closed form in these cases, which combine:

    - **Quadratic parts**, together ``c/2 |x - r|^2`` up to a constant:
      ``prox_{t (f + c/2 |. - r|^2)}(v) = prox_{t/(1 + t c) f}((v + t c r) / (1 + t c))``, by completing the square.
    - **Separable parts.** The problem falls into one for each entry, in one variable. There, constraints are intervals, and
      a convex function falls towards its minimiser p and rises beyond it. So its least value on an interval is at the point
      of the interval nearest to p: **the prox of the others, projected onto each interval in turn**, is the answer. (If the
      others are infinite somewhere, the set where they are finite is an interval that contains p and meets the given one,
      hence it contains the point named.) Several separable parts that are no constraints: the minimiser of a sum of convex
      functions of one variable lies between the least and the largest of their own minimisers; bisection with their
      subgradients finds it to the last digit.
    - **Norms with balls around zero.** Let f be positively homogeneous (a multiple of ``L1``, ``L2``, ``LInf`` or
      ``TotalVariation``, or the indicator of nonnegative signals), g a function of ``|x|`` that grows (``Ball``, ``L2``):
      ``prox_{t(f + g)} = prox_{tg} prox_{tf}``. For ``p = prox_{tf}(v)`` has ``v - p`` in ``t df(p)``, ``q = prox_{tg}(p)`` is
      p times a number in [0, 1] and has ``p - q`` in ``t dg(q)``, and ``df(p)`` lies in ``df(q)``, as f is homogeneous: so
      ``v - q`` lies in ``t df(q) + t dg(q)`` (Yu, On decomposing the proximal map, NeurIPS 2013).

    - **A ball around zero with anything**: by Lagrange's condition the answer is ``prox_{s t f}(s v)`` for the largest s in
      (0, 1] at which that lies in the ball. Its length grows with s; bisection.

    All other sums, such as ``TotalVariation() + Box(0, 1)``, are solved by accelerated projected gradient on the dual, item
    by item, with a duality gap that bounds the error: ``|x - x*| <= sqrt(inner_tolerance) |x - v|`` (`genprior.terms.dual`).
    The answer lies in a box exactly; in one of several other sets up to rounding once the iteration has ended by itself.

    Parameters
    ----------
    parts
        the terms.
    inner_tolerance
        relative duality gap at which an item is finished, where the prox is iterative.
    max_iterations
        bound on the work for one such prox.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> (gp.Box(0, 1) + 0.5 * gp.L1()).prox(torch.tensor([[-1.0, 0.7, 3.0]]), 1.0)
    tensor([[0.0000, 0.2000, 1.0000]])
    """

    parts: tuple[Term, ...]
    inner_tolerance: float = 1e-8
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        for part in self.parts:
            if not isinstance(part, Term):
                raise TypeError(f"parts must be terms, got {part!r} ({type(part).__name__}): see gp.Term")
        _validate.number("inner_tolerance", self.inner_tolerance, above=0.0)
        _validate.whole("max_iterations", self.max_iterations)
        _ = self.batch  # refuses parts made for different numbers of items

    @property
    def separable(self) -> bool:
        """Whether all parts are."""
        return all(part.separable for part in self.parts)

    @property
    def is_indicator(self) -> bool:
        """Whether all parts are."""
        return all(part.is_indicator for part in self.parts)

    @property
    def constraint(self) -> Term | None:
        """The sum of the parts' constraints: the indicator of the intersection."""
        found = [part.constraint for part in self.parts]
        sets = [part for part in found if part is not None]
        return self._of(sets) if sets else None

    @property
    def finite(self) -> Term:
        """The sum of the parts' finite parts."""
        if self.constraint is None:
            return self
        return self._of([part.finite for part in self.parts])

    @property
    def tolerance(self) -> float:
        """The relative gap, or that of a part, where the prox is iterative; 0: exact."""
        quick, (ball, rest) = self._quick(), self._ball()
        if quick is not None:
            return max((block.tolerance for block in quick), default=0.0)
        if ball is not None:
            return rest.tolerance
        # That of a term of differences or measurements does not count: the gap is about its dual variable too.
        return max(self.inner_tolerance, *(block.tolerance for block in self._blocks() if not _is_mapped(block)), 0.0)

    def __call__(self, x: Tensor) -> Tensor:
        """``f_1(x) + f_2(x) + ...``."""
        return torch.stack([part(x) for part in self.parts]).sum(dim=0)

    def subgradient(self, x: Tensor) -> Tensor:
        """The sum of theirs."""
        return torch.stack([part.subgradient(x) for part in self.parts]).sum(dim=0)

    def violation(self, x: Tensor) -> Tensor:
        """Distance to the intersection of the domains."""
        domains = [part for part in self.parts if part.constraint is not None]
        if len(domains) == 1:
            return domains[0].violation(x)
        constraint = self.constraint
        return x.new_zeros(x.shape[0]) if constraint is None else norm(x - constraint.prox(x, 1.0))

    def feasible(self, x: Tensor, rounding_scale: PerItem = 0.0) -> Tensor:
        """Whether each item lies in all domains."""
        return torch.stack([part.feasible(x, rounding_scale) for part in self.parts]).all(dim=0)

    def start_score(self, x: Tensor) -> Tensor:
        """The sum of theirs."""
        return torch.stack([part.start_score(x) for part in self.parts]).sum(dim=0)

    def as_quadratic(self) -> tuple[PerItem, PerItem] | None:
        """The sum of the weights and the weighted mean of the centres, where all parts are quadratic."""
        if any(part.as_quadratic() is None for part in self.parts):
            return None
        return _combined([Quadratic.of(part) for part in self.parts])

    def prox(self, v: Tensor, t: PerItem) -> Tensor:
        """``argmin_x t (f_1(x) + f_2(x) + ...) + 1/2 |x - v|^2``."""
        (step_per_entry if self.separable else step_per_item)(t, v)
        weight, centre = _combined([Quadratic.of(part) for part in self.parts if part.as_quadratic() is not None])
        if isinstance(weight, Tensor) or weight != 0:
            weight, centre, t = (x.to(v) if isinstance(x, Tensor) else x for x in (weight, centre, t))
            added = times(weight, t)
            v = v + spread(added / (1 + added), v) * (spread(centre, v) - v)
            t = t / (1 + (spread(added, t) if isinstance(t, Tensor) else added))
        blocks, (ball, rest) = self._quick(), self._ball()
        if blocks is not None:
            return reduce(lambda point, part: part.prox(point, t), blocks, v)
        return self._iterated(v, t) if ball is None else _within(ball, rest, v, step_per_item(t, v))

    def check(self, name: str, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> None:
        """Check also that constraints have a point in common."""
        super().check(name, shape, device, dtype)
        constraint = self.constraint
        if isinstance(constraint, Sum):
            zero = torch.zeros(self.batch or 1, *shape, device=device, dtype=dtype)
            near = constraint.prox(zero, 1.0)
            far = torch.stack([part.violation(near) for part in constraint.parts]).amax(dim=0)
            if bool((far > APART * norm(near)).any()):
                raise ValueError(
                    f"the constraints in {name} have no point in common, got {self!r}: "
                    f"expected sets that overlap, is a bound or a radius too small?"
                )

    def __mul__(self, c: PerItem) -> Term:
        """Give ``c f_1 + c f_2 + ...``."""
        scaled = super().__mul__(c)
        return self._of([part * c for part in self.parts]) if isinstance(scaled, Scaled) else scaled

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return " + ".join(repr(part) for part in self.parts)

    def _of(self, parts: list[Term]) -> Term:
        """The sum of other parts, with the same options."""
        made = total(*parts)
        if not isinstance(made, Sum):
            return made
        return replace(made, inner_tolerance=self.inner_tolerance, max_iterations=self.max_iterations)

    def _blocks(self) -> list[Term]:
        """What is left without the quadratics; separable parts count as one."""
        rest = [part for part in self.parts if part.as_quadratic() is None]
        alone = [part for part in rest if part.separable]
        together = [_Separable(tuple(alone))] if len(alone) > 1 else alone
        return [*together, *(part for part in rest if not part.separable)]

    def _quick(self) -> list[Term] | None:
        """Terms whose proxes, one after the other, are the prox of all blocks; None: there are none."""
        blocks = self._blocks()
        if len(blocks) <= 1:
            return blocks
        first = [block for block in blocks if not _is_radial(block)]
        if len(first) > 1 or not all(_is_homogeneous(block) for block in first):
            return None
        return first + sorted((block for block in blocks if _is_radial(block)), key=lambda block: block.is_indicator)

    def _ball(self) -> tuple[Ball | None, Term]:
        """A ball around zero among the blocks, and the others."""
        blocks = self._blocks()
        ball = next((inner for block in blocks if isinstance(inner := _unscaled(block), Ball)), None)
        return ball, self._of([block for block in blocks if _unscaled(block) is not ball])

    def _iterated(self, v: Tensor, t: PerItem) -> Tensor:
        """By the dual: one block by its own prox, the others each with a variable."""
        step, blocks = step_per_item(t, v), self._blocks()
        kept = max(blocks, key=_preference)
        main = Zero() if _is_mapped(kept) else kept
        parts = [
            _variation(block, v, step) or _mapped(block, v, step) or dual.Plain(block, step)
            for block in blocks
            if block is not kept or main is not kept
        ]
        return dual.solve(main, step, parts, v, self.tolerance, self.max_iterations)


@dataclass(frozen=True, eq=False, repr=False)
class _Separable(Sum):
    """Separable parts, none of them quadratic: a problem in one variable for each entry."""

    @property
    def tolerance(self) -> float:
        """The largest of theirs."""
        return max(part.tolerance for part in self.parts)

    def prox(self, v: Tensor, t: PerItem) -> Tensor:
        """The prox of the finite parts, projected onto each interval in turn."""
        finite = [part for part in self.parts if not part.is_indicator]
        point = finite[0].prox(v, t) if len(finite) == 1 else _bisected(finite, v, t) if finite else v
        return reduce(lambda point, part: part.prox(point, t), (p for p in self.parts if p.is_indicator), point)


def total(*terms: Term) -> Term:
    """The sum of terms, without zeros and with boxes intersected; one term alone is itself."""
    parts: list[Term] = []
    tolerances, limits = [], []
    for term in terms:
        parts += _flattened(term)
        if isinstance(term, Sum):
            tolerances.append(term.inner_tolerance)
            limits.append(term.max_iterations)
    boxes = [part for part in parts if type(part) is Box]
    parts = [part for part in parts if not isinstance(part, Zero) and part not in boxes[1:]]
    if len(boxes) > 1:
        parts[parts.index(boxes[0])] = reduce(_intersection, boxes)
    if len(parts) <= 1:
        return parts[0] if parts else Zero()
    return Sum(tuple(parts), min(tolerances, default=Sum.inner_tolerance), max(limits, default=Sum.max_iterations))


def _flattened(term: Term) -> list[Term]:
    """The parts of a sum, also of a scaled or shifted one."""
    if isinstance(term, Sum):
        return list(term.parts)
    if isinstance(term, Scaled) and isinstance(term.term, Sum):
        return [term.factor * part for part in term.term.parts]
    if isinstance(term, Around) and isinstance(term.term, Sum):
        return [part.around(term.centre, shared=term.shared) for part in term.term.parts]
    return [term]


def _intersection(a: Box, b: Box) -> Box:
    """The box of what lies in both."""
    try:
        return Box(_larger(a.low, b.low), -_larger(-a.high, -b.high))
    except ValueError as error:
        raise ValueError(f"{a!r} and {b!r} have no point in common: a sum of boxes is their intersection") from error


def _larger(a: PerItem, b: PerItem) -> PerItem:
    tensor = a if isinstance(a, Tensor) else b
    if not isinstance(tensor, Tensor):
        return max(float(a), float(b))
    return torch.maximum(*(torch.as_tensor(x, dtype=tensor.dtype, device=tensor.device) for x in (a, b)))


def _combined(quadratics: list[Quadratic]) -> Quadratic:
    """``sum_i c_i/2 |x - r_i|^2 = c/2 |x - r|^2 + constant``: ``c = sum_i c_i`` and ``r = sum_i c_i r_i / c``."""
    used = [q for q in quadratics if isinstance(q.weight, Tensor) or q.weight != 0]
    if len(used) <= 1:
        return used[0] if used else Quadratic(0.0, 0.0)
    weight = reduce(lambda a, b: a + b, (q.weight for q in used))
    shape = max((q.centre for q in used if isinstance(q.centre, Tensor)), key=lambda c: c.ndim, default=None)
    centre: PerItem = 0.0
    for q in used:
        share = ratio(torch.as_tensor(q.weight), weight) if isinstance(weight, Tensor) else q.weight / weight
        centre = centre + (share if shape is None else spread(share, shape)) * q.centre
    return Quadratic(weight, centre)


def _bisected(parts: list[Term], v: Tensor, t: PerItem) -> Tensor:
    """The prox of separable parts entry by entry: the zero of ``x - v + t sum_i df_i(x)``, which grows with x."""
    far = len(parts) * t
    ends = torch.stack([part.prox(v, far) for part in parts])
    low, high = ends.amin(dim=0), ends.amax(dim=0)
    step = step_per_entry(t, v)
    for _ in range(torch.finfo(v.dtype).bits):
        middle = torch.lerp(low, high, 0.5)
        slope = middle - v + step * reduce(torch.add, (part.subgradient(middle) for part in parts))
        low, high = torch.where(slope <= 0, middle, low), torch.where(slope >= 0, middle, high)
    return torch.lerp(low, high, 0.5)


def _within(ball: Ball, rest: Term, v: Tensor, t: Tensor) -> Tensor:
    """The prox of ``rest`` within a ball: ``x(s) = prox_{s t rest}(s v)`` for the largest s in (0, 1] with ``|x(s)| <= r``."""
    radius, low, high = ball.magnitude(v), torch.zeros_like(t), torch.ones_like(t)
    middle = high
    for _ in range(torch.finfo(v.dtype).bits):
        inside = norm(rest.prox(spread(middle, v) * v, middle * t)) <= radius
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
        middle = torch.lerp(low, high, 0.5)
    return rest.prox(spread(low, v) * v, low * t)


def _unscaled(term: Term) -> Term:
    return term.term if isinstance(term, Scaled) else term


def _is_radial(term: Term) -> bool:
    """A function of ``|x|`` that grows."""
    return type(_unscaled(term)) in {Ball, L2}


def _is_homogeneous(term: Term) -> bool:
    """``f(c x) = c f(x)`` for ``c > 0``, for certain."""
    if isinstance(term, _Separable):
        return all(_is_homogeneous(part) for part in term.parts)
    inner = _unscaled(term)
    if type(inner) is Box:
        bounds = (inner.low, inner.high)
        return not any(isinstance(bound, Tensor) or bound not in (0, float("inf"), -float("inf")) for bound in bounds)
    return type(inner) in {L1, LInf, TotalVariation}


def _preference(term: Term) -> tuple[bool, bool, bool]:
    """Which block is best kept whole in the dual method: a constraint, for the answer lies in it exactly; no ``f(K x)``."""
    return not _is_mapped(term), term.constraint is not None, term.separable


def _is_mapped(term: Term) -> bool:
    """Whether the term is a function of differences or measurements, with a dual variable of its own shape."""
    if isinstance(_unscaled(term), Through):
        return True
    while isinstance(term, Scaled | Around):
        term = term.term
    return type(term) is TotalVariation


def _mapped(term: Term, v: Tensor, t: Tensor) -> dual.Mapped | None:
    """A term of measurements, scaled, as a part of the dual problem; other terms: None."""
    inner = _unscaled(term)
    if not isinstance(inner, Through):
        return None
    return dual.Mapped(inner.term, t * step_per_item(term.factor, v) if isinstance(term, Scaled) else t, inner.operator)


def _variation(term: Term, v: Tensor, t: Tensor) -> dual.Variation | None:
    """Total variation, scaled and shifted, as a part of the dual problem; other terms: None."""
    centre: PerItem = 0.0
    while isinstance(term, Scaled | Around):
        if isinstance(term, Around):
            centre = centre + term.centred(v)
        else:
            t = t * step_per_item(term.factor, v)
        term = term.term
    return dual.Variation(term.axes(v), t, centre) if type(term) is TotalVariation else None
