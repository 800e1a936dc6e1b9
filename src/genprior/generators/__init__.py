"""Generators: the contract every user's network meets, laws of the latent."""

from genprior.generators.contract import Generator
from genprior.generators.evaluation import Evaluation
from genprior.generators.laws import Law, Normal, TruncatedNormal, Uniform

__all__ = [
    "Evaluation",
    "Generator",
    "Law",
    "Normal",
    "TruncatedNormal",
    "Uniform",
]
