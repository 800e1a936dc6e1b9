"""What a generator promises, what it refuses, and the counting of its passes."""

import math
import re

import pytest
import torch
from torch import nn

import genprior as gp
from genprior.models import examples

S, D = 3, (2, 4)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, z):
        return self.function(z)


def linear(**options):
    torch.manual_seed(0)
    return gp.Generator(nn.Sequential(nn.Linear(S, 8), nn.Unflatten(1, D)), (S,), D, **options)


def from_function(function, signal_shape=(S,)):
    return gp.Generator(Function(function), (S,), signal_shape)


def test_passes_are_counted():
    G = linear()
    G(torch.zeros(5, S))
    at = G.evaluate(torch.zeros(2, S))
    assert (G.forwards, G.backwards) == (2, 0)
    at.vjp(torch.ones(2, *D))
    assert (G.forwards, G.backwards) == (2, 1)


def test_a_call_is_differentiable_in_z():
    z = torch.zeros(2, S, requires_grad=True)
    linear()(z).sum().backward()
    assert z.grad.shape == (2, S)


@pytest.mark.parametrize("shape", [S, (S,), [S], torch.Size([S])])
def test_shapes_are_tuples(shape):
    G = gp.Generator(nn.Linear(S, 8), shape, 8)
    assert (G.latent_shape, G.signal_shape) == ((S,), (8,))


@pytest.mark.parametrize("shape", [0, (), (3, 0), (3, -1), (2.5,), True, (None,)])
@pytest.mark.parametrize("name", ["latent_shape", "signal_shape"])
def test_bad_shapes(name, shape):
    shapes = {"latent_shape": S, "signal_shape": 8} | {name: shape}
    with pytest.raises(ValueError, match=f"{name} must be positive whole numbers without the batch axis"):
        gp.Generator(nn.Linear(S, 8), **shapes)


BAD_LATENTS = [
    (torch.zeros(2, S + 1), ValueError, "z has shape (2, 4), expected (B, 3)"),
    (torch.zeros(2, S, 1), ValueError, "z has shape (2, 3, 1), expected (B, 3)"),
    (torch.zeros(S), ValueError, "z has shape (3,), expected (B, 3): add the batch axis with [None]"),
    (torch.tensor(0.0), ValueError, "z has shape (), expected (B, 3)"),
    (torch.zeros(0, S), ValueError, "z is an empty batch, shape (0, 3): give at least one item"),
    (torch.zeros(2, S, dtype=torch.float64), TypeError, "z has dtype torch.float64, but the generator works in"),
    (torch.zeros(2, S, dtype=torch.int64), TypeError, "z has dtype torch.int64"),
    (torch.zeros(2, S, device="meta"), ValueError, "z is on meta, but the generator is on cpu: use .to('cpu')"),
    ([[0.0] * S], TypeError, "z must be a torch.Tensor, got list"),
]


@pytest.mark.parametrize(("z", "kind", "message"), BAD_LATENTS, ids=lambda v: v if isinstance(v, str) else "")
def test_bad_latents(z, kind, message):
    G = linear()
    with pytest.raises(kind, match=re.escape(message)):
        G(z)
    if isinstance(z, torch.Tensor) and z.is_floating_point():
        with pytest.raises(kind, match=re.escape(message)):
            G.evaluate(z)
    assert G.forwards == 0


BAD_OUTPUTS = [
    (lambda z: (z, z), TypeError, "module gave tuple, expected one tensor"),
    (lambda z: {"signal": z}, TypeError, "module gave dict, expected one tensor"),
    (lambda z: z[:, :2], ValueError, "gave shape (4, 2) for 4 latents, expected (4, 3): correct signal_shape"),
    (lambda z: z[:1], ValueError, "gave shape (1, 3) for 4 latents, expected (4, 3)"),
    (lambda z: z.sum(), ValueError, "gave shape () for 4 latents"),
]


