"""A small generator and images that it can make."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from genprior.engines import Serial
from genprior.jobs.settings import Recovery, Source
from genprior.models.foreign import open_generator


class Noting(Serial):
    """This process, and the first items of the batches that it solved."""

    def __init__(self):
        object.__setattr__(self, "told", [])

    def run(self, batches):
        def task(number, whole):
            made = batches.task(number, whole)
            self.told.append(made.start)
            return made

        return super().run(replace(batches, task=task))


CODE = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    layers = nn.Linear(3, 24), nn.ELU(), nn.Linear(24, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8))
    return nn.Sequential(*layers)


def linear():
    torch.manual_seed(0)
    layer = nn.Linear(3, 64)
    nn.init.normal_(layer.weight)
    return nn.Sequential(layer, nn.Unflatten(1, (1, 8, 8)))


class Conditional(nn.Module):
    latent_shape = (3,)

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.classes, self.layer = nn.Embedding(4, 3), nn.Linear(6, 64)

    def forward(self, z, label):
        return torch.sigmoid(self.layer(torch.cat([z, 3 * self.classes(label)], 1))).reshape(-1, 1, 8, 8)
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "my_model.py"
    path.write_text(CODE)
    return str(path)


@pytest.fixture
def made(tmp_path, model):
    """Seven images made by the generator, as an array file."""
    generator = open_generator(f"{model}:build")
    with torch.no_grad():
        pictures = generator(generator.sample_latent(7, seed=5))
    path = tmp_path / "made.npy"
    np.save(path, pictures.numpy())
    return path


@pytest.fixture
def job(tmp_path, model, made):
    """A recovery with some settings changed."""

    def build(name="build", *, generator=None, **changes):
        source = Source(generator=generator or f"{model}:{name}", **changes.pop("source", {}))
        settings = {"inputs": (str(made),), "out": tmp_path / "out", "operator": "gaussian:m=24,seed=1"}
        settings |= {"simulate": True, "steps": 60, "source": source}
        return Recovery(**settings | changes)

    return build
