"""Classifier and encoder: they learn, resume exactly, and end in files that load."""

import dataclasses

import pytest
import torch

import genprior as gp
from genprior import samples
from genprior.models.generators import ConvGenerator
from genprior.models.saved import load_network
from genprior.training.card import write_card
from genprior.training.classifier import ClassifierSettings, ClassifierTask
from genprior.training.data import ImageSet
from genprior.training.draw import Draw
from genprior.training.image_encoder import ImageEncoderSettings, ImageEncoderTask
from genprior.training.loop import Schedule, train
from genprior.training.quality import cover, judge
from genprior.training.task import Devices
from genprior.training.wgan import Wgan, WganSettings

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits():
    pictures, labels = samples.digits(200)
    return ImageSet("digits", (pictures * 255).round().to(torch.uint8), labels, "CC BY-SA 3.0")


@pytest.fixture(scope="module")
def generator():
    torch.manual_seed(0)
    module = ConvGenerator(latent=4, width=4)
    for parameter in module.parameters():
        parameter.data *= 3
    return gp.Generator(module, (4,), (1, 28, 28), latent=gp.TruncatedNormal(radius=4.0), signal_range=(0.0, 1.0))


class Halfway(Exception):
    pass


def halfway(step, losses):
    if step == 5:
        raise Halfway


def test_classifier_learns_and_is_saved(digits, devices, tmp_path):
    settings = ClassifierSettings(width=4, hidden=32, batch=50, steps=80, rate=1e-2)
    task = ClassifierTask(settings, digits, digits, seed=0)
    assert task.accuracy() < 0.3
    trained = train(task, tmp_path, seed=0, devices=devices)
    assert task.accuracy() > 0.8
    assert trained.curve[-10:, 0].mean() < 0.5 * trained.curve[:10, 0].mean()
    (path,) = task.finish(tmp_path, {"seed": 0})
    saved = load_network(path)
    assert saved.facts["test_accuracy"] == task.accuracy() and saved.facts["test_size"] == 200
    guess = gp.load_classifier(path)(digits.batch(torch.arange(200))).argmax(1)
    assert (guess == digits.labels).double().mean() > 0.8
    text = write_card(path).read_text()
    assert "CC BY-SA 3.0" in text and "conv-classifier" in text and "| batch | 50 |" in text


def test_classifier_resumes_exactly_dropout_included(digits, devices, tmp_path):
    settings = ClassifierSettings(width=2, hidden=8, batch=10, steps=9)

    def run(folder, **options):
        task = ClassifierTask(settings, digits, digits, seed=1)
        train(task, tmp_path / folder, seed=1, devices=devices, schedule=Schedule(checkpoint_steps=2), **options)
        return torch.cat([p.detach().flatten() for p in task.network.parameters()])

    with pytest.raises(Halfway):
        run("cut", show=halfway)
    torch.manual_seed(5)  # the global generator must not matter ...
    state = torch.random.get_rng_state()
    assert torch.equal(run("cut"), run("whole"))
    assert torch.equal(state, torch.random.get_rng_state()), "... nor be touched"


def test_a_finished_classifier_is_judged_without_dropout(digits, devices, tmp_path):
    settings = ClassifierSettings(width=4, hidden=32, batch=50, steps=30, rate=1e-2)
    first, second = (ClassifierTask(settings, digits, digits, seed=0) for _ in range(2))
    train(first, tmp_path, seed=0, devices=devices)
    train(second, tmp_path, seed=0, devices=devices)  # reads the end of the first
    assert first.accuracy() == second.accuracy()


def test_encoder_resumes_exactly(generator, digits, devices, tmp_path):
    def run(folder, **options):
        task = ImageEncoderTask(ImageEncoderSettings(width=2, batch=8, steps=8), generator, digits, seed=1)
        train(task, tmp_path / folder, seed=1, devices=devices, schedule=Schedule(checkpoint_steps=2), **options)
        return torch.cat([p.detach().flatten() for p in task.network.parameters()])

    with pytest.raises(Halfway):
        run("cut", show=halfway)
    assert torch.equal(run("cut"), run("whole"))


def test_half_precision(generator, digits, pictures, tmp_path):
    half = Devices("cpu", precision="bf16-mixed")
    task = ImageEncoderTask(ImageEncoderSettings(width=2, batch=8, steps=2), generator, digits, seed=0)
    assert train(task, tmp_path / "encoder", seed=0, devices=half).curve.isfinite().all()
    small = WganSettings(latent=4, width=2, critic_width=2, encoder_width=2, batch=8, warm_steps=1, steps=1)
    found = train(Wgan(small, pictures, 0), tmp_path / "wgan", seed=0, devices=half)
    assert found.curve[-1].isfinite().all()
    with pytest.raises(ValueError, match="belongs to another run"):
        train(Wgan(small, pictures, 0), tmp_path / "wgan", seed=0, devices=Devices("cpu"))


