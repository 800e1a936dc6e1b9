"""The Jacobian, its maps and the preconditioner against autograd and closed forms."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

import genprior as gp
from genprior.generators import derivatives as room


def network(latent: tuple[int, ...] = (5,)) -> gp.Generator:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        size = torch.Size(latent).numel()
        module = nn.Sequential(
            nn.Flatten(),
            nn.Linear(size, 16),
            nn.ELU(),
            nn.Unflatten(1, (4, 2, 2)),
            nn.ConvTranspose2d(4, 2, 3),
            nn.Tanh(),
        )
    return gp.Generator(module.double(), latent, (2, 4, 4))


def oracle(generator: gp.Generator, z: Tensor) -> Tensor:
    """One item and one output number at a time."""
    rows = []
    for item in z:
        full = torch.autograd.functional.jacobian(lambda v: generator.module(v[None])[0], item)
        rows.append(full.reshape(-1, item.numel()))
    return torch.stack(rows)


class Halved(torch.autograd.Function):
    """Has a backward and no forward-mode rule."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x / 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 7).double()

    def forward(self, z: Tensor) -> Tensor:
        return Halved.apply(self.inner(z))


@pytest.mark.parametrize("latent", [(5,), (2, 1, 2)])
def test_jacobian_equals_autograd(latent):
    G = network(latent)
    z = G.sample_latent(3, seed=1)
    torch.testing.assert_close(G.jacobian(z), oracle(G, z), rtol=1e-12, atol=1e-12)
    assert (G.forwards, G.backwards) == (z[0].numel(), 0)


def test_memory_is_bounded_without_an_effect(monkeypatch):
    G = network()
    z = G.sample_latent(3, seed=1)
    whole = G.jacobian(z)
    monkeypatch.setattr(room, "_LARGEST", 100)
    torch.testing.assert_close(G.jacobian(z), whole, rtol=1e-13, atol=1e-13)


def test_image_of_the_columns():
    G = network()
    A = gp.operators.Gaussian(9, G.signal_shape, dtype=torch.float64)
    z = G.sample_latent(3, seed=1)
    torch.testing.assert_close(G.jacobian(z, A), A.matrix @ oracle(G, z), rtol=1e-12, atol=1e-12)


