"""Where batches are solved: in this process, in several on this machine, or on a Ray cluster."""

from genprior.engines.base import Batches, Blind, Crew, Engine, EngineError, Place, Poisoned, Serial, Work
from genprior.engines.local import Local
from genprior.engines.ray import Ray

__all__ = [
    "Batches",
    "Blind",
    "Crew",
    "Engine",
    "EngineError",
    "Local",
    "Place",
    "Poisoned",
    "Ray",
    "Serial",
    "Work",
]