def test_encoder_start_of_another_width(generator, digits):
    first = ImageEncoderTask(ImageEncoderSettings(width=4), generator, digits, seed=0)
    with pytest.raises(ValueError, match=r"start is an encoder of width 4 .*expected width 3.*give `width=4`"):
        ImageEncoderTask(ImageEncoderSettings(width=3), generator, digits, seed=1, start=first.network)


def test_classifier_needs_labels(digits):
    with pytest.raises(ValueError, match="digits has none"):
        ClassifierTask(ClassifierSettings(), dataclasses.replace(digits, labels=None), digits, seed=0)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        ClassifierSettings(steps=0)


def test_encoder_learns(generator, devices, tmp_path):
    settings = ImageEncoderSettings(width=4, batch=16, steps=60, rate=3e-3, own_samples=1.0, latent_weight=0.5)
    task = ImageEncoderTask(settings, generator, None, seed=0)
    trained = train(task, tmp_path, seed=0, devices=devices)
    first, last = trained.curve[:10].mean(0), trained.curve[-10:].mean(0)
    assert (last < 0.6 * first).all(), (first, last)
    (path,) = task.finish(tmp_path, {})
    z = generator.sample_latent(50, seed=9)
    with torch.no_grad():
        found = gp.load_encoder(path)(generator(z))
    assert (found - z).square().mean() < 0.7 * z.square().mean()
    task.save_samples(tmp_path, "samples")
    assert (tmp_path / "samples.png").is_file()


def test_encoder_sees_data_and_own_samples(generator, digits):
    task = ImageEncoderTask(ImageEncoderSettings(batch=8, own_samples=0.25), generator, digits, seed=0)
    z, real = task._batch(Draw.at(0, 0, CPU))
    assert len(z) == 2 and len(real) == 8
    assert torch.equal(real[:2], generator(z))
    again = Draw.at(0, 0, CPU)
    again.latent(generator.latent, 2, (4,))
    assert torch.equal(real[2:], digits.batch(again.index(6, len(digits))))
    none = ImageEncoderTask(ImageEncoderSettings(batch=8, own_samples=0.0), generator, digits, seed=0)
    z, real = none._batch(Draw.at(0, 0, CPU))
    assert len(z) == 0 and len(real) == 8


def test_encoder_starts_from_another(generator, digits):
    first = ImageEncoderTask(ImageEncoderSettings(width=4), generator, digits, seed=0)
    second = ImageEncoderTask(ImageEncoderSettings(width=4), generator, digits, seed=1, start=first.network)
    for one, two in zip(first.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(one, two)


def test_encoder_that_cannot_be(generator, colours):
    with pytest.raises(ValueError, match="own_samples must be 1 where no images are given"):
        ImageEncoderTask(ImageEncoderSettings(), generator, None, seed=0)
    with pytest.raises(ValueError, match=r"generator makes images \(1, 28, 28\), but the data are \(3, 64, 64\)"):
        ImageEncoderTask(ImageEncoderSettings(), generator, colours, seed=0)
    with pytest.raises(ValueError, match="own_samples must be a share between 0 and 1"):
        ImageEncoderSettings(own_samples=1.5)


def test_quality_of_what_is_known(generator):
    with torch.no_grad():
        inside = generator(generator.sample_latent(3, seed=4))
    figures, fits = cover(generator, inside, restarts=4, steps=400)
    assert figures.mean_squared_error < 1e-4 and figures.worst < 5e-4, "the range covers its own pictures"
    assert fits.shape == inside.shape
    outside, _ = cover(generator, (1 - inside).round(), restarts=2, steps=50)
    assert outside.mean_squared_error > 10 * figures.mean_squared_error

    class Thirds(torch.nn.Module):
        def forward(self, x):
            """Sure of class 0 for the first third of a hundred, of class 2 for the next, unsure for the rest."""
            logits = torch.zeros(len(x), 3)
            logits[:30, 0], logits[30:60, 2] = 9.0, 9.0
            logits[60:, 1] = 0.1
            return logits

    inner, _ = cover(generator, inside, restarts=2, steps=50, radius=0.5)
    assert inner.latent_norm <= 0.5 + 1e-5 and inner.mean_squared_error > figures.mean_squared_error
    found = judge(generator, Thirds(), samples=200)
    assert found.confident == pytest.approx(0.6) and found.classes == pytest.approx((0.3, 0.4, 0.3))
