"""Proxes and values against cvxpy, which shares nothing with our code and never sees our answer."""

import warnings

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from genprior.terms import L1Ball, LInf, Simplex, TotalVariation

from .instances import BATCH, CASES, Case

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
few = settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
numbers = st.floats(-3, 3, width=32)
steps = st.lists(st.floats(0.0625, 3, width=32), min_size=BATCH, max_size=BATCH)


def minimise(case: Case, i: int, v: np.ndarray, t: float) -> tuple[np.ndarray, float]:
    """Give argmin and min of ``t f(x) + 1/2 |x - v|^2`` for item i."""
    x = cp.Variable(v.size)
    value, constraints = case.oracle(x, i)
    problem = cp.Problem(cp.Minimize(t * value + 0.5 * cp.sum_squares(x - v.ravel())), constraints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so accurate is not always possible: then as accurate as it gets
        for tolerance in (1e-9, 1e-8, 1e-7):
            try:
                problem.solve(solver=cp.CLARABEL, tol_gap_abs=tolerance, tol_gap_rel=tolerance, tol_feas=tolerance)
            except cp.SolverError:
                continue
            if problem.status == cp.OPTIMAL:
                break
    return x.value.reshape(v.shape), problem.value


def value(case: Case, i: int, point: np.ndarray) -> float:
    """Value of item i by evaluating the cvxpy expression."""
    x = cp.Variable(point.size, value=point.ravel())
    expression, constraints = case.oracle(x, i)
    feasible = all(np.max(c.violation()) < 1e-8 for c in constraints)
    return float(np.squeeze(expression.value)) if feasible else np.inf


@every_case
@few
@given(data=st.data())
def test_prox_is_the_minimiser(case: Case, data: st.DataObject) -> None:
    v = data.draw(arrays(np.float64, (BATCH, *case.shape), elements=numbers))
    t = data.draw(steps)
    term = case.term()
    ours = term.prox(torch.tensor(v), torch.tensor(t, dtype=torch.float64))
    least = torch.tensor(t) * term(ours) + (ours - torch.tensor(v)).square().flatten(1).sum(1) / 2
    for i in range(BATCH):
        theirs, minimum = minimise(case, i, v[i], t[i])
        np.testing.assert_allclose(ours[i], theirs, atol=1e-4)
        assert least[i].item() == pytest.approx(minimum, abs=1e-7, rel=1e-7)


@every_case
def test_value(case: Case) -> None:
    term = case.term()
    near = term.prox(case.draw(1), 0.1)
    for x in (case.draw(0), near, 0.5 * near, torch.zeros_like(near)):
        expected = [value(case, i, x[i].numpy()) for i in range(BATCH)]
        np.testing.assert_allclose(term(x), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda v: LInf().prox(v, 1.0), [2.0, 1.0, 0.5]),
        (lambda v: LInf().prox(v, 0.0), [3.0, 1.0, 0.5]),
        (lambda v: LInf().prox(v, 9.0), [0.0, 0.0, 0.0]),
        (lambda v: L1Ball(1.0).prox(v, 1.0), [1.0, 0.0, 0.0]),
        (lambda v: L1Ball(3.0).prox(v, 1.0), [2.5, 0.5, 0.0]),
        (lambda v: Simplex(2.5).prox(v, 1.0), [2.25, 0.25, 0.0]),
    ],
)
def test_by_hand(answer, expected) -> None:
    for sign in (1, -1) if expected[0] != 2.25 else (1,):
        v = sign * torch.tensor([[3.0, 1.0, 0.5]])
        torch.testing.assert_close(answer(v), sign * torch.tensor([expected]))


def test_total_variation_by_hand() -> None:
    """An edge of height 6 over 2 rows of 4 pixels loses ``t / 2`` on both sides; ``TV = 2 * 6``."""
    image = torch.tensor([[0.0, 0.0, 6.0, 6.0]]).expand(1, 2, 4)
    assert TotalVariation()(image).item() == 12
    torch.testing.assert_close(
        TotalVariation(tolerance=1e-9).prox(image, 2.0),
        torch.tensor([[1.0, 1.0, 5.0, 5.0]]).expand(1, 2, 4),
        atol=2e-3,
        rtol=0,
    )
