"""One engine for all curvature methods: a direction x a search x a continuation x multipliers.

====================  =====================================================  ==========================================
part                  what it decides                                        here
====================  =====================================================  ==========================================
direction             where to go from the last accepted point               ``Secant``, ``DampedGaussNewton``
search                whether a trial is accepted, how far the next one is   ``Armijo``, ``WeakWolfe``, ``Decrease``
continuation          how the ridge towards the prior fades                  ``Ridge``, ``NoRidge``
multipliers           how R enters the function, the dual and the penalty    ``Multipliers``, ``Subgradients``
====================  =====================================================  ==========================================

``engine.py`` puts them together; ``methods.py`` holds the compositions that have names of their own.
"""

from genprior.solvers.damping import Damping, JacobianModel
from genprior.solvers.quadratic import LatentTerm
from genprior.solvers.trial.continuation import Continuation, EnergyChange, NoRidge, Ridge
from genprior.solvers.trial.engine import DescentDirection, Direction, TrialMethod, TrialOutcome, Update
from genprior.solvers.trial.gauss_newton import DampedGaussNewton
from genprior.solvers.trial.methods import LBFGS, LevenbergMarquardt, QuasiNewton
from genprior.solvers.trial.multipliers import Multipliers, SignalPart, Subgradients
from genprior.solvers.trial.searches import Armijo, Decrease, Judgement, Search, WeakWolfe
from genprior.solvers.trial.secant import FirstHessian, NewestPair, Preconditioned, Secant
from genprior.solvers.trial.state import BasePoint, SearchState, Trial, TrialState

__all__ = [
    "LBFGS",
    "Armijo",
    "BasePoint",
    "Continuation",
    "DampedGaussNewton",
    "Damping",
    "Decrease",
    "DescentDirection",
    "Direction",
    "EnergyChange",
    "FirstHessian",
    "JacobianModel",
    "Judgement",
    "LatentTerm",
    "LevenbergMarquardt",
    "Multipliers",
    "NewestPair",
    "NoRidge",
    "Preconditioned",
    "QuasiNewton",
    "Ridge",
    "Search",
    "SearchState",
    "Secant",
    "SignalPart",
    "Subgradients",
    "Trial",
    "TrialMethod",
    "TrialOutcome",
    "TrialState",
    "Update",
    "WeakWolfe",
]
