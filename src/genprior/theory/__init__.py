"""The paper's guarantees as software: constants of G and L, Proposition 1, Theorem 1, generalisation, relation with descent.

Every figure is marked as proved ("rigorous") or observed in samples ("sampled"); no guarantee is given unless it applies.
"""

from genprior.theory.certificate import Assumption, Certificate
from genprior.theory.certifying import certify
from genprior.theory.descent import DescentGap, compare_with_descent
from genprior.theory.generator_constants import Constant, GeneratorConstants, constants
from genprior.theory.learning import Estimate, Generalisation, generalisation, rademacher, rademacher_regression
from genprior.theory.loss_constants import LossConstants, loss_constants
from genprior.theory.proposition import check_proposition1
from genprior.theory.theorem import Condition, Guarantee, Setting, corrected, sharpened

__all__ = [
    "Assumption",
    "Certificate",
    "Condition",
    "Constant",
    "DescentGap",
    "Estimate",
    "Generalisation",
    "GeneratorConstants",
    "Guarantee",
    "LossConstants",
    "Setting",
    "certify",
    "check_proposition1",
    "compare_with_descent",
    "constants",
    "corrected",
    "generalisation",
    "loss_constants",
    "rademacher",
    "rademacher_regression",
    "sharpened",
]
