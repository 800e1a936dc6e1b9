"""The checks of a user's generator: each fault is found and named; a sound one gets its numbers."""

import json
import shlex

import numpy as np
import pytest
import torch
from PIL import Image

from genprior import cli
from genprior.generators import spectrum
from genprior.jobs import check
from genprior.jobs.check import inspect_generator, write_samples
from genprior.jobs.settings import Source
from genprior.models.foreign import open_generator
from genprior.operators.parse import parse_operator
from genprior.report.signals import mosaic

CODE = """
import torch
from torch import nn


class Faulty(nn.Module):
    latent_shape = (3,)

    def __init__(self, fault):
        super().__init__()
        torch.manual_seed(0)
        self.fault, self.layer = fault, nn.Linear(3, 64)

    def forward(self, z):
        x = torch.sigmoid(self.layer(z))
        if self.fault == "random":
            x = x + 0.1 * torch.rand_like(x)
        if self.fault == "nan":
            x = x / (x - x)
        if self.fault == "batch":
            x = x - x.mean(0)
        if self.fault == "constant":
            x = x.detach() * 0 + 0.5 + 0 * z.sum()
        if self.fault == "bytes":
            x = 255 * x
        return x.reshape(-1, 1, 8, 8)


def good(): return Faulty("")
def random(): return Faulty("random")
def nan(): return Faulty("nan")
def batch(): return Faulty("batch")
def constant(): return Faulty("constant")
def in_bytes(): return Faulty("bytes")
def normed(): return nn.Sequential(nn.Linear(3, 64), nn.BatchNorm1d(64), nn.Unflatten(1, (1, 8, 8)))


def signals(*shape):
    size = torch.Size(shape).numel()
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, size), nn.Unflatten(1, shape))


def wave(): return signals(300)
def channels(): return signals(2, 300)
def many_channels(): return signals(12, 40)
def maps(): return signals(12, 5, 6)
def volumes(): return signals(2, 3, 4, 5)
def long(): return signals(5000)
def number(): return signals(1)


def diagonal():
    layer = nn.Linear(3, 5, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.diag_embed(torch.tensor([4.0, 2.0, 0.001]), dim1=0)[:, :].new_zeros(5, 3))
        layer.weight[0, 0], layer.weight[1, 1], layer.weight[2, 2] = 4.0, 2.0, 0.001
    return layer
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "parts.py"
    path.write_text(CODE)
    return lambda name: f"{path}:{name}"


@pytest.mark.parametrize(
    ("name", "law", "advice"),
    [
        ("random", "same latent, same signal", "the module is random"),
        ("nan", "finite values and gradients", "check the weights for NaN"),
        ("batch", "items do not influence each other", "compute per item"),
        ("constant", "signals differ between latents", "z is ignored"),
        ("in_bytes", r"values fit images in \[0, 1\]", "signal_range=.0, 255."),
        ("normed", "opens", r"load trained weights, or call module\.eval\(\)"),
        ("missing", "opens", "give one of Faulty, good"),
    ],
)
def test_faults_are_found(spec, name, law, advice):
    import re

    found = inspect_generator(Source(generator=spec(name)))
    assert not found.report.ok and not found.command
    wrong = [failure for failure in found.report.failures if re.fullmatch(law, failure.law)]
    assert wrong and re.search(advice, f"{wrong[0].measured} {wrong[0].advice}"), str(found.report)


def test_a_range_that_is_told_mends_it(spec):
    found = inspect_generator(Source(generator=spec("in_bytes"), signal_range=(0.0, 255.0)))
    assert found.report.ok, str(found.report)
    assert "--range 0 255" in found.command


def test_values_that_are_kept(spec, capfd):
    assert cli.main(["check", spec("diagonal"), "--range", "keep", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert "--range keep" in found["command"] and "values unchanged, as requested" in found["notes"]


def test_a_wrong_latent_shape(spec):
    found = inspect_generator(Source(generator=spec("good"), latent_shape=(9,)))
    assert "does not run on latents of shape (9,)" in found.report.failures[0].measured


def test_a_sound_one(spec, tmp_path):
    found = inspect_generator(Source(generator=spec("good")))
    assert found.report.ok and found.latent_shape == (3,) and found.signal_shape == (1, 8, 8)
    rest = "--operator downsample:4 --simulate --out recovered"
    assert found.command == f"genprior recover pictures/ --generator {spec('good')} {rest}"
    assert set(found.speed) == {"forward_1", "both_1", "forward_16", "both_16"} and min(found.speed.values()) > 0
    sheet = write_samples(Source(generator=spec("good")), tmp_path / "look", count=5)
    assert sheet.is_file() and len(list((tmp_path / "look" / "samples").iterdir())) == 5


def test_conditioning_is_that_of_the_matrix(spec):
    found = inspect_generator(Source(generator=spec("diagonal")))
    numbers = found.conditioning
    assert numbers["largest"] == pytest.approx(4.0) and numbers["smallest"] == pytest.approx(0.001)
    assert numbers["condition"] == pytest.approx(4000) and numbers["flat_share"] == pytest.approx(1 / 3)
    assert found.command.startswith("genprior recover signals.npy ") and "gaussian:m=2" in found.command


def test_a_large_jacobian_is_kept_once_and_gives_the_same(spec, monkeypatch):
    before = {
        name: inspect_generator(Source(generator=spec(name))).conditioning for name in ("good", "diagonal", "wave")
    }
    monkeypatch.setattr(spectrum, "_SMALL", 12)  # parts of four signal numbers
    monkeypatch.setattr(spectrum, "_TOGETHER", 20)
    for name, numbers in before.items():
        found = inspect_generator(Source(generator=spec(name))).conditioning
        assert found == pytest.approx(numbers, rel=1e-4), name


def test_a_jacobian_that_is_too_large_is_left_out(spec, monkeypatch, capfd):
    monkeypatch.setattr(check, "MOST_BYTES", 3 * 64 * 4 - 1)
    found = inspect_generator(Source(generator=spec("good")))
    assert found.report.ok and found.conditioning is None and found.speed and found.command
    assert cli.main(["check", spec("good")]) == 0
    assert "DG: not computed: 64 x 3 numbers need" in capfd.readouterr().out
    monkeypatch.setattr(check, "MOST_BYTES", 3 * 64 * 4)
    assert inspect_generator(Source(generator=spec("good"))).conditioning is not None


@pytest.mark.parametrize("look", [False, True])
def test_the_suggested_command_runs(spec, tmp_path, monkeypatch, capfd, look):
    """As a new user would: check, take the command, with the user's own images or those that check wrote."""
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {"layer.weight": torch.ones(64, 3), "layer.bias": torch.zeros(64)}}, "w.pt")
    assert cli.main(["check", spec("good"), "--weights", "w.pt", "--json", *(["--out", "look"] if look else [])]) == 0
    words = shlex.split(json.loads(capfd.readouterr().out)["command"])
    assert words[2] == ("look/samples" if look else "pictures/")
    if not look:
        (tmp_path / "pictures").mkdir()
        np.save(tmp_path / "pictures" / "whole.npy", np.full((16, 8, 8), 0.5, np.float32))
    assert cli.main([*words[1:], "--steps", "30"]) == 0
    assert "16 of 16 items" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("shape", "operator"),
    [
        ((40_000,), "hadamard:m=20000"),
        ((8, 5000), "hadamard:m=20000"),
        ((1, 30, 30), "gaussian:m=450"),
        ((1, 32, 32), "downsample:4"),
        ((1, 203, 203), "hadamard:m=20604"),
        ((1,), "gaussian:m=1"),
    ],
)
def test_no_large_matrix_is_suggested(shape, operator):
    """A dense matrix for 40,000 values would take 3.2 GB, and ten times that to be factorised."""
    assert check._operator(shape) == operator
    built = parse_operator(operator, shape)
    assert built.signal_shape == shape


