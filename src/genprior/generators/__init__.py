"""Generators: the contract with the user's network, and latent distributions."""

from genprior.generators.contract import Generator
from genprior.generators.derivatives import Evaluation
from genprior.generators.latents import LatentDistribution, Normal, TruncatedNormal, Uniform
from genprior.generators.passes import OutOfTime, Passes, Preconditioner

__all__ = [
    "Evaluation",
    "Generator",
    "LatentDistribution",
    "Normal",
    "OutOfTime",
    "Passes",
    "Preconditioner",
    "TruncatedNormal",
    "Uniform",
]
