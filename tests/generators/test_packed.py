"""Large linear layers, packed for a run: the same module in less time, whatever is done to it."""

import pytest
import torch
from torch import nn

import genprior as gp
from genprior import _product
from genprior.generators.jacobian import prepare_forward_mode
from genprior.generators.packed import PackedLinear, packed_copy

packs = pytest.mark.skipif(not _product.can_pack(), reason="this build of torch has no packed product")


def network(bias=True):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 200, bias), nn.ELU(), nn.Linear(200, 400, bias), nn.Sigmoid())


def latents(count=30):
    return torch.randn(count, 20, generator=torch.Generator().manual_seed(1))


def alike(a, b):
    torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)


def large(module):
    return [part for part in module.modules() if isinstance(part, PackedLinear)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [1, 30, 300])
def test_values_and_gradients_are_those_of_the_module(bias, count):
    module = network(bias).requires_grad_(False)
    packed = packed_copy(module)
    z, v = latents(count), torch.randn(count, 400, generator=torch.Generator().manual_seed(2))
    sides = []
    for one in (module, packed):
        leaf = z.clone().requires_grad_()
        x = one(leaf)
        sides.append((x, torch.autograd.grad(x, leaf, v)[0]))
    alike(sides[1][0], sides[0][0])
    alike(sides[1][1], sides[0][1])
    with torch.no_grad():
        alike(packed(z), module(z))


@packs
def test_large_layers_are_packed_and_small_ones_are_not():
    packed = packed_copy(network())
    packed(latents())
    assert [part.out_features for part in large(packed)] == [400]
    assert large(packed)[0]._packed[3]._packed is not None


def test_the_callers_module_is_left_alone():
    module = network()
    packed = packed_copy(module)
    assert all(type(part) is not PackedLinear for part in module.modules())
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert packed[2].weight.data_ptr() == module[2].weight.data_ptr()


def test_a_module_without_large_layers_is_itself():
    small = nn.Sequential(nn.Linear(3, 8), nn.Conv1d(1, 1, 1))
    assert packed_copy(small) is small
    exact = network().double()
    assert packed_copy(exact) is exact


def test_changed_weights_and_biases_are_seen():
    module = network()
    packed = packed_copy(module)
    before = packed(latents())
    with torch.no_grad():
        module[2].weight.mul_(0.5)
        module[2].bias.add_(1.0)
    after = packed(latents())
    assert not torch.allclose(before, after)
    alike(after, module(latents()).detach())


def test_a_new_weight_is_seen():
    packed = packed_copy(network())
    packed(latents())
    packed[2].weight = nn.Parameter(torch.zeros(400, 200), requires_grad=False)
    alike(packed(latents()), torch.sigmoid(packed[2].bias).expand(30, 400))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_layers_with_hooks_keep_their_own_way():
    module = network()
    module[2] = nn.utils.weight_norm(module[2])
    assert packed_copy(module) is module
    seen = []
    module = nn.Sequential(network(), nn.Linear(400, 300))
    module[0][2].register_forward_hook(lambda part, given, out: seen.append((type(part), out.shape)))
    packed = packed_copy(module)
    packed(latents())
    assert seen == [(nn.Linear, (30, 400))]
    assert [part.out_features for part in large(packed)] == [300]


class Cabinet(nn.Sequential):
    """A person's own class; ``drawn`` is noise of the first pass."""

    drawn = None

    def forward(self, z):
        if self.drawn is None:
            self.drawn = torch.randn(400)
        return super().forward(z) + self.drawn


def test_a_persons_own_classes_keep_what_they_remember():
    module = Cabinet(*network())
    assert packed_copy(module) is module
    G = gp.Generator(module, 20, 400)
    result = gp.solve(gp.Problem(G, gp.SquaredDistance(torch.rand(30, 400))), gp.Adam(), stop=gp.MaxSteps(3))
    alike(result.signal, G(result.z).detach())


