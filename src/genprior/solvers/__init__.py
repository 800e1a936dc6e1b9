"""Solvers: frozen descriptions of methods. Only this folder contains update formulas."""

from genprior.solvers import trial, z_steps
from genprior.solvers.admm import ADMM, ExactADMM, LinearizedADMM, duals, penalties, w_steps
from genprior.solvers.auto import Auto
from genprior.solvers.base import Choice, Common, Evidence, Solver, State, Vjp
from genprior.solvers.descent import Adam, GradientDescent
from genprior.solvers.projected import ProjectedGradient
from genprior.solvers.trial import LBFGS, LevenbergMarquardt, QuasiNewton

__all__ = [
    "ADMM",
    "LBFGS",
    "Adam",
    "Auto",
    "Choice",
    "Common",
    "Evidence",
    "ExactADMM",
    "GradientDescent",
    "LevenbergMarquardt",
    "LinearizedADMM",
    "ProjectedGradient",
    "QuasiNewton",
    "Solver",
    "State",
    "Vjp",
    "duals",
    "penalties",
    "trial",
    "w_steps",
    "z_steps",
]
