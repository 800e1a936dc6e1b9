"""Pulling back through DG: right for whole batches, rows and rows of rows; how many passes each thing costs."""

import pytest
import torch
from torch import nn

import genprior as gp

S, D, B = 3, (2, 4), 5


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def G():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(S, 6), nn.Tanh(), nn.Linear(6, 8), nn.Unflatten(1, D)).double()
    return gp.Generator(module, S, D)


@pytest.fixture
def z():
    return random(B, S, seed=1)


def jacobians(G, z):
    """``DG`` of each item by central differences, ``(B, d, s)``."""
    h = 1e-6
    columns = [(G(z + h * e) - G(z - h * e)).flatten(1) / (2 * h) for e in torch.eye(S, dtype=z.dtype)]
    return torch.stack(columns, dim=2).detach()


def pulled(G, z, v):
    return torch.einsum("bds,bd->bs", jacobians(G, z), v.flatten(1))


def passes(G):
    return G.forwards, G.backwards


def ones(items):
    return torch.ones(items, *D, dtype=torch.float64)


def test_value_and_pull(G, z):
    at = G.evaluate(z)
    assert torch.equal(at.x, G(z))
    assert torch.equal(at.z, z)
    assert not at.x.requires_grad
    v = random(B, *D)
    torch.testing.assert_close(at.vjp(v), pulled(G, z, v), rtol=1e-7, atol=1e-8)


def test_the_latents_are_left_alone_and_work_under_no_grad(G, z):
    with torch.no_grad():
        at = G.evaluate(z)
        pull = at.vjp(ones(B))
    assert not z.requires_grad
    assert z.grad is None
    assert not pull.requires_grad
    torch.testing.assert_close(pull, pulled(G, z, ones(B)), rtol=1e-7, atol=1e-8)


def test_latents_with_a_graph_of_their_own_are_detached(G, z):
    leaf = z.clone().requires_grad_()
    G.evaluate(2 * leaf).vjp(ones(B))
    assert leaf.grad is None


def test_a_second_pull_gives_the_same_bits_for_one_more_forward(G, z):
    at = G.evaluate(z)
    assert passes(G) == (1, 0)
    v = random(B, *D)
    first = at.vjp(v)
    assert passes(G) == (1, 1)
    assert torch.equal(at.vjp(v), first)
    assert passes(G) == (2, 2)
    other = random(B, *D, seed=8)
    torch.testing.assert_close(at.vjp(other), pulled(G, z, other), rtol=1e-7, atol=1e-8)


INDICES = {"some": [0, 3], "one": [4], "all": [0, 1, 2, 3, 4], "permuted": [4, 0, 2, 1, 3], "unordered": [3, 1]}
every_index = pytest.mark.parametrize("index", [torch.tensor(i) for i in INDICES.values()], ids=INDICES.keys())


@every_index
def test_rows(G, z, index):
    at = G.evaluate(z)
    before = passes(G)
    part = at.rows(index)
    assert passes(G) == before
    assert torch.equal(part.x, at.x[index])
    assert torch.equal(part.z, z[index])
    v = random(len(index), *D, seed=3)
    pull = part.vjp(v)
    assert passes(G) == (before[0], before[1] + 1)
    torch.testing.assert_close(pull, pulled(G, z[index], v), rtol=1e-7, atol=1e-8)


def test_rows_of_rows(G, z):
    part = G.evaluate(z).rows(torch.tensor([4, 2, 0])).rows(torch.tensor([2, 1])).rows(torch.tensor([1]))
    assert torch.equal(part.z, z[2:3])
    v = random(1, *D)
    pull = part.vjp(v)
    assert passes(G) == (1, 1)
    torch.testing.assert_close(pull, pulled(G, z[2:3], v), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("first", ["parent", "rows"])
def test_parent_and_rows_share_one_graph(G, z, first):
    at = G.evaluate(z)
    part = at.rows(torch.tensor([1, 2]))
    order = [(at, B), (part, 2)] if first == "parent" else [(part, 2), (at, B)]
    pulls = [evaluation.vjp(ones(items)) for evaluation, items in order]
    assert passes(G) == (2, 2)
    expected = pulled(G, z, ones(B))
    for pull, (_, items) in zip(pulls, order, strict=True):
        torch.testing.assert_close(pull, expected if items == B else expected[1:3], rtol=1e-7, atol=1e-8)


def test_put(G, z):
    at, index = G.evaluate(z), torch.tensor([3, 1])
    other = G.evaluate(random(2, S, seed=9))
    mixed = at.put(index, other)
    assert passes(G) == (2, 0)
    expected = z.clone()
    expected[index] = other.z
    assert torch.equal(mixed.z, expected)
    torch.testing.assert_close(mixed.x, G(expected), rtol=0, atol=1e-14)
    assert torch.equal(at.z, z)
    v = random(B, *D)
    before = passes(G)
    pull = mixed.vjp(v)
    assert passes(G) == (before[0] + 1, before[1] + 1)
    torch.testing.assert_close(pull, pulled(G, expected, v), rtol=1e-7, atol=1e-8)


def test_put_into_rows_and_rows_of_put(G, z):
    part = G.evaluate(z).rows(torch.tensor([4, 1, 2]))
    other = G.evaluate(random(1, S, seed=9))
    mixed = part.put(torch.tensor([1]), other).rows(torch.tensor([0, 1]))
    assert torch.equal(mixed.z, torch.cat([z[4:5], other.z]))
    v = random(2, *D)
    torch.testing.assert_close(mixed.vjp(v), pulled(G, mixed.z, v), rtol=1e-7, atol=1e-8)


@every_index
def test_stored_and_restored_to_the_bit(G, z, index):
    part = G.evaluate(z).rows(index)
    stored = {name: tensor.clone() for name, tensor in part.tensors().items()}
    before = passes(G)
    again = G.evaluate(torch.zeros_like(z)).restored(stored)
    assert passes(G) == (before[0] + 2, before[1])
    assert torch.equal(again.z, part.z)
    assert torch.equal(again.x, part.x)
    v = random(len(index), *D)
    assert torch.equal(again.vjp(v), part.vjp(v))


def test_whole_evaluation_restored(G, z):
    at = G.evaluate(z)
    again = at.restored(at.tensors())
    assert torch.equal(again.x, at.x)
    assert torch.equal(again.vjp(ones(B)), at.vjp(ones(B)))
