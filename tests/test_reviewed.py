"""Faults that a fresh eye found: each stays mended."""

from __future__ import annotations

import io
import zipfile

import h5py
import numpy as np
import pytest
import torch
from torch import nn

import genprior as gp
from genprior.assessment import Concern, Facts, ResidualSummary, assess
from genprior.files.guard import Unreadable
from genprior.files.hdf5 import Hdf5Array, open_hdf5
from genprior.files.npz import NpzArray, open_npz
from genprior.loop.batch import winners
from genprior.loop.rows import Outcome
from genprior.loop.solve import Hopeless
from genprior.solvers.optimality import optimality


class Hidden(nn.Module):
    """Half of the outputs are ``scale`` times as large, and a mask measures the other half."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 32))
        self.register_buffer("scale", torch.cat([torch.full((16,), scale), torch.ones(16)]))

    def forward(self, z):
        return self.scale * self.layers(z)


def hidden(scale, items=4):
    G = gp.Generator(Hidden(scale), 6, 32)
    A = gp.operators.Mask(torch.arange(32) >= 16)
    return gp.Problem(G, gp.LeastSquares(A, A(G(G.sample_latent(items, seed=5))).detach()))


@pytest.mark.parametrize("scale", [1.0, 100.0, 10_000.0])
def test_what_the_operator_does_not_see_is_no_unit_for_the_verdict(scale):
    problem = hidden(scale)
    z = problem.generator.sample_latent(4, seed=9)
    with torch.no_grad():
        _, found = optimality(problem, z, torch.ones(4))
    assert (found > 0.01).all(), "a random latent is not stationary"
    result = gp.solve(problem)
    assert (result.residual[[s is gp.Status.CONVERGED for s in result.status]] < 0.02).all()


@pytest.mark.parametrize(
    ("scores", "won"),
    [((1.0, 1.0 + 3e-6), 1), ((1.0, 1.1), 0)],  # equal up to rounding: the twin that went on; clearly better: as it is
)
def test_a_restart_that_was_given_up_wins_only_where_it_is_better(scores, won):
    score, none = torch.tensor(scores), torch.zeros(2)
    status = torch.tensor([int(gp.Status.CULLED), int(gp.Status.CONVERGED)])
    outcome = Outcome(none, none, none, score, score, none, none, status, none, none, none, none.bool())
    assert winners(outcome, 2).tolist() == [won]


def test_data_that_cannot_be_represented_spoil_only_their_own_item():
    problem = hidden(1.0)
    y = problem.loss.y.clone()
    y[2] *= 1e25
    other = gp.Problem(problem.generator, gp.LeastSquares(problem.loss.operator, y))
    for batch_size in (None, 1):
        result = gp.solve(other, batch_size=batch_size)
        assert [s is gp.Status.DIVERGED for s in result.status] == [False, False, True, False]
    with pytest.raises(Hopeless, match="cannot be represented in float32") as caught:
        gp.solve(other.rows(torch.tensor([2])))
    assert caught.value.result.status == (gp.Status.DIVERGED,)


class Laplacian(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 8)
        self.register_buffer("matrix", torch.eye(8).to_sparse())

    def forward(self, z):
        return torch.sparse.mm(self.matrix, self.layer(z).T).T


def test_sparse_buffers():
    G = gp.Generator(Laplacian(), 3, 8)
    y = G(G.sample_latent(2, seed=1)).detach()
    assert gp.solve(gp.Problem(G, gp.SquaredDistance(y))).converged


def test_a_module_that_is_another_one_now():
    module = nn.Linear(3, 8)
    G, z = gp.Generator(module, 3, 8), torch.ones(1, 3)
    module.weight.data = torch.zeros(8, 3)
    assert not G.jacobian(z).any() and not G.jvp(z, z[None]).any()
    module.double()
    with pytest.raises(TypeError, match=r"moved to cpu, torch.float64 .*make a new gp.Generator"):
        G(z)
    module.float()
    module.register_buffer("more", torch.zeros(1))
    with pytest.raises(ValueError, match=r"added, removed or renamed .*make a new gp.Generator"):
        G(z)


def test_a_remembered_preconditioner_is_not_counted_again():
    problem = hidden(1.0)
    z0 = problem.generator.sample_latent(problem.batch, seed=1)
    first, second = (gp.solve(problem, gp.QuasiNewton(), stop=gp.MaxSteps(20), tolerance=0, z0=z0) for _ in range(2))
    assert torch.equal(first.z, second.z)
    assert first.forwards > second.forwards == 21 and first.backwards > second.backwards


@pytest.mark.parametrize(
    ("residuals", "lost"),
    [([0.95] * 6, 6), ([0.9, 0.9, 0.9, 0.1, 0.1, 0.1], 3), ([0.95], 1), ([0.69, 0.72, 0.7, 0.71, 0.68, 0.74], 0)],
)
def test_several_lost_items_do_not_excuse_each_other(residuals, lost):
    facts = [Facts(gp.Status.MAX_STEPS, steps=50, objective=1.0, residual=r) for r in residuals]
    assert [assess(f, ResidualSummary.of(residuals)).concern for f in facts].count(Concern.LOST) == lost


def test_a_short_run_from_an_answer_does_not_still_improve():
    exact = hidden(1.0)
    noisy = exact.loss.operator.measured(exact.loss.y + 0.1 * torch.randn(4, 32, generator=torch.manual_seed(1)))
    problem = gp.Problem(exact.generator, gp.LeastSquares(exact.loss.operator, noisy))
    answer = gp.solve(problem, tolerance=1e-9)
    again = gp.solve(problem, z0=answer.z, stop=gp.MaxSteps(5), tolerance=0)
    assert not again.improving.any()


def packed(path, filters, content, shape=(1, 64)):
    """A data set of one chunk with filters in this order, whose stored bytes are ``content``."""
    with h5py.File(path, "w") as file:
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk(shape)
        for number in filters:
            settings.set_filter(number, 0, (4,) if number in {1, 2} else ())
        space = h5py.h5s.create_simple(shape)
        data = h5py.h5d.create(file.id, b"data", h5py.h5t.IEEE_F32LE, space, settings)
        data.write_direct_chunk((0, 0), content)
    return Hdf5Array(path, "data", open_hdf5(path))


def test_filters_in_an_order_that_hides_a_bomb(tmp_path):
    with pytest.raises(Unreadable, match="unsupported"):
        packed(tmp_path / "a.h5", [1, 2], bytes(300)).whole()


def test_a_chunk_that_lzf_made_larger(tmp_path):
    with pytest.raises(Unreadable, match="damaged, or forged"):
        packed(tmp_path / "a.h5", [32000], bytes(5000)).whole()


def test_an_empty_data_set_beside_a_good_one(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["good"] = np.ones((2, 3), np.float32)
        file["none"] = h5py.Empty("f")
    from genprior.files.hdf5 import hdf5_names

    assert hdf5_names(tmp_path / "a.h5", open_hdf5(tmp_path / "a.h5")) == ["good"]


def test_a_head_that_promises_more_than_there_is(tmp_path):
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"shape": (10**15, 28), "fortran_order": False, "descr": "<f4"})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("a.npy", content.getvalue() + bytes(400))
    with pytest.raises(Unreadable, match="declares the shape"):
        NpzArray(tmp_path / "a.npz", "a", open_npz(tmp_path / "a.npz"))
