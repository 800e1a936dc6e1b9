"""Selecting, replacing and storing rows of nested states."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import genprior as gp
from genprior import _tree
from genprior.generators import Evaluation
from genprior.loop.rows import Rows
from tests.checks.parts import tiny_generator, tiny_problem


@dataclass(frozen=True)
class Inner:
    a: Tensor
    memory: dict[str, Tensor]


@dataclass(frozen=True)
class Outer:
    at: Evaluation
    inner: Inner
    count: Tensor
    empty: dict[str, Tensor]


def outer(seed, items=5, generator=None):
    generator = generator or tiny_generator()
    z = generator.sample_latent(items, seed=seed)
    memory = {"first": z * 2, "mask": z[:, 0] > 0}
    return Outer(generator.evaluate(z), Inner(z.reshape(items, 3, 1), memory), torch.arange(items) + 10 * seed, {})


def leaves(tree):
    return [tree.at.z, tree.at.x, tree.inner.a, tree.inner.memory["first"], tree.inner.memory["mask"], tree.count]


def pulled(at, seed=0):
    v = torch.randn(at.x.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return at.vjp(v)


def test_take():
    tree, index = outer(1), torch.tensor([4, 0, 2])
    taken = _tree.take(tree, index)
    assert isinstance(taken, Outer) and isinstance(taken.inner, Inner) and taken.empty == {}
    for part, whole in zip(leaves(taken), leaves(tree), strict=True):
        assert torch.equal(part, whole[index])
    fresh = tree.at._generator.evaluate(taken.at.z)
    assert torch.allclose(pulled(taken.at), pulled(fresh), rtol=1e-12)


def test_take_costs_no_pass_and_leaves_the_original():
    generator = tiny_generator()
    tree = outer(1, generator=generator)
    before = generator.forwards
    copies = [leaf.clone() for leaf in leaves(tree)]
    _tree.take(_tree.take(tree, torch.tensor([0, 2, 3])), torch.tensor([1, 2]))
    assert generator.forwards == before
    assert all(torch.equal(a, b) for a, b in zip(leaves(tree), copies, strict=True))


def test_put():
    generator = tiny_generator()
    tree, index = outer(1, generator=generator), torch.tensor([3, 1])
    other = outer(2, items=2, generator=generator)
    copies = [leaf.clone() for leaf in leaves(tree)]
    mixed = _tree.put(tree, index, other)
    for new, old, piece in zip(leaves(mixed), leaves(tree), leaves(other), strict=True):
        assert torch.equal(new[index], piece)
        assert torch.equal(new[[0, 2, 4]], old[[0, 2, 4]])
    assert all(torch.equal(a, b) for a, b in zip(leaves(tree), copies, strict=True)), "put changed its argument"
    assert torch.allclose(pulled(mixed.at), pulled(generator.evaluate(mixed.at.z)), rtol=1e-12)


@pytest.mark.parametrize("compact", [False, True])
def test_pack_and_unpack(compact):
    generator = tiny_generator()
    tree = outer(1, generator=generator)
    template = outer(9, generator=generator)
    if compact:
        tree = _tree.take(tree, torch.tensor([1, 4]))
        template = _tree.take(template, torch.tensor([0, 1]))
    packed = _tree.pack(tree, "rows")
    assert all(name.startswith("rows.") and isinstance(leaf, Tensor) for name, leaf in packed.items())
    rebuilt = _tree.unpack(template, {**packed, "other": torch.zeros(1)}, "rows")
    assert _tree.equal(rebuilt, tree)
    assert [leaf.dtype for leaf in leaves(rebuilt)] == [leaf.dtype for leaf in leaves(tree)]
    assert torch.equal(pulled(rebuilt.at), pulled(tree.at)), "the pull-back must have the same bits too"


def test_stored_signals_are_taken_as_they_are():
    """A pass over another batch may round differently, so x is restored, not computed again."""
    tree = outer(1)
    packed = _tree.pack(tree, "rows")
    packed["rows.0.value"] = packed["rows.0.value"] + 1e-9
    assert torch.equal(_tree.unpack(tree, packed, "rows").at.x, tree.at.x + 1e-9)


def test_unpack_misses_nothing_silently():
    tree = outer(1)
    packed = _tree.pack(tree, "rows")
    del packed["rows.1"]
    with pytest.raises(KeyError, match=r"rows\.1"):
        _tree.unpack(tree, packed, "rows")


def test_equal():
    generator = tiny_generator()
    assert _tree.equal(outer(1, generator=generator), outer(1, generator=generator))
    assert not _tree.equal(outer(1, generator=generator), outer(2, generator=generator))
    assert not _tree.equal(outer(1, generator=generator), outer(1, items=4, generator=generator))
    assert not _tree.equal({"a": torch.ones(2)}, {"a": torch.ones(2), "b": torch.ones(2)})


SOLVERS = [gp.LinearizedADMM(), gp.ExactADMM(z_step=gp.z_steps.Adam()), gp.Adam(), gp.LBFGS(), gp.ProjectedGradient()]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_stored_states_step_on_alike(solver):
    problem = tiny_problem()
    solver = solver.solver(problem)
    with torch.no_grad():
        rows = Rows.open(problem, solver, problem.generator.sample_latent(4))
        template = rows
        for _ in range(5):
            rows = rows.advanced(problem, solver)
        index = torch.tensor([0, 3])
        rows, problem = _tree.take(rows, index), problem.rows(index)
        rebuilt = _tree.unpack(_tree.take(template, index), _tree.pack(rows, "r"), "r")
        assert _tree.equal(rebuilt, rows)
        for _ in range(3):
            rows, rebuilt = rows.advanced(problem, solver), rebuilt.advanced(problem, solver)
        assert _tree.equal(rebuilt, rows)


def test_what_is_unpacked_has_memory_of_its_own():
    """As aligned as any tensor, whatever a file gave: the last bits of products depend on it."""
    tree = {"a": torch.arange(6.0).reshape(2, 3)}
    buffer = torch.empty(7)
    buffer[1:] = torch.arange(6.0)  # not where an allocation begins
    packed = {name: buffer[1:].reshape(2, 3) for name in _tree.pack(tree, "t")}
    again = _tree.unpack(tree, packed, "t")
    assert torch.equal(again["a"], tree["a"])
    assert again["a"].data_ptr() % 64 == 0
