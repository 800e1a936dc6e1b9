"""Norms of convolutions, against the singular values of the matrix that the layer applies."""

import weakref

import pytest
import torch
from torch import nn

from genprior.operators.krylov import Estimate
from genprior.theory.proved import convolution, spectrum
from genprior.theory.proved.convolution import fourier_bound, gram, grids, norm_bound
from genprior.theory.proved.facts import linear_facts

LAYERS = {
    "same": (lambda: nn.Conv2d(3, 4, 3, padding=1), (3, 6, 5)),
    "strided groups": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (4, 7, 5)),
    "stride beyond the kernel": (lambda: nn.Conv2d(2, 3, 2, stride=3), (2, 8, 9)),
    "oblong": (lambda: nn.Conv2d(2, 3, (1, 4), stride=(1, 2), padding=(0, 1)), (2, 3, 9)),
    "dilated": (lambda: nn.Conv1d(2, 3, 3, dilation=2), (2, 9)),
    "pointwise": (lambda: nn.Conv2d(3, 5, 1), (3, 4, 4)),
    "up": (lambda: nn.ConvTranspose2d(4, 3, 5, stride=2, padding=2, output_padding=1), (4, 4, 5)),
    "up groups": (lambda: nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1, groups=2), (4, 4, 5)),
    "up by three": (lambda: nn.ConvTranspose1d(3, 2, 4, stride=3), (3, 6)),
    "up dilated": (lambda: nn.ConvTranspose2d(2, 2, 3, stride=3, dilation=2), (2, 3, 4)),
    "up pointwise": (lambda: nn.ConvTranspose2d(2, 5, 1), (2, 3, 3)),
}


def layer_and_matrix(name):
    make, shape = LAYERS[name]
    torch.manual_seed(len(name))
    layer = make().double()
    size = torch.Size(shape).numel()
    with torch.no_grad():
        zero = layer(torch.zeros(1, *shape, dtype=torch.float64))
        image = layer(torch.eye(size, dtype=torch.float64).reshape(size, *shape)) - zero
    return layer, shape, tuple(zero.shape[1:]), image.reshape(size, -1).T


def is_transposed(layer):
    return isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d)


@pytest.mark.parametrize("name", LAYERS)
def test_the_bound_is_the_norm(name):
    layer, inside, outside, matrix = layer_and_matrix(name)
    values = torch.linalg.svdvals(matrix)
    found = norm_bound(grids(layer, inside, outside), transposed=is_transposed(layer))
    assert values[0] <= found.value <= values[0] * (1 + 1e-8)
    least = values[-1] if matrix.shape[0] >= matrix.shape[1] else 0.0
    if found.floor and least > 1e-5:
        assert least * (1 - 1e-6) <= found.floor <= least
    elif matrix.shape[0] < matrix.shape[1]:
        assert not linear_facts(
            layer, "affine", torch.zeros(1, *inside).double(), torch.zeros(1, *outside).double()
        ).floor


@pytest.mark.parametrize("name", LAYERS)
def test_the_fourier_bound_is_never_below_the_norm_and_not_far_above(name):
    layer, inside, outside, matrix = layer_and_matrix(name)
    bound = max(fourier_bound(grid) for grid in grids(layer, inside, outside)) ** 0.5
    truth = float(torch.linalg.svdvals(matrix)[0])
    assert truth * (1 - 1e-9) <= bound <= 1.25 * truth


@pytest.mark.parametrize("name", [name for name in LAYERS if "groups" not in name])
@pytest.mark.parametrize("side", ["small", "large"])
def test_the_gram_matrix_has_the_singular_values(name, side):
    layer, inside, outside, matrix = layer_and_matrix(name)
    (grid,) = grids(layer, inside, outside)
    squares = torch.linalg.svdvals(matrix).square()
    found = torch.linalg.eigvalsh(gram(grid, side)).flip(0)
    count = min(len(found), len(squares))
    assert torch.allclose(found[:count], squares[:count], atol=1e-12)
    assert found[count:].abs().max().item() < 1e-12 if len(found) > count else True


@pytest.mark.parametrize("name", ["same", "up", "strided groups"])
def test_cholesky_proves_what_lanczos_proposes(name, monkeypatch):
    monkeypatch.setattr(spectrum, "EIGENVALUES", 1)
    layer, inside, outside, matrix = layer_and_matrix(name)
    found = norm_bound(grids(layer, inside, outside), transposed=is_transposed(layer))
    values = torch.linalg.svdvals(matrix)
    assert found.method == "Cholesky of the Gram"
    assert values[0] <= found.value <= values[0] * (1 + 1e-4)
    if found.floor:
        assert found.floor <= values[-1]


