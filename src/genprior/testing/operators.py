"""Laws of an operator."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from genprior import _batch
from genprior.checks import check_operator
from genprior.operators import Operator
from genprior.testing.laws import F64, Laws, random, require, require_close, require_report, require_same_bits

Make = Callable[[], Operator]
ITEMS = 3


class OperatorLaws(Laws[Operator]):
    """Adjoint, bounds, resolvent, matrix, derivative, selection, dtype, purity: all that solvers rely on in an operator."""

    signal_shape: tuple[int, ...] | None = None
    """Needed only for an operator that does not know its own."""
    movable: bool = True
    """False where the operator is made of functions that hold tensors, which ``to`` cannot reach."""

    def test_basic_laws(self, make: Make) -> None:
        """``gp.checks.check_operator``: linear, adjoint, items alone, resolvent, norm."""
        for seed in range(3):
            require_report(check_operator(make(), signal_shape=self.signal_shape, seed=seed))

    def test_shapes_are_as_declared(self, make: Make) -> None:
        """Measurements have the declared shape, and are complex where that is declared."""
        a = make()
        y = a(self._signals(a))
        if a.measurement_shape is not None:
            law = "measurements have measurement_shape"
            require(tuple(y.shape[1:]) == a.measurement_shape, law, f"{tuple(y.shape[1:])}, not {a.measurement_shape}")
        if a.complex_measurements is not None:
            declared = f"complex_measurements={a.complex_measurements}, but A x is {y.dtype}"
            require(y.is_complex() == a.complex_measurements, "measurements are complex as declared", declared)

    def test_adjoint_is_the_transposed_matrix(self, make: Make) -> None:
        """Column by column: the adjoint of unit measurements against A of unit signals."""
        a = make()
        if a.measurement_shape is None:
            return
        matrix, size = _matrix(a, self._shape(a)), math.prod(a.measurement_shape)
        for i in range(size):
            unit = torch.zeros(a.batch or 1, size, dtype=matrix.dtype)
            unit[:, i] = 1
            ours = _batch.flat(a.adjoint(unit.reshape(-1, *a.measurement_shape)))
            require_close(f"row {i} of A is A^T e_{i}", ours, matrix[:, i].real.expand_as(ours), *_accuracy(a))

    def test_dense_is_the_matrix(self, make: Make) -> None:
        """``dense()`` against A of unit signals, one at a time."""
        a = make()
        if a.signal_shape is None or a.measurement_shape is None:
            return
        matrix = _matrix(a, self._shape(a))
        dense = a.dense() if a.batch else a.dense()[None]
        require_close("dense() holds A e_j in column j", dense.to(matrix.dtype), matrix, *_accuracy(a))

    def test_bounds_enclose_the_singular_values(self, make: Make) -> None:
        """``gram_bounds()`` and ``norm()`` against the singular values of the matrix."""
        a = make()
        if a.signal_shape is None:
            return
        matrix = _matrix(a, self._shape(a))
        values = torch.linalg.svdvals(_real(matrix)).square()
        least = values[:, -1] if values.shape[1] == matrix.shape[2] else torch.zeros_like(values[:, 0])
        low, high = (bound.to(F64).expand(len(values)) for bound in a.gram_bounds())
        most, slack = values[:, 0], 1e-6 * values[:, 0] + 1e-12
        numbers = f"({low.tolist()}, {high.tolist()}), eigenvalues {least.tolist()} to {most.tolist()}"
        require(bool((low <= least + slack).all()), "gram_bounds() is below the least eigenvalue of A^T A", numbers)
        require(bool((high >= most - slack).all()), "gram_bounds() is above the largest eigenvalue of A^T A", numbers)
        law = "the bound is within 10% of it: steps would be needlessly short"
        require(bool((high <= 1.1 * most + 1e-12).all()), law, numbers)
        require_close("norm()^2 is the upper bound", a.norm().to(F64).square(), a.gram_bounds()[1].to(F64), 1e-6)

    def test_resolvent_solves_the_dense_system(self, make: Make) -> None:
        """``(A^T A + rho I)^-1 v`` for rho as a number, as a tensor, and one per item."""
        a = make()
        x = self._signals(a)
        v, matrix = _batch.flat(x), _real(_matrix(a, self._shape(a)).expand(len(x), -1, -1)).to(x.dtype)
        gram = matrix.mT @ matrix
        typical = max(float(gram.diagonal(dim1=1, dim2=2).mean()), 1e-12)
        per_item = torch.tensor([0.5, 2.0, 7.0], dtype=x.dtype).repeat(len(x))[: len(x)]
        for share in (0.01, 3.0, torch.tensor(0.7, dtype=x.dtype), per_item):
            rho = share * typical
            system = gram + _batch.column(rho, x)[:, None, None] * torch.eye(v.shape[1], dtype=x.dtype)
            expected = torch.linalg.solve(system, v).reshape(x.shape)
            # a relative residual may be magnified by the condition number
            slack = 10 * max(a.tolerance if "gradient" in a.resolvent_method else 0.0, torch.finfo(x.dtype).eps)
            ours = a.resolvent(x, rho)
            limit = slack * float(torch.linalg.cond(system).max()) + 100 * torch.finfo(x.dtype).eps
            require_close(f"(A^T A + rho) resolvent(v, rho) = v, rho={rho}", ours, expected, limit, 0.0)

    def test_autograd_gives_the_adjoint(self, make: Make) -> None:
        """The gradient of ``1/2 |A x - y|^2`` through A is ``A^T (A x - y)``, and that of ``<A^T y, x>`` in y is A x."""
        a = make()
        x = self._signals(a).requires_grad_()
        y = a(self._signals(a, 7)).detach()
        residual = a(x) - y
        (gradient,) = torch.autograd.grad(0.5 * _batch.square(residual).sum(), x)
        require_close("autograd through A is the adjoint", gradient, a.adjoint(residual.detach()), *_accuracy(a))
        back, u = y.clone().requires_grad_(), self._signals(a, 8)
        (gradient,) = torch.autograd.grad(_batch.dot(a.adjoint(back), u).sum(), back)
        require_close("autograd through the adjoint is A", gradient, a(u).to(gradient.dtype), *_accuracy(a))

    def test_rows_select_and_repeat(self, make: Make) -> None:
        """``rows(index)`` is the operator of those items, before and after something was remembered."""
        for used in (False, True):
            a = make()
            x = self._signals(a)
            if used:
                a.resolvent(x, 1.0)
                _ = a.gram_bounds() if a.signal_shape is not None else None
            index = torch.tensor([len(x) - 1, 0, len(x) - 1])
            part = a.rows(index)
            require(part.batch == (None if a.batch is None else 3), "rows(index) has one item each", f"{part.batch}")
            require_close("rows(index)(x[index]) = A(x)[index]", part(x[index]), a(x)[index], *_accuracy(a))
            ours, expected = part.resolvent(x[index], 0.5), a.resolvent(x, 0.5)[index]
            require_close("rows(index).resolvent", ours, expected, 10 * a.tolerance)
            for i in range(len(x)):
                alone = a.rows(torch.tensor([i]))(x[i : i + 1])
                require_close(f"item {i} alone", alone, a(x)[i : i + 1], *_accuracy(a))

    def test_row_form_is_equivalent(self, make: Make) -> None:
        """Where there is a row form: same residuals, and ``A' A'^T = diag(gram)``."""
        a = make()
        form = a.row_form()
        if form is None:
            return
        x = self._signals(a)
        y = a(self._signals(a, 7))
        ours, theirs = _batch.norm(form.forward(x) - form.rotate(y)), _batch.norm(a(x) - y)
        require_close("|A' x - rotate(y)| = |A x - y|", ours, theirs, *_accuracy(a))
        require_close("A'^T rotate(y) = A^T y", form.adjoint(form.rotate(y)), a.adjoint(y), *_accuracy(a))
        require_close("A' A'^T = diag(gram)", form.forward(form.adjoint(y)), form.gram * y, *_accuracy(a))

    def test_other_dtypes(self, make: Make) -> None:
        """``to(dtype)`` computes the same in the other dtype, and leaves the operator as it was."""
        a = make()
        if not self.movable:
            return
        before, x = a.dtype, self._signals(a)
        y = a(x)
        a.resolvent(x, 1.0)
        low = a.to(dtype=torch.float32)
        out = low(x.float())
        law = "A.to(dtype=float32) gives float32"
        require(out.dtype.to_real() == torch.float32, law, f"{out.dtype}: are all tensors in _map_tensors?")
        back = low.adjoint(out), low.resolvent(x.float(), 1.0)
        require(all(t.dtype == torch.float32 for t in back), law, f"adjoint {back[0].dtype}, resolvent {back[1].dtype}")
        require_close("A in float32", out.to(y.dtype), y, 1e-5, 1e-6)
        require(a.dtype == before, "to() leaves the operator as it was", f"{before} became {a.dtype}")
        require(a.to(dtype=before) is a, "to() without a change is the operator itself", "it is another object")

    def test_misfits_are_refused(self, make: Make) -> None:
        """``check`` accepts what fits; another shape raises an error that names it."""
        a = make()
        shape = self._shape(a)
        a.check("operator", shape, torch.device("cpu"), a.dtype or F64)
        if a.signal_shape is None:
            return
        wrong = (*shape, 9)
        for call in (lambda: a.check("operator", wrong, torch.device("cpu"), F64), lambda: a(random(ITEMS, *wrong))):
            try:
                call()
            except (ValueError, TypeError) as problem:
                require(str(wrong) in str(problem) or "9" in str(problem), "the error names the shape", str(problem))
            else:
                raise AssertionError(f"signals of another shape are refused: {wrong} was accepted, expected {shape}")

    def test_calls_are_pure(self, make: Make) -> None:
        """Arguments are left alone, and the same call gives the same bits."""
        a = make()
        x, y = self._signals(a), a(self._signals(a, 7))
        given = {"x": x.clone(), "y": y.clone()}

        def results() -> dict[str, Tensor]:
            return {"A x": a(x), "A^T y": a.adjoint(y), "resolvent": a.resolvent(x, 2.0)}

        first = {name: result.clone() for name, result in results().items()}
        require_same_bits("arguments are left alone", given, {"x": x, "y": y})
        require_same_bits("the same call gives the same bits", first, results())

    def _shape(self, a: Operator) -> tuple[int, ...]:
        shape = a.signal_shape or self.signal_shape
        require(shape is not None, "signal_shape is known", "give the class attribute signal_shape")
        return tuple(shape or ())

    def _signals(self, a: Operator, seed: int = 1) -> Tensor:
        return random(a.batch or ITEMS, *self._shape(a), seed=seed).to(a.dtype or F64)


def _accuracy(a: Operator) -> tuple[float, float]:
    """Relative and absolute."""
    eps = torch.finfo(a.dtype or F64).eps
    return 1e4 * eps, 1e3 * eps


def _matrix(a: Operator, shape: tuple[int, ...]) -> Tensor:
    """``(B or 1, m, d)``, from one unit signal after the other."""
    size, items = math.prod(shape), a.batch or 1
    columns = []
    for j in range(size):
        unit = torch.zeros(items, size, dtype=a.dtype or F64)
        unit[:, j] = 1
        columns.append(a(unit.reshape(items, *shape)).reshape(items, -1))
    return torch.stack(columns, dim=2)


def _real(matrix: Tensor) -> Tensor:
    """The same map with real and imaginary parts of measurements as rows, in float64."""
    matrix = torch.cat([matrix.real, matrix.imag], dim=1) if matrix.is_complex() else matrix
    return matrix.to(F64)
