"""Solvers: frozen descriptions of methods. Only this folder contains update formulas."""

from genprior.solvers import z_steps
from genprior.solvers.admm import ADMM, ExactADMM, LinearizedADMM, duals, penalties, w_steps
from genprior.solvers.auto import Auto
from genprior.solvers.base import Choice, Solver, State
from genprior.solvers.descent import Adam, GradientDescent
from genprior.solvers.lbfgs import LBFGS
from genprior.solvers.levenberg import LevenbergMarquardt
from genprior.solvers.projected import ProjectedGradient
from genprior.solvers.quasi_newton import QuasiNewton

__all__ = [
    "ADMM",
    "LBFGS",
    "Adam",
    "Auto",
    "Choice",
    "ExactADMM",
    "GradientDescent",
    "LevenbergMarquardt",
    "LinearizedADMM",
    "ProjectedGradient",
    "QuasiNewton",
    "Solver",
    "State",
    "duals",
    "penalties",
    "w_steps",
    "z_steps",
]