def test_modules_without_forward_mode_are_transposed_twice():
    G = gp.Generator(Odd(), 5, 7)
    z = G.sample_latent(3, seed=1)
    torch.testing.assert_close(G.jacobian(z), oracle(G, z), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("history", [False, True], ids=["leaf", "with a history"])
def test_transposing_twice_leaves_the_latents_alone(history):
    G = gp.Generator(Odd(), 5, 7)
    leaf = G.sample_latent(3, seed=1).requires_grad_(history)
    z = 2 * leaf if history else leaf
    plain = z.detach()
    for found, expected in (
        (G.jacobian(z), oracle(G, plain)),
        (G.jvp(z, torch.ones(1, 3, 5, dtype=z.dtype))[0], oracle(G, plain).sum(2)),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        assert not found.requires_grad
        assert z.requires_grad is history and leaf.grad is None and (z.grad_fn is not None) is history


def test_no_pass_besides_those_that_are_counted():
    G = network()
    calls = []
    G.module.register_forward_pre_hook(lambda *given: calls.append(1))
    G.jacobian(G.sample_latent(2))
    assert len(calls) == 1, "all columns in one"


def test_a_device_without_memory_is_told():
    class Greedy(nn.Module):
        calls = 0

        def forward(self, z: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 1:
                raise torch.OutOfMemoryError("no memory left")
            return z * z

    with pytest.raises(torch.OutOfMemoryError):
        gp.Generator(Greedy(), 3, 3).jacobian(torch.zeros(1, 3))


def test_two_threads_do_not_spoil_each_other():
    """The first one ends while the second is inside: in torch that clears the tangents of both."""
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))

    class Meeting(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            y = torch.sin(z)
            if threading.current_thread().name == "first":
                first_is_in.set()
                second_is_in.wait(0.3)
            elif threading.current_thread().name == "second":
                second_is_in.set()
                first_is_out.wait(0.3)
            return y

    def push() -> None:
        name = threading.current_thread().name
        found[name] = room.pushed(Meeting(), z, torch.ones(1, 2, 3))[0]
        if name == "first":
            first_is_out.set()

    z, found = torch.arange(6.0).reshape(2, 3), {}
    room.pushed(Meeting(), z, torch.ones(1, 2, 3))
    threads = [threading.Thread(target=push, name=name) for name in ("first", "second")]
    threads[0].start()
    assert first_is_in.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join(10)
    for name in ("first", "second"):
        torch.testing.assert_close(found[name], torch.cos(z), msg=name)


def test_linearised_maps_are_the_jacobian_and_its_transpose():
    G = network()
    z = G.sample_latent(3, seed=1)
    J, maps = oracle(G, z), G.linearised(z)
    v, u = torch.randn(3, 5).double(), torch.randn(3, 2, 4, 4).double()
    torch.testing.assert_close(maps.jvp(v).flatten(1), (J @ v[:, :, None])[:, :, 0])
    torch.testing.assert_close(maps.vjp(u), (J.mT @ u.flatten(1)[:, :, None])[:, :, 0])
    torch.testing.assert_close(maps.vjp(2 * u), 2 * maps.vjp(u))
    assert z.requires_grad is False


def test_preconditioner_of_a_linear_generator():
    """Random pulls average to W^T W; 256 of them to about 10%."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Linear(4, 300).double()
    G = gp.Generator(module, 4, 300)
    exact = (module.weight.T @ module.weight).detach()
    error = torch.linalg.matrix_norm(G.preconditioner().matrix - exact, 2) / torch.linalg.matrix_norm(exact, 2)
    assert float(error) < 0.3
    torch.testing.assert_close(G.preconditioner().matrix, G.preconditioner().matrix.mT)
    first, passes = G.preconditioner().matrix, (G.forwards, G.backwards)
    assert G.preconditioner().matrix is first, "remembered"
    assert (G.forwards, G.backwards) == passes, "and not counted again"
    G.forget()
    assert G.preconditioner().matrix is not first and torch.equal(G.preconditioner().matrix, first)
    values, vectors = G.preconditioner().modes
    torch.testing.assert_close(vectors @ torch.diag(values) @ vectors.mT, first)
    with torch.no_grad():
        module.weight.mul_(2)
    torch.testing.assert_close(G.preconditioner().matrix, 4 * first, msg="the module was changed")


def test_a_preconditioner_that_came_along_costs_one_pass_for_the_variance_while_it_fits():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Linear(4, 30)
    given = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    G = gp.Generator(module, 4, 30, preconditioner=given)
    assert torch.equal(G.preconditioner().matrix, given) and (G.forwards, G.backwards) == (1, 0)
    assert torch.equal(G.preconditioner().matrix, given) and (G.forwards, G.backwards) == (1, 0)
    torch.testing.assert_close(G.preconditioner().modes[0], given.diagonal())
    G.forget()
    assert torch.equal(G.preconditioner().matrix, given) and (G.forwards, G.backwards) == (2, 0)
    with torch.no_grad():
        module.weight.mul_(2)
    assert not torch.equal(G.preconditioner().matrix, given) and (G.forwards, G.backwards) == (3, 8), (
        "the module was changed"
    )


@pytest.mark.parametrize("matrix", [torch.eye(3), torch.full((4, 4), torch.nan)])
def test_a_preconditioner_that_does_not_fit_is_refused(matrix):
    with pytest.raises(ValueError, match="preconditioner must be 4 x 4 finite numbers"):
        gp.Generator(nn.Linear(4, 30), 4, 30, preconditioner=matrix)


def test_preconditioner_of_a_broken_generator_is_the_identity():
    class Broken(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return z / 0

    assert torch.equal(gp.Generator(Broken(), 3, 3).preconditioner().matrix, torch.eye(3))
