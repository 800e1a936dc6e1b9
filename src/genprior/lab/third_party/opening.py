"""From an archive to a generator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from genprior.files.guard import reading
from genprior.files.hdf5 import Hdf5Array, hdf5_names, open_hdf5
from genprior.generators import Generator
from genprior.lab.third_party.archives import generator_file
from genprior.lab.third_party.graph import Graph, read_graph
from genprior.lab.third_party.networks import face_network, glitch_network, pulse_network
from genprior.lab.third_party.packages import Package, package_of
from genprior.models.weights import fill, read_weights

_NOISE_LEVEL = 80.0
"""At which the consistency model of terrain starts: its latents are noise of this size."""
_LAYERS = "layers/"
"""Where Keras keeps the weights of layers in its files."""


def open_third_party(
    package: str | Package,
    folder: Path | None = None,
    *,
    label: int | None = None,
    device: torch.device | str = "cpu",
) -> Generator:
    """The generator of a package whose archive is in a folder, by default that in the cache.

    ``label`` is the class of ``"glitches"``, 0 to 6, and the difficulty of ``"terrain"``, 0 to 99. Signals keep the values of
    the package.
    """
    package = package_of(package)
    label = package.chosen_label(label)
    with generator_file(package, folder) as path, reading(package.archive, f"the generator of {package.name}"):
        module = _MODULES[package.key](path, label, package)
    return Generator(
        module.to(device).eval(),
        package.latent_shape,
        package.signal_shape,
        latent=package.latent,
        signal_range=package.signal_range,
    )


class TerrainNetwork(nn.Module):
    """A consistency model in one step: standard normal noise ``(B, 1, h, w)`` to heights of the same shape in [-1, 1].

    The graph takes the noise at its level, the level, and the difficulty between 0 and 1.
    """

    def __init__(self, graph: Graph, difficulty: float) -> None:
        super().__init__()
        self.graph, self.difficulty = graph, difficulty

    def forward(self, z: Tensor) -> Tensor:
        """Noise to heights."""
        x: Tensor = self.graph(
            _NOISE_LEVEL * z, z.new_full((len(z),), _NOISE_LEVEL), z.new_full((len(z),), self.difficulty)
        )
        return x


def _faces(path: Path, label: int, package: Package) -> nn.Module:
    weights = read_weights(path)["netG_state_dict"]
    module = face_network(weights)
    fill(module, weights, path)
    return module


def _glitches(path: Path, label: int, package: Package) -> nn.Module:
    file = open_hdf5(path)
    try:
        names = [name for name in hdf5_names(path, file) if name.startswith(_LAYERS)]
        found = {name.removeprefix(_LAYERS): Hdf5Array(path, name, file).whole() for name in names}
    finally:
        file.close()
    module, weights = glitch_network(found, label)
    fill(module, weights, path)
    return module


def _ecg(path: Path, label: int, package: Package) -> nn.Module:
    module, weights = pulse_network(read_weights(path)["stat_dict"])
    fill(module, weights, path)
    return module


def _terrain(path: Path, label: int, package: Package) -> nn.Module:
    return TerrainNetwork(read_graph(path), label / (package.labels - 1))


_MODULES: dict[str, Callable[[Path, int, Package], nn.Module]] = {
    "faces": _faces,
    "glitches": _glitches,
    "ecg": _ecg,
    "terrain": _terrain,
}