def test_the_suggested_command_runs_for_signals(spec, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(inspect_generator(Source(generator=spec("diagonal"))).command)
    np.save("signals.npy", np.array([[4.0, -2.0, 0.001, 0, 0]], np.float32))
    assert cli.main([*words[1:], "--steps", "30"]) == 0
    assert "1 of 1 items" in capfd.readouterr().out


SIGNALS = {
    "wave": (300,),
    "channels": (2, 300),
    "many_channels": (12, 40),
    "maps": (12, 5, 6),
    "volumes": (2, 3, 4, 5),
    "long": (5000,),
    "number": (1,),
    "diagonal": (5,),
}


@pytest.mark.parametrize("name", SIGNALS)
def test_signals_that_are_no_pictures_are_drawn(spec, tmp_path, name):
    """An array that recover takes, with the generator's own numbers, and a sheet that is not blank."""
    source = Source(generator=spec(name))
    sheet = write_samples(source, tmp_path / "look", count=5)
    saved = np.load(tmp_path / "look" / "samples" / "signals.npy")
    assert saved.shape == (5, *SIGNALS[name]) and saved.dtype == np.float32
    generator = open_generator(source.generator)
    torch.testing.assert_close(torch.from_numpy(saved), generator(generator.sample_latent(5, 0)).detach())
    with Image.open(sheet) as image:
        drawn = np.asarray(image.convert("L"))
    cells = [part for half in np.array_split(drawn[50:], 2) for part in np.array_split(half, 4, axis=1)]
    inked = [bool((cell[60:150, 100:220] < 250).any()) for cell in cells]
    assert inked == [True] * 5 + [False] * 3, "five signals in a grid of two by four"


def test_check_writes_signals_and_its_command_takes_them(spec, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["check", spec("channels"), "--out", "look", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    words = shlex.split(told["command"])
    assert told["samples"] == "look/samples.png" and words[2] == "look/samples"
    assert cli.main([*words[1:], "--steps", "30"]) == 0
    assert "16 of 16 items" in capfd.readouterr().out


def test_maps_are_laid_side_by_side():
    maps = torch.arange(30.0).reshape(5, 2, 3)
    sheet = mosaic(maps)
    assert sheet.shape == (5, 11)
    assert torch.equal(sheet[:2, 4:7], maps[1]) and torch.equal(sheet[3:, :3], maps[3])
    assert sheet[2].isnan().all() and sheet[3:, 8:].isnan().all() and int(sheet.isnan().sum()) == 55 - 30


def test_pictures_that_are_whole(spec, tmp_path, capfd):
    """Forgetting --simulate gives advice to add it, not to use --resize."""
    write_samples(Source(generator=spec("good")), tmp_path, count=2)
    words = ["recover", str(tmp_path / "samples"), "--generator", spec("good"), "--operator", "downsample:4"]
    assert cli.main([*words, "--out", str(tmp_path / "out")]) == 1
    said = capfd.readouterr().err
    assert "8 x 8 pixels, as the generator's images do, expected measurements of 2 x 2" in said
    assert "Add --simulate" in said


def test_kept_values_of_pictures_are_no_fault(spec, tmp_path):
    """An image file could not hold them, so they are an array; the sheet shows them from their least to their largest."""
    source = Source(generator=spec("in_bytes"), signal_range="keep")
    found = inspect_generator(source)
    assert found.report.ok, str(found.report)
    sheet = write_samples(source, tmp_path)
    assert [path.name for path in (tmp_path / "samples").iterdir()] == ["signals.npy"]
    assert np.load(tmp_path / "samples" / "signals.npy").max() > 100
    with Image.open(sheet) as image:
        assert 50 < np.asarray(image).mean() < 200
