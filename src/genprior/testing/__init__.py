"""Conformance tests for parts of your own: write a class that says how to make the part, and inherit the laws of ours.

For test suites; :mod:`genprior.checks` asks some of the same questions interactively. ``import genprior`` does not load this.

>>> import genprior as gp
>>> from genprior.testing import TermLaws
>>> class TestMine(TermLaws):
...     shape = (6,)
...     def instance(self):
...         return gp.L1()
>>> TestMine().report().ok
True
"""

from genprior.testing.generators import GeneratorLaws
from genprior.testing.known import KnownOptimum, nonsmooth_problems, smooth_problems
from genprior.testing.laws import Laws
from genprior.testing.losses import LossLaws
from genprior.testing.operators import OperatorLaws
from genprior.testing.solvers import SolverLaws
from genprior.testing.terms import TermLaws

__all__ = [
    "GeneratorLaws",
    "KnownOptimum",
    "Laws",
    "LossLaws",
    "OperatorLaws",
    "SolverLaws",
    "TermLaws",
    "nonsmooth_problems",
    "smooth_problems",
]
