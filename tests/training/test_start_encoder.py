"""Encoders of measurements: what they learn, what they are for, and whom they refuse."""

import json

import pytest
import torch
from torch import nn

import genprior as gp
from genprior import cli
from genprior.models.saved import load_network
from genprior.training.loop import Schedule, train
from genprior.training.start_encoder import StartEncoderSettings, StartEncoderTask, components

QUICK = StartEncoderSettings(width=16, batch=64, samples=512, steps=300, rate=1e-2, noise=0.0)
TINY = StartEncoderSettings(width=4, batch=8, samples=64, steps=6)


def linear(seed=0, **options):
    """``G(z) = W z + b`` in 8 dimensions, from 4."""
    torch.manual_seed(seed)
    return gp.Generator(nn.Linear(4, 8), 4, 8, **options)


def curved(seed=0, dtype=torch.float32, **options):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 12), nn.Unflatten(1, (1, 3, 4)))
    return gp.Generator(net.to(dtype), 4, (1, 3, 4), **options)


def trained(generator, operator, folder, devices, settings=QUICK, **options):
    task = StartEncoderTask(settings, generator, operator, seed=0)
    train(task, folder, seed=0, devices=devices, **options)
    (path,) = task.finish(folder, {})
    return task, gp.load_start_encoder(path)


# -- what it learns ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_for_a_linear_generator_it_is_the_conditional_mean(scale, devices, tmp_path):
    """``E[z | y] = M^T (M M^T)^-1 (y - A b)`` for ``z ~ N(0, s^2 I)`` and ``y = M z + A b`` without noise, ``M = A W``."""
    generator = linear(latent=gp.Normal(scale))
    A = gp.operators.Gaussian(3, (8,), seed=0)
    _, encoder = trained(generator, A, tmp_path, devices)
    z = generator.sample_latent(100, seed=3)
    with torch.no_grad():
        y = A(generator(z))
        found = encoder.guess(gp.Problem(generator, gp.LeastSquares(A, y)))
        offset = A(generator.module.bias[None])[0]
        M = A(generator.module.weight.mT).mT
    expected = (y - offset) @ torch.linalg.inv(M @ M.mT) @ M
    assert (found - expected).norm() < 0.05 * expected.norm()
    assert (expected - z).norm() > 0.2 * z.norm(), "otherwise all of z is determined"


def test_noise_makes_it_careful(devices, tmp_path):
    """The same where one measurement is far weaker than the noise: what only that would tell is left at its mean."""
    generator = linear()
    matrix = torch.zeros(2, 8)
    matrix[0, 0], matrix[1, 1] = 1.0, 1e-3
    A = gp.operators.Dense(matrix, (8,))
    bold, careful = (
        trained(generator, A, tmp_path / str(noise), devices, StartEncoderSettings(16, 512, 512, 64, 300, 1e-2, noise))[
            1
        ]
        for noise in (0.0, 0.3)
    )
    with torch.no_grad():
        y = A(generator(generator.sample_latent(50, seed=3)))
        noisy = y + torch.tensor([0.0, 0.05])
        change = [(encoder(noisy) - encoder(y)).norm() for encoder in (bold, careful)]
    assert change[1] < 0.2 * change[0]


@pytest.mark.parametrize("size", [5, 40])
def test_components_have_unit_variance(size):
    """Of more samples than values, and of fewer."""
    rows = torch.randn(20, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = rows @ torch.diag(torch.logspace(0, 1, size, dtype=torch.float64)) + 3.0
    mean, basis, unit = components(rows, 4, noise=0.0)
    features = (rows - mean) @ basis
    torch.testing.assert_close(features.mT @ features / 20, torch.eye(4, dtype=torch.float64))
    left, values, _ = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)
    assert basis.shape == (size, 4) and unit == pytest.approx(float((rows - mean).square().mean().sqrt()))
    torch.testing.assert_close((left[:, :4].mT @ features / 20**0.5).abs(), torch.eye(4, dtype=torch.float64))
    _, with_noise, _ = components(rows, 4, noise=0.5)
    spread = ((rows - mean) @ with_noise).square().mean(dim=0)
    variance = values[:4].square() / 20
    torch.testing.assert_close(spread, variance / (variance + (0.5 * unit) ** 2 / 5))
    assert len(components(torch.ones(20, size), 4, 0.1)[1].mT) == 1, "constant measurements have no components"


