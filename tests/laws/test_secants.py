"""The secant model against the textbook's BFGS update, matrix by matrix."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import genprior as gp
from genprior.solvers.quadratic import SecantModel
from tests.laws.test_curvature import F64, normal

B, S = 3, 5


def orthogonal(seed):
    return torch.linalg.qr(normal(S, S, seed=seed))[0]


def first_values(seed):
    return normal(B, S, seed=seed).abs() + 0.1


def pairs(count, seed):
    """Steps of any length, and changes of the gradient with positive curvature."""
    root = normal(B, S, S, seed=seed)
    hessian = root @ root.mT + 0.2 * torch.eye(S, dtype=F64)
    for i in range(count):
        step = 10.0 ** (i % 3 - 1) * normal(B, S, seed=seed + 7 * i + 1)
        twist = 0.2 * normal(B, S, S, seed=seed + 7 * i + 2)
        grad_change = ((hessian + twist - twist.mT) @ step[:, :, None])[:, :, 0]  # no Hessian has these: order matters
        yield step, grad_change


def scale_of(hessian, seen):
    """Per item the product of ``<s, y> / <s, first s>``, to the power ``1/(n + 5)``, within 0.25 and 1."""
    scales = []
    for item in range(B):
        added = [(s[item], y[item]) for where, s, y in seen if where[item]]
        product = math.prod(float(s @ y / (s @ hessian[item] @ s)) for s, y in added)
        scales.append(min(1.0, max(0.25, product ** (1 / (len(added) + 5)))))
    return torch.tensor(scales, dtype=F64)


def textbook(first, basis, seen, c):
    """``B+ = B - B s s^T B / <s, B s> + y y^T / <s, y>`` from ``t first + c I``, with ``y + c s``."""
    unit = torch.eye(S, dtype=F64)
    hessian = basis @ torch.diag_embed(first) @ basis.mT
    matrix = scale_of(hessian, seen)[:, None, None] * hessian + c[:, None, None] * unit
    for where, step, grad_change in seen:
        s, y = step[:, :, None], (grad_change + c[:, None] * step)[:, :, None]
        bs = matrix @ s
        new = matrix - bs @ bs.mT / (s.mT @ bs) + y @ y.mT / (s.mT @ y)
        matrix = torch.where(where[:, None, None], new, matrix)
    return matrix


class Model:
    """The secant model in the coordinates of eigenvectors, as the direction uses it: shared by all items, or their own."""

    def __init__(self, first, shared, memory, own_bases=False, secant=None, state=None):
        self.shared, self.secant = shared, secant or gp.trial.Secant(memory, refresh=9 if own_bases else None)
        zero = torch.zeros(len(first), dtype=first.dtype)
        basis = shared.expand(len(first), *shared.shape) if own_bases else None
        self.state = state or SecantModel.fresh(first, memory, first.shape[1], basis, zero)

    @property
    def basis(self):
        return self.shared if self.state.basis is None else self.state.basis

    def into(self, v):
        return (v[:, None] @ self.basis)[:, 0]

    def out(self, v):
        return (v[:, None] @ self.basis.mT)[:, 0]

    def updated(self, where, step, change):
        state, added = self.state.updated(where, self.into(step), self.into(change))
        return self._with(state), added

    def _with(self, state):
        return Model(state.first, self.shared, 0, secant=self.secant, state=state)

    def scaled(self, factor):
        return self._with(self.secant.scaled(self.state, factor))

    def replaced(self, index, matrices):
        return self._with(self.secant.replaced(self.state, index, matrices))

    def hessian(self, c, v):
        return self.out(self.state.hessian(c, gp.trial.Preconditioned().scaled(self.state))(self.into(v)))

    def newton(self, v, c):
        return self.out(self.state.newton(self.into(v), c, gp.trial.Preconditioned().scaled(self.state)))


def check(model, expected, c, seed=90):
    v = normal(B, S, seed=seed)
    torch.testing.assert_close(model.hessian(c, v), (expected @ v[:, :, None])[:, :, 0], rtol=1e-7, atol=1e-9)
    solved = torch.linalg.solve(expected, v)
    torch.testing.assert_close(model.newton(v, c), -solved, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("own_bases", [False, True])
@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(0, 6), seed=st.integers(0, 10**6), c=st.floats(0, 5), size=st.sampled_from([0.1, 1.0, 5.0, 50.0])
)
def test_it_is_bfgs_for_every_pull(own_bases, count, seed, c, size):
    shared, first, ridge = orthogonal(seed), size * first_values(seed + 1), c * torch.tensor([1.0, 0.3, 2.0], dtype=F64)
    model, seen = Model(first, shared, 6, own_bases), []
    for i, (step, grad_change) in enumerate(pairs(count, seed)):
        where = torch.tensor([True, i % 2 == 0, i % 3 == 0])
        model, _ = model.updated(where, step, grad_change)
        seen.append((where, step, grad_change))
    check(model, textbook(first, shared.expand(B, S, S), seen, ridge), ridge)


def test_the_oldest_pair_makes_room():
    shared, first, zero = orthogonal(3), first_values(4), torch.zeros(B, dtype=F64)
    model, seen = Model(first, shared, 2, False), []
    for step, grad_change in pairs(4, 5):
        model, _ = model.updated(torch.ones(B, dtype=torch.bool), step, grad_change)
        seen.append((torch.ones(B, dtype=torch.bool), step, grad_change))
    check(model, textbook(first, shared.expand(B, S, S), seen[-2:], zero), zero)


def test_scaled_is_the_model_of_a_multiple():
    shared, first, ridge = orthogonal(3), first_values(4), torch.zeros(B, dtype=F64)
    model, seen = Model(first, shared, 4, False), []
    for step, grad_change in pairs(3, 8):
        model, _ = model.updated(torch.ones(B, dtype=torch.bool), step, grad_change)
        seen.append((torch.ones(B, dtype=torch.bool), step, grad_change))
    factor = torch.tensor([1.0, 2.5, 0.3], dtype=F64)
    expected = factor[:, None, None] * textbook(first, shared.expand(B, S, S), seen, ridge)
    check(model.scaled(factor), expected, ridge)


def test_restarted_and_replaced_concern_their_items_alone():
    shared, first, ridge = orthogonal(3), first_values(4), torch.full((B,), 0.3, dtype=F64)
    model, everyone = Model(first, shared, 4, True), torch.ones(B, dtype=torch.bool)
    seen = [(everyone, *pair) for pair in pairs(3, 8)]
    for _, step, grad_change in seen:
        model, _ = model.updated(everyone, step, grad_change)
    expected = textbook(first, shared.expand(B, S, S), seen, ridge)
    root = normal(1, S, S, seed=20)
    matrices = torch.cat([root @ root.mT, torch.full((1, S, S), torch.nan, dtype=F64)])
    model = model.replaced(torch.tensor([1, 2]), matrices)  # the second is broken: item 2 stays as it is
    unit = torch.eye(S, dtype=F64)
    expected[1] = matrices[0] + (1e-3 * torch.linalg.eigvalsh(matrices[0])[-1] + 0.3) * unit
    check(model, expected, ridge)
    later = list(pairs(4, 30))[-1]
    added, _ = model.updated(everyone, *later)  # pairs live in each item's own basis
    values, vectors = torch.linalg.eigh(expected - 0.3 * unit)
    updated = textbook(values, vectors, [(everyone, *later)], ridge)
    v = normal(B, S, seed=31)
    torch.testing.assert_close(added.hessian(ridge, v)[1], updated[1] @ v[1])
    other = first_values(50)
    second = torch.tensor([False, True, False])
    basis = torch.where(second[:, None, None], shared, model.state.basis)
    model = model._with(replace(model.state.restarted(second, other), basis=basis))
    expected[1] = shared @ torch.diag(other[1]) @ shared.mT + 0.3 * unit
    check(model, expected, ridge)


def test_the_first_hessian_takes_its_scale_from_the_pairs():
    shared, first = orthogonal(3), 20 * first_values(4)
    model, everyone = Model(first, shared, 4), torch.ones(B, dtype=torch.bool)
    seen = [(everyone, *pair) for pair in pairs(3, 8)]
    for _, step, grad_change in seen:
        model, _ = model.updated(everyone, step, grad_change)
    scale = scale_of(shared @ torch.diag_embed(first) @ shared.mT, seen)
    assert ((scale > 0.25) & (scale < 1)).any(), "neither bound hides the scale"
    torch.testing.assert_close(gp.trial.Preconditioned().scaled(model.state), scale[:, None] * first)


def test_the_newest_pair_gives_the_scale_of_limited_memory_bfgs():
    """The two-loop recursion of the textbook (Nocedal and Wright, algorithm 7.4), item by item."""
    first = torch.full((B, 1), 3.0, dtype=F64)
    model, rule, seen = SecantModel.fresh(first, 3, S, None, first[:, 0]), gp.trial.NewestPair(), []
    torch.testing.assert_close(rule.scaled(model), first)
    for step, change in pairs(5, 8):
        model, _ = model.updated(torch.ones(B, dtype=torch.bool), step, change)
        seen.append((step, change))
    g, zero = normal(B, S, seed=40), torch.zeros(B, dtype=F64)
    for item in range(B):
        q, kept = g[item].clone(), [(s[item], y[item]) for s, y in seen[-3:]]
        shares = []
        for s, y in reversed(kept):
            shares.append((s @ q) / (s @ y))
            q = q - shares[-1] * y
        s, y = kept[-1]
        q = (s @ y) / (y @ y) * q
        for (s, y), share in zip(kept, reversed(shares), strict=True):
            q = q + (share - (y @ q) / (s @ y)) * s
        torch.testing.assert_close(model.newton(g, zero, rule.scaled(model))[item], -q)


def test_single_precision_with_a_full_memory():
    """Fifty pairs of a badly scaled Hessian (1e-3 to 1e3): the direction still descends, and meets the last secants."""
    size, items, memory = 128, 4, 50
    generator = torch.Generator().manual_seed(0)
    shared = torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
    curvature = torch.logspace(-3, 3, size)
    matrix = torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
    matrix = matrix @ torch.diag(curvature) @ matrix.mT
    model = Model(torch.ones(items, size), shared, memory, False)
    zero = torch.zeros(items)
    for _ in range(2 * memory):
        step = torch.randn(items, size, generator=generator)
        model, _ = model.updated(torch.ones(items, dtype=torch.bool), step, step @ matrix)
    torch.testing.assert_close(-model.newton(step @ matrix, zero), step, rtol=0.02, atol=0.02)
    torch.testing.assert_close(model.hessian(zero, step), step @ matrix, rtol=0.02, atol=0.2)
    gradient = torch.randn(items, size, generator=generator)
    assert ((model.newton(gradient, zero) * gradient).sum(1) < 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("broken", ["nan", "inf", "flat", "bent back", "overflow"])
def test_a_pair_that_would_spoil_the_model_is_left_out_for_its_item_alone(broken, dtype):
    shared, first = orthogonal(3).to(dtype), first_values(4).to(dtype)
    model, everyone = Model(first, shared, 4, False), torch.ones(B, dtype=torch.bool)
    (step, grad_change), (step2, grad_change2) = ((s.to(dtype), y.to(dtype)) for s, y in pairs(2, 8))
    model, added = model.updated(everyone, step, grad_change)
    assert added.all()
    grad_change2[1] = {
        "nan": torch.full((S,), torch.nan),
        "inf": torch.full((S,), torch.inf),
        "flat": grad_change2[1] - step2[1] * (step2[1] @ grad_change2[1]) / (step2[1] @ step2[1]),  # up to rounding
        "bent back": -grad_change2[1],
        "overflow": 0.9 * torch.finfo(dtype).max * torch.sign(step2[1]),
    }[broken].to(dtype)
    whole, added = model.updated(everyone, step2, grad_change2)
    assert added.tolist() == [True, False, True]
    assert torch.equal(whole.state.steps[1], model.state.steps[1])
    assert torch.equal(whole.state.changes[1], model.state.changes[1])
    direction = whole.newton(normal(B, S).to(dtype), torch.zeros(B, dtype=dtype))
    assert direction.isfinite().all()
    torch.testing.assert_close(
        whole.newton(grad_change2, torch.zeros(B, dtype=dtype))[::2], -step2[::2], rtol=1e-4, atol=1e-4
    )


def test_a_first_hessian_that_underflowed_leaves_its_item_alone():
    shared, first = orthogonal(3), first_values(4)
    model = Model(first, shared, 4, True)
    after = model.replaced(torch.tensor([0, 2]), torch.stack([torch.zeros(S, S), torch.eye(S)]).to(F64)).state
    assert torch.equal(after.first[:2], first[:2])
    torch.testing.assert_close(after.first[2], torch.full((S,), 1.001, dtype=F64))