@pytest.mark.parametrize(("function", "kind", "message"), BAD_OUTPUTS)
def test_bad_outputs(function, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        from_function(function)(torch.zeros(4, S))


@pytest.mark.parametrize(
    "function", [lambda z: z.detach(), lambda z: torch.ones(len(z), S)], ids=["detach", "constant"]
)
def test_an_output_that_does_not_depend_on_z(function):
    at = from_function(function).evaluate(torch.zeros(2, S))
    with pytest.raises(ValueError, match="does not depend on the latent: its module detaches or ignores z"):
        at.vjp(torch.ones(2, S))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_generator_that_gives_nan_is_refused_by_solve(value):
    G = from_function(lambda z: z * value + value)
    problem = gp.Problem(G, loss=gp.SquaredDistance(torch.zeros(2, S)))
    with pytest.raises(ValueError, match="generator gives NaN or infinity at all starts"):
        gp.solve(problem, stop=gp.MaxSteps(3), progress=False)


def test_signal_range():
    assert linear().signal_range is None
    assert linear(signal_range=(0, 1)).signal_range == (0.0, 1.0)


BAD_RANGES = [
    ((1.0, 0.0), ValueError, "low below high"),
    ((1.0, 1.0), ValueError, "low below high"),
    ((0.0, math.inf), ValueError, "signal_range must be a finite number"),
    ((math.nan, 1.0), ValueError, "signal_range must be a finite number"),
    ((0.0, "1"), TypeError, "signal_range must be a number"),
    ((0.0,), ValueError, "signal_range must be two numbers"),
    (1.0, ValueError, "signal_range must be two numbers"),
]


@pytest.mark.parametrize(("given", "kind", "message"), BAD_RANGES)
def test_bad_signal_range(given, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        linear(signal_range=given)


def test_bad_law():
    with pytest.raises(TypeError, match=r"latent must be a latent distribution such as gp\.Normal\(\), got 'normal'"):
        linear(latent="normal")


def test_repr():
    assert repr(linear(latent=gp.Uniform(-2, 2))) == (
        "Generator(Sequential, latent_shape=(3,), signal_shape=(2, 4), latent=Uniform(low=-2, high=2), "
        "torch.float32 on cpu)"
    )


def test_sample_latent_comes_from_the_law():
    G = linear(latent=gp.Uniform(2.0, 3.0))
    z = G.sample_latent(100)
    assert z.shape == (100, S)
    assert bool(((z >= 2) & (z <= 3)).all())


def test_draws_go_on_where_the_random_generator_stands():
    G, random = linear(), torch.Generator().manual_seed(4)
    first, second = G.draw(2, random), G.draw(2, random)
    assert not torch.equal(first, second)
    assert torch.equal(first, G.sample_latent(2, seed=4))


@pytest.mark.parametrize("count", [0, -1, 2.0, True])
def test_bad_counts(count):
    with pytest.raises((ValueError, TypeError), match="count must be"):
        linear().sample_latent(count)


EXAMPLES = {
    "mlp": lambda **o: examples.random_mlp(4, 10, (1, 3, 2), **o),
    "dcgan": lambda **o: examples.random_dcgan(5, 2, **o),
    "discs": lambda **_: examples.soft_discs(2, 8),
}


@pytest.mark.parametrize("make", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_examples(make):
    state = torch.random.get_rng_state()
    G = make()
    z = G.sample_latent(6)
    x = G(z)
    assert x.shape == (6, *G.signal_shape)
    low, high = G.signal_range
    assert bool(((x >= low) & (x <= high)).all())
    assert float(x.std()) > 0.01
    assert torch.equal(make()(z), x)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.testing.assert_close(G(z[2:3]), x[2:3])


@pytest.mark.parametrize("name", ["mlp", "dcgan"])
def test_example_seeds(name):
    z = EXAMPLES[name]().sample_latent(1)
    assert not torch.equal(EXAMPLES[name](seed=1)(z), EXAMPLES[name](seed=2)(z))


class Picky(torch.nn.Module):
    """Raises what no library expects."""

    def __init__(self, problem):
        super().__init__()
        self.layer, self.problem = torch.nn.Linear(3, 4), problem

    def forward(self, z):
        if len(z) > 2:
            raise self.problem
        return self.layer(z)


@pytest.mark.parametrize(
    "problem", [AssertionError("small batches"), KeyError("k"), IndexError("i"), RuntimeError("r")]
)
@pytest.mark.parametrize("use", [lambda G, z: G(z), lambda G, z: G.jacobian(z), lambda G, z: G.jvp(z, z[None])])
def test_whatever_the_module_raises_is_a_clear_error(problem, use):
    G = gp.Generator(Picky(problem), 3, 4)
    with pytest.raises(
        ValueError, match=r"the generator's module failed on latents of shape \(3, 3\) \(.*check latent"
    ) as e:
        use(G, torch.zeros(3, 3))
    assert type(problem) is RuntimeError or f"{type(problem).__name__}: " in str(e.value)
    with pytest.raises(torch.OutOfMemoryError):
        gp.Generator(Picky(torch.OutOfMemoryError("full")), 3, 4)(torch.zeros(3, 3))
