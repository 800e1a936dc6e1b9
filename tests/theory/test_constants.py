"""Constants of G: exact where the truth is known, proved ones never beaten by what is seen."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import genprior as gp
from genprior.models.adapt import FromRange
from genprior.models.generators import ConvGenerator, ResidualGenerator
from genprior.theory.generator_constants import constants
from genprior.theory.proved.facts import linear_facts
from genprior.theory.proved.layers import layers_of
from genprior.theory.proved.recursion import proved_constants
from genprior.theory.proved.spectrum import has_dependent_columns, is_positive_definite
from genprior.theory.sampled import ball_points, sample_constants
from tests.theory.networks import Mild, Parabola, dense

QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


def with_singular_values(values, rows, seed=0):
    random = torch.Generator().manual_seed(seed)
    left = torch.linalg.qr(torch.randn(rows, len(values), generator=random, dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(len(values), len(values), generator=random, dtype=torch.float64))[0]
    return left * torch.tensor(values, dtype=torch.float64) @ right


def test_a_linear_generator_to_six_digits():
    net = nn.Sequential(
        dense(with_singular_values([3.0, 1.0, 0.25], 12), torch.ones(12).double()), nn.Unflatten(1, (3, 4))
    )
    found = constants(gp.Generator(net, 3, (3, 4)), radius=2.0, points=2, moves=1)
    for constant, truth in ((found.iota, 0.25), (found.kappa, 3.0), (found.nu_G, 0.0)):
        assert constant.sampled == pytest.approx(truth, rel=1e-6, abs=1e-12)
        assert constant.rigorous == pytest.approx(truth, rel=1e-6, abs=1e-12)
    assert found.everywhere


def test_linear_layers_in_a_row_are_one_map():
    """The product of their norms would be too large."""
    first, second = with_singular_values([4.0, 1.0], 5), with_singular_values([1.0, 2.0, 3.0, 4.0, 5.0], 8, seed=1)
    found = proved_constants(layers_of(gp.Generator(nn.Sequential(dense(first), dense(second)), 2, 8)), 1.0)
    values = torch.linalg.svdvals(second @ first)
    assert found.kappa == pytest.approx(float(values[0]), rel=1e-6) and found.iota == pytest.approx(
        float(values[1]), rel=1e-6
    )
    assert found.kappa < 0.99 * 4 * 5


def test_a_large_bias_costs_no_digits():
    weight = torch.tensor([[1.23456789e-3]], dtype=torch.float64)
    found = proved_constants(layers_of(gp.Generator(dense(weight, torch.tensor([3e6]).double()), 1, 1)), 1.0)
    assert found.kappa == pytest.approx(1.23456789e-3, rel=1e-8) and found.kappa >= 1.23456789e-3
    assert found.iota == pytest.approx(1.23456789e-3, rel=1e-8) and found.iota <= 1.23456789e-3
    flat = dense(torch.ones(2, 2).double() / 3, torch.tensor([1e6, 3e6]).double())
    assert proved_constants(layers_of(gp.Generator(flat, 2, 2)), 1.0).iota == 0


def test_small_singular_values_are_bounded_from_below():
    """Against exact determinants: ``sigma_min = |det| / sigma_max`` for 2 x 2."""
    for seed in range(40):
        random = torch.Generator().manual_seed(seed)
        a = torch.rand(2, 2, generator=random, dtype=torch.float64)
        a[1] = 1.7 * a[0]
        a[1, 1] += 1e-11
        exact = [[Fraction(float(v)) for v in row] for row in a]
        det = abs(exact[0][0] * exact[1][1] - exact[0][1] * exact[1][0])
        floor = linear_facts(dense(a), "affine", torch.zeros(1, 2), torch.zeros(1, 2)).floor
        assert floor <= float(det) / float(torch.linalg.svdvals(a)[0])


def test_layers_that_cancel_are_no_digits():
    """The product of two layers is zero, or lost: what is computed of it is round-off of much larger numbers."""
    first = torch.tensor([[1.0 / 3], [1.0]], dtype=torch.float64)
    second = 1e8 * torch.tensor([[3.0, -1.0], [0.3, -0.1]], dtype=torch.float64)
    exact = [[Fraction(float(v)) for v in row] for row in second]
    column = [Fraction(float(v)) for v in first[:, 0]]
    truth = math.hypot(*(float(sum(a * b for a, b in zip(row, column, strict=True))) for row in exact))
    found = proved_constants(layers_of(gp.Generator(nn.Sequential(dense(first), dense(second)), 1, 2)), 1.0)
    assert found.iota <= truth <= found.kappa < 1e-5


COLUMN = torch.tensor([0.0, 0.1, -3.7, 1e-9], dtype=torch.float64)


@pytest.mark.parametrize(
    ("other", "dependent"),
    [
        (COLUMN, True),
        (-8 * COLUMN, True),
        (COLUMN / 1024, True),
        (0 * COLUMN, True),
        (3 * COLUMN, False),
        (COLUMN * (1 + 1e-15), False),
        (COLUMN.flip(0), False),
        (1e-308 * COLUMN, False),
    ],
)
def test_columns_that_are_dependent_for_certain(other, dependent):
    """Three times a number is rounded; multiples that leave the range of float64 have lost their digits."""
    matrix = torch.stack([torch.ones(4).double(), COLUMN, other], dim=1)
    assert has_dependent_columns(matrix) == dependent
    assert has_dependent_columns(matrix[:, :2]) is False


def test_columns_that_are_equal_only_where_digits_are_lost():
    """Divided by the first number, the second ones are too small for float64 to keep them apart."""
    assert not has_dependent_columns(torch.tensor([[1e300, 1e300], [1e-20, 1.0000001e-20]], dtype=torch.float64))


def nearly_dependent():
    """``det = 2 eps``, exactly: of full rank, by less than any computed singular value can show."""
    matrix = torch.ones(2, 2, dtype=torch.float64)
    matrix[1, 1] += 2 * torch.finfo(torch.float64).eps
    a, b, c, d = (Fraction(float(v)) for v in matrix.flatten())
    assert a * d - b * c > 0
    return matrix


def test_rank_that_round_off_hides_is_not_denied():
    matrix = nearly_dependent()
    facts = linear_facts(dense(matrix), "affine", torch.zeros(1, 2), torch.zeros(1, 2))
    assert facts.floor is None and facts.lost
    bent = proved_constants(layers_of(gp.Generator(nn.Sequential(dense(matrix), nn.Tanh()), 2, 2)), 1.0)
    assert "0 (Linear) is too small to distinguish from zero" in bent.reasons["iota"] and bent.iota == 0
    point = nn.Conv2d(2, 2, 1, bias=False).double()
    point.weight.data = matrix[:, :, None, None].clone()
    net = nn.Sequential(nn.Unflatten(1, (2, 1, 1)), point, nn.Tanh())
    (finding,) = gp.theory.check_proposition1(net, 2).unchecked
    assert finding.law == "1 (Conv2d) has full column rank" and "not resolved" in finding.measured


@pytest.mark.parametrize(
    ("matrices", "why"),
    [
        ([nearly_dependent()], "too small to distinguish from zero"),
        ([torch.ones(4, 2).double()], "affine and not injective"),
        ([torch.eye(2).double(), nearly_dependent(), torch.ones(4, 2).double()], "affine and not injective"),
        ([torch.eye(3)[:, :2].double(), torch.ones(4, 3).double()], "too small to distinguish from zero"),
        ([torch.eye(3)[:1].double()], "affine and not injective"),
    ],
    ids=["lost", "shown", "shown behind square ones", "behind a wider one", "narrow"],
)
def test_affine_networks_say_whether_they_are_not_injective_or_nearly_so(matrices, why):
    net = nn.Sequential(*(dense(matrix) for matrix in matrices))
    found = proved_constants(layers_of(gp.Generator(net, matrices[0].shape[1], matrices[-1].shape[0])), 1.0)
    assert found.iota == 0 and why in found.reasons["iota"]


def test_an_affine_network_that_is_nearly_not_injective_is_not_counted_on():
    found = constants(gp.Generator(dense(nearly_dependent()), 2, 2), 1.0, points=2, moves=0)
    assert found.iota.rigorous is None and "too small to distinguish from zero" in found.iota.refuted


def test_a_matrix_is_positive_definite_only_beyond_round_off():
    random = torch.Generator().manual_seed(0)
    q = torch.linalg.qr(torch.randn(60, 60, generator=random, dtype=torch.float64)).Q
    matrix = q * torch.linspace(0, 1, 60, dtype=torch.float64) @ q.T  # its least eigenvalue is 0
    matrix = 0.5 * (matrix + matrix.T)
    assert is_positive_definite(matrix, 1e-9) and not is_positive_definite(matrix, 1e-13)
    assert not is_positive_definite(matrix, -1e-9)


def test_a_generator_with_known_curvature():
    generator = gp.Generator(Parabola(), 3, 4, dtype=torch.float64)
    found = sample_constants(generator, 2.0, points=16, moves=12)
    assert found.nu == pytest.approx(1.0, rel=1e-4), "second derivatives are exact"
    assert math.sqrt(1 + 4) * 0.99 <= found.kappa <= math.sqrt(5) * (1 + 1e-9), "points move to the edge of the ball"
    assert found.iota == pytest.approx(1.0, rel=1e-6)
    assert (found.points.norm(dim=1) <= 2.0 * (1 + 1e-9)).all()


def test_moved_points_are_worse():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid()).double()
    generator = gp.Generator(net, 3, 8)
    still, moved = (sample_constants(generator, 2.0, points=4, moves=moves) for moves in (0, 12))
    assert moved.kappa > 1.001 * still.spectra[:, 0].max() and moved.iota < 0.999 * still.spectra[:, -1].min()
    assert len(moved.points) == 6 and len(still.points) == 4


def test_a_mildly_nonlinear_generator():
    linear, inner, eps = with_singular_values([2.0, 1.0], 6), with_singular_values([1.5, 1.0], 6, seed=3), 0.1
    generator = gp.Generator(Mild(linear, inner, eps), 2, 6, dtype=torch.float64)
    found = constants(generator, radius=3.0, points=8, moves=6)
    curvature = 4 / (3 * math.sqrt(3))
    assert found.kappa.rigorous == pytest.approx(2.0 + eps * 1.5, rel=1e-6)
    assert found.iota.rigorous == pytest.approx(1.0 - eps * 1.5, rel=1e-6)
    assert found.nu_G.rigorous == pytest.approx(eps * curvature * 1.5 * float(inner.norm(dim=1).max()), rel=1e-6)
    assert found.iota.rigorous <= found.iota.sampled <= 1.15
    assert found.kappa.rigorous >= found.kappa.sampled >= 1.85
    assert found.nu_G.rigorous >= found.nu_G.sampled >= 0.25 * found.nu_G.rigorous
    assert not found.everywhere


ACTIVATIONS = [nn.ELU(), nn.Softplus(2.0), nn.Tanh(), nn.Sigmoid(), nn.Softsign(), nn.CELU(0.7), nn.GELU(), nn.SiLU()]
ACTIVATIONS += [nn.ELU(inplace=True), nn.CELU(0.7, inplace=True), nn.SiLU(inplace=True)]


@st.composite
def small_networks(draw):
    """Dense, one- and two-dimensional networks with random weights and any of the smooth activations."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    act = st.sampled_from(ACTIVATIONS)
    latent, gain = draw(st.integers(1, 3)), draw(st.sampled_from([0.5, 1.0, 2.0]))
    kind = draw(st.sampled_from(["dense", "up", "norm", "residual"]))
    if kind == "dense":
        net = nn.Sequential(nn.Linear(latent, 4), draw(act), nn.Linear(4, 5), draw(act), nn.Linear(5, 7), draw(act))
    elif kind == "norm":
        norm = nn.BatchNorm1d(5)
        norm.running_var.uniform_(0.3, 2)
        net = nn.Sequential(
            nn.Linear(latent, 5), norm, draw(act), nn.Unflatten(1, (5, 1)), nn.Conv1d(5, 6, 1), draw(act)
        )
    elif kind == "up":
        net = nn.Sequential(
            nn.Linear(latent, 8),
            nn.Unflatten(1, (2, 2, 2)),
            draw(act),
            nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1, output_padding=1),
            draw(act),
            nn.Upsample(scale_factor=2.0),
            nn.Conv2d(2, 1, 3, padding=1),
            draw(act),
        )
    else:
        linear, inner = torch.randn(4, latent), torch.randn(4, latent)
        net = nn.Sequential(
            Mild(linear.double(), inner.double(), draw(st.sampled_from([0.1, 1.0]))), nn.Linear(4, 6), draw(act)
        )
    for parameter in net.parameters():
        parameter.data *= gain
    return net.double().eval(), latent


