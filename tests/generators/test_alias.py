"""The caller's module stays as it is; the double works in eval mode, without parameter gradients, in the same memory."""

import copy

import pytest
import torch
from torch import nn

import genprior as gp

S, D = 3, 5


class PlainList(nn.Module):
    """Layers that torch itself overlooks."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(S, 4), nn.Dropout(0.5)]
        self.named = {"last": (nn.Linear(4, D),)}

    def forward(self, z):
        return self.named["last"][0](self.layers[1](self.layers[0](z)))


class Registered(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(S, 4), nn.Dropout(0.5), nn.Linear(4, D)])

    def forward(self, z):
        for layer in self.layers:
            z = layer(z)
        return z


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(S, S), nn.Linear(S, S)
        self.two.weight = self.one.weight
        self.last = nn.Linear(S, D)

    def forward(self, z):
        return self.last(self.two(torch.tanh(self.one(z))))


def trained_batchnorm():
    module = nn.Sequential(nn.Linear(S, 4), nn.BatchNorm1d(4), nn.Linear(4, D))
    for _ in range(3):
        module(torch.randn(16, S, generator=torch.Generator().manual_seed(0)))
    return module


def weight_normed():
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(S, 4)), nn.ELU(), nn.Linear(4, D))


class OldWeightNorm(nn.Module):
    """What ``torch.nn.utils.weight_norm`` (deprecated, common in old checkpoints) leaves behind: a computed attribute."""

    def __init__(self):
        super().__init__()
        self.direction = nn.Parameter(torch.randn(D, S))
        self.length = nn.Parameter(torch.rand(D, 1) + 0.5)
        self.weight = self.computed()
        self.register_forward_pre_hook(lambda module, inputs: setattr(module, "weight", module.computed()))

    def computed(self):
        return self.length * self.direction / self.direction.norm(dim=1, keepdim=True)

    def forward(self, z):
        return z @ self.weight.T


MODULES = {
    "linear": lambda: nn.Linear(S, D),
    "sequential with dropout": lambda: nn.Sequential(nn.Linear(S, 4), nn.Dropout(0.5), nn.Linear(4, D)),
    "module list": Registered,
    "plain lists": PlainList,
    "tied": Tied,
    "trained batch norm": trained_batchnorm,
    "weight norm": weight_normed,
    "old weight norm": OldWeightNorm,
    "instance norm": lambda: nn.Sequential(
        nn.Linear(S, D), nn.Unflatten(1, (1, D)), nn.InstanceNorm1d(1), nn.Flatten()
    ),
}
every = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES.keys())


def parts(module):
    """All modules, with those that only the plain containers know."""
    hidden = [*module.layers, *module.named["last"]] if isinstance(module, PlainList) else []
    return [*module.modules(), *hidden]


def parameters(module):
    return [p for part in parts(module) for p in part.parameters(recurse=False)]


def made(make):
    torch.manual_seed(0)
    return make()


def wrap(module, **options):
    return gp.Generator(module, S, D, **options)


def latents(items=4, seed=1):
    return torch.randn(items, S, generator=torch.Generator().manual_seed(seed))


@every
def test_the_module_is_left_alone(make):
    module = made(make)
    for p in parameters(module):
        p.grad = torch.full_like(p, 7.0)
    before = copy.deepcopy({k: v.clone() for k, v in module.state_dict().items()})
    modes = [part.training for part in parts(module)]
    at = wrap(module).evaluate(latents())
    at.vjp(torch.ones(4, D))
    assert [part.training for part in parts(module)] == modes
    assert all(modes)
    assert all(p.requires_grad for p in parameters(module))
    assert all(bool((p.grad == 7).all()) for p in parameters(module))
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


@every
def test_the_double_is_frozen_in_eval_mode_and_shares_the_memory(make):
    module = made(make)
    double = wrap(module).module
    assert double is not module
    assert not any(part.training for part in parts(double))
    assert not any(p.requires_grad for p in parameters(double))
    ours, theirs = [p.data_ptr() for p in parameters(double)], [p.data_ptr() for p in parameters(module)]
    assert ours == theirs
    assert [b.data_ptr() for b in double.buffers()] == [b.data_ptr() for b in module.buffers()]


@every
def test_equals_the_module_in_eval_mode(make):
    module = made(make)
    ours = wrap(module)(latents())
    reference = copy_by_remaking(make, module)
    for part in parts(reference):
        part.eval()
    torch.testing.assert_close(ours, reference(latents()), rtol=0, atol=0)


def copy_by_remaking(make, module):
    other = made(make)
    other.load_state_dict(module.state_dict())
    return other


@every
def test_weight_updates_are_seen(make):
    module = made(make)
    G = wrap(module)
    first = G(latents())
    with torch.no_grad():
        for p in parameters(module):
            p.mul_(1.5).add_(0.1)
    assert not torch.equal(G(latents()), first)
    torch.testing.assert_close(G(latents()), wrap(module)(latents()), rtol=0, atol=0)


@every
def test_hooks_of_before_and_after_fire_on_every_pass(make):
    module = made(make)
    seen = {"before": 0, "after": 0, "inner": 0, "pre": 0}

    def count(name):
        def hook(*_):
            seen[name] += 1

        return hook

    before = module.register_forward_hook(count("before"))
    G = wrap(module)
    module.register_forward_hook(count("after"))
    module.register_forward_pre_hook(count("pre"))
    inner = parts(module)[-1] if len(parts(module)) > 1 else None
    if inner is not None:
        inner.register_forward_hook(count("inner"))
    G(latents())
    G.evaluate(latents()).vjp(torch.ones(4, D))
    assert seen == {"before": 2, "after": 2, "inner": 2 if inner is not None else 0, "pre": 2}
    before.remove()
    G(latents())
    assert (seen["before"], seen["after"]) == (2, 3)


def test_dropout_is_off_in_the_double_only():
    module = nn.Sequential(nn.Linear(S, D), nn.Dropout(0.5))
    G = wrap(module)
    torch.testing.assert_close(G(latents()), G(latents()), rtol=0, atol=0)
    assert module.training
    assert bool((module(torch.ones(50, S)) == 0).any())


def test_tied_weights_stay_tied():
    double = wrap(made(Tied)).module
    assert double.one.weight is double.two.weight


def test_old_weight_norm_is_recomputed_from_the_shared_parts():
    module = made(OldWeightNorm)
    G = wrap(module)
    with torch.no_grad():
        module.length.mul_(2)
    torch.testing.assert_close(G(latents()), latents() @ module.computed().T)


def test_a_module_used_later_for_training_still_trains():
    module = made(MODULES["sequential with dropout"])
    G = wrap(module)
    G.evaluate(latents()).vjp(torch.ones(4, D))
    module(latents()).sum().backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in module.parameters())
    assert all(p.grad is None for p in G.module.parameters())


def test_fresh_batch_norm_in_train_mode_is_refused():
    module = nn.Sequential(nn.Linear(S, D), nn.BatchNorm1d(D))
    with pytest.raises(ValueError, match=r"batch-dependent layer in train mode, 1 \(BatchNorm1d\)"):
        wrap(module)
    assert wrap(module.eval())(latents()).shape == (4, D)


def test_batch_norm_items_do_not_influence_each_other():
    G = wrap(trained_batchnorm())
    together = G(latents())
    torch.testing.assert_close(together[:1], G(latents()[:1]))


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_without_statistics_is_refused(training):
    module = nn.Sequential(nn.Linear(S, D), nn.BatchNorm1d(D, track_running_stats=False)).train(training)
    with pytest.raises(ValueError, match="statistics of the batch even in eval mode"):
        wrap(module)


@pytest.mark.parametrize("module", [torch.tanh, lambda z: z, "linear", nn.Linear])
def test_what_is_no_module(module):
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module"):
        wrap(module)


class Uncopyable(nn.Linear):
    def __deepcopy__(self, memo):
        raise RuntimeError("a handle to hardware")


def test_a_module_that_cannot_be_copied():
    module = Uncopyable(S, D)
    with pytest.raises(TypeError, match=r"cannot be copied \(a handle to hardware\): call module\.eval\(\)"):
        wrap(module)
    module.eval().requires_grad_(False)
    assert wrap(module).module is module


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [MODULES["linear"], PlainList], ids=["linear", "plain lists"])
def test_place(make, dtype):
    module = made(make)
    for part in parts(module):
        part.to(dtype)
    G = wrap(module)
    assert (G.device, G.dtype) == (torch.device("cpu"), dtype)
    assert G.sample_latent(2).dtype == dtype


def test_place_of_a_module_without_numbers():
    G = gp.Generator(nn.Tanh(), D, D)
    assert (G.device, G.dtype) == (torch.device("cpu"), torch.float32)


def test_place_skips_whole_number_buffers():
    module = nn.Module()
    module.register_buffer("count", torch.zeros(1, dtype=torch.int64))
    module.register_buffer("table", torch.zeros(1, dtype=torch.float64))
    assert gp.Generator(module, S, D).dtype == torch.float64
