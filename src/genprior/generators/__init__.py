"""Generators: the contract with the user's network, and latent distributions."""

from genprior.generators.contract import Generator
from genprior.generators.derivatives import Evaluation
from genprior.generators.joint import Joint
from genprior.generators.latents import LatentDistribution, Normal, TruncatedNormal, Uniform
from genprior.generators.passes import OutOfTime, Passes
from genprior.generators.preconditioner import Preconditioner, ScaledIdentity

__all__ = [
    "Evaluation",
    "Generator",
    "Joint",
    "LatentDistribution",
    "Normal",
    "OutOfTime",
    "Passes",
    "Preconditioner",
    "ScaledIdentity",
    "TruncatedNormal",
    "Uniform",
]