@settings(max_examples=60, **QUIET)
@given(small_networks(), st.sampled_from([0.2, 1.0, 5.0]))
def test_what_is_proved_is_never_beaten(case, radius):
    """Rigorous bounds hold for the Jacobian everywhere and for all secants of its values and of the values of G."""
    net, latent = case
    with torch.no_grad():
        size = net(torch.zeros(1, latent).double())[0].shape
    generator = gp.Generator(net, latent, tuple(size), dtype=torch.float64)
    proved = proved_constants(layers_of(generator), radius)
    z = ball_points(generator, 24, radius, torch.Generator().manual_seed(1))
    jacobian = generator.jacobian(z)
    values = torch.linalg.svdvals(jacobian)
    slack = 1 + 1e-7
    assert values[:, 0].max() <= proved.kappa * slack
    assert values[:, -1].min() * slack >= proved.iota
    assert jacobian.norm(dim=2).max() <= proved.peak * slack, "no coordinate changes faster"
    near = torch.cat([z, z + 1e-3 * torch.randn(z.shape, generator=torch.Generator().manual_seed(2)).double()])
    near = near * (radius / near.norm(dim=1, keepdim=True)).clamp(max=1.0)
    jacobians, x = generator.jacobian(near), generator(near).flatten(1)
    index = torch.triu_indices(len(near), len(near), 1)
    apart = (near[index[0]] - near[index[1]]).norm(dim=1)
    far = apart > 1e-9
    change = torch.linalg.matrix_norm(jacobians[index[0]] - jacobians[index[1]], 2)[far] / apart[far]
    assert change.max() <= proved.nu * slack + 1e-6
    secants = ((x[index[0]] - x[index[1]]).norm(dim=1) / apart)[far]
    assert secants.max() <= proved.kappa * slack and secants.min() * slack + 1e-9 >= proved.iota


