"""Networks that come with the package: ``load_generator("mnist")`` and the like. No download."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from genprior.generators.contract import Generator
from genprior.generators.latents import LatentDistribution, Normal, TruncatedNormal
from genprior.generators.preconditioner import mean_gram
from genprior.models.classifiers import ConvClassifier
from genprior.models.encoders import Encoder
from genprior.models.saved import CLASSIFIERS, ENCODERS, GENERATORS, Saved, add_extras, load_network
from genprior.models.start_encoder import StartEncoder

FOLDER = Path(__file__).parent / "weights"


def load_generator(name: str | Path = "mnist", *, device: torch.device | str = "cpu") -> Generator:
    """A trained generator: ``"mnist"``, ``"celeba"``, or the path of a file that ``genprior train`` wrote; on ``device``.

    Examples
    --------
    >>> import genprior as gp
    >>> G = gp.load_generator("mnist")
    >>> G.latent_shape, G.signal_shape
    ((128,), (1, 28, 28))
    """
    saved = _load(name, "generator", GENERATORS, device)
    network: Any = saved.module
    network = network.to(memory_format=torch.channels_last)  # passes take up to a third less time
    low, high = saved.facts.get("signal_range", (0.0, 1.0))
    return Generator(
        network,
        network.latent_shape,
        network.signal_shape,
        latent=latent_from(saved.facts.get("law", {})),
        signal_range=(low, high),
        preconditioner=saved.extras.get("metric"),
    )


def store_preconditioner(path: Path, points: int = 256) -> None:
    """Estimate the generator's preconditioner and store it in its file, to save every run the passes for it."""
    add_extras(path, {"metric": mean_gram(load_generator(path), points)})


def load_classifier(name: str | Path = "mnist", *, device: torch.device | str = "cpu") -> ConvClassifier:
    """A trained classifier of images ``(B, 1, 28, 28)`` in [0, 1]; gives logits. A bundled name or a path; on ``device``."""
    module = _load(name, "classifier", CLASSIFIERS, device).module
    assert isinstance(module, ConvClassifier)
    return module


def load_encoder(name: str | Path = "mnist", *, device: torch.device | str = "cpu") -> Encoder:
    """A trained encoder of images into latents of the generator of the same name: a warm start for ``solve(z0=...)``.

    A bundled name or a path of a file that ``genprior train image-encoder`` wrote; on ``device``.
    """
    module = _load(name, "encoder", ENCODERS, device).module
    assert isinstance(module, Encoder)
    return module


def load_start_encoder(path: str | Path, *, device: torch.device | str = "cpu") -> StartEncoder:
    """A file that ``genprior train encoder`` wrote, for ``solve(start=...)``: an encoder of measurements; on ``device``."""
    if not isinstance(path, str | Path):
        raise TypeError(f"path must be the path of a file that genprior train encoder wrote, got {path!r}")
    saved = load_network(path, device)
    if not isinstance(saved.module, StartEncoder):
        raise ValueError(
            f"{path} holds a {saved.kind}, not an encoder of measurements: give a file that genprior train encoder wrote"
        )
    return saved.module


def card(name: str, role: str = "generator") -> str:
    """The model card of a bundled network: data, licence, training, measured quality."""
    return bundled_path(name, role).with_suffix(".md").read_text(encoding="utf-8")


def bundled_path(name: str, role: str) -> Path:
    """Path of the file of a bundled network."""
    path = FOLDER / f"{name}-{role}.safetensors"
    if not path.is_file():
        there = sorted(file.stem.removesuffix(f"-{role}") for file in FOLDER.glob(f"*-{role}.safetensors"))
        raise ValueError(
            f"there is no bundled {role} {name!r}: give one of {', '.join(map(repr, there))}, "
            "or the path of a .safetensors file that genprior train wrote"
        )
    return path


def has_bundled(name: str, role: str) -> bool:
    """Whether a network of this name is bundled."""
    return (FOLDER / f"{name}-{role}.safetensors").is_file()


def find(name: str | Path, role: str) -> Path:
    """The file of a bundled network, or the path that was given."""
    return Path(name) if _is_path(name) else bundled_path(str(name), role)


def latent_from(description: dict[str, float]) -> LatentDistribution:
    """The latent distribution described in a file."""
    if "radius" in description:
        return TruncatedNormal(radius=description["radius"], scale=description.get("scale", 1.0))
    return Normal(scale=description.get("scale", 1.0))


def _load(name: str | Path, role: str, kinds: Iterable[str], device: torch.device | str) -> Saved:
    if not isinstance(name, str | Path):
        raise TypeError(f"name must be the name of a bundled {role} or a path, got {name!r}")
    saved = load_network(find(name, role), device)
    if saved.kind not in kinds:
        raise ValueError(f"{name} holds a {saved.kind}, not a network of type {role!r}: use the matching loader")
    return saved


def _is_path(name: str | Path) -> bool:
    """A plain word names a bundled network, even if a file of that name exists."""
    return isinstance(name, Path) or name.endswith(".safetensors") or Path(name).name != name
