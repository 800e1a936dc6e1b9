"""Jobs with a deviation from the range: settings have their effect, the record and the report show both parts."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import genprior as gp
from genprior.jobs.posed import estimated_noise, simulate
from genprior.jobs.recover import recover


def result_of(job):
    recover(job)
    return json.loads((job.out / "result.json").read_text())


def deviating(tmp_path, made):
    """Images that the generator makes, but for one bright pixel."""
    images = np.load(made)
    images[:, 0, 2, 3] += 1.0
    path = tmp_path / "deviating.npy"
    np.save(path, images)
    return str(path)


def median_error(document):
    return float(np.median([item["error"] for item in document["items"]]))


def test_a_deviation_recovers_what_the_generator_cannot_make(job, tmp_path, made):
    inputs = (deviating(tmp_path, made),)
    common = {"inputs": inputs, "operator": "gaussian:m=48,seed=0", "steps": 100}
    plain = result_of(job(**common))
    given = result_of(job(**common, out=tmp_path / "given", deviation=0.01))
    chosen = result_of(job(**common, out=tmp_path / "chosen", basis="identity"))
    assert median_error(given) < 0.5 * median_error(plain)
    assert median_error(chosen) < 0.5 * median_error(plain)
    assert all("deviation" not in item for item in plain["items"])
    assert all(0 < item["deviation"] < 1 and item["deviation_weight"] is None for item in given["items"])
    assert all(item["deviation_weight"] > 0 for item in chosen["items"])
    report = (tmp_path / "chosen" / "report.html").read_text()
    assert "in the generator&#x27;s range" in report or "in the generator's range" in report
    assert "with a weight chosen for each item" in report


def test_the_basis_matters(job, tmp_path, made):
    inputs = (deviating(tmp_path, made),)
    common = {"inputs": inputs, "operator": "gaussian:m=32,seed=0", "steps": 60, "deviation": 0.02}
    pixels, waves = (result_of(job(**common, out=tmp_path / name, basis=name)) for name in ("identity", "dct"))
    assert median_error(pixels) < median_error(waves), "one bright pixel is sparse in pixels"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"deviation": 0.0}, "deviation must be a finite number above 0"),
        ({"deviation": "some"}, "deviation must be a weight above 0, or auto, got 'some'"),
        ({"basis": "cosine"}, "basis 'cosine': there is no basis 'cosine': give identity, dct"),
        ({"basis": "db10"}, "basis 'db10': signals of shape .* cannot be split by 'db10'"),
        ({"deviation": "auto", "loss": "l1", "operator": "identity"}, "works only with the loss l2"),
    ],
)
def test_bad_settings(job, settings, words):
    with pytest.raises(ValueError, match=words):
        recover(job(**settings))


def test_the_noise_estimate_counts_the_coefficients_of_the_deviation():
    """Noise that the deviation has taken up is no longer in the residual; too many coefficients, and nothing is known."""
    generator = gp.Generator(torch.nn.Linear(3, 400), 3, 400)
    operator, truth = gp.operators.Identity(400), generator(generator.sample_latent(3, seed=1)).detach()
    y = simulate(operator, truth, 0.1, 0, range(3))
    kept = torch.tensor([0, 150, 198])
    noise = (y - truth).abs()
    taken = noise >= noise.sort(dim=1, descending=True).values.gather(1, kept[:, None])
    taken[0] = False
    coefficients = torch.where(taken, y - truth, 0.0)
    result = SimpleNamespace(signal=truth + coefficients, coefficients=coefficients)
    estimate = estimated_noise(generator, operator, result, y)
    residual = (y - result.signal).norm(dim=1)
    torch.testing.assert_close(estimate[:2], residual[:2] / torch.tensor([397.0, 397.0 - 151]).sqrt())
    assert estimate[2].isnan()
    assert estimated_noise(generator, operator, SimpleNamespace(signal=y, coefficients=y), y) is None