@pytest.mark.parametrize("module", [ConvGenerator(3, 5), ResidualGenerator(3, 1)], ids=["conv", "residual"])
def test_the_bundled_architectures(module):
    if isinstance(module, ResidualGenerator):
        for block in list(module)[2:6]:
            nn.init.normal_(block.conv.weight, std=0.2)
    generator = gp.Generator(module, 3, module.signal_shape)
    found = constants(generator, radius=1.0, points=2, moves=1)
    assert found.kappa.rigorous >= found.kappa.sampled > 0 and found.nu_G.rigorous >= found.nu_G.sampled > 0
    assert found.kappa.rigorous < 1e4 * found.kappa.sampled
    assert found.iota.rigorous is None and found.iota.sampled > 0
    assert ("narrows from 980 to 784" if isinstance(module, ConvGenerator) else "could cancel") in found.iota.reason


def test_what_is_not_known_says_why():
    relu = constants(gp.Generator(nn.Sequential(nn.Linear(2, 4), nn.ReLU()), 2, 4), 1.0, points=2, moves=1)
    assert relu.nu_G.rigorous is None and "slope of ReLU in 1 (ReLU) jumps" in relu.nu_G.reason
    assert relu.iota.rigorous is None and "slope as small as 0" in relu.iota.reason
    assert relu.kappa.rigorous >= relu.kappa.sampled
    soft = constants(gp.Generator(nn.Sequential(nn.Linear(2, 4), nn.Softmax(dim=1)), 2, 4), 1.0, points=2, moves=1)
    assert soft.kappa.rigorous is None and "1 (Softmax) is not one whose constants are known" in soft.kappa.reason
    asked = constants(gp.Generator(nn.Linear(2, 4), 2, 4), 1.0, points=2, moves=1, rigorous=False)
    assert asked.kappa.rigorous is None and asked.kappa.reason == "not asked for"
    document = soft.to_dict()
    assert set(document["kappa"]) >= {"sampled", "rigorous"} and document["radius"] == 1.0


