"""The secant model against the textbook's BFGS update, matrix by matrix."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genprior.solvers.secants import SecantModel
from tests.laws.test_curvature import F64, normal

B, S = 3, 5


def orthogonal(seed):
    return torch.linalg.qr(normal(S, S, seed=seed))[0]


def first_values(seed):
    return normal(B, S, seed=seed).abs() + 0.1


def pairs(count, seed):
    """Steps of any length, and bends of positive curvature."""
    root = normal(B, S, S, seed=seed)
    hessian = root @ root.mT + 0.2 * torch.eye(S, dtype=F64)
    for i in range(count):
        step = 10.0 ** (i % 3 - 1) * normal(B, S, seed=seed + 7 * i + 1)
        twist = 0.2 * normal(B, S, S, seed=seed + 7 * i + 2)
        bend = ((hessian + twist - twist.mT) @ step[:, :, None])[:, :, 0]  # no Hessian has these: order matters
        yield step, bend


def scale_of(hessian, seen):
    """Per item the product of ``<s, y> / <s, first s>``, to the power ``1/(n + 5)``, within 0.25 and 1."""
    scales = []
    for item in range(B):
        taught = [(s[item], y[item]) for where, s, y in seen if where[item]]
        product = math.prod(float(s @ y / (s @ hessian[item] @ s)) for s, y in taught)
        scales.append(min(1.0, max(0.25, product ** (1 / (len(taught) + 5)))))
    return torch.tensor(scales, dtype=F64)


def textbook(first, basis, seen, c):
    """``B+ = B - B s s^T B / <s, B s> + y y^T / <s, y>`` from ``t first + c I``, with ``y + c s``."""
    unit = torch.eye(S, dtype=F64)
    hessian = basis @ torch.diag_embed(first) @ basis.mT
    matrix = scale_of(hessian, seen)[:, None, None] * hessian + c[:, None, None] * unit
    for where, step, bend in seen:
        s, y = step[:, :, None], (bend + c[:, None] * step)[:, :, None]
        bs = matrix @ s
        new = matrix - bs @ bs.mT / (s.mT @ bs) + y @ y.mT / (s.mT @ y)
        matrix = torch.where(where[:, None, None], new, matrix)
    return matrix


def check(model, shared, expected, c, seed=90):
    v = normal(B, S, seed=seed)
    torch.testing.assert_close(model.hessian(c, shared)(v), (expected @ v[:, :, None])[:, :, 0], rtol=1e-7, atol=1e-9)
    solved = torch.linalg.solve(expected, v)
    torch.testing.assert_close(model.newton(v, c, shared), -solved, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("own_bases", [False, True])
@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(0, 6), seed=st.integers(0, 10**6), c=st.floats(0, 5), size=st.sampled_from([0.1, 1.0, 5.0, 50.0])
)
def test_it_is_bfgs_for_every_pull(own_bases, count, seed, c, size):
    shared, first, pull = orthogonal(seed), size * first_values(seed + 1), c * torch.tensor([1.0, 0.3, 2.0], dtype=F64)
    model, seen = SecantModel.fresh(first, shared, 6, own_bases=own_bases), []
    for i, (step, bend) in enumerate(pairs(count, seed)):
        where = torch.tensor([True, i % 2 == 0, i % 3 == 0])
        model, _ = model.learned(where, step, bend, shared)
        seen.append((where, step, bend))
    check(model, shared, textbook(first, shared.expand(B, S, S), seen, pull), pull)


def test_the_oldest_pair_makes_room():
    shared, first, zero = orthogonal(3), first_values(4), torch.zeros(B, dtype=F64)
    model, seen = SecantModel.fresh(first, shared, 2, own_bases=False), []
    for step, bend in pairs(4, 5):
        model, _ = model.learned(torch.ones(B, dtype=torch.bool), step, bend, shared)
        seen.append((torch.ones(B, dtype=torch.bool), step, bend))
    check(model, shared, textbook(first, shared.expand(B, S, S), seen[-2:], zero), zero)


def test_scaled_is_the_model_of_a_multiple():
    shared, first, pull = orthogonal(3), first_values(4), torch.zeros(B, dtype=F64)
    model, seen = SecantModel.fresh(first, shared, 4, own_bases=False), []
    for step, bend in pairs(3, 8):
        model, _ = model.learned(torch.ones(B, dtype=torch.bool), step, bend, shared)
        seen.append((torch.ones(B, dtype=torch.bool), step, bend))
    factor = torch.tensor([1.0, 2.5, 0.3], dtype=F64)
    expected = factor[:, None, None] * textbook(first, shared.expand(B, S, S), seen, pull)
    check(model.scaled(factor), shared, expected, pull)


def test_begun_anew_and_replaced_concern_their_items_alone():
    shared, first, pull = orthogonal(3), first_values(4), torch.full((B,), 0.3, dtype=F64)
    model, everyone = SecantModel.fresh(first, shared, 4, own_bases=True), torch.ones(B, dtype=torch.bool)
    seen = [(everyone, *pair) for pair in pairs(3, 8)]
    for _, step, bend in seen:
        model, _ = model.learned(everyone, step, bend, shared)
    expected = textbook(first, shared.expand(B, S, S), seen, pull)
    root = normal(1, S, S, seed=20)
    matrices = torch.cat([root @ root.mT, torch.full((1, S, S), torch.nan, dtype=F64)])
    model = model.replaced(torch.tensor([1, 2]), matrices, 1e-3)  # the second is broken: item 2 stays as it is
    unit = torch.eye(S, dtype=F64)
    expected[1] = matrices[0] + (1e-3 * torch.linalg.eigvalsh(matrices[0])[-1] + 0.3) * unit
    check(model, shared, expected, pull)
    later = list(pairs(4, 30))[-1]
    taught, _ = model.learned(everyone, *later, shared)  # pairs live in each item's own basis
    values, vectors = torch.linalg.eigh(expected - 0.3 * unit)
    updated = textbook(values, vectors, [(everyone, *later)], pull)
    v = normal(B, S, seed=31)
    torch.testing.assert_close(taught.hessian(pull, shared)(v)[1], updated[1] @ v[1])
    other = first_values(50)
    model = model.begun_anew(torch.tensor([False, True, False]), other, shared)
    expected[1] = shared @ torch.diag(other[1]) @ shared.mT + 0.3 * unit
    check(model, shared, expected, pull)


def test_plain_takes_the_scale_of_the_pairs_alone():
    shared, first, pull = orthogonal(3), 20 * first_values(4), torch.full((B,), 0.3, dtype=F64)
    model, everyone = SecantModel.fresh(first, shared, 4, own_bases=False), torch.ones(B, dtype=torch.bool)
    seen = [(everyone, *pair) for pair in pairs(3, 8)]
    for _, step, bend in seen:
        model, _ = model.learned(everyone, step, bend, shared)
    hessian = shared @ torch.diag_embed(first) @ shared.mT
    scale = scale_of(hessian, seen)
    assert ((scale > 0.25) & (scale < 1)).any(), "neither bound hides the scale"
    expected = scale[:, None, None] * hessian + 0.3 * torch.eye(S, dtype=F64)
    torch.testing.assert_close(model.plain(normal(B, S), pull, shared), -torch.linalg.solve(expected, normal(B, S)))


def test_single_precision_with_a_full_memory():
    """Fifty pairs of a badly scaled Hessian (1e-3 to 1e3): the direction still descends, and meets the last secants."""
    size, items, memory = 128, 4, 50
    generator = torch.Generator().manual_seed(0)
    shared = torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
    curvature = torch.logspace(-3, 3, size)
    matrix = torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
    matrix = matrix @ torch.diag(curvature) @ matrix.mT
    model = SecantModel.fresh(torch.ones(items, size), shared, memory, own_bases=False)
    zero = torch.zeros(items)
    for _ in range(2 * memory):
        step = torch.randn(items, size, generator=generator)
        model, _ = model.learned(torch.ones(items, dtype=torch.bool), step, step @ matrix, shared)
    torch.testing.assert_close(-model.newton(step @ matrix, zero, shared), step, rtol=0.02, atol=0.02)
    torch.testing.assert_close(model.hessian(zero, shared)(step), step @ matrix, rtol=0.02, atol=0.2)
    gradient = torch.randn(items, size, generator=generator)
    assert ((model.newton(gradient, zero, shared) * gradient).sum(1) < 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("broken", ["nan", "inf", "flat", "bent back", "overflow"])
def test_a_pair_that_would_spoil_the_model_is_left_out_for_its_item_alone(broken, dtype):
    shared, first = orthogonal(3).to(dtype), first_values(4).to(dtype)
    model, everyone = SecantModel.fresh(first, shared, 4, own_bases=False), torch.ones(B, dtype=torch.bool)
    (step, bend), (step2, bend2) = ((s.to(dtype), y.to(dtype)) for s, y in pairs(2, 8))
    model, taught = model.learned(everyone, step, bend, shared)
    assert taught.all()
    bend2[1] = {
        "nan": torch.full((S,), torch.nan),
        "inf": torch.full((S,), torch.inf),
        "flat": bend2[1] - step2[1] * (step2[1] @ bend2[1]) / (step2[1] @ step2[1]),  # up to rounding
        "bent back": -bend2[1],
        "overflow": 0.9 * torch.finfo(dtype).max * torch.sign(step2[1]),
    }[broken].to(dtype)
    whole, taught = model.learned(everyone, step2, bend2, shared)
    assert taught.tolist() == [True, False, True]
    assert torch.equal(whole.steps[1], model.steps[1]) and torch.equal(whole.bends[1], model.bends[1])
    direction = whole.newton(normal(B, S).to(dtype), torch.zeros(B, dtype=dtype), shared)
    assert direction.isfinite().all()
    torch.testing.assert_close(
        whole.newton(bend2, torch.zeros(B, dtype=dtype), shared)[::2], -step2[::2], rtol=1e-4, atol=1e-4
    )


def test_a_first_hessian_that_underflowed_leaves_its_item_alone():
    shared, first = orthogonal(3), first_values(4)
    model = SecantModel.fresh(first, shared, 4, own_bases=True)
    after = model.replaced(torch.tensor([0, 2]), torch.stack([torch.zeros(S, S), torch.eye(S)]).to(F64), 1e-3)
    assert torch.equal(after.first[:2], first[:2])
    torch.testing.assert_close(after.first[2], torch.full((S,), 1.001, dtype=F64))
