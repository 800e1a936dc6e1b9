"""Smooth losses L(w): value, gradient and curvature, one per item.

A loss is evaluated in two strokes, ``value, residual = loss.evaluate(w)`` and ``loss.gradient(w, residual)``, so that a
solver which needs both pays for one application of the operator and one of its adjoint.
"""

from genprior.losses.base import Loss, NoLoss
from genprior.losses.distance import SquaredDistance
from genprior.losses.exact_step import ExactStep
from genprior.losses.least_squares import LeastSquares
from genprior.losses.likelihood_loss import Huber, LikelihoodLoss, Poisson
from genprior.losses.likelihoods import HuberLikelihood, Likelihood, PoissonLikelihood
from genprior.losses.noise import Misfit
from genprior.losses.nonlinear import NonLinear
from genprior.losses.risk import EmpiricalRisk

__all__ = [
    "EmpiricalRisk",
    "ExactStep",
    "Huber",
    "HuberLikelihood",
    "LeastSquares",
    "Likelihood",
    "LikelihoodLoss",
    "Loss",
    "Misfit",
    "NoLoss",
    "NonLinear",
    "Poisson",
    "PoissonLikelihood",
    "SquaredDistance",
]
