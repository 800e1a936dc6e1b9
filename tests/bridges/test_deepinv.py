"""The bridge to deepinv, on stand-ins: laws, the choice of the resolvent, refusals, the reconstructor."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import genprior as gp
from genprior.bridges.deepinv import GenPrior
from genprior.operators import from_deepinv

from . import physics as fake

SIGNALS = torch.randn(3, *fake.SHAPE, generator=torch.Generator().manual_seed(1))
RHOS = [0.3, torch.tensor([0.1, 1.0, 20.0])]


def same(operator: gp.operators.Operator, mine: gp.operators.Operator, tolerance: float = 1e-6) -> None:
    close = {"rtol": tolerance, "atol": tolerance}
    assert operator.measurement_shape == mine.measurement_shape and operator.batch == mine.batch
    torch.testing.assert_close(operator(SIGNALS), mine(SIGNALS), **close)
    y = mine(SIGNALS).flip(0)
    torch.testing.assert_close(operator.adjoint(y), mine.adjoint(y), **close)
    for rho in RHOS:
        torch.testing.assert_close(operator.resolvent(SIGNALS, rho), mine.resolvent(SIGNALS, rho), **close)


@pytest.mark.parametrize("kind", [fake.Masked, fake.OneNumber])
@pytest.mark.parametrize("items", [1, 3])
def test_a_closed_form_prox_is_used(kind, items):
    mask = fake.masks(items)
    operator = from_deepinv(kind(mask))
    assert operator.resolvent_method == f"prox_l2 of deepinv's {kind.__name__}"
    same(operator, gp.operators.Mask(mask[0]) if items == 1 else gp.operators.Mask(mask, per_item=True))


@pytest.mark.parametrize("kind", [fake.Sloppy, fake.Broken])
def test_a_prox_that_is_not_exact_is_not_used(kind):
    mask = fake.masks()
    operator = from_deepinv(kind(mask))
    assert operator.resolvent_method.startswith("conjugate gradient")
    same(operator, gp.operators.Mask(mask[0]), tolerance=1e-5)
    assert from_deepinv(fake.Masked(mask), resolvent="cg").resolvent_method.startswith("conjugate gradient")
    assert from_deepinv(fake.Sloppy(mask), resolvent="prox_l2", verify=False).resolvent_method.startswith("prox_l2")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_physics_that_is_strict_about_its_dtype(dtype):
    """It is looked at in its own, and its closed form is found."""
    operator = from_deepinv(fake.Strict(fake.masks(dtype=dtype)))
    assert operator.dtype == dtype and operator.resolvent_method == "prox_l2 of deepinv's Strict"
    x = SIGNALS.to(dtype)
    torch.testing.assert_close(operator(x), fake.masks(dtype=dtype) * x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_closed_form_prox_is_used_for_large_images_too(dtype):
    """What counts is the error beside the signal, which grows with the size of the image."""
    mask = (torch.rand(1, 3, 128, 128, generator=torch.Generator().manual_seed(0)) < 0.5).to(dtype)
    operator = from_deepinv(fake.Masked(mask), (3, 128, 128))
    assert operator.resolvent_method == "prox_l2 of deepinv's Masked"


def test_rows_dtype_and_independence_of_the_callers_object():
    mask = fake.masks(3)
    theirs = fake.Masked(mask.clone())
    operator = from_deepinv(theirs)
    assert theirs.solver == "lsqr"  # probing did not change it
    theirs.mask.zero_()
    index = torch.tensor([2, 0, 2, 1])
    torch.testing.assert_close(operator.rows(index)(SIGNALS[index]), mask[index] * SIGNALS[index])
    torch.testing.assert_close(operator.gram_bounds()[1], torch.ones(3), rtol=0.02, atol=0)
    assert operator.rows(index).gram_bounds()[1].shape == (4,)
    double = operator.to(dtype=torch.float64)
    assert double(SIGNALS.double()).dtype == torch.float64 and operator(SIGNALS).dtype == torch.float32


def test_a_physics_with_its_own_parameters_for_every_image_says_so():
    picky = fake.Picky(fake.masks(3))
    with pytest.raises(ValueError, match=r"failed on a signal of shape \(1, 4, 5\) .*give items="):
        from_deepinv(picky)
    same(from_deepinv(picky, items=3), gp.operators.Mask(fake.masks(3), per_item=True))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_deepinv(object()), "physics must have a method A, .*got object"),
        (lambda: from_deepinv(fake.WrongAdjoint(fake.masks())), r"WrongAdjoint violates <Ax, y> = <x, A\^T y>"),
        (lambda: from_deepinv(fake.Affine(fake.masks())), r"Affine violates A\(2x - 3u\)"),
        (lambda: from_deepinv(fake.Listed(fake.masks())), "gives list, expected one tensor"),
        (lambda: from_deepinv(fake.Wrong(fake.masks()), resolvent="prox_l2"), "violates .*resolvent"),
        (lambda: from_deepinv(fake.Masked(fake.masks()), (1, 5, 4)), "made for images of .*img_size=.1, 5, 4"),
        (lambda: from_deepinv(fake.Masked(fake.masks()), resolvent="fast"), "one of auto, prox_l2, cg, got 'fast'"),
        (lambda: from_deepinv(nn.Identity()), "got Identity"),
    ],
)
def test_what_cannot_serve_is_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize("size", [fake.SHAPE[1:], (320, 320)], ids=["no channels", "a default"])
def test_a_shape_that_is_given_counts_where_the_physics_takes_it(size):
    operator = from_deepinv(fake.Spatial(size), fake.SHAPE)
    assert operator.signal_shape == fake.SHAPE
    torch.testing.assert_close(operator(SIGNALS), 2 * SIGNALS[:, 0, ::2])


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 6, 5), (1, 4, 1)])
def test_a_shape_that_the_physics_does_not_take(shape):
    """The last is taken by both, and comes back larger."""
    message = rf"signal_shape is .{shape[0]}, {shape[1]}, {shape[2]}., but the physics is made for images of .4, 5."
    with pytest.raises(ValueError, match=message):
        from_deepinv(fake.Spatial((4, 5)), shape, verify=False)
    with pytest.raises(ValueError, match=r"failed on a signal of shape \(4, 5\) .*which has channels"):
        from_deepinv(fake.Spatial((4, 5)))


def test_a_physics_that_is_not_linear_is_a_forward_model():
    """The square of the image: its A alone, in a NonLinear loss, and in the reconstructor."""
    torch.manual_seed(0)
    G = gp.Generator(nn.Sequential(nn.Linear(3, 20), nn.Sigmoid(), nn.Unflatten(1, fake.SHAPE)), 3, fake.SHAPE)
    x = G(G.sample_latent(3, seed=1)).detach()
    forward = from_deepinv(fake.NonLinear())
    assert repr(forward) == "DeepinvForward(NonLinear)"
    found = gp.solve(gp.Problem(G, gp.NonLinear(forward, x**2)), seed=0)
    torch.testing.assert_close(found.signal, x, rtol=0, atol=1e-2)
    torch.testing.assert_close(GenPrior(G)(x**2, fake.NonLinear()), found.signal, rtol=0, atol=1e-5)
    listed = from_deepinv(fake.NonLinear())
    listed.physics.A = lambda x: [x]
    with pytest.raises(ValueError, match="gives list, expected one tensor"):
        gp.Problem(G, gp.NonLinear(listed, x))


def test_physics_without_a_size_or_a_prox():
    class Bare:
        def A(self, x):
            return 2 * x

        A_adjoint = A

    with pytest.raises(ValueError, match="signal_shape is needed: Bare does not state"):
        from_deepinv(Bare())
    with pytest.raises(ValueError, match="Bare has no prox_l2"):
        from_deepinv(Bare(), fake.SHAPE, resolvent="prox_l2")
    operator = from_deepinv(Bare(), fake.SHAPE)
    assert (operator.device, operator.dtype) == (None, None)
    torch.testing.assert_close(operator.resolvent(SIGNALS, 1.0), SIGNALS / 5)


def generator() -> gp.Generator:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 20), nn.ELU(), nn.Linear(20, 20), nn.Unflatten(1, fake.SHAPE))
    return gp.Generator(module, 3, fake.SHAPE)


@pytest.mark.parametrize("items", [1, 3], ids=["shared mask", "mask per image"])
def test_the_reconstructor_gives_what_solve_gives(items):
    G, mask = generator(), fake.masks(items)
    mine = gp.operators.Mask(mask[0]) if items == 1 else gp.operators.Mask(mask, per_item=True)
    y = mine(G(G.sample_latent(3, seed=5)).detach())
    options = {"stop": gp.MaxSteps(60), "restarts": 2, "seed": 4}
    model = GenPrior(G, gp.ExactADMM(rho=0.3), on_latent=0.01 * gp.SquaredL2(), **options)
    expected = gp.solve(
        gp.Problem(G, gp.LeastSquares(mine, y), on_latent=0.01 * gp.SquaredL2()), gp.ExactADMM(rho=0.3), **options
    )
    torch.testing.assert_close(model(y, fake.Masked(mask)), expected.signal, rtol=1e-4, atol=1e-4)
    assert model.result is not None and model.result.status == expected.status
    again = model(y, fake.Masked(mask), z0=expected.z)
    assert bool((model.result.objective <= expected.objective + 1e-6).all()) and again.shape == (3, *fake.SHAPE)


@pytest.mark.parametrize("make", [lambda: fake.Masked(fake.masks()), lambda: fake.Spatial((4, 5))])
def test_the_reconstructor_in_float64(make):
    """The numbers of the physics are float32, as deepinv makes them."""
    G = generator()
    double = gp.Generator(G.module.double(), 3, fake.SHAPE)
    y = make().A(double(double.sample_latent(2, seed=5)).detach())
    model = GenPrior(double, stop=gp.MaxSteps(200))
    assert y.dtype == model(y, make()).dtype == torch.float64
    assert float(model.result.objective.max()) < 1e-3
    assert from_deepinv(make(), fake.SHAPE).to(dtype=torch.float64).adjoint(y).dtype == torch.float64


def test_the_reconstructor_verifies_unless_told_not_to():
    G, wrong = generator(), fake.WrongAdjoint(fake.masks())
    y = wrong.A(G(G.sample_latent(2)).detach())
    with pytest.raises(ValueError, match="WrongAdjoint violates"):
        GenPrior(G, gp.Adam(), stop=gp.MaxSteps(2))(y, wrong)
    assert GenPrior(G, gp.Adam(), verify=False, stop=gp.MaxSteps(2))(y, wrong).shape == (2, *fake.SHAPE)


def test_the_reconstructor_complains_early():
    with pytest.raises(TypeError, match=r"unknown option 'max_steps': expected one of .*restarts"):
        GenPrior(generator(), max_steps=5)
    with pytest.raises(TypeError, match="generator must be a genprior Generator"):
        GenPrior(nn.Linear(3, 4))
    with pytest.raises(ValueError, match=r"y has shape \(2, 1, 4, 4\), but the operator gives \(B, 1, 4, 5\)"):
        GenPrior(generator())(torch.zeros(2, 1, 4, 4), fake.Masked(fake.masks()))


def test_deepinv_is_imported_by_the_bridge_only(tmp_path):
    (tmp_path / "deepinv").mkdir()
    (tmp_path / "deepinv" / "__init__.py").touch()
    (tmp_path / "deepinv" / "models.py").write_text("import torch\nclass Reconstructor(torch.nn.Module): pass\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import genprior; assert 'deepinv' not in sys.modules; "
        "from genprior.bridges.deepinv import GenPrior; import deepinv; "
        "assert issubclass(GenPrior, deepinv.models.Reconstructor)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
