"""Convex, prox-friendly terms on signal and latent, with ``f + g``, ``c * f``, ``f.around(y)`` and ``f.through(A)``."""

from genprior.terms.base import Around, Quadratic, Scaled, Term, Zero
from genprior.terms.blocks import Blocks
from genprior.terms.norms import L1, L2, LInf, SquaredL2
from genprior.terms.sets import Ball, Box, Indicator, L1Ball, Simplex
from genprior.terms.sums import Sum
from genprior.terms.through import Through
from genprior.terms.total_variation import TotalVariation

__all__ = [
    "L1",
    "L2",
    "Around",
    "Ball",
    "Blocks",
    "Box",
    "Indicator",
    "L1Ball",
    "LInf",
    "Quadratic",
    "Scaled",
    "Simplex",
    "SquaredL2",
    "Sum",
    "Term",
    "Through",
    "TotalVariation",
    "Zero",
]
