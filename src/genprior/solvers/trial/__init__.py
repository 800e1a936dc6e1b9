"""One engine for all curvature methods: a direction x a search x a continuation x multipliers.

====================  =====================================================  ==========================================
part                  what it decides                                        here
====================  =====================================================  ==========================================
direction             where to go from the last accepted point               ``Secant``, ``DampedGaussNewton``
search                whether a trial is accepted, how far the next one is   ``Armijo``, ``WeakWolfe``, ``Decrease``
continuation          how the ridge towards the prior fades                  ``Ridge``, ``NoRidge``
multipliers           how R enters the function, the dual and the penalty    ``Multipliers``, ``Subgradients``
====================  =====================================================  ==========================================

``engine.py`` puts them together; ``methods.py`` holds the compositions that have names of their own. Directions are in
``secant.py`` and ``gauss_newton.py``, searches and continuations in ``globalisation.py``,
multipliers in ``solvers/envelope.py``.
"""

from genprior.solvers.damping import Damping, JacobianModel
from genprior.solvers.envelope import Multipliers, SignalPart, Subgradients, Trial
from genprior.solvers.quadratic import LatentTerm
from genprior.solvers.trial.elimination import EliminatedDeviation, InRange
from genprior.solvers.trial.engine import (
    Arrival,
    BasePoint,
    DescentDirection,
    Direction,
    Inner,
    TrialMethod,
    TrialOutcome,
    TrialState,
    Update,
)
from genprior.solvers.trial.gauss_newton import DampedGaussNewton
from genprior.solvers.trial.globalisation import (
    Armijo,
    Continuation,
    Decrease,
    EnergyChange,
    Judgement,
    NoRidge,
    Ridge,
    Search,
    SearchState,
    WeakWolfe,
)
from genprior.solvers.trial.methods import LBFGS, LevenbergMarquardt, QuasiNewton
from genprior.solvers.trial.secant import FirstHessian, NewestPair, Preconditioned, Secant

__all__ = [
    "LBFGS",
    "Armijo",
    "Arrival",
    "BasePoint",
    "Continuation",
    "DampedGaussNewton",
    "Damping",
    "Decrease",
    "DescentDirection",
    "Direction",
    "EliminatedDeviation",
    "EnergyChange",
    "FirstHessian",
    "InRange",
    "Inner",
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
