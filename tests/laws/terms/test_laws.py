"""Laws of convex functions and of batches, for every term of the table."""

import pytest
import torch
from torch import Tensor

from genprior._batch import spread
from genprior.terms import Sum

from .instances import BATCH, CASES, Case

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
STEPS = torch.tensor([0.2, 1.0, 2.5], dtype=torch.float64)


def half_square(x: Tensor) -> Tensor:
    return x.flatten(1).square().sum(1) / 2


def inner(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).flatten(1).sum(1)


def size(x: Tensor) -> Tensor:
    return x.flatten(1).norm(dim=1)


@every_case
@dtypes
@pytest.mark.parametrize(
    "scale", [pytest.param(1e-6, marks=pytest.mark.slow), 1.0, pytest.param(1e6, marks=pytest.mark.slow)]
)
def test_prox_beats_every_other_point(case: Case, dtype: torch.dtype, scale: float) -> None:
    """``t f(u) + 1/2|u - v|^2 >= t f(p) + 1/2|p - v|^2 + 1/2|u - p|^2``, and own proxes are feasible."""
    term = case.term(dtype)
    if term.tolerance:
        scale = min(
            scale, 30.0
        )  # an iterative prox takes long where points are a million times as far as the sets are wide
    v, t = scale * case.draw(0, dtype), (scale * STEPS).to(dtype)
    p = term.prox(v, t)
    assert p.dtype == dtype
    assert p.shape == v.shape
    best = t * term(p) + half_square(p - v)
    assert best.isfinite().all()
    rounding = (100 * torch.finfo(dtype).eps + 2 * case.accuracy) * (best + half_square(v) + 1)
    for seed in range(1, 3 if term.tolerance else 6):
        u = term.prox(scale * case.draw(seed, dtype), t)  # in the domain
        for other in (u, p + 0.01 * (u - p), scale * case.draw(seed, dtype)):
            assert (t * term(other) + half_square(other - v) >= best + half_square(other - p) - rounding).all()


@every_case
@dtypes
def test_prox_is_firmly_nonexpansive(case: Case, dtype: torch.dtype) -> None:
    term, a, b = case.term(dtype), case.draw(0, dtype), case.draw(1, dtype)
    move = term.prox(a, 0.7) - term.prox(b, 0.7)
    assert (inner(move, move) <= inner(move, a - b) + 1e-5).all()


@every_case
def test_moreau(case: Case) -> None:
    """``(v - p)/t`` is a subgradient at p, and p is the minimiser of the convex ``f`` tilted by it."""
    term, v = case.term(), case.draw(0)
    p = term.prox(v, STEPS)
    slope = (v - p) / STEPS.reshape(-1, *(1,) * len(case.shape))
    for seed in range(1, 6):
        u = term.prox(case.draw(seed), 0.1)
        assert (term(u) >= term(p) + inner(slope, u - p) - 1e-6).all()


@every_case
def test_step_zero(case: Case) -> None:
    term, v = case.term(), case.draw(0)
    expected = v if term.constraint is None else term.constraint.prox(v, 1.0)
    torch.testing.assert_close(term.prox(v, 0.0), expected)
    torch.testing.assert_close(term.prox(v, torch.zeros(BATCH, dtype=v.dtype)), expected)


@every_case
def test_subgradient_inequality(case: Case) -> None:
    term = case.term()
    for x in (term.prox(case.draw(0), 0.3), term.prox(torch.zeros_like(case.draw(0)), 0.3)):
        slope = term.subgradient(x)
        assert slope.shape == x.shape
        assert not (term.is_indicator and slope.any())
        for seed in range(1, 5):
            u = term.prox(case.draw(seed), 0.1)
            assert (term(u) >= term(x) + inner(slope, u - x) - 1e-9).all()


@every_case
def test_violation_is_the_distance_to_the_domain(case: Case) -> None:
    term, x = case.term(), case.draw(0)
    constraint = term.constraint
    distance = torch.zeros(BATCH, dtype=x.dtype) if constraint is None else size(x - constraint.prox(x, 1.0))
    torch.testing.assert_close(term.violation(x), distance)
    assert (term.violation(term.prox(x, 1.0)) <= 1e-12).all()
    assert torch.equal(term(x).isinf(), distance > 1e-9)


@every_case
@dtypes
def test_a_batch_is_its_items(case: Case, dtype: torch.dtype) -> None:
    """Rows never mix, whatever the other rows are; a selection may repeat."""
    term, v, t = case.term(dtype), case.draw(0, dtype), STEPS.to(dtype)
    v[1] *= 100
    together = (term.prox(v, t), term(v), term.subgradient(v), term.violation(v))
    for index in ([0], [1], [2], [2, 0, 2, 1]):
        picked = torch.tensor(index)
        part = term.rows(picked)
        assert part.batch in (None, len(index))
        assert (part is term) == (term.batch is None)
        apart = (
            part.prox(v[picked], t[picked]),
            part(v[picked]),
            part.subgradient(v[picked]),
            part.violation(v[picked]),
        )
        for whole, one in zip(together, apart, strict=True):
            torch.testing.assert_close(one, whole[picked])


