"""``genprior recover --forward my_physics.py:forward``: measurements that are not linear, from files."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from genprior.cli import main
from genprior.jobs.forward import ForwardModel
from genprior.jobs.recover import recover
from genprior.jobs.settings import Recovery, Source
from genprior.jobs.shipment import Shipment
from genprior.models.foreign import open_generator

PHYSICS = """
import torch
from optics import matrix

def forward(x):
    return (x.flatten(1) @ matrix).abs()

def image(x):
    return (3 * x).clamp(max=1.6)

def broken(x):
    return x @ matrix

def scalar(x):
    return x.sum()

def rounded(x):
    return x.round()
"""
OPTICS = """
import torch
matrix = torch.randn(64, 40, generator=torch.Generator().manual_seed(3))
"""


@pytest.fixture
def source(model):
    """The small generator of these tests."""
    return Source(generator=f"{model}:build")


@pytest.fixture
def physics(tmp_path):
    """A file with forward models, and one beside it that it imports."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "my_physics.py").write_text(PHYSICS)
    (folder / "optics.py").write_text(OPTICS)
    return f"{folder}/my_physics.py"


@pytest.fixture
def data(source, tmp_path):
    """Signals of the generator, and their magnitudes as the physics gives them."""
    G = open_generator(source.generator)
    x = G(G.sample_latent(6, seed=2)).detach()
    matrix = torch.randn(64, 40, generator=torch.Generator().manual_seed(3))
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "y.npy", (x.flatten(1) @ matrix).abs().numpy())
    return x


def errors(out, x, name):
    found = torch.from_numpy(np.load(out / "recovered" / name))
    return (found - x).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)


def job(source, tmp_path, physics, name="forward", **options):
    return Recovery(
        inputs=(str(tmp_path / "y.npy"),), out=tmp_path / "out", source=source, forward=f"{physics}:{name}", **options
    )


def test_measurements_are_recovered_and_simulated(source, physics, data, tmp_path):
    outcome = recover(job(source, tmp_path, physics))
    assert outcome.recovered == 6 and float(errors(tmp_path / "out", data, "y.npy").max()) < 0.02
    simulated = recover(
        Recovery(
            inputs=(str(tmp_path / "x.npy"),),
            out=tmp_path / "simulated",
            source=source,
            forward=f"{physics}:image",
            simulate=True,
        )
    )
    assert simulated.numbers()["median_error"] < 0.02
    assert "my_physics.py:image" in simulated.report.read_text()


def test_workers_get_the_code_and_what_it_imports(source, physics, data, tmp_path):
    generator = open_generator(source.generator)
    before = ForwardModel(f"{physics}:forward", generator)(data)
    shipment = Shipment.of(source, forward=f"{physics}:forward", whole=True)
    assert {"my_physics.py", "optics.py"} <= {file.path.name for file in shipment.files}
    shutil.rmtree(Path(physics).parent)  # a worker on another machine does not see the files
    with shipment.arrived() as here:
        assert here.forward != shipment.forward
        torch.testing.assert_close(ForwardModel(here.forward, generator)(data), before)


def test_the_command_and_other_code(source, physics, data, tmp_path, capsys):
    """The same command resumes the job; after a change of the code it is another job."""
    words = ["recover", str(tmp_path / "y.npy"), "--generator", source.generator, "--forward", f"{physics}:forward"]
    words += ["--out", str(tmp_path / "out"), "--json"]
    assert main(words) == 0
    assert len(json.loads(capsys.readouterr().out)["items"]) == 6
    assert main(words) == 0
    with open(physics, "a") as file:
        file.write("\n\ndef forward(x):\n    return (x.flatten(1) @ matrix).square()\n")
    capsys.readouterr()
    assert main(words) != 0
    assert "forward" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nothing", {}, "has no function 'nothing': give one of forward, image, broken"),
        ("broken", {}, "failed on a signal of shape .1, 1, 8, 8.*it is called as forward"),
        ("scalar", {}, "gave shape .. for one signal, expected a tensor"),
        ("rounded", {"simulate": True}, "the derivative of forward is zero"),
        ("forward", {"operator": "downsample:2"}, "`operator` and `forward` were both given"),
        ("forward", {"loss": "l1"}, "`forward` goes with the loss l2"),
        ("forward", {"start": "encoder.safetensors"}, "`start` and `forward` were both given"),
    ],
)
def test_mistakes_are_named(source, physics, data, tmp_path, name, options, message):
    with pytest.raises(ValueError, match=message):
        given = job(source, tmp_path, physics, name, **options)
        if options.get("simulate"):
            given = Recovery(**{**vars(given), "inputs": (str(tmp_path / "x.npy"),)})
        recover(given)


def test_missing_files_and_missing_words(source, physics, data, tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*other.py"):
        recover(job(source, tmp_path, tmp_path / "other.py"))
    with pytest.raises(ValueError, match=r"names no function: write my_physics.py:forward"):
        recover(Recovery(inputs=("y.npy",), out=tmp_path / "out", source=source, forward=physics))
    with pytest.raises(SystemExit, match="2"):
        main(["recover", str(tmp_path / "y.npy"), "--out", str(tmp_path / "out")])
    assert "--operator" in (said := capsys.readouterr().err) and "--forward" in said