def test_values_mapped_to_the_unit_interval():
    plain = nn.Sequential(nn.Linear(2, 4), nn.Tanh())
    mapped = gp.Generator(FromRange(plain, -1.0, 1.0), 2, 4)
    half, whole = (proved_constants(layers_of(g), 1.0) for g in (mapped, gp.Generator(plain, 2, 4)))
    assert half.kappa == pytest.approx(whole.kappa / 2) and half.nu == pytest.approx(whole.nu / 2)


def test_branches_that_do_not_add_up():
    class Wrong(Mild):
        def branches(self):
            return (dense(self.linear),)

    generator = gp.Generator(
        Wrong(torch.ones(3, 1).double(), torch.ones(3, 1).double(), 1.0), 1, 3, dtype=torch.float64
    )
    with pytest.raises(ValueError, match="do not add up"):
        layers_of(generator)  # at zero they do


class Sum(nn.Module):
    """Of two dense layers; the second may be narrower, and is then added to every coordinate."""

    def __init__(self, width):
        super().__init__()
        self.wide, self.narrow = nn.Linear(2, 100).double(), nn.Linear(2, width).double()

    def forward(self, z):
        return self.wide(z) + self.narrow(z)

    def branches(self):
        return self.wide, self.narrow


def test_branches_that_are_broadcast_are_no_sum():
    """The narrow one counts a hundred times: its norm says nothing about the sum's."""
    torch.manual_seed(0)
    (plain,), (spread,) = (layers_of(gp.Generator(Sum(width), 2, 100)) for width in (100, 1))
    assert plain.kind == "sum" and spread.kind == "unknown" and not spread.branches
    with torch.no_grad():
        spread.module.narrow.weight *= 10
        matrix = spread.module.wide.weight + spread.module.narrow.weight
        parts = sum(torch.linalg.matrix_norm(part.weight, 2) for part in spread.module.branches())
    assert torch.linalg.matrix_norm(matrix, 2) > 2 * parts
    assert math.isinf(proved_constants((spread,), 1.0).kappa)


