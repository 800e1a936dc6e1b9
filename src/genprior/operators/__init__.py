"""Linear operators ``A`` for ``1/2 |A w - y|^2``, each with its adjoint and the inverse of ``A^T A + rho I``.

Signals are real tensors ``(B, *signal_shape)``; every item of a batch is treated alone::

    A = Gaussian(392, (1, 28, 28), seed=0)
    y = A(x)
    w = A.resolvent(A.adjoint(y) + 0.1 * v, rho=0.1)        # argmin 1/2 |A w - y|^2 + 0.05 |w - v|^2
    B = Mask(known) @ Blur(1.5, (1, 28, 28))                # first blur, then lose values
    C = Stack(A / 0.1, B / 0.5)                             # both at once, divided by the noise of each

They add and multiply as matrices do: ``A @ B``, ``A + B``, ``A - B``, ``2 * A``, ``A / 2``, ``-A``, ``A.T``.
"""

from typing import TYPE_CHECKING, Any

from genprior.operators.algebra import Composition, Scaled, Sum, Transpose
from genprior.operators.base import Operator, RowForm
from genprior.operators.dense import Dense, Gaussian
from genprior.operators.diagonal import Identity, Mask
from genprior.operators.downsample import Downsample
from genprior.operators.fourier import Blur, SubsampledFourier
from genprior.operators.gram import GramForm
from genprior.operators.hadamard import SubsampledHadamard
from genprior.operators.krylov import CGResult, conjugate_gradient
from genprior.operators.linear import Linear
from genprior.operators.stack import Stack
from genprior.operators.weighted import Weighted

if TYPE_CHECKING:
    from genprior.bridges.deepinv_operator import DeepinvOperator, from_deepinv

__all__ = [
    "Blur",
    "CGResult",
    "Composition",
    "DeepinvOperator",
    "Dense",
    "Downsample",
    "Gaussian",
    "GramForm",
    "Identity",
    "Linear",
    "Mask",
    "Operator",
    "RowForm",
    "Scaled",
    "Stack",
    "SubsampledFourier",
    "SubsampledHadamard",
    "Sum",
    "Transpose",
    "Weighted",
    "conjugate_gradient",
    "from_deepinv",
]


def __getattr__(name: str) -> Any:
    """Operators of other packages, from the bridge to them."""
    if name in {"DeepinvOperator", "from_deepinv"}:
        from genprior.bridges import deepinv_operator  # noqa: PLC0415 - it needs this package

        return getattr(deepinv_operator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