def test_a_proposal_that_is_too_low_is_not_proved(monkeypatch):
    """Lanczos alone would be a lower estimate: the factorisation must refuse it."""
    monkeypatch.setattr(spectrum, "EIGENVALUES", 1)
    monkeypatch.setattr(spectrum, "largest_eigenvalue", lambda apply, start: Estimate(torch.tensor([0.8]), True))
    layer, inside, outside, matrix = layer_and_matrix("same")
    found = norm_bound(grids(layer, inside, outside), transposed=False)
    assert found.method == "Fourier symbol" and found.value >= torch.linalg.svdvals(matrix)[0]


@pytest.mark.parametrize("name", LAYERS)
def test_rows_and_sums(name):
    layer, inside, outside, matrix = layer_and_matrix(name)
    facts = linear_facts(layer, "affine", torch.zeros(1, *inside).double(), torch.zeros(1, *outside).double())
    assert facts.rows == pytest.approx(float(matrix.norm(dim=1).max()))
    assert facts.sums == pytest.approx(float(matrix.abs().sum(dim=1).max()))


@pytest.mark.parametrize(
    ("module", "norm"),
    [
        (nn.Upsample(scale_factor=2.0), 2.0),
        (nn.AvgPool2d(2), 0.5),
        (nn.ZeroPad2d(1), 1.0),
        (nn.Upsample(scale_factor=2.0, mode="bilinear"), None),
        (nn.ReflectionPad2d(1), None),
        (nn.AvgPool2d(3, stride=1), None),
    ],
    ids=str,
)
def test_averages_and_copies(module, norm):
    x = torch.eye(32, dtype=torch.float64).reshape(32, 2, 4, 4)
    matrix = module(x).reshape(32, -1).T
    facts = linear_facts(module, "average", x[:1], module(x[:1]))
    values = torch.linalg.svdvals(matrix)
    assert values[0] <= facts.norm * (1 + 1e-12)
    assert norm is None or facts.norm == pytest.approx(norm)
    assert facts.rows >= matrix.norm(dim=1).max() * (1 - 1e-12) and facts.sums == pytest.approx(1.0)
    assert not facts.floor or facts.floor <= (values[-1] if matrix.shape[0] >= 32 else 0)


@pytest.mark.parametrize("length", [3, 5, 7])
def test_nothing_wraps_around_on_the_torus(length):
    """A second difference is largest at the highest frequency, which a torus of odd length misses: wrapping would be seen."""
    layer = nn.Conv1d(1, 1, 3, padding=1, bias=False).double()
    layer.weight.data = torch.tensor([[[-0.5, 1.0, -0.5]]]).double()
    matrix = layer(torch.eye(length).double()[:, None]).reshape(length, length).T
    (grid,) = grids(layer, (1, length), (1, length))
    assert fourier_bound(grid) ** 0.5 >= torch.linalg.svdvals(matrix)[0]


def test_few_symbols_are_in_memory_at_a_time(monkeypatch):
    """All of them at once would be 19 GB for 512 channels on 64 x 64 places."""
    layer = nn.Conv2d(2, 2, 3, padding=1, bias=False).double()
    (grid,) = grids(layer, (2, 30, 30), (2, 30, 30))
    whole, alive, most = fourier_bound(grid), [], []

    def watched(grid, frequencies, make=convolution._symbol_grams):
        alive.append(weakref.ref(made := make(grid, frequencies)))
        most.append(sum(ref() is not None for ref in alive))
        return made

    monkeypatch.setattr(convolution, "_symbol_grams", watched)
    monkeypatch.setattr(convolution, "_NUMBERS", 4 * 5)
    assert fourier_bound(grid) == pytest.approx(whole, rel=1e-12)
    assert len(most) > 100 and max(most) <= 2
    assert convolution._chunk(grid) == 5


def test_symbols_that_do_not_fit_are_taken_one_by_one(monkeypatch):
    (grid,) = grids(nn.Conv2d(2, 2, 3), (2, 4, 4), (2, 2, 2))
    monkeypatch.setattr(convolution, "_NUMBERS", 1)
    assert convolution._chunk(grid) == 1


@pytest.mark.parametrize("near", [1e-9, 0.0])
def test_kernels_that_are_nearly_dependent_are_not_called_so(near):
    """The Gram matrix squares 1e-9, and loses it; two equal kernels are seen as such."""
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(3, 3, 2, bias=False).double()
    with torch.no_grad():
        layer.weight[2] = layer.weight[0] + near * torch.randn(3, 2, 2).double()
    facts = linear_facts(layer, "affine", torch.zeros(1, 3, 2, 2).double(), torch.zeros(1, 3, 3, 3).double())
    assert (facts.floor, facts.lost) == ((None, True) if near else (0.0, False))
