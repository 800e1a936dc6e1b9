"""What an iteration costs at several sizes."""

import json

import pytest

from genprior.cli import main
from genprior.lab import scaling


def test_a_point_says_what_was_measured():
    (point,) = scaling.latent_sizes((4,), repeats=1)
    assert (point.batch, point.latent, point.signal) == (20, 4, 784)
    assert set(point.step_seconds) == set(scaling.SOLVERS) and point.pass_seconds > 0
    assert all(seconds >= 0 for seconds in point.step_seconds.values())
    assert point.state_bytes["quasi-Newton"] >= 4 * 4 * 4, "a matrix per item"
    assert point.state_bytes["exact ADMM"] >= 2 * 4 * 784, "w and lam"


def test_the_command(monkeypatch, capsys):
    monkeypatch.setattr(scaling, "BATCHES", (1, 2, 3, 400))
    monkeypatch.setattr(scaling, "LATENTS", (4,))
    monkeypatch.setattr(scaling, "SIDES", (8, 16))
    assert main(["bench", "scaling", "--quick", "--repeats", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [point["batch"] for point in found["batch"]] == [1, 2, 3]
    assert [point["signal"] for point in found["signal"]] == [64, 256]
    monkeypatch.setattr(scaling, "BATCHES", (1,))
    assert main(["bench", "scaling", "--repeats", "1", "--threads", "1"]) == 0
    assert "by latent" in capsys.readouterr().out


def test_repeats_are_checked():
    with pytest.raises(ValueError, match="repeats"):
        scaling.batch_sizes((1,), repeats=0)
