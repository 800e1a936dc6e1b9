"""Chains of layers without autograd: what autograd gives on the same layers, and nothing that somebody else should see."""

import copy
import itertools
import pickle
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

import genprior as gp
from genprior.generators.chain import _LINKS, Chain
from genprior.generators.packed import PackedLinear, packed_copy

LAYERS = {
    "linear": lambda: nn.Linear(6, 9),
    "linear without bias": lambda: nn.Linear(6, 9, bias=False),
    "elu": lambda: nn.ELU(0.7),
    "elu in place": lambda: nn.ELU(inplace=True),
    "relu": nn.ReLU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "leaky relu": lambda: nn.LeakyReLU(0.3),
    "leaky relu in place": lambda: nn.LeakyReLU(0.3, inplace=True),
    "softplus": lambda: nn.Softplus(beta=3.0, threshold=2.0),
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "unflatten": lambda: nn.Unflatten(1, (2, 3)),
    "flatten": nn.Flatten,
    "identity": nn.Identity,
}
NETWORKS = {name: lambda make=make: nn.Sequential(nn.Linear(4, 6), make()) for name, make in LAYERS.items()} | {
    "nothing": nn.Sequential,
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.Tanh())), nn.Linear(5, 3)),
    "one layer twice": lambda: nn.Sequential(*(2 * [nn.Linear(4, 4), nn.Tanh()])),
    "more axes": lambda: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.Linear(3, 5), nn.ELU()),
    "large": lambda: nn.Sequential(nn.Linear(4, 200), nn.ELU(), nn.Linear(200, 400), nn.Sigmoid()),
    "large, more axes": lambda: nn.Sequential(nn.Linear(4, 400), nn.Unflatten(1, (2, 200)), nn.Linear(200, 400)),
    "settings of other kinds": lambda: nn.Sequential(
        nn.Linear(4, 6), nn.LeakyReLU(np.float32(0.3)), nn.ELU(np.int64(1)), nn.Softplus(torch.tensor(0.3))
    ),
}


def made(name, dtype=torch.float32):
    torch.manual_seed(0)
    return NETWORKS[name]().to(dtype).eval().requires_grad_(False)


