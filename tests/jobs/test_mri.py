"""From a scanner's file to a file of images: k-space of several coils in HDF5, packed or not, and complex images."""

import h5py
import numpy as np
import pytest
import torch

import genprior as gp
from genprior import operators as ops
from genprior.jobs.posed import expected_noise, relative_residual, simulate
from genprior.jobs.recover import recover
from genprior.models.foreign import open_generator

SIZE = (8, 8)
COLUMNS = np.array([1, 0, 1, 1, 1, 0, 1, 0], np.uint8)
COMPLEX = """
import torch
from torch import nn

class Pairs(nn.Module):
    latent_shape = (3,)

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 128)
        nn.init.normal_(self.layer.weight)

    def forward(self, z):
        return self.layer(z).reshape(-1, 2, 8, 8)
"""


@pytest.fixture
def maps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    found = (random.normal(size=(3, *SIZE)) + 1j * random.normal(size=(3, *SIZE))).astype(np.complex64)
    np.save("maps.npy", found)
    np.save("columns.npy", COLUMNS)
    return torch.from_numpy(found)


@pytest.mark.parametrize("packed", [False, True])
def test_images_from_a_file_of_k_space(job, made, maps, tmp_path, packed):
    truth = torch.from_numpy(np.load(made))
    A = ops.Fourier((3, *SIZE), torch.from_numpy(COLUMNS)[None] > 0, centred=True, packed=packed) @ ops.Coils(maps)
    with h5py.File("knee.h5", "w") as file:
        file["kspace"] = A(truth).numpy()
        file["mask"] = COLUMNS
        file["reconstruction_rss"] = np.zeros((7, 4, 4), np.float32)
    text = f"kspace:columns.npy,centred=true{',packed=true' if packed else ''} @ coils:maps.npy"
    done = job(inputs=("knee.h5",), operator=text, simulate=False, compare=True, steps=100, batch_size=4)
    outcome = recover(done)
    assert outcome.recovered == 7
    with h5py.File(done.out / "recovered" / "knee.h5") as file:
        found = file["reconstruction"][:]
    assert found.shape == truth.shape
    assert np.linalg.norm(found - truth.numpy()) < 0.05 * np.linalg.norm(truth)
    assert "data:image/png" in outcome.report.read_text()


def test_complex_images_are_two_channels(job, maps, tmp_path):
    (tmp_path / "pairs.py").write_text(COMPLEX)
    G = open_generator(f"{tmp_path / 'pairs.py'}:Pairs")
    truth = G(G.sample_latent(3, seed=2)).detach()
    np.save("images.npy", truth.numpy())
    done = job(
        generator=f"{tmp_path / 'pairs.py'}:Pairs",
        inputs=("images.npy",),
        operator="kspace:every=2,centre=2,centred=true @ coils:maps.npy @ complex",
        steps=60,
    )
    recover(done)
    np.testing.assert_allclose(np.load(done.out / "recovered" / "images.npy"), truth, atol=0.02)


def test_complex_noise_has_its_level_in_both_parts():
    """As the losses count it: the misfit of the truth is 1, and so is the square of residual over expected residual."""
    A = ops.SubsampledFourier(300, (20, 30), dtype=torch.float64)
    x = torch.rand(20, 20, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = simulate(A, x, 0.3, 0, range(20))
    noise = (y - A(x))[y != 0]
    assert float(noise.real.std()) == pytest.approx(0.3, rel=0.05)
    assert float(noise.imag.std()) == pytest.approx(0.3, rel=0.05)
    misfit = gp.LeastSquares(A, y, noise=0.3).misfit(x).ratio
    assert float(misfit.mean()) == pytest.approx(1, abs=0.05)
    torch.testing.assert_close((relative_residual(A, x, y) / expected_noise(A, y, 0.3)) ** 2, misfit)