class Holder(nn.Module):
    """Has something called ``branches`` that is no such method."""

    def __init__(self, branches):
        super().__init__()
        self.branches = branches

    def forward(self, z):
        return z.sin()


class Argument(nn.Module):
    def forward(self, z):
        return z.sin()

    def branches(self, z):
        return [z]


class Numbers(Argument):
    def branches(self):
        return 3


class Names(Argument):
    def branches(self):
        return "left", "right"


class Unfit(Argument):
    def branches(self):
        return nn.Linear(7, 3), nn.Linear(3, 3)


class Empty(Argument):
    def branches(self):
        return ()


OTHERS = {
    "sequential": lambda: Holder(nn.Sequential(nn.Linear(3, 3))),
    "list": lambda: Holder(nn.ModuleList([nn.Linear(3, 3)])),
    "function": lambda: Holder(lambda: (nn.Identity(),)),
    "argument": Argument,
    "a number": Numbers,
    "names": Names,
    "other inputs": Unfit,
    "empty": Empty,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_things_called_branches(name):
    """Only the layer itself is unknown, and nothing fails."""
    chain = layers_of(gp.Generator(nn.Sequential(nn.Linear(2, 3), OTHERS[name](), nn.Tanh()), 2, 3))
    assert [layer.kind for layer in chain] == ["affine", "unknown", "activation"]


@pytest.mark.parametrize("act", [nn.ELU, nn.CELU, nn.LeakyReLU])
def test_working_in_place_changes_nothing(act):
    torch.manual_seed(0)
    first, second = nn.Linear(2, 5).double(), nn.Linear(5, 6).double()
    first.bias.data -= 3
    plain, kept = (
        layers_of(gp.Generator(nn.Sequential(first, act(inplace=inplace), second), 2, 6)) for inplace in (False, True)
    )
    assert proved_constants(kept, 1.0) == proved_constants(plain, 1.0)
    assert all(
        torch.equal(a.centre, b.centre) and torch.equal(a.image, b.image) for a, b in zip(plain, kept, strict=True)
    )


class SineLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x).sin()


class Tenfold(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, 10 * weight, bias)


class Louder(nn.Identity):
    def forward(self, x):
        return 100 * x


class Named(nn.Linear):
    """Computes what Linear does."""