OPERATORS = {
    "gaussian": gp.operators.Gaussian(5, (1, 3, 4), seed=0),
    "mask": gp.operators.Mask(torch.arange(12).reshape(1, 3, 4) % 3 > 0),
    "fourier": gp.operators.SubsampledFourier(torch.tensor([True, False, True]).reshape(3, 1).expand(3, 4), (1, 3, 4)),
    "identity": gp.operators.Identity((1, 3, 4)),
}


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_guesses_fit_better_than_samples(operator, devices, tmp_path):
    generator = curved()
    task, encoder = trained(generator, operator, tmp_path, devices)
    assert task.quality()["share_that_fits_better_than_the_whole_pool"] > 0.8
    with torch.no_grad():
        y = operator(generator(generator.sample_latent(8, seed=5)))
    result = gp.solve(gp.Problem(generator, gp.LeastSquares(operator, y)), start=encoder, progress=False)
    assert (result.residual < 3e-3).sum() >= 7


@pytest.mark.parametrize("latent", [gp.Uniform(0.0, 2.0), gp.TruncatedNormal(radius=1.5)], ids=str)
def test_guesses_are_within_the_latent_distribution(latent, devices, tmp_path):
    generator = curved(latent=latent)
    A = OPERATORS["gaussian"]
    _, encoder = trained(generator, A, tmp_path, devices, TINY)
    with torch.no_grad():
        y = A(generator(generator.sample_latent(8, seed=5)))
    for data in (y, 1e4 * y, -1e30 * y):
        found = encoder.guess(gp.Problem(generator, gp.LeastSquares(A, data.clamp(-1e18, 1e18))))
        assert (latent.reach(found) <= 1 + 1e-6).all()


@pytest.mark.parametrize("latent", [gp.Normal(2.0), gp.Uniform(0.0, 2.0), gp.TruncatedNormal(radius=1.5)], ids=str)
def test_what_is_farther_out_than_draws_is_moved_in(latent):
    inside = latent.sample(50, (2, 3), torch.Generator().manual_seed(0))
    torch.testing.assert_close(latent.within(inside), inside)
    far = latent.centre + 100 * (inside - latent.centre)
    moved = latent.within(far)
    assert (latent.reach(moved) <= 1 + 1e-9).all() and (latent.reach(far) > 1).all()
    assert (((moved - latent.centre) * (far - latent.centre)) >= 0).all(), "towards the centre, not beyond"


# -- training and file -------------------------------------------------------------------------------------------------


def test_training_resumes_exactly_and_the_file_says_what_it_is(devices, tmp_path):
    def stop(step, losses):
        if step == 4:
            raise InterruptedError

    operator = OPERATORS["gaussian"]
    with pytest.raises(InterruptedError):
        trained(curved(), operator, tmp_path / "cut", devices, TINY, schedule=Schedule(checkpoint_steps=3), show=stop)
    cut, whole = (trained(curved(), operator, tmp_path / name, devices, TINY)[1] for name in ("cut", "whole"))
    for name, value in whole.state_dict().items():
        assert torch.equal(cut.state_dict()[name], value), name
    saved = load_network(tmp_path / "whole" / "encoder.safetensors")
    assert saved.kind == "start-encoder" and "Gaussian(5" in saved.facts["operator"]
    assert saved.stored == torch.float32
    other = StartEncoderTask(TINY, curved(), gp.operators.Gaussian(5, (1, 3, 4), seed=1), seed=0)
    with pytest.raises(ValueError, match="belongs to another run"):
        train(other, tmp_path / "cut", seed=0, devices=devices)


def test_a_damaged_file_is_refused(devices, tmp_path):
    trained(curved(), OPERATORS["gaussian"], tmp_path, devices, TINY)
    path = tmp_path / "encoder.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged or was changed"):
        gp.load_start_encoder(path)
    path.write_bytes(content[:-40])
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        gp.load_start_encoder(path)
    with pytest.raises(ValueError, match=r"holds a encoder, not an encoder of measurements: give a file that genprior"):
        gp.load_start_encoder(gp.models.bundled.bundled_path("mnist", "encoder"))
    with pytest.raises(TypeError, match="path must be the path of a file"):
        gp.load_start_encoder(3)


