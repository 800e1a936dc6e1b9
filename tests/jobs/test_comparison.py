"""--compare: the answers of classical methods in records, summary and report; signals in time as curves."""

import json

import numpy as np
import pytest
import torch

from genprior import baselines, samples
from genprior import operators as ops
from genprior.jobs.recover import recover
from genprior.operators.parse import parse_operator


def result_of(job):
    outcome = recover(job)
    return json.loads(outcome.result.read_text()), outcome.report.read_text()


def test_classical_methods_are_recorded_with_their_errors(job, made):
    document, report = result_of(job(compare=True, noise=0.1, steps=30))
    truth = torch.from_numpy(np.load(made))
    A = parse_operator("gaussian:m=24,seed=1", (1, 8, 8))
    for item in document["items"]:
        assert set(item["baselines"]) == {"lasso", "haar", "tv"}
        for one in item["baselines"].values():
            assert one["error"] > 0 and one["psnr"] < 60 and one["residual"] >= 0 and one["weight"] > 0
    from genprior.jobs.posed import simulate

    y = simulate(A, truth, 0.1, 0, range(7))
    for name, found in {
        "lasso": baselines.lasso(A, y, ops.DCT((1, 8, 8)), noise=0.1),
        "tv": baselines.total_variation(A, y, noise=0.1),
    }.items():
        error = (found.signal - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)
        recorded = [item["baselines"][name]["error"] for item in document["items"]]
        np.testing.assert_allclose(recorded, error, rtol=1e-3)
        assert document["summary"]["baselines"][name]["median_error"] == pytest.approx(np.median(error), rel=1e-3)
    assert "Compared with methods that need no generator" in report and "total variation" in report
    assert "nearer to the original" in report or "nearest to the original" in report


def test_the_user_is_told_where_the_generator_does_not_help(job, tmp_path):
    """Digits are no images that this small generator can make; total variation makes them from all of their pixels."""
    np.save(tmp_path / "digits.npy", samples.digits(4)[0][:, :, 6:22, 6:22][:, :, ::2, ::2].numpy())
    document, report = result_of(
        job(compare=True, inputs=(str(tmp_path / "digits.npy"),), operator="identity", steps=20)
    )
    assert sum(document["summary"]["baseline_nearer"].values()) == 4
    assert "here the generator does not help" in report


def test_without_the_truth_fits_are_compared(job, made, tmp_path):
    y = parse_operator("gaussian:m=24,seed=1", (1, 8, 8))(torch.from_numpy(np.load(made)))
    np.save(tmp_path / "y.npy", y.numpy())
    document, report = result_of(job(compare=True, simulate=False, inputs=(str(tmp_path / "y.npy"),), steps=5))
    assert "error" not in document["items"][0]["baselines"]["tv"]
    assert "only fits can be compared" in report
    assert document["summary"]["baselines"]["tv"]["median_error"] is None


def test_without_the_option_nothing_is_added(job):
    document, report = result_of(job(steps=5))
    assert "baselines" not in document["items"][0] and "baselines" not in document["summary"]
    assert "Compared" not in report


def test_comparison_is_for_least_squares(job):
    with pytest.raises(ValueError, match="`compare` works only with the loss l2, got 'l1'"):
        job(compare=True, loss="l1", operator="identity")


SOUND = """
import torch
from torch import nn

class Waves(nn.Module):
    latent_shape = (3,)

    def __init__(self):
        super().__init__()
        time = torch.linspace(0, 1, 60)
        self.register_buffer("waves", torch.stack([torch.sin((3 + k) * time + c) for k in range(3) for c in (0, 1)]))

    def forward(self, z):
        return (z[:, None] @ self.waves.reshape(3, 2, 60).flatten(1)).reshape(-1, 2, 60)
"""


def test_signals_in_time_are_compared_and_drawn_as_curves(job, tmp_path):
    path = tmp_path / "sound.py"
    path.write_text(SOUND)
    np.savetxt(tmp_path / "ecg.csv", np.sin(np.arange(120).reshape(60, 2) / 9), delimiter=",")
    done = job(
        compare=True,
        generator=f"{path}:Waves",
        inputs=(str(tmp_path / "ecg.csv"),),
        operator="mask:keep=0.5,dims=1",
        steps=9,
    )
    document, report = result_of(done)
    assert document["items"][0]["baselines"]["haar"]["error"] < 1
    assert report.count("data:image/png") == 1 and 'alt="original, measured, recovered' in report
    assert np.loadtxt(done.out / "recovered" / "ecg.csv", delimiter=",").shape == (60, 2)
