"""The bridge against the real package, where it is installed: its operators equal ours, both ways.

To run it, beside the usual environment:
``pip install --no-deps deepinv torchvision einops natsort torchmetrics requests tqdm h5py``.
"""

from __future__ import annotations

import copy
import importlib.util

import pytest
import torch

import genprior as gp
from genprior.operators import from_deepinv

SHAPE = (1, 28, 28)
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("deepinv") is None, reason="deepinv is not installed (optional)"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def physics():
    return pytest.importorskip("deepinv").physics


def random(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def box(factor):
    """The mean over blocks as a filter of odd size: deepinv convolves around the centre, then keeps every factor-th."""
    kernel = torch.zeros(1, 1, 2 * factor - 1, 2 * factor - 1)
    kernel[..., :factor, :factor] = 1 / factor**2
    return kernel


MASK, MASKS, KERNEL = (random(*SHAPE) < 0.5).float(), (random(3, *SHAPE, seed=1) < 0.5).float(), random(1, 1, 5, 5)
KERNEL = KERNEL / KERNEL.sum()


def compressed(physics):
    sensing = physics.CompressedSensing(m=200, img_size=SHAPE, rng=torch.Generator().manual_seed(0))
    return sensing, gp.operators.Dense(sensing.A(torch.eye(784).reshape(784, *SHAPE)).T.contiguous(), SHAPE)


PAIRS = {
    "Denoising": lambda p: (p.Denoising(), gp.operators.Identity(SHAPE), "prox_l2"),
    "Inpainting": lambda p: (p.Inpainting(SHAPE, mask=MASK), gp.operators.Mask(MASK), "prox_l2"),
    "Inpainting per image": lambda p: (
        p.Inpainting(SHAPE, mask=MASKS),
        gp.operators.Mask(MASKS, per_item=True),
        "prox_l2",
    ),
    "BlurFFT": lambda p: (p.BlurFFT(SHAPE, filter=KERNEL), gp.operators.Blur(KERNEL[0, 0], SHAPE), "prox_l2"),
    "Blur": lambda p: (
        p.Blur(filter=KERNEL, padding="circular"),
        gp.operators.Blur(KERNEL[0, 0], SHAPE),
        "conjugate gradient",
    ),
    "Downsampling": lambda p: (
        p.Downsampling(SHAPE, filter=box(4), factor=4),
        gp.operators.Downsample(4, SHAPE),
        "prox_l2",
    ),
    "CompressedSensing": lambda p: (*compressed(p), "conjugate gradient"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_equal_to_our_own(physics, name):
    theirs, mine, method = PAIRS[name](physics)
    operator = from_deepinv(theirs, SHAPE)
    x = random(3, *SHAPE, seed=2)
    y = mine(random(3, *SHAPE, seed=3))
    assert operator.resolvent_method.startswith(method)
    pairs = [
        (operator(x), mine(x)),
        (operator.adjoint(y), mine.adjoint(y)),
        (operator.resolvent(x, 0.5), mine.resolvent(x, 0.5)),
        (operator.resolvent(x, torch.tensor([0.1, 1.0, 9.0])), mine.resolvent(x, torch.tensor([0.1, 1.0, 9.0]))),
    ]
    for given, expected in pairs:
        assert float((given - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


def test_our_operators_serve_deepinv(physics):
    mine = gp.operators.SubsampledHadamard(300, SHAPE, seed=0)
    theirs = physics.LinearPhysics(A=mine, A_adjoint=mine.adjoint, img_size=SHAPE)
    assert float(theirs.adjointness_test(img_size=SHAPE)) < 1e-4


def test_a_size_that_the_physics_learns_at_its_first_use(physics):
    """Multi-coil MRI says (320, 320) until then."""
    mask, maps = (random(1, 2, 28, 28) < 0.5).float(), random(1, 3, 28, 28, seed=4).to(torch.complex64)
    operator = from_deepinv(physics.MultiCoilMRI(mask=mask, coil_maps=maps), (2, 28, 28))
    assert operator.measurement_shape == (2, 3, 28, 28)


@pytest.mark.parametrize("columns", [3, 5])
def test_coils_and_k_space_equal_multi_coil_mri(physics, columns):
    """Theirs is centred, with real and imaginary parts as channels of signals and measurements."""
    kept = torch.zeros(28, 28)
    kept[:, ::columns] = 1
    maps = torch.complex(random(1, 3, 28, 28, seed=4), random(1, 3, 28, 28, seed=5))
    theirs = from_deepinv(physics.MultiCoilMRI(mask=kept.expand(1, 2, -1, -1), coil_maps=maps), (2, 28, 28))
    coils = gp.operators.Coils(maps[0])
    k_space = gp.operators.Fourier(coils.measurement_shape, kept > 0, centred=True)
    mine = k_space @ coils @ gp.operators.Complex((2, 28, 28))
    x = random(2, 2, 28, 28, seed=6)
    y = mine(x)
    torch.testing.assert_close(theirs(x), torch.stack([y.real, y.imag], dim=1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        theirs.adjoint(torch.stack([y.real, y.imag], dim=1)), mine.adjoint(y), rtol=1e-5, atol=1e-5
    )


def test_computed_tomography(physics):
    """Radon transforms are deepinv's: 20 angles of generated digits, with a generator and with total variation."""
    A = from_deepinv(physics.Tomography(angles=20, img_width=28), SHAPE)
    assert A.measurement_shape == (1, 40, 20)
    G = gp.load_generator("mnist")
    x = G(G.sample_latent(2, seed=1)).detach()
    y = A(x)
    zero = gp.metrics.relative_error(A.adjoint(y) / A.norm() ** 2, x)
    found = gp.solve(gp.Problem(G, loss=gp.LeastSquares(A, y)), stop=gp.MaxSteps(30)).signal
    smooth = gp.baselines.total_variation(A, y, tolerance=1e-2).signal
    for signal in (found, smooth):
        assert (gp.metrics.relative_error(signal, x) < 0.5 * zero).all()


def test_a_filter_larger_than_the_image_has_no_exact_prox(physics):
    operator = from_deepinv(physics.Downsampling(SHAPE, filter="gaussian", factor=4), SHAPE)
    assert operator.resolvent_method.startswith("conjugate gradient")


def test_non_linear_physics_are_forward_models_and_stacked_ones_refused(physics):
    assert repr(from_deepinv(physics.Haze())) == "DeepinvForward(Haze)"
    with pytest.raises(ValueError, match="TensorList"):
        from_deepinv(physics.Denoising().stack(physics.Denoising()), SHAPE)


def test_a_reconstructor_in_three_lines(physics):
    import deepinv

    from genprior.bridges.deepinv import GenPrior

    G = gp.load_generator("mnist")
    x = G(G.sample_latent(2, seed=3)).detach()
    sensing, mine = compressed(physics)
    model = GenPrior(G, stop=gp.MaxSteps(15))
    assert isinstance(model, deepinv.models.Reconstructor)
    expected = gp.solve(gp.Problem(G, gp.LeastSquares(mine, sensing.A(x))), stop=gp.MaxSteps(15))
    error = (model(sensing.A(x), sensing) - expected.signal).norm() / expected.signal.norm()
    assert float(error) < 1e-3  # the same method from the same start; rounding grows, to some percent after 40 steps
    double = gp.Generator(copy.deepcopy(G.module).double(), G.latent_shape, G.signal_shape, latent=G.latent)
    assert GenPrior(double, stop=gp.MaxSteps(3))(sensing.A(x).double(), sensing).dtype == torch.float64
