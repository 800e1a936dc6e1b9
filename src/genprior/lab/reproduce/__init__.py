"""The paper's experiments, in parts whose results are stored: ``genprior reproduce``."""

from genprior.lab.reproduce.run import EXPERIMENTS, Reproduction, reproduce

__all__ = ["EXPERIMENTS", "Reproduction", "reproduce"]
