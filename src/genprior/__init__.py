"""genprior: recover signals that lie in the range of a trained generator.

minimise ``L(w) + R(w) + H(z)`` subject to ``w = G(z)``, in batches, with verified mathematics, on PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from genprior import checks, engines, metrics, operators, per_item
from genprior.generators import Generator, Joint, Normal, TruncatedNormal, Uniform
from genprior.history import History
from genprior.loop.checkpoint import Checkpoint
from genprior.loop.solve import solve
from genprior.losses import EmpiricalRisk, Huber, LeastSquares, Loss, NonLinear, Poisson, SquaredDistance
from genprior.models.bundled import load_classifier, load_encoder, load_generator, load_start_encoder
from genprior.models.start_encoder import StartEncoder
from genprior.problem import Problem
from genprior.result import Result
from genprior.solvers import (
    ADMM,
    LBFGS,
    Adam,
    Auto,
    Choice,
    Common,
    ExactADMM,
    GradientDescent,
    LevenbergMarquardt,
    LinearizedADMM,
    ProjectedGradient,
    QuasiNewton,
    Solver,
    State,
    duals,
    penalties,
    trial,
    w_steps,
    z_steps,
)
from genprior.status import Status
from genprior.stopping import MaxPasses, MaxSteps, Seconds, StopRule, Target, View
from genprior.terms import (
    L1,
    L2,
    Ball,
    Box,
    L1Ball,
    LInf,
    Simplex,
    SquaredL2,
    Term,
    TotalVariation,
    Zero,
)

if TYPE_CHECKING:
    from types import ModuleType

    from genprior import plot, testing, theory

__version__ = "0.1.0"

__all__ = [
    "ADMM",
    "L1",
    "L2",
    "LBFGS",
    "Adam",
    "Auto",
    "Ball",
    "Box",
    "Checkpoint",
    "Choice",
    "Common",
    "EmpiricalRisk",
    "ExactADMM",
    "Generator",
    "GradientDescent",
    "History",
    "Huber",
    "Joint",
    "L1Ball",
    "LInf",
    "LeastSquares",
    "LevenbergMarquardt",
    "LinearizedADMM",
    "Loss",
    "MaxPasses",
    "MaxSteps",
    "NonLinear",
    "Normal",
    "Poisson",
    "Problem",
    "ProjectedGradient",
    "QuasiNewton",
    "Result",
    "Seconds",
    "Simplex",
    "Solver",
    "SquaredDistance",
    "SquaredL2",
    "StartEncoder",
    "State",
    "Status",
    "StopRule",
    "Target",
    "Term",
    "TotalVariation",
    "TruncatedNormal",
    "Uniform",
    "View",
    "Zero",
    "checks",
    "duals",
    "engines",
    "load_classifier",
    "load_encoder",
    "load_generator",
    "load_start_encoder",
    "metrics",
    "operators",
    "penalties",
    "per_item",
    "plot",
    "solve",
    "testing",
    "theory",
    "trial",
    "w_steps",
    "z_steps",
]


def __getattr__(name: str) -> "ModuleType":
    """What a solve does not need is loaded at its first use."""
    if name in {"plot", "testing", "theory"}:
        return import_module(f"genprior.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