# -- whom it refuses ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(devices, tmp_path_factory):
    generator, operator = curved(), OPERATORS["gaussian"]
    return generator, operator, trained(generator, operator, tmp_path_factory.mktemp("made"), devices, TINY)[1]


def posed(generator, operator, items=2):
    return gp.Problem(generator, gp.LeastSquares(operator, torch.ones(items, *operator.measurement_shape)))


def test_the_same_in_other_words_is_accepted(made):
    generator, operator, encoder = made
    again = gp.operators.Dense(operator.matrix.clone(), (1, 3, 4))
    for G in (generator, curved(), curved().faster(), curved(dtype=torch.float64)):
        A = again.to("cpu", G.dtype)
        found = encoder.guess(gp.Problem(G, gp.LeastSquares(A, torch.ones(2, 5, dtype=G.dtype))))
        assert found.shape == (2, 4) and found.dtype == G.dtype


def longer():
    torch.manual_seed(0)
    return gp.Generator(nn.Linear(5, 12), 5, 12)


@pytest.mark.parametrize(
    ("generator", "operator", "message"),
    [
        (
            longer(),
            gp.operators.Gaussian(5, (12,)),
            r"latents \(4,\) to signals \(1, 3, 4\), but this one goes from \(5,\)",
        ),
        (curved(1), OPERATORS["gaussian"], "another generator: from the same latents .* differ by .*%"),
        (curved(latent=gp.Normal(2.0)), OPERATORS["gaussian"], "another generator"),
        (curved(), gp.operators.Gaussian(6, (1, 3, 4)), r"of 5 measurements, but the operator Gaussian\(6.* gives 6"),
        (curved(), gp.operators.Gaussian(5, (1, 3, 4), seed=1), "another operator: .*seed=1.* differ by .*%"),
        (curved(), gp.operators.Dense(torch.ones(2, 5, 12), (1, 3, 4)), "another operator: .*one for each item"),
    ],
)
def test_others_are_refused(made, generator, operator, message):
    with pytest.raises(
        ValueError, match=f"start is an encoder .*{message}.*: train an encoder for it with genprior train"
    ):
        gp.solve(posed(generator, operator), start=made[2])


def test_losses_without_measurements_are_refused(made):
    risk = gp.EmpiricalRisk(lambda w, s: (w.flatten(1) @ s.mT).square(), torch.ones(3, 12))
    with pytest.raises(ValueError, match=r"start needs measurements, but the loss is EmpiricalRisk.*as z0"):
        gp.solve(gp.Problem(made[0], risk), start=made[2])


def test_an_operator_for_each_item_has_no_encoder():
    with pytest.raises(ValueError, match="operator must be one for all items"):
        StartEncoderTask(TINY, curved(), gp.operators.Dense(torch.ones(2, 5, 12), (1, 3, 4)), seed=0)
    with pytest.raises(ValueError, match="noise must be a finite number of at least 0"):
        StartEncoderSettings(noise=-1.0)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\n\ndef build():\n    torch.manual_seed(0)\n    return nn.Linear(4, 12)\n"
    )
    words = ["train", "encoder", "--generator", f"{tmp_path / 'mine.py'}:build", "--operator", "gaussian:m=5,seed=2"]
    words += ["--steps", "3", "--width", "4", "--samples", "32", "--batch", "4", "--threads", "1"]
    assert cli.main([*words, "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"][0] == str(tmp_path / "out" / "encoder.safetensors")
    assert cli.main([*words, "--out", str(tmp_path / "out")]) == 0, "resumed at its end"
    assert "of 64 fresh samples" in " ".join(capsys.readouterr().out.split())
    card = (tmp_path / "out" / "encoder.md").read_text()
    assert "**Measured by:** gaussian:m=5,seed=2" in card and "share that fits better than the whole pool" in card
    assert "float32 on disk" in card
    torch.manual_seed(0)
    generator = gp.Generator(nn.Linear(4, 12), 4, 12)
    gp.load_start_encoder(tmp_path / "out" / "encoder.safetensors").check(
        generator, gp.operators.Gaussian(5, (12,), seed=2)
    )
