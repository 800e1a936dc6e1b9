"""The paper's experiments, in parts that are kept: ``genprior reproduce``."""

from genprior.lab.reproduce.run import EXPERIMENTS, Reproduction, reproduce

__all__ = ["EXPERIMENTS", "Reproduction", "reproduce"]