def shouting():
    act = nn.Tanh()
    act.forward = lambda x: 9 * x
    return nn.Sequential(nn.Linear(2, 4), act)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SineLinear(2, 4),
        lambda: nn.Sequential(nn.Linear(2, 4), Louder()),
        lambda: nn.Sequential(nn.Unflatten(1, (2, 1, 1)), Tenfold(2, 4, 1)),
        shouting,
    ],
    ids=["linear", "identity", "convolution", "instance"],
)
def test_a_layer_that_computes_something_else_is_unknown(make):
    found = proved_constants(layers_of(gp.Generator(make(), 2, 4)), 1.0)
    assert math.isinf(found.kappa) and math.isinf(found.nu) and found.iota == 0
    assert math.isfinite(proved_constants(layers_of(gp.Generator(Named(2, 4), 2, 4)), 1.0).kappa)


def test_samples_that_contradict_the_layers():
    """Branches that add up at the points where they are compared, and not beyond."""

    class Sneaky(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(1, 2).double()

        def forward(self, x):
            return self.line(x) + 100 * (x - 4).clamp_min(0)

        def branches(self):
            return (self.line,)

    found = constants(gp.Generator(Sneaky(), 1, 2, dtype=torch.float64), 10.0, points=4, moves=1)
    assert found.kappa.rigorous is None and found.iota.rigorous is None and not found.everywhere
    assert "samples contradict" in found.kappa.reason
    assert found.kappa.sampled > 10


def test_a_module_that_is_used_twice_counts_twice():
    act = nn.Sigmoid()
    net = nn.Sequential(nn.Linear(2, 3), act, nn.Linear(3, 4), act)
    chain = layers_of(gp.Generator(net, 2, 4))
    assert [layer.name for layer in chain] == ["0", "1", "2", "3"]
    assert torch.allclose(chain[-1].image, net.double()(torch.zeros(1, 2).double()))


def test_hooks_make_a_layer_unknown():
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    net[0].register_forward_hook(lambda module, given, result: 100 * result)
    found = proved_constants(layers_of(gp.Generator(net, 2, 3)), 1.0)
    assert math.isinf(found.kappa)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"radius": 0.0}, "radius must be"), ({"points": 0}, "points must be"), ({"moves": -1}, "moves must be")],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        constants(gp.Generator(nn.Linear(2, 3), 2, 3), **{"radius": 1.0} | options)


class Own(nn.Module):
    """A network of one's own, whose layers are not seen as a chain."""

    def __init__(self, *parts):
        super().__init__()
        self.net = nn.Sequential(*parts).double()

    def forward(self, z):
        return self.net(z)


def test_slopes_that_jump_inside_a_module_of_ones_own():
    torch.manual_seed(3)
    few = {"points": 6, "moves": 1}
    leaky = constants(gp.Generator(Own(nn.Linear(2, 6), nn.LeakyReLU(0.2), nn.Linear(6, 12)), 2, 12), 1.0, **few)
    assert "contains net.1 (LeakyReLU), whose slope jumps" in leaky.nu_G.refuted
    assert leaky.nu_G.sampled > 0.1, "second derivatives are zero, differences of DG are not"
    soft = constants(gp.Generator(Own(nn.Linear(2, 6), nn.Softplus()), 2, 6), 1.0, **few)
    assert not soft.nu_G.refuted and soft.nu_G.sampled > 0

    class Bend(nn.Module):
        def forward(self, z):
            return torch.cat([z, z.abs()], dim=1)

    bend = constants(gp.Generator(Bend(), 2, 4), 1.0, **few)
    assert bend.nu_G.sampled > 0.5 and not bend.nu_G.refuted


KINKS = [nn.RReLU(), nn.Hardswish(), nn.Softshrink(), nn.Hardshrink(), nn.Threshold(0.1, 0.0)]
POOLS = [nn.MaxPool1d(2), nn.AdaptiveMaxPool1d(3)]


@pytest.mark.parametrize("kink", [*KINKS, *POOLS], ids=str)
@pytest.mark.parametrize("wrap", [Own, lambda *parts: nn.Sequential(*parts).double()], ids=["own", "chain"])
def test_slopes_that_jump_in_layers_of_which_nothing_else_is_known(kink, wrap):
    torch.manual_seed(3)
    size = 3 if kink in POOLS else 6
    found = constants(gp.Generator(wrap(nn.Linear(2, 6), kink), 2, size), 1.0, points=2, moves=0)
    assert f"1 ({type(kink).__name__}), whose slope jumps" in found.nu_G.refuted