def test_a_module_that_cannot_be_copied_is_left_as_it_is():
    module = network().eval().requires_grad_(False)
    module.handle = (part for part in ())  # a generator of Python's cannot be copied
    G = gp.Generator(module, 20, 400)
    assert G.module is module
    gp.solve(gp.Problem(G, gp.SquaredDistance(torch.rand(30, 400))), gp.Adam(), stop=gp.MaxSteps(2))
    assert all(type(part) is not PackedLinear for part in module.modules())


def test_weights_that_ask_for_gradients_get_them():
    packed = packed_copy(network())
    layer, h = large(packed)[0], torch.randn(30, 200)
    layer(h)
    variables = {"weight": torch.randn(400, 200, requires_grad=True), "bias": torch.randn(400, requires_grad=True)}
    x = torch.func.functional_call(layer, variables, (h,))
    torch.testing.assert_close(x, h @ variables["weight"].T + variables["bias"], rtol=1e-4, atol=1e-4)
    gradients = torch.autograd.grad(x.sum(), list(variables.values()))
    torch.testing.assert_close(gradients[1], torch.full((400,), 30.0))
    fixed = {name: value.detach() for name, value in variables.items()}
    x = torch.func.functional_call(layer, fixed, (h,))
    torch.testing.assert_close(x, h @ fixed["weight"].T + fixed["bias"], rtol=1e-4, atol=1e-4)


def test_a_new_bias_is_seen():
    packed = packed_copy(network())
    before = packed(latents())
    packed[2].bias = nn.Parameter(torch.full((400,), 9.0), requires_grad=False)
    assert (packed(latents()) > before).all()


@packs
def test_another_thread_in_forward_mode_changes_nothing():
    packed = packed_copy(network().requires_grad_(False))
    with torch.no_grad():
        expected = packed(latents())
        with torch.autograd.forward_ad.dual_level():  # the level is common to all threads
            assert torch.equal(packed(latents()), expected)


def test_hooks_on_the_module_see_every_pass_of_a_run():
    module, passes = network(), []
    G = gp.Generator(module, 20, 400)
    module.register_forward_hook(lambda *_: passes.append("forward"))
    result = gp.solve(gp.Problem(G, gp.SquaredDistance(torch.rand(30, 400))), gp.ExactADMM(), stop=gp.MaxSteps(7))
    assert len(passes) == result.forwards == 8
    assert result.backwards == 7


def test_jacobians_second_derivatives_and_more_axes():
    module = network().requires_grad_(False)
    packed, z = packed_copy(module), latents()
    prepare_forward_mode()
    tangent = torch.ones_like(z)
    alike(torch.func.jvp(packed, (z,), (tangent,))[1], torch.func.jvp(module, (z,), (tangent,))[1])
    batched = torch.stack([z, 2 * z])
    alike(torch.func.vmap(packed)(batched), module(batched))
    alike(packed(batched), module(batched))
    seconds = []
    for one in (module, packed):
        leaf = z.clone().requires_grad_()
        (slope,) = torch.autograd.grad(one(leaf).square().sum(), leaf, create_graph=True)
        seconds.append(torch.autograd.grad(slope.square().sum(), leaf)[0])
    alike(seconds[1], seconds[0])


@packs
def test_a_run_uses_packed_layers_and_the_generator_itself_does_not(monkeypatch):
    passes, products = [], PackedLinear.products
    monkeypatch.setattr(PackedLinear, "products", lambda layer: (passes.append(layer.out_features), products(layer))[1])
    G = gp.Generator(network(), 20, 400)
    G(latents())
    assert not passes and not large(G.module)
    gp.solve(gp.Problem(G, gp.SquaredDistance(torch.rand(30, 400))), gp.Adam(), stop=gp.MaxSteps(3))
    assert passes == [400] * 4
    assert large(G.prepared()._run) and not large(G.module)


def test_a_run_gives_the_generators_signals():
    G = gp.Generator(network(), 20, 400)
    y = G(latents()).detach()
    result = gp.solve(gp.Problem(G, gp.SquaredDistance(y)), gp.Auto(), stop=gp.MaxSteps(20))
    alike(result.signal, G(result.z).detach())
