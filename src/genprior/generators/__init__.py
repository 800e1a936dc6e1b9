"""Generators: the contract every user's network meets, laws of the latent, and small generators to try things on."""

from genprior.generators.contract import Generator
from genprior.generators.evaluation import Evaluation
from genprior.generators.laws import Law, Normal, TruncatedNormal, Uniform
from genprior.networks.critics import Critic
from genprior.networks.generators import ConvGenerator, ResidualGenerator

__all__ = [
    "ConvGenerator",
    "Critic",
    "Evaluation",
    "Generator",
    "Law",
    "Normal",
    "ResidualGenerator",
    "TruncatedNormal",
    "Uniform",
]