@every_case
def test_one_step_for_all_equals_a_column_of_it(case: Case) -> None:
    term, v = case.term(), case.draw(0)
    for column in (torch.full((BATCH,), 0.7), torch.tensor(0.7)):
        torch.testing.assert_close(term.prox(v, column.double()), term.prox(v, 0.7))


@every_case
def test_finite_part_and_constraint_add_up(case: Case) -> None:
    term, x = case.term(), case.draw(0)
    finite, constraint = term.finite, term.constraint
    assert finite(x).isfinite().all()
    assert finite.constraint is None
    if constraint is None:
        assert torch.equal(finite(x), term(x))
        return
    assert constraint.is_indicator
    for point in (x, term.prox(x, 0.5)):
        torch.testing.assert_close(term(point), finite(point) + constraint(point))
        torch.testing.assert_close(term.violation(point), constraint.violation(point))


@every_case
def test_a_step_for_each_entry(case: Case) -> None:
    term, v = case.term(), case.draw(0)
    t = case.draw(1).abs()
    if not term.separable:
        with pytest.raises(ValueError, match=r"step t has shape"):
            term.prox(v, t)
        return
    entries = [term.prox(v, t.flatten()[k].item()).flatten()[k] for k in range(t.numel())]
    torch.testing.assert_close(term.prox(v, t).flatten(), torch.stack(entries))


@every_case
def test_inputs_are_left_alone_and_calls_repeat(case: Case) -> None:
    term, v, t = case.term(), case.draw(0), STEPS.clone()
    before = v.clone()
    first = (term.prox(v, t), term(v), term.subgradient(v), term.violation(v))
    second = (term.prox(v, t), term(v), term.subgradient(v), term.violation(v))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(v, before)
    assert torch.equal(t, STEPS)


@every_case
def test_quadratics_say_so(case: Case) -> None:
    term, x, y = case.term(), case.draw(0), case.draw(1)
    quadratic = term.as_quadratic()
    assert (quadratic is not None) == ("squared" in case.name or "zero" in case.name)
    if quadratic is not None:
        c, centre = quadratic
        centre = spread(centre, x)
        change = c * (half_square(x - centre) - half_square(y - centre))
        torch.testing.assert_close(term(x) - term(y), change)


@every_case
@dtypes
def test_zeros_and_ties(case: Case, dtype: torch.dtype) -> None:
    """Inputs on the kinks: all zero, all equal, equal in size with both signs."""
    term = case.term(dtype)
    signs = torch.where(case.draw(3, dtype) > 0, 1.0, -1.0).to(dtype)
    for v in (torch.zeros_like(signs), torch.ones_like(signs), signs):
        p = term.prox(v, 0.5)
        assert p.isfinite().all()
        assert term(p).isfinite().all()
        assert term.subgradient(v).isfinite().all()
        u = term.prox(case.draw(4, dtype), 0.1)
        better = 0.5 * term(p) + half_square(p - v) + half_square(u - p)
        assert (0.5 * term(u) + half_square(u - v) >= better - 1e-5).all()


@every_case
@dtypes
def test_fits_its_signal_and_moves(case: Case, dtype: torch.dtype) -> None:
    term = case.term(dtype)
    term.check("on_signal", case.shape, torch.device("cpu"), dtype)
    assert term.to(torch.device("cpu"), dtype) is term
    assert term(case.draw(0, dtype)).dtype == dtype
    assert term(case.draw(0, dtype)).shape == (BATCH,)
    with pytest.raises(TypeError, match=r"on_signal needs real floating-point signals, got torch.complex64"):
        term.check("on_signal", case.shape, torch.device("cpu"), torch.complex64)


@every_case
def test_repr_is_short(case: Case) -> None:
    term = case.term()
    assert len(repr(term)) < 120 * (len(term.parts) if isinstance(term, Sum) else 1)


@every_case
def test_other_dtypes_of_parameters_do_not_change_the_result(case: Case) -> None:
    v = case.draw(0, torch.float32)
    if "through" in case.name and "rows" not in case.name:
        with pytest.raises(TypeError, match=r"works in torch\.float64"):  # operators with numbers keep to their dtype
            case.term(torch.float64)(v)
        return
    assert case.term(torch.float64).prox(v, STEPS).dtype == torch.float32
    assert case.term(torch.float64)(v).dtype == torch.float32
