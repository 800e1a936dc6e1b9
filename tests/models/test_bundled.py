"""The bundled networks do what their cards say."""

import re
from pathlib import Path

import pytest
import torch

import genprior as gp
from genprior import samples
from genprior.models import bundled
from genprior.models.saved import load_network
from genprior.training.quality import cover, judge

CONFIDENT = 0.85
FILES = sorted(bundled.FOLDER.glob("*.safetensors"))


def test_the_package_stays_small():
    package = Path(gp.__file__).parent
    size = sum(path.stat().st_size for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert size < 25e6


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_network_has_a_card_that_fits(path):
    name, _, role = path.stem.rpartition("-")
    text, saved = bundled.card(name, role), load_network(path)
    for words in (saved.kind, saved.facts["command"], "Licence of the data", f"**Seed:** {saved.facts['seed']}"):
        assert words in text
    assert not re.search(r"/(tmp|home|root|work)/", text), "no path of the machine that trained it"


def test_classifier():
    classifier = gp.load_classifier("mnist")
    pictures, labels = samples.digits()
    assert (classifier(pictures).argmax(1) == labels).double().mean() > 0.98
    assert load_network(bundled.bundled_path("mnist", "classifier")).facts["test_accuracy"] >= 0.992


def test_digits_are_readable_and_balanced():
    G = gp.load_generator("mnist")
    found = judge(G, gp.load_classifier("mnist"), samples=1000)  # as in the card
    assert found.confident >= CONFIDENT
    assert min(found.classes) >= 0.04


def test_the_range_covers_real_digits():
    """The full figure (100 digits, four starts) is in the card; here a few, from the encoder's guess."""
    G, encoder = gp.load_generator("mnist"), gp.load_encoder("mnist")
    digits, _ = samples.digits(8)
    figures, _ = cover(G, digits, restarts=1, steps=100, z0=encoder(digits))
    assert figures.mean_squared_error < 0.006


def test_the_encoder_starts_a_search_well():
    G, encoder = gp.load_generator("mnist"), gp.load_encoder("mnist")
    digits, _ = samples.digits(50)
    with torch.no_grad():
        guess = (G(encoder(digits)) - digits).square().mean()
        chance = (G(G.sample_latent(50)) - digits).square().mean()
    assert guess < 0.2 * chance


def test_mnist_generator_is_the_reference_architecture():
    G = gp.load_generator("mnist")
    assert (G.latent_shape, G.signal_shape, G.signal_range) == ((128,), (1, 28, 28), (0.0, 1.0))
    saved = load_network(bundled.bundled_path("mnist", "generator"))
    assert saved.kind == "conv-generator" and saved.settings == {"latent": 128, "width": 64}
    assert isinstance(G.latent, gp.TruncatedNormal)
    assert gp.checks.check_generator(G).ok


def test_faces():
    G, encoder = gp.load_generator("celeba"), gp.load_encoder("celeba")
    with torch.no_grad():
        faces = G(G.sample_latent(4, seed=0))
        again = G(encoder(faces))
    assert faces.shape == (4, 3, 64, 64)
    assert 0 <= float(faces.min()) < float(faces.max()) <= 1
    assert (again - faces).square().mean() < 0.03, "the encoder was trained with this generator"
    facts = load_network(bundled.bundled_path("celeba", "generator")).facts
    assert "non-commercial" in facts["weights_licence"]
    assert facts["quality"]["coverage"]["mean_squared_error"] < 0.01


def test_bundled_generators_run_channels_last():
    for name in ("mnist", "celeba"):
        kernels = [p for p in gp.load_generator(name).module.parameters() if p.ndim == 4 and p.shape[1] > 1]
        assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)