@pytest.mark.parametrize("kink", KINKS, ids=str)
def test_these_slopes_do_jump(kink):
    grid = torch.linspace(-4, 4, 80_001, dtype=torch.float64)
    slopes = kink.eval()(grid).diff() / grid.diff()
    assert (slopes.diff().abs() / grid.diff()[1:]).max() > 1e3


def test_half_precision():
    torch.manual_seed(0)
    found = constants(gp.Generator(nn.Linear(2, 6).half(), 2, 6), 1.0, points=2, moves=1)
    assert found.kappa.sampled == pytest.approx(found.kappa.rigorous, rel=0.02) and found.nu_G.sampled == 0


def test_a_module_that_does_not_run_in_float64_is_unknown():
    class Single(nn.Linear):
        def forward(self, z):
            return super().forward(z.to(torch.float32))

    generator = gp.Generator(nn.Sequential(Single(2, 5), nn.Tanh()), 2, 5)
    (layer,) = layers_of(generator)
    assert layer.kind == "unknown" and torch.equal(layer.image, generator(torch.zeros(1, 2)).double())
    assert constants(generator, 1.0, points=2, moves=0).kappa.rigorous is None


def test_a_plain_module_that_does_not_run_in_float64_is_unknown():
    class Single(nn.Linear):
        def forward(self, z):
            return super().forward(z.to(torch.float32))

    report = gp.theory.check_proposition1(nn.Sequential(Single(2, 5), nn.Tanh()), 2)
    assert [finding.law for finding in report.failures] == ["a chain of known layers"]
    with pytest.raises(ValueError, match=r"failed on latents of shape \(1, 3\) .*check latent_shape"):
        gp.theory.check_proposition1(nn.Linear(2, 5), 3)


def test_an_empty_chain_is_the_identity():
    for net in (nn.Sequential(), nn.Sequential(nn.Sequential(), nn.Linear(2, 2).double())):
        found = proved_constants(layers_of(gp.Generator(net, 2, 2, dtype=torch.float64)), 1.0)
        truth = torch.linalg.svdvals(net[1].weight.detach()) if len(net) else torch.ones(2)
        assert found.kappa == pytest.approx(float(truth[0])) and found.iota == pytest.approx(float(truth[-1]))


def test_an_unknown_branch_leaves_nothing_known():
    class Sine(nn.Module):
        def forward(self, z):
            return z.sin()

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([Sine(), nn.Linear(2, 2).double()])

        def branches(self):
            return list(self.parts)

        def forward(self, z):
            return self.parts[0](z) + self.parts[1](z)

    found = proved_constants(layers_of(gp.Generator(Sum(), 2, 2)), 1.0)
    assert found.iota == 0 and math.isinf(found.kappa) and "could cancel" in found.reasons["iota"]


def test_a_kink_that_is_not_reached_does_no_harm():
    torch.manual_seed(0)
    line = nn.Linear(2, 5).double()
    line.weight.data *= 0.3
    smooth, kinked = nn.Sequential(line, nn.Sigmoid()), nn.Sequential(line, nn.Sigmoid(), nn.ReLU())
    found = constants(gp.Generator(kinked, 2, 5), 1.0, points=2, moves=1)
    plain = proved_constants(layers_of(gp.Generator(smooth, 2, 5)), 1.0)
    assert found.nu_G.rigorous == pytest.approx(plain.nu) and not found.nu_G.refuted
    assert found.iota.rigorous == pytest.approx(plain.iota)


def test_negative_gains_have_positive_norms():
    plain = nn.Sequential(nn.Linear(2, 4), nn.Tanh())
    for low, high in ((1.0, -1.0), (-1.0, 1.0)):
        found = proved_constants(
            layers_of(gp.Generator(nn.Sequential(FromRange(plain, low, high), nn.Tanh()), 2, 4)), 1.0
        )
        assert 0 < found.iota < found.kappa < math.inf and found.nu > 0
    for part in (nn.AvgPool2d(2, 1, 1, divisor_override=-1), nn.ZeroPad2d(1)):
        if isinstance(part, nn.ZeroPad2d):
            part.value = 3.0
        net = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), part, nn.Tanh()).double()
        size = net(torch.zeros(1, 4).double())[0].shape
        found = proved_constants(layers_of(gp.Generator(net, 4, tuple(size), dtype=torch.float64)), 1.0)
        assert math.isinf(found.kappa) and "is not one whose constants are known" in found.reasons["kappa"]
