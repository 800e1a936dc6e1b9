"""Laws of a term."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from genprior import _batch
from genprior.checks import check_term
from genprior.terms import Term
from genprior.testing.laws import F64, Laws, random, require, require_close, require_report, require_same_bits
from genprior.testing.search import minimised

Make = Callable[[], Term]
ITEMS = 3


class TermLaws(Laws[Term]):
    """The prox against its definition and an independent search, subgradients, selection, dtype, purity."""

    shape: tuple[int, ...] = (6,)
    """Of one item."""
    scale: float = 1.0
    """Typical size of a coordinate."""

    def test_basic_laws(self, make: Make) -> None:
        """``gp.checks.check_term``: prox inequality, envelope, convexity, items alone, subgradient inequality."""
        for seed in range(2):
            require_report(check_term(make(), self.shape, seed=seed, scale=self.scale))

    def test_prox_is_where_an_independent_search_ends(self, make: Make) -> None:
        """A search by values alone, started elsewhere, finds nothing lower, and ends as near as its value allows.

        The function ``g(u) = t f(u) + 1/2 |u - v|^2`` is strongly convex: ``g(u) - g(p) >= 1/2 |u - p|^2`` at its minimiser p.
        """
        f = self._term(make)
        v = self._points(f, 3)
        for size in (0.1, 1.0):
            t = size * self.scale * torch.linspace(0.5, 2.0, len(v), dtype=F64)
            p = f.prox(v, t)

            def g(u: Tensor, t: Tensor = t) -> Tensor:
                return t * f(u) + 0.5 * _batch.square(u - v)

            found = minimised(g, [f.prox(self._points(f, 10 + k), t) for k in range(12)])
            here, there, apart = g(p), g(found), 0.5 * _batch.square(found - p)
            slack = (1e-12 + 2 * f.tolerance) * (here.abs() + _batch.square(v))
            numbers = (
                f"values {here.tolist()} at the prox, {there.tolist()} at {found.flatten(1).tolist()}, t={t.tolist()}"
            )
            require(bool(here.isfinite().all()), "the prox is feasible", numbers)
            require(bool((there >= here - slack).all()), "the prox has the least value", numbers)
            law = "the prox is the minimiser: whatever has nearly its value is near"
            require(
                bool((apart <= there - here + slack).all()), law, f"{numbers}, half squared distances {apart.tolist()}"
            )

    def test_prox_is_firmly_nonexpansive(self, make: Make) -> None:
        """``|prox(a) - prox(b)|^2 <= <prox(a) - prox(b), a - b>``."""
        f = self._term(make)
        a, b = self._points(f, 1), self._points(f, 2)
        move = f.prox(a, 0.7 * self.scale) - f.prox(b, 0.7 * self.scale)
        left, right = _batch.square(move), _batch.dot(move, a - b)
        slack = (1e-9 + 2 * f.tolerance) * _batch.square(a - b)
        require(bool((left <= right + slack).all()), "firmly nonexpansive", f"{left.tolist()} <= {right.tolist()}")

    def test_moreau_envelope_falls_along_its_gradient(self, make: Make) -> None:
        """``(v - p)/t`` is a subgradient at p: ``f(u) >= f(p) + <(v - p)/t, u - p>``."""
        f = self._term(make)
        v = self._points(f, 1)
        t = self.scale * torch.linspace(0.2, 2.0, len(v), dtype=F64)
        p = f.prox(v, t)
        slope = (v - p) / _batch.spread(t, v)
        drawn = [f.prox(self._points(f, seed), 0.3 * self.scale) for seed in range(2, 6)]
        for u in (v, 2 * p, 0.5 * p, *drawn):
            lack = f(p) + _batch.dot(slope, u - p) - f(u)
            slack = (1e-9 + 5 * f.tolerance) * (f(p).abs() + _batch.norm(slope) * _batch.norm(u - v) + self.scale**2)
            require(
                bool((lack <= slack).all()), "(v - prox(v))/t is a subgradient there", f"it fails by {lack.tolist()}"
            )

    def test_step_zero_stays(self, make: Make) -> None:
        """``prox(v, 0)`` is v; for the indicator of a set it is the projection, as for every step."""
        f = self._term(make)
        v = self._points(f, 1)
        expected = f.prox(v, 1.0) if f.is_indicator else v
        for zero in (0.0, torch.zeros(len(v), dtype=F64)):
            require_close("prox(v, 0)", f.prox(v, zero), expected, 1e-9 + f.tolerance)

    def test_one_step_per_item(self, make: Make) -> None:
        """A tensor of steps gives each item its own; a 0-dim one and a number are the same for all."""
        f = self._term(make)
        v = self._points(f, 1)
        t = self.scale * torch.linspace(0.2, 2.0, len(v), dtype=F64)
        for i in range(len(v)):
            alone = f.prox(v, float(t[i]))[i]
            require_close(f"item {i} of prox(v, t)", f.prox(v, t)[i], alone, 1e-9 + f.tolerance)
        one = f.prox(v, torch.tensor(0.3, dtype=F64)), f.prox(v, 0.3)
        require_close("prox(v, tensor(t)) = prox(v, t)", *one, 1e-9 + f.tolerance)

    def test_one_step_per_entry_where_separable(self, make: Make) -> None:
        """A separable term takes a step for each entry."""
        f = self._term(make)
        if not f.separable:
            return
        v = self._points(f, 1)
        t = self.scale * random(*v.shape, seed=2).abs()
        each = [f.prox(v, float(step)).flatten()[k] for k, step in enumerate(t.flatten())]
        require_close("prox(v, t) with a step per entry", f.prox(v, t).flatten(), torch.stack(each), 1e-9)

    def test_violation_is_the_distance_to_the_domain(self, make: Make) -> None:
        """Zero in the domain; for a set, the distance to the projection, and the value is infinite outside."""
        f = self._term(make)
        x = self._points(f, 1)
        distance = _batch.norm(x - f.prox(x, 1.0)) if f.is_indicator else x.new_zeros(len(x))
        require_close("violation(x)", f.violation(x), distance, 1e-9 + f.tolerance)
        inside = f.prox(x, 1.0)
        law = "f(x) is infinite where violation(x) > 0, and only there"
        for name, point in (("v", x), ("prox(v)", inside)):
            outside = f.violation(point) > 1e-9
            require(bool((f(point).isinf() == outside).all()), law, f"at {name}: {f(point).tolist()}")

    def test_quadratics_are_as_declared(self, make: Make) -> None:
        """``as_quadratic() = (c, centre)``: ``f(x) - f(y) = c/2 (|x - centre|^2 - |y - centre|^2)``."""
        f = self._term(make)
        declared = f.as_quadratic()
        if declared is None:
            return
        c, centre = declared
        x, y = self._points(f, 1), self._points(f, 2)
        expected = c * 0.5 * (_batch.square(x - centre) - _batch.square(y - centre))
        require_close("as_quadratic()", f(x) - f(y), expected)

    def test_rows_select_and_repeat(self, make: Make) -> None:
        """``rows(index)`` is the term of those items; an item does not depend on its neighbours, however large."""
        f = self._term(make)
        v = self._points(f, 1)
        v[-1] *= 100
        for index in (torch.tensor([0]), torch.tensor([len(v) - 1, 0, len(v) - 1])):
            part = f.rows(index)
            pairs = {
                "value": (part(v[index]), f(v)[index]),
                "prox": (part.prox(v[index], 0.5), f.prox(v, 0.5)[index]),
                "subgradient": (part.subgradient(v[index]), f.subgradient(v)[index]),
                "violation": (part.violation(v[index]), f.violation(v)[index]),
            }
            for name, (ours, theirs) in pairs.items():
                require_close(f"{name} of rows({index.tolist()})", ours, theirs, 1e-9 + f.tolerance)

    def test_float32(self, make: Make) -> None:
        """In float32 everything is float32, and nearly the same numbers."""
        f, low = self._term(make), make().to(dtype=torch.float32)
        v = self._points(f, 1)
        p = low.prox(v.float(), 0.5)
        dtypes = {"prox": p.dtype, "value": low(p).dtype, "subgradient": low.subgradient(p).dtype}
        law = "float32 in, float32 out"
        require(set(dtypes.values()) == {torch.float32}, law, ", ".join(f"{n} {d}" for n, d in dtypes.items()))
        require_close("the prox in float32", p.double(), f.prox(v, 0.5), 1e-4 + 2 * f.tolerance, 1e-6)
        require(bool(low(p).isfinite().all()), "the prox is feasible in float32", f"values {low(p).tolist()}")

    def test_points_on_kinks(self, make: Make) -> None:
        """All zero, all equal, all of one size: values, proxes and subgradients are numbers."""
        f = self._term(make)
        signs = self._points(f, 3).sign() * self.scale
        for name, v in (("zeros", torch.zeros_like(signs)), ("equal", torch.ones_like(signs)), ("signs", signs)):
            p = f.prox(v, 0.5)
            bad = {
                n: int((~t.isfinite()).sum())
                for n, t in (("prox", p), ("value", f(p)), ("subgradient", f.subgradient(v)))
            }
            law = f"prox, its value and the subgradient are numbers at {name}"
            require(not any(bad.values()), law, ", ".join(f"{count} are not in the {n}" for n, count in bad.items()))

    def test_it_fits_its_signal(self, make: Make) -> None:
        """``check`` accepts signals of this shape."""
        self._term(make).check("on_signal", self.shape, torch.device("cpu"), F64)

    def test_calls_are_pure(self, make: Make) -> None:
        """Arguments are left alone, and the same call gives the same bits."""
        f = self._term(make)
        v, t = self._points(f, 1), torch.full((len(self._points(f, 1)),), 0.5, dtype=F64)
        given = {"v": v.clone(), "t": t.clone()}

        def results() -> dict[str, Tensor]:
            return {"prox": f.prox(v, t), "value": f(v), "subgradient": f.subgradient(v), "violation": f.violation(v)}

        first = {name: result.clone() for name, result in results().items()}
        require_same_bits("arguments are left alone", given, {"v": v, "t": t})
        require_same_bits("the same call gives the same bits", first, results())

    def _term(self, make: Make) -> Term:
        return make().to(dtype=F64)

    def _points(self, f: Term, seed: int) -> Tensor:
        return 2 * self.scale * random(f.batch or ITEMS, *self.shape, seed=seed)
