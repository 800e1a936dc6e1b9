"""Recovery without a generator: the lasso in a basis, and total variation.

They show whether a generator helps at all. Both minimise ``1/2 |A w - y|^2`` plus a convex term, for any operator, batches,
one weight per item::

    lasso = gp.baselines.lasso(A, y)
    tv = gp.baselines.total_variation(A, y, noise=0.05)
    lasso.signal, lasso.weight, lasso.converged
"""

from genprior.baselines.classical import lasso, total_variation
from genprior.baselines.primal_dual import Baseline

__all__ = ["Baseline", "lasso", "total_variation"]
