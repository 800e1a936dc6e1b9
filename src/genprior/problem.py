"""The problem: minimise L(w) + R(w) + H(z) subject to w = G(z), for a batch of independent items."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from genprior import _batch, _random, _validate
from genprior._batch import PerItem
from genprior._blocks import Block
from genprior.generators import Generator, Joint, Passes
from genprior.generators.deviating import Deviating
from genprior.losses import LeastSquares, Loss, NoLoss, SquaredDistance
from genprior.operators import Identity, Mask, Operator
from genprior.terms import L1, Blocks, Sum, Term, Zero
from genprior.terms.base import Around, Wrapped
from genprior.terms.blocks import by_block

_FAR_OUT = 8.0
"""Distance from the range, in its widths, that noise does not explain."""


class Point(NamedTuple):
    """The values of the problem at a feasible point ``(G(z), z)``."""

    objective: Tensor
    """``F(G(z), z)`` per item, ``inf`` where R or H forbids the point."""
    score: Tensor
    """Iterates are ranked by it: the objective, or a finite exact penalty where R has a constraint."""
    residual: Tensor
    """The loss's residual, from which it computes its gradient."""
    loss: Tensor
    """``L(G(z))`` alone."""


class Problem:
    """``minimise L(w) + R(w) + H(z)  subject to  w = G(z)``.

    With a deviation: ``minimise L(w) + R(w) + H(z) + D(v)  subject to  w = G(z) + Psi v``. That is a problem of the same form:
    the latent is ``(z, v)``, the generator ``G(z) + Psi v``, the term on the latent ``H(z) + D(v)``; ``generator`` and
    ``on_latent`` then are these.

    Parameters
    ----------
    generator
        the :class:`genprior.Generator` G.
    loss
        the smooth part L; omitted: zero.
    on_signal
        the term R on the signal w; omitted: zero.
    on_latent
        the term H on the latent z; omitted: zero. Where the latent has several blocks (:class:`genprior.Joint`) also a
        dictionary of terms by block, ``{"theta": gp.Box(0, 1)}``, each in the units of the block.
    deviation
        the term D on the coefficients v of a deviation from the range of G, such as ``0.1 * gp.L1()``; omitted: no deviation.
        ``"auto"``: the l1 norm, with a weight that :func:`genprior.solve` chooses for each item by held-out measurements of a
        ``gp.LeastSquares`` loss.
    basis
        the operator Psi from coefficients to signals, such as ``gp.operators.DCT(G.signal_shape)``; omitted: the identity.
    feasibility
        where R is infinite outside of a set, a signal at most this far from it, relative to its own norm, counts as feasible.

    Shapes, devices and dtypes are checked here, once. ``batch`` is the number of items where the data fix it, else None.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> G = gp.Generator(torch.nn.Linear(3, 8), latent_shape=(3,), signal_shape=(8,))
    >>> gp.Problem(G, loss=gp.SquaredDistance(torch.zeros(2, 8)), on_latent=gp.Ball(2.0)).batch
    2
    """

    def __init__(
        self,
        generator: Generator,
        loss: Loss | None = None,
        on_signal: Term | None = None,
        on_latent: Term | Mapping[str, Term] | None = None,
        *,
        deviation: Term | Literal["auto"] | None = None,
        basis: Operator | None = None,
        feasibility: float = 1e-6,
    ) -> None:
        if loss is None and on_signal is None and on_latent is None and isinstance(generator, Generator):
            raise ValueError(
                "the problem has neither loss nor terms: give loss=gp.LeastSquares(A, y), loss=gp.SquaredDistance(y) or "
                "on_signal=gp.L1().around(y)"
            )
        self._weight: Tensor | None = None
        self.feasibility = _validate.number("feasibility", feasibility, least=0)
        self.generator = generator
        self.loss = NoLoss() if loss is None else loss
        self.on_signal = Zero() if on_signal is None else on_signal
        on_latent = Zero() if on_latent is None else on_latent
        self.on_latent = _of_blocks(generator, on_latent) if isinstance(on_latent, Mapping) else on_latent
        self._check_types()
        if generator.signal_blocks is not None:
            self.loss, self.on_signal = self._of_signal_blocks(generator.signal_blocks)
        self.loss = self.loss.bound(generator.signal_shape, generator.device, generator.dtype)
        self.loss.check(generator.signal_shape, generator.device, generator.dtype)
        self.on_signal.check("on_signal", generator.signal_shape, generator.device, generator.dtype)
        self.on_latent.check("on_latent", generator.latent_shape, generator.device, generator.dtype)
        self.loss.check_samples(self._samples)
        self._check_values("on_latent", self.on_latent, generator.latent_shape)
        self.chooses_weight = deviation == "auto"
        if self.chooses_weight and not isinstance(self.loss, LeastSquares):
            raise ValueError(
                f"deviation='auto' chooses the weight by held-out measurements of gp.LeastSquares(A, y), but the loss is "
                f"{type(self.loss).__name__}: give the weight, as in deviation=0.1 * gp.L1()"
            )
        if deviation is not None or basis is not None:
            self._deviate(generator, L1() if deviation == "auto" else deviation, basis)
        self.batch = self._common_batch()
        self._check_values("on_signal", self.on_signal, generator.signal_shape)
        _warn_out_of_range(generator.signal_range, self.loss, self.on_signal)

    def _deviate(self, within: Generator, term: Term | str | None, basis: Operator | None) -> None:
        """Put the deviation beside z in the latent."""
        if not isinstance(term, Term):
            given = "a basis without a deviation" if term is None else repr(term)
            raise TypeError(f"deviation must be a genprior Term such as 0.1 * gp.L1(), or 'auto', got {given}")
        if isinstance(term, Zero):
            raise ValueError(
                "deviation has the weight 0: the deviation alone would fit anything. Give a weight above 0"
            )
        if within.signal_blocks is not None:
            names = ", ".join(block.name for block in within.signal_blocks[1:])
            raise ValueError(
                f"deviation works only with a generator without parameters, got one with {names}: leave the deviation out, or "
                "find the parameters first and give them to the forward model"
            )
        generator = Deviating(within, basis)
        term.check("deviation", generator.coefficient_shape, generator.device, generator.dtype)
        self._check_values("deviation", term, generator.coefficient_shape)
        self.generator, self.on_latent = generator, Blocks((self.on_latent, term), generator.blocks)

    @property
    def in_range(self) -> Problem:
        """The problem without its deviation: ``minimise L(w) + R(w) + H(z)  subject to  w = G(z)``."""
        generator, term = self.generator, self.on_latent
        if not isinstance(generator, Deviating):
            return self
        assert isinstance(term, Blocks), "made so"
        part = copy.copy(self)
        part.generator, part.on_latent, part.chooses_weight = generator.within, term.parts[0], False
        return part

    def weighted(self, weight: Tensor) -> Problem:
        """The problem with this weight on the deviation, one per item, where it was to be chosen."""
        part, term = copy.copy(self), self.on_latent
        assert isinstance(term, Blocks), "made so"
        part.on_latent = replace(term, parts=(term.parts[0], weight * term.parts[1]))
        part.chooses_weight, part.batch = False, len(weight)
        return part

    def latents(self, z: Tensor, coefficients: Tensor | None = None) -> Tensor:
        """The problem's latents that stand for latents z of G: z itself, or with a deviation, by default zero, beside it."""
        return self.generator.lifted(z, coefficients) if isinstance(self.generator, Deviating) else z

    def _of_signal_blocks(self, blocks: tuple[Block, ...]) -> tuple[Loss, Term]:
        """Loss and R for flat signals that hold parameters, too: R is a term on the signal proper."""
        term, rest = self.on_signal, [Zero() for _ in blocks[1:]]
        return self.loss.of_blocks(blocks), term if isinstance(term, Zero) else Blocks((term, *rest), blocks)

    def counting(self, passes: Passes) -> Problem:
        """The same problem whose passes through G are counted and limited by ``passes``, those of a run."""
        other = copy.copy(self)
        other.generator = self.generator.counting(passes)
        return other

    def rows(self, index: Tensor) -> Problem:
        """The problem of the selected items, which may repeat."""
        part = Problem.__new__(Problem)
        part.generator = self.generator
        part.loss = self.loss.rows(index)
        part.on_signal = self.on_signal.rows(index)
        part.on_latent = self.on_latent.rows(index)
        part.batch = None if self.batch is None else len(index)
        per_item = self._weight is not None and self.batch is not None
        part.feasibility, part.chooses_weight = self.feasibility, self.chooses_weight
        part._weight = self._weight[index] if per_item and self._weight is not None else self._weight
        return part

    @property
    def needs_splitting(self) -> bool:
        """Whether R is neither zero nor quadratic: then only a splitting, ``w = G(z)``, uses its prox."""
        return self.on_signal.as_quadratic() is None

    @property
    def of_w(self) -> Problem:
        """What the split variable w takes over where ``w = G(z)`` is split: L and R; R alone where L is not convex.

        Such an L stays at G(z), because ``min_w L(w) + R(w) + rho/2 |w - x|^2`` would neither be smooth in x nor have one
        minimiser. Its gradient counts in the step in z, as it does where nothing is split.
        """
        if self.loss.convex:
            return self
        part = copy.copy(self)
        part.loss = NoLoss()
        return part

    @property
    def forbids_points(self) -> bool:
        """Whether R may be infinite, so that iterates are ranked by a score other than the objective."""
        return self.on_signal.constraint is not None

    def evaluate(self, x: Tensor, z: Tensor) -> Point:
        """Objective and score at the feasible point ``x = G(z)``."""
        loss, residual = self.loss.evaluate(x)
        smooth = loss if isinstance(self.on_latent, Zero) else loss + self.on_latent(z)
        if isinstance(self.on_signal, Zero):
            return Point(smooth, smooth, residual, loss)
        return self._signal_point(x, loss, residual, smooth)

    def _signal_point(self, x: Tensor, loss: Tensor, residual: Tensor, smooth: Tensor) -> Point:
        """With R, where that is not zero: its constraint is kept up to ``feasibility``, and penalised in the score."""
        term, constraint = self.on_signal, self.on_signal.constraint
        if constraint is None:
            value = smooth + term(x)
            return Point(value, value, residual, loss)
        violation = constraint.violation(x)
        forbidden = torch.where(violation <= self.feasibility * _batch.norm(x), 0.0, constraint(x))
        finite = smooth if term.is_indicator else smooth + term.finite(x)
        return Point(finite + forbidden, finite + self._penalty_weight() * violation, residual, loss)

    def signal_value(self, x: Tensor, loss: Tensor) -> Tensor:
        """``L + R`` at ``x``, where L is ``loss``; a constraint counts with the penalty that replaces it in the score."""
        finite, constraint = self.on_signal.finite, self.on_signal.constraint
        value = loss if isinstance(finite, Zero) else loss + finite(x)
        return value if constraint is None else value + self._penalty_weight() * constraint.violation(x)

    def start_scores(self, signals: Tensor, items: int) -> Tensor:
        """``(items, N)``: how little each of N signals fits each item, as the loss and R say; the term on z says nothing."""
        scores = self.loss.start_scores(signals, items)
        if not isinstance(self.on_signal, Zero):
            term = self.on_signal
            columns = [term.start_score(signal.expand(items, *signal.shape)) for signal in signals]
            scores = scores + torch.stack(columns, dim=1)
        return torch.where(scores.isfinite(), scores, torch.inf)

    def objective(self, z: Tensor) -> Tensor:
        """``L(G(z)) + R(G(z)) + H(z)`` per item (one forward pass)."""
        with torch.no_grad():
            return self.evaluate(self.generator(z), z).objective

    def signal_gradient(self, x: Tensor, residual: Tensor) -> Tensor:
        """One (sub)gradient of L + R at ``x``; a constraint counts with the penalty that replaces it in the score."""
        finite, constraint = self.on_signal.finite, self.on_signal.constraint
        gradient = self.loss.gradient(x, residual)
        gradient = gradient if isinstance(finite, Zero) else gradient + finite.subgradient(x)
        if constraint is None:
            return gradient
        outward = x - constraint.prox(x, 1.0)
        length = _batch.norm(outward)
        unit = outward / _batch.spread(torch.where(length > 0, length, torch.ones_like(length)), x)
        return gradient + _batch.spread(self._penalty_weight().expand(len(x)), x) * unit

    def _penalty_weight(self) -> Tensor:
        """Weight of the distance to the constraint's set in the score: twice ``|grad L|`` at the set's point nearest to 0.

        A penalty ``c dist(x)`` is exact when c exceeds the multiplier, a (sub)gradient of L and the finite part of R at w*.
        One number per item for the whole run, so that scores can be compared; 1 where both gradients are zero, or
        infinite. A norm is flat at its centre alone, so its subgradient is also taken at another point.
        """
        if self._weight is None:
            term, constraint = self.on_signal.finite, self.on_signal.constraint
            assert constraint is not None, "only a constraint is penalised"
            shape = (self.batch or 1, *self.generator.signal_shape)
            inside = constraint.prox(torch.zeros(shape, device=self.generator.device, dtype=self.generator.dtype), 1.0)
            places = (inside,) if self.loss.convex else (inside, inside + 1)  # magnitudes are flat at 0
            sizes = [_batch.norm(self.loss.gradient(x, self.loss.evaluate(x)[1])) for x in places]
            size = sizes[0] if len(sizes) == 1 else torch.stack(sizes).nan_to_num(posinf=0.0).amax(dim=0)
            if not isinstance(term, Zero):
                beside = inside if term.as_quadratic() is not None else inside + 1
                size = size + torch.maximum(*(_batch.norm(term.subgradient(x)) for x in (inside, beside)))
            self._weight = torch.where((size > 0) & size.isfinite(), 2 * size, torch.ones_like(size))
        return self._weight

    def lagrangian(self, w: Tensor, x: Tensor, lam: Tensor, rho: PerItem) -> Tensor:
        """``L(w) + <w - x, lam> + rho/2 |w - x|^2`` per item, with ``x = G(z)``."""
        r = w - x
        return self.loss(w) + _batch.dot(r, lam) + 0.5 * rho * _batch.square(r)

    def _check_types(self) -> None:
        expected: tuple[tuple[str, object, type], ...] = (
            ("generator", self.generator, Generator),
            ("loss", self.loss, Loss),
            ("on_signal", self.on_signal, Term),
            ("on_latent", self.on_latent, Term),
        )
        for name, value, base in expected:
            if not isinstance(value, base):
                given = value.__name__ if isinstance(value, type) else type(value).__name__
                raise TypeError(f"{name} must be a genprior {base.__name__}, got {given}{_hint(name, value)}")
        if self.generator.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"the generator works in {self.generator.dtype}, expected float32 or float64: use module.float()"
            )

    def _check_values(self, name: str, term: Term, shape: tuple[int, ...]) -> None:
        """A user-defined term must give one value per item."""
        count = term.batch or 2
        values = term(torch.zeros(count, *shape, device=self.generator.device, dtype=self.generator.dtype))
        if values.shape != (count,):
            raise ValueError(
                f"{name} gives a value of shape {tuple(values.shape)} for {count} items, expected ({count},): "
                "reduce over all axes but the first"
            )
        if values.dtype != self.generator.dtype:
            raise TypeError(
                f"{name} gives {values.dtype} for signals in {self.generator.dtype}, the generator's dtype: does it hold a "
                "tensor of another dtype?"
            )

    def _samples(self, count: int) -> Tensor:
        """Signals of the generator, for checks: one forward pass, which is not counted."""
        generator = self.generator.counting(Passes())
        with torch.no_grad():
            return generator(generator.draw(count, _random.stream("check", 0)))

    def _common_batch(self) -> int | None:
        parts = {"loss": self.loss.batch, "on_signal": self.on_signal.batch, "on_latent": self.on_latent.batch}
        sizes = {name: size for name, size in parts.items() if size is not None}
        if len(set(sizes.values())) > 1:
            raise ValueError(
                f"the parts of the problem have different numbers of items: {sizes}: give one of each per item"
            )
        return next(iter(sizes.values()), None)

    def __repr__(self) -> str:
        return (
            f"Problem({self.generator!r}, loss={self.loss!r}, on_signal={self.on_signal!r}, "
            f"on_latent={self.on_latent!r}, batch={self.batch})"
        )


