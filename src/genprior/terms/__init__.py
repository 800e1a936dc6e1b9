"""Convex, prox-friendly terms R on the signal and H on the latent, with ``c * term`` and ``term.around(y)``."""

from genprior.terms.base import Around, Scaled, Term, Zero
from genprior.terms.norms import L1, L2, LInf, SquaredL2
from genprior.terms.sets import Ball, Box, Indicator, L1Ball, Simplex
from genprior.terms.total_variation import TotalVariation

__all__ = [
    "L1",
    "L2",
    "Around",
    "Ball",
    "Box",
    "Indicator",
    "L1Ball",
    "LInf",
    "Scaled",
    "Simplex",
    "SquaredL2",
    "Term",
    "TotalVariation",
    "Zero",
]