def latents(count=30, dtype=torch.float32, width=4):
    return 2 * torch.randn(count, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def by_chain(module, z, v=None):
    with torch.no_grad():
        chain = Chain.of(module)
        assert chain.serves(z)
        x, pull = chain(z)
        return x, pull(x.cos() if v is None else v)


def by_autograd(module, z):
    leaf = z.clone().requires_grad_()
    x = module(leaf)
    return x.detach(), torch.autograd.grad(x, leaf, x.detach().cos())[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_what_autograd_gives(name, count, dtype):
    module = packed_copy(made(name, dtype))
    z = latents(count, dtype)
    assert z.shape == (count, 4)
    before = z.clone()
    for mine, theirs in zip(by_chain(module, z), by_autograd(module, z), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
    assert torch.equal(z, before)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_pull_is_the_transpose_of_the_derivative(name):
    module, z, h = made(name, torch.float64), latents(dtype=torch.float64), 1e-6
    d = torch.randn(z.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x, back = by_chain(module, z)
    slope = (module(z + h * d) - module(z - h * d)) / (2 * h)
    torch.testing.assert_close((back * d).sum(1), (x.cos() * slope).flatten(1).sum(1), rtol=1e-6, atol=1e-7)


def test_every_kind_of_layer_is_in_the_table():
    tried = {type(part) for name in NETWORKS for part in packed_copy(made(name)).modules()} - {nn.Sequential}
    assert tried == set(_LINKS)


class Own(nn.Sequential):
    """A person's class may do more than its layers."""


def with_own_forward():
    module = made("nested")
    module[1].forward = lambda x: x[:, :3]
    return module


class Odd(torch.Tensor):
    """A subclass may do something else in any operation."""


def with_odd_weight(name):
    module = made("nested")
    odd = getattr(module[1], name).detach().as_subclass(Odd)
    module[1].register_parameter(name, nn.Parameter(odd, requires_grad=False))
    return module


def with_nothing():
    module = made("nested")
    module.register_module("2", None)
    return module


def with_parametrization():
    module = made("nested")
    nn.utils.parametrizations.weight_norm(module[1])
    return module


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(4, 3),
        Own(nn.Linear(4, 3)),
        nn.Sequential(Own(nn.Linear(4, 3))),
        nn.Sequential(nn.Linear(4, 3), nn.Hardtanh()),
        with_own_forward(),
        with_parametrization(),
        with_odd_weight("weight"),
        with_odd_weight("bias"),
        with_nothing(),
        torch.sigmoid,
    ],
)
def test_what_is_no_chain(module):
    assert Chain.of(module) is None


def test_a_class_that_somebody_changed(monkeypatch):
    forward = nn.Tanh.forward
    monkeypatch.setattr(nn.Tanh, "forward", lambda layer, x: forward(layer, 2 * x))
    assert Chain.of(made("nested")) is None


def test_it_stands_back_for_gradients_and_transforms():
    chain, z = Chain.of(made("nested")), latents()
    assert not chain.serves(z)  # gradients are on
    with torch.no_grad():
        assert chain.serves(z)
        with torch.autocast("cpu"):
            assert not chain.serves(z)
        with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
            assert not chain.serves(z)
        seen = []
        torch.func.vmap(lambda row: (seen.append(chain.serves(row[None])), row)[1])(z)
        assert seen == [False]


HOOKS = {
    "forward": lambda part, note: part.register_forward_hook(note),
    "forward, before": lambda part, note: part.register_forward_pre_hook(note),
    "backward, before": lambda part, note: part.register_full_backward_pre_hook(note),
    "backward": lambda part, note: part.register_full_backward_hook(note),
    "forward, all modules": lambda part, note: torch_module.register_module_forward_hook(note),
    "forward, before, all modules": lambda part, note: torch_module.register_module_forward_pre_hook(note),
    "backward, all modules": lambda part, note: torch_module.register_module_full_backward_hook(note),
    "backward, before, all modules": lambda part, note: torch_module.register_module_full_backward_pre_hook(note),
}


def problem(module, y=None):
    G = gp.Generator(module, 4, 3)
    return G, gp.Problem(G, gp.SquaredDistance(torch.rand(5, 3) if y is None else y))


@pytest.mark.parametrize("place", [lambda m: m, lambda m: m[0][1][0]], ids=["root", "layer"])
@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_sees_every_pass_from_when_it_is_there(kind, place):
    module, seen, handles = made("nested"), [], []
    _, asked = problem(module)
    sizes = []

    def hang(view):
        if view.step == 3:
            handles.append(HOOKS[kind](place(module), lambda *_: seen.append(kind)))
        sizes.append(len(seen))

    try:
        gp.solve(asked, gp.GradientDescent(), stop=gp.MaxSteps(9), callbacks=[hang], tolerance=0)
    finally:
        handles[0].remove()
    first = 5 if "backward" in kind else 4  # the way back of the next step was laid by the pass before the hook
    assert sizes[3] == 0 and sizes[first] > 0
    gained = {b - a for a, b in itertools.pairwise(sizes[first:])}
    assert len(gained) == 1 and gained.pop() > 0


def test_changed_weights_are_seen_at_the_next_pass():
    module = made("large")
    packed = packed_copy(module)
    assert any(type(part) is PackedLinear for part in packed)
    z = latents()
    before = by_chain(packed, z)
    with torch.no_grad():
        module[0].weight.mul_(0.5)
        module[2].weight.mul_(2.0)
        module[2].bias.add_(0.1)
    for mine, theirs, old in zip(by_chain(packed, z), by_autograd(module, z), before, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-6)
        assert not torch.allclose(mine, old)


@pytest.mark.parametrize("layer", [0, 2], ids=["small", "packed"])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_replaced_weights_are_seen_at_the_next_pass(layer, name):
    packed, z = packed_copy(made("large")), latents()
    chain = Chain.of(packed)
    with torch.no_grad():
        chain(z)
        packed[layer].register_parameter(
            name, nn.Parameter(0.1 * torch.ones_like(getattr(packed[layer], name)), requires_grad=False)
        )
        x, back = chain(z)
        pulled = back(x.cos())
    for mine, theirs in zip((x, pulled), by_autograd(nn.Sequential(*packed), z), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-6)


def test_numbers_that_are_no_parameters():
    module = made("large")
    module.requires_grad_(True)
    bias = module[2].bias.detach().clone()
    del module[2].bias
    module[2].register_buffer("bias", bias)
    G = gp.Generator(module, 4, 400)
    result = gp.solve(gp.Problem(G, gp.SquaredDistance(torch.rand(30, 400))), gp.Adam(), stop=gp.MaxSteps(3))
    torch.testing.assert_close(result.signal, G(result.z).detach(), rtol=2e-5, atol=2e-6)


def test_the_way_back_guards_what_autograd_guards():
    module = made("large")
    chain, z = Chain.of(module), latents(3)
    with torch.no_grad():
        for wrong in ((1, 400), (400,), (3, 1)):
            with pytest.raises(ValueError, match=r"expected that of the signals: \(3, 400\)"):
                chain(z)[1](torch.ones(wrong))
        x, back = chain(z)
        x.mul_(2)
        with pytest.raises(RuntimeError, match="changed in place before they were pulled back"):
            back(torch.ones_like(x))
        x, back = chain(z)
        exact = back(torch.ones_like(x).double())
        assert exact.dtype is torch.float32
        torch.testing.assert_close(exact, chain(z)[1](torch.ones_like(x)))
        with pytest.raises(RuntimeError, match="gone already"):
            back(torch.ones_like(x))


class Clipped(gp.Generator):
    """A person's subclass that does more in a pass."""

    def __call__(self, z):
        return super().__call__(z).clamp(0.2, 0.3)


class Halved(gp.Generator):
    """A person's subclass that pulls back otherwise."""

    def backward(self, z, x, v, *, keep=False):
        return super().backward(z, x, v, keep=keep) / 2


def test_what_a_subclass_does_in_a_pass_is_done():
    asked = gp.Problem(Clipped(made("nested"), 4, 3), gp.SquaredDistance(torch.rand(5, 3)))
    signal = gp.solve(asked, gp.GradientDescent(), stop=gp.MaxSteps(3)).signal
    assert bool(((signal >= 0.2) & (signal <= 0.3)).all())
    with torch.no_grad():
        plain, halved = (
            kind(made("nested"), 4, 3).prepared().evaluate(latents()).vjp(torch.ones(30, 3))
            for kind in (gp.Generator, Halved)
        )
    torch.testing.assert_close(2 * halved, plain)


def test_a_prepared_generator_is_copied_and_pickled_whole():
    ready = gp.Generator(made("large"), 4, 400).prepared()
    copies = (copy.deepcopy(ready), pickle.loads(pickle.dumps(ready)))
    with torch.no_grad():
        expected = ready.evaluate(latents()).x
        for one in copies:
            torch.testing.assert_close(one.evaluate(latents()).x, expected)
            for parameter in one._run.parameters():
                parameter.zero_()
            assert torch.equal(one.evaluate(latents()).x, one(latents()))
        assert torch.equal(ready.evaluate(latents()).x, expected)


def test_another_module_is_another_chain():
    ready = gp.Generator(made("nested"), 4, 3).prepared()
    other = ready.with_module(nn.Sequential(nn.Linear(4, 3)))
    with torch.no_grad():
        assert torch.equal(other.evaluate(latents()).x, other(latents()))


def test_latents_that_do_not_fit_are_refused():
    ready = gp.Generator(made("nested"), 4, 3).prepared()
    with torch.no_grad(), pytest.raises(ValueError, match="z has shape"):
        ready.evaluate(torch.zeros(2, 5))
    with torch.no_grad(), pytest.raises(TypeError, match="z"):
        ready.evaluate(torch.zeros(2, 4, dtype=torch.float64))


def test_a_run_has_no_graph_and_counts_its_passes(monkeypatch):
    def never(*_, **__):
        raise AssertionError("autograd was used")

    G, asked = problem(made("nested"))
    monkeypatch.setattr(gp.Generator, "backward", never)
    result = gp.solve(asked, gp.ExactADMM(), stop=gp.MaxSteps(9), tolerance=0)
    assert (result.forwards, result.backwards) == (10, 9) == (G.forwards, G.backwards)
    with pytest.raises(AssertionError, match="autograd was used"):
        G.evaluate(latents()).vjp(torch.ones(30, 3))  # outside of a run the module is the person's own


@pytest.mark.parametrize("solver", [gp.GradientDescent(), gp.ExactADMM(), gp.LBFGS(), gp.Auto()], ids=repr)
def test_a_run_is_what_it_is_with_autograd(solver, monkeypatch):
    y = torch.rand(5, 3, generator=torch.Generator().manual_seed(2))
    runs = []
    for way in (Chain.of, lambda module: None):
        monkeypatch.setattr(Chain, "of", way)
        _, asked = problem(made("nested"), y)
        runs.append(gp.solve(asked, solver, stop=gp.MaxSteps(15), seed=1))
    torch.testing.assert_close(runs[0].z, runs[1].z, rtol=1e-4, atol=1e-5)
    assert (runs[0].forwards, runs[0].backwards) == (runs[1].forwards, runs[1].backwards)


def test_pulls_are_values():
    G = gp.Generator(made("large"), 4, 400).prepared()
    with torch.no_grad():
        at = G.evaluate(latents(6))
        v = torch.randn(6, 400)
        once, index = at.vjp(v), torch.tensor([4, 1])
        assert torch.equal(at.vjp(v), once)
        assert (G.forwards, G.backwards) == (2, 2)
        torch.testing.assert_close(G.evaluate(latents(6)).rows(index).vjp(v[index]), once[index])


def test_layers_that_do_not_fit_are_named_as_always():
    G = gp.Generator(nn.Sequential(nn.Linear(4, 6), nn.Linear(5, 3)), 4, 3).prepared()
    with torch.no_grad(), pytest.raises(ValueError, match="module failed on latents of shape"):
        G.evaluate(latents())
    G = gp.Generator(made("nested"), 4, 7).prepared()
    with torch.no_grad(), pytest.raises(ValueError, match=r"gave shape \(30, 3\).*expected \(30, 7\)"):
        G.evaluate(latents())


def test_another_threads_forward_mode_changes_nothing():
    chain, z, entered, left = Chain.of(made("nested")), latents(), threading.Event(), threading.Event()

    def elsewhere():
        with torch.autograd.forward_ad.dual_level():
            entered.set()
            left.wait(10)

    other = threading.Thread(target=elsewhere)
    other.start()
    try:
        assert entered.wait(10)
        with torch.no_grad():
            assert chain.serves(z)
    finally:
        left.set()
        other.join()