def _of_blocks(generator: Generator, terms: Mapping[str, Term]) -> Term:
    """A term for each block of a joint latent."""
    latent = generator.latent
    if not isinstance(latent, Joint):
        raise TypeError(
            f"on_latent is a dictionary, but the latent has no blocks: its distribution is {latent!r}. Give one term"
        )
    return by_block(terms, latent.blocks(generator.latent_shape[0]))


def _hint(name: str, value: object) -> str:
    """The likely fix for a part of the wrong type."""
    if isinstance(value, type):
        return f", the class itself: write gp.{value.__name__}(...), with brackets"
    if name == "generator":
        wrap = "wrap it: gp.Generator(module, latent_shape=..., signal_shape=...)"
        return f": {wrap}" if isinstance(value, nn.Module) else ": the generator comes first, gp.Problem(G, loss=...)"
    if name == "loss":
        return ": give it as on_signal=" if isinstance(value, Term) else ": for data y use gp.LeastSquares(A, y)"
    if isinstance(value, Loss):
        return ": give it as loss="
    return ": for a distance to y use gp.L1().around(y)" if isinstance(value, Tensor) else ""


def _warn_out_of_range(signal_range: tuple[float, float] | None, loss: Loss, on_signal: Term) -> None:
    """Warn where y stands for a signal but lies far outside of the range that the generator declares."""
    if signal_range is None:
        return
    low, high = signal_range
    far = _FAR_OUT * (high - low)
    for y, scale in _signals(loss, on_signal):
        smallest, largest = float(y.min()), float(y.max())
        if largest > scale * (high + far) or smallest < scale * (low - far):
            hint = ": divide by 255?" if largest > 64 * high else ""
            warnings.warn(
                f"y has values from {smallest:.3g} to {largest:.3g}, but the generator makes [{low:g}, {high:g}]{hint}",
                stacklevel=3,
            )


def _signals(loss: Loss, on_signal: Term) -> Iterator[tuple[Tensor, float]]:
    """What is compared with signals value by value, and how much larger than signals it may be."""
    if isinstance(loss, SquaredDistance):
        yield loss.y, 1.0
    elif isinstance(loss, LeastSquares) and isinstance(loss.operator, Identity | Mask):
        yield loss.y, max(1.0, float(loss.operator.norm().max()))
    yield from ((centre, 1.0) for centre in _centres(on_signal))


def _centres(term: Term) -> Iterator[Tensor]:
    """The signals around which a term, or a part of a sum, is centred."""
    if isinstance(term, Around) and isinstance(term.centre, Tensor):
        yield term.centre
    for part in (term.term,) if isinstance(term, Wrapped) else term.parts if isinstance(term, Sum) else ():
        yield from _centres(part)
