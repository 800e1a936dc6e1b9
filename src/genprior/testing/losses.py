"""Laws of a smooth loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from genprior import _batch
from genprior.losses import Loss
from genprior.terms import L1, SquaredL2, Term, Zero
from genprior.testing.laws import F64, Laws, random, require, require_close, require_same_bits
from genprior.testing.search import minimised

Make = Callable[[], Loss]
ITEMS = 3


_TERMS: dict[str, Term] = {"R = 0": Zero(), "R quadratic": 0.7 * SquaredL2(), "R = l1": 0.3 * L1()}
ExactStep = Callable[[Tensor, Tensor, Tensor], Tensor]


def _step(loss: Loss, term: Term) -> ExactStep | None:
    """The loss's own exact w step with this R, if it has one that is a function of (v, rho, start)."""
    own = getattr(loss, "exact_step", None)
    step = None if own is None else own(term)
    return step if callable(step) else None


def _sum(loss: Loss, term: Term, u: Tensor) -> Tensor:
    return loss(u) + term(u)


class LossLaws(Laws[Loss]):
    """Gradient against differences, convexity, curvature, its own exact step, selection, purity. Made in float64.

    Of a loss that says that it is not convex (``convex = False``) neither convexity nor bounds of the second derivative are
    asked for; of one that says that it is a sum of squares, its residual and the derivative of that.
    """

    shape: tuple[int, ...] = (6,)
    """Of one signal."""
    scale: float = 1.0
    """Typical size of a coordinate."""
    global_curvature: bool = True
    """Whether ``curvature(w)`` bounds the second derivative everywhere; False: only near w."""

    def test_gradient_equals_differences(self, make: Make) -> None:
        """Central differences of the value, coordinate by coordinate."""
        loss = make()
        w, h = self._points(loss, 1), 1e-5 * self.scale
        flat = _batch.flat(w)
        columns = []
        for j in range(flat.shape[1]):
            step = torch.zeros_like(flat)
            step[:, j] = h
            ends = loss((flat + step).reshape(w.shape)), loss((flat - step).reshape(w.shape))
            columns.append((ends[0] - ends[1]) / (2 * h))
        expected = torch.stack(columns, dim=1).reshape(w.shape)
        require_close("gradient(w) equals differences of the value", self._gradient(loss, w), expected, 1e-6, 1e-7)

    def test_value_has_one_number_per_item(self, make: Make) -> None:
        """``evaluate(w)[0]`` and ``loss(w)`` are the same numbers, one per item, in the dtype of w."""
        loss = make()
        w = self._points(loss, 1)
        value = loss(w)
        require(value.shape == (len(w),), "one value per item", f"shape {tuple(value.shape)} for {len(w)} signals")
        require(value.dtype == w.dtype, "values have the dtype of the signals", f"{value.dtype} for {w.dtype}")
        require_close("loss(w) is evaluate(w)[0]", value, loss.evaluate(w)[0], 0.0, 0.0)

    def test_convex(self, make: Make) -> None:
        """``f(b) >= f(a) + <grad f(a), b - a> + mu/2 |b - a|^2``."""
        loss = make()
        if not loss.convex:
            return
        for seed in range(6):
            a = self._points(loss, seed)
            mu = loss.curvature(a)[0] if self.global_curvature else torch.zeros(len(a), dtype=F64)
            for size in (1.0, 0.03):
                b = a + size * self._points(loss, 100 + seed)
                bound = loss(a) + _batch.dot(self._gradient(loss, a), b - a) + 0.5 * mu * _batch.square(b - a)
                slack = 1e-10 * (loss(a).abs() + loss(b).abs()) + 1e-14
                numbers = f"{loss(b).tolist()} at b, {bound.tolist()} promised from a"
                require(bool((loss(b) >= bound - slack).all()), "convex, strongly where mu > 0", numbers)

    def test_curvature_bounds_the_gradient(self, make: Make) -> None:
        """``mu |a - b|^2 <= <grad(a) - grad(b), a - b>`` and ``|grad(a) - grad(b)| <= nu |a - b|``."""
        loss = make()
        b = self._points(loss, 1)
        mu, nu = loss.curvature(b)
        shapes = f"{tuple(mu.shape)}, {tuple(nu.shape)} for {len(b)} signals"
        require(mu.shape == nu.shape == (len(b),), "curvature(w) gives one mu and one nu per item", shapes)
        if not loss.convex:
            return
        for seed in range(2, 8):
            move = (1.0 if self.global_curvature else 1e-3) * self._points(loss, seed)
            change, length = self._gradient(loss, b + move) - self._gradient(loss, b), _batch.norm(move)
            steepest, least = _batch.norm(change) / length, _batch.dot(change, move) / length.square()
            slack = 1e-6 * nu + 1e-9
            law = "nu bounds the change of the gradient"
            require(bool((steepest <= nu + slack).all()), law, f"nu {nu.tolist()}, measured {steepest.tolist()}")
            law = "mu is below the change of the gradient"
            require(bool((least >= mu - slack).all()), law, f"mu {mu.tolist()}, measured {least.tolist()}")

    def test_residual_of_a_sum_of_squares(self, make: Make) -> None:
        """``L = 1/2 |e|^2``, and ``squares_jvp`` equals differences of e."""
        loss = make()
        if not loss.sum_of_squares:
            return
        w = self._points(loss, 1)

        def e(w: Tensor) -> Tensor:
            return loss.squares(w, loss.evaluate(w)[1])

        require_close("1/2 |squares|^2 is the value", 0.5 * _batch.square(e(w)), loss(w), 1e-10, 1e-12)
        tangents = torch.stack([self._points(loss, 40 + k) for k in range(3)])
        h = 1e-6
        expected = torch.stack([(e(w + h * v) - e(w - h * v)) / (2 * h) for v in tangents])
        require_close("squares_jvp equals differences", loss.squares_jvp(w, tangents), expected, 1e-6, 1e-7)

    def test_exact_step_is_where_an_independent_search_ends(self, make: Make) -> None:
        """``exact_step(R)(v, rho, start)`` minimises ``L(w) + R(w) + rho/2 |w - v|^2``: a search finds nothing lower.

        For R = 0, a quadratic and l1, as far as the loss has a step of its own; items alone have the same step.
        """
        for name, term in _TERMS.items():
            step = _step(make(), term)
            if step is None:
                continue
            loss = make()
            v, start = self._points(loss, 1), self._points(loss, 2)
            nu = loss.curvature(v)[1].clamp_min(1e-3)
            for share in (0.1, 3.0):
                rho = share * nu
                w = step(v, rho, start)
                self._is_minimiser(f"exact_step({name})", partial(_sum, loss, term), w, v, rho)
                for i in range(len(v)):
                    index = torch.tensor([i])
                    one = _step(loss.rows(index), term)
                    require(one is not None, f"rows({i}) has the exact step too", f"exact_step({name}) gave None")
                    alone = w[index] if one is None else one(v[index], rho[index], start[index])
                    require_close(f"exact_step({name}) of item {i} alone", alone, w[index], 1e-7)

    def _is_minimiser(self, name: str, f: Callable[[Tensor], Tensor], w: Tensor, v: Tensor, rho: Tensor) -> None:
        require(w.shape == v.shape, f"{name} gives signals", f"{tuple(w.shape)} for {tuple(v.shape)}")

        def g(u: Tensor) -> Tensor:
            return f(u) + 0.5 * rho * _batch.square(u - v)

        found = minimised(g, [self._points_like(v, 30 + k) for k in range(8)])
        here, there, apart = g(w), g(found), 0.5 * rho * _batch.square(found - w)
        slack = 1e-11 * (here.abs() + there.abs() + rho * _batch.square(v))
        numbers = f"values {here.tolist()}, a search ends at {there.tolist()}, rho={rho.tolist()}"
        require(bool((here <= there + slack).all()), f"{name} has the least value", numbers)
        law = f"{name} is the minimiser: whatever has nearly its value is near"
        require(bool((apart <= there - here + slack).all()), law, f"{numbers}, rho/2 |difference|^2 {apart.tolist()}")

    def _points_like(self, v: Tensor, seed: int) -> Tensor:
        return 2 * self.scale * random(*v.shape, seed=seed)

    def test_rows_select_and_repeat(self, make: Make) -> None:
        """``rows(index)`` is the loss of those items, each alone too."""
        loss = make()
        w = self._points(loss, 1)
        for index in (torch.tensor([i]) for i in range(len(w))):
            self._same_as_selected(loss, w, index)
        self._same_as_selected(loss, w, torch.tensor([len(w) - 1, 0, len(w) - 1]))

    def _same_as_selected(self, loss: Loss, w: Tensor, index: Tensor) -> None:
        part = loss.rows(index)
        size = None if loss.batch is None else len(index)
        require(part.batch == size, "rows(index).batch", f"{part.batch}, expected {size}")
        name = f"of rows({index.tolist()})"
        require_close(f"value {name}", part(w[index]), loss(w)[index])
        require_close(f"gradient {name}", self._gradient(part, w[index]), self._gradient(loss, w)[index])
        for kind, ours, whole in zip(("mu", "nu"), part.curvature(w[index]), loss.curvature(w), strict=True):
            require_close(f"{kind} {name}", ours, whole[index], 1e-6)

    def test_items_are_independent(self, make: Make) -> None:
        """Another signal in one row changes no other row."""
        loss = make()
        w = self._points(loss, 1)
        if len(w) == 1:
            return
        other = w.clone()
        other[-1] = 50 * other[-1] + 1
        require_close("values of the other items", loss(other)[:-1], loss(w)[:-1], 1e-12)
        ours, theirs = self._gradient(loss, other)[:-1], self._gradient(loss, w)[:-1]
        require_close("gradients of the other items", ours, theirs, 1e-12)

    def test_misfits_are_refused(self, make: Make) -> None:
        """``check`` accepts signals of this shape."""
        loss = make()
        loss.bound(self.shape, torch.device("cpu"), F64).check(self.shape, torch.device("cpu"), F64)

    def test_gradients_are_plain_numbers(self, make: Make) -> None:
        """The gradient carries no graph, and is the same without autograd."""
        loss = make()
        w = self._points(loss, 1)
        gradient = self._gradient(loss, w)
        require(not gradient.requires_grad, "gradients carry no graph", "gradient(w).requires_grad is True: detach it")
        require(gradient.shape == w.shape, "a gradient is a signal", f"{tuple(gradient.shape)} for {tuple(w.shape)}")
        with torch.no_grad():
            same = self._gradient(loss, w)
        require_same_bits("the same gradient under no_grad", {"gradient": gradient}, {"gradient": same})

    def test_calls_are_pure(self, make: Make) -> None:
        """Arguments are left alone, and the same call gives the same bits."""
        loss = make()
        w = self._points(loss, 1)
        given = w.clone()

        def results() -> dict[str, Tensor]:
            mu, nu = loss.curvature(w)
            return {"value": loss(w), "gradient": self._gradient(loss, w), "mu": mu, "nu": nu}

        first = {name: result.clone() for name, result in results().items()}
        require_same_bits("arguments are left alone", {"w": given}, {"w": w})
        require_same_bits("the same call gives the same bits", first, results())

    @staticmethod
    def _gradient(loss: Loss, w: Tensor) -> Tensor:
        return loss.gradient(w, loss.evaluate(w)[1])

    def _points(self, loss: Loss, seed: int) -> Tensor:
        return self.scale * random(loss.batch or ITEMS, *self.shape, seed=seed)
