"""The two baselines."""

from __future__ import annotations

import torch
from torch import Tensor

from genprior import _validate
from genprior._axes import spatial_dims
from genprior._batch import PerItem, column, flat
from genprior.baselines.penalties import Coefficients, Penalty, Variation
from genprior.baselines.primal_dual import Baseline, Point, minimise, objective
from genprior.baselines.weights import LASSO_SHARE, VARIATION_SHARE, default_weight
from genprior.losses import LeastSquares
from genprior.operators import Operator
from genprior.operators.gram import multiple_of_identity

_DIGITS = 0.5
"""The default tolerance is the power of the rounding unit with this exponent: 3e-4 in float32, 1.5e-8 in float64."""


def lasso(
    operator: Operator,
    y: Tensor,
    basis: Operator | None = None,
    weight: PerItem | None = None,
    *,
    noise: PerItem | None = None,
    start: Baseline | None = None,
    tolerance: float | None = None,
    max_iterations: int = 2000,
) -> Baseline:
    """``w = Psi c`` with ``c = argmin 1/2 |A Psi c - y|^2 + weight |c|_1``: sparse in a basis.

    Parameters
    ----------
    operator, y
        measurements ``(B, *operator.measurement_shape)``, as for :class:`genprior.LeastSquares`.
    basis
        Psi, an operator from coefficients to signals; None: the signal itself is sparse.
    weight
        a number, or one per item. By default 0.3 of the universal threshold ``noise a sqrt(2 log d)``, where ``a`` is the
        root mean square of the norms of A's columns, and at least 0.001 of the weight at which the answer is zero: that is
        the default without ``noise``.
    noise
        standard deviation of each measurement, one number or one per item; for the default weight alone.
    start
        an earlier answer, from which the iteration begins: cheap steps along a path of weights.
    tolerance
        relative residual at which an item ends; by default the root of the rounding unit, 3e-4 in float32.
    max_iterations
        largest number of steps.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> A = gp.operators.Identity((4,))
    >>> gp.baselines.lasso(A, torch.tensor([[3.0, 0.5, 0.0, -2.0]]), weight=1.0).signal.round(decimals=2) + 0.0
    tensor([[ 2.,  0.,  0., -1.]])
    """
    operator, y = _checked(operator, y)
    if basis is not None:
        _check_basis(basis, operator)
    if basis is None or is_orthonormal(basis):
        return _solved(operator, y, Coefficients(basis), weight, LASSO_SHARE, noise, start, tolerance, max_iterations)
    found = _solved(operator @ basis, y, Coefficients(), weight, LASSO_SHARE, noise, start, tolerance, max_iterations)
    return Baseline(**{**vars(found), "signal": basis(found.signal)})


def total_variation(
    operator: Operator,
    y: Tensor,
    weight: PerItem | None = None,
    *,
    dims: int | None = None,
    noise: PerItem | None = None,
    start: Baseline | None = None,
    tolerance: float | None = None,
    max_iterations: int = 2000,
) -> Baseline:
    """``argmin 1/2 |A w - y|^2 + weight TV(w)``, isotropic: piecewise constant signals.

    ``dims`` is as for :class:`genprior.TotalVariation`. The default weight is 0.2 of the universal threshold, see
    :func:`lasso`; all else is as there.

    Examples
    --------
    >>> import torch, genprior as gp
    >>> A = gp.operators.Identity((4,))
    >>> gp.baselines.total_variation(A, torch.tensor([[0.0, 0.0, 2.0, 2.0]]), weight=1.0).signal.round(decimals=2)
    tensor([[0.5000, 0.5000, 1.5000, 1.5000]])
    """
    operator, y = _checked(operator, y)
    penalty = Variation(spatial_dims("the signal", operator.signal_shape or (), dims))
    return _solved(operator, y, penalty, weight, VARIATION_SHARE, noise, start, tolerance, max_iterations)


def is_orthonormal(basis: Operator) -> bool:
    """Whether the basis says that ``Psi^T Psi = Psi Psi^T = I``, for real coefficients and signals."""
    forms = basis.gram_form(), basis.transposed_gram_form()
    return basis.complex_measurements is False and all(multiple_of_identity(form) == 1 for form in forms)


def _solved(
    operator: Operator,
    y: Tensor,
    penalty: Penalty,
    weight: PerItem | None,
    share: float,
    noise: PerItem | None,
    start: Baseline | None,
    tolerance: float | None,
    max_iterations: int,
) -> Baseline:
    with torch.no_grad():
        back = operator.adjoint(y)
        if weight is None:
            noise = None if noise is None else _per_item("noise", noise, back)
            largest = flat(penalty.forward(back)).abs().amax(dim=1)
            weight = default_weight(operator, back, largest, noise, share)
        weight = _per_item("weight", weight, back)
        tolerance = _tolerance(tolerance, back.dtype)
        begin = _start(operator, penalty, back) if start is None else _checked_start(start, back, penalty)
        most = _validate.whole("max_iterations", max_iterations)
        point, residual, steps = minimise(operator, y, penalty, weight, begin, tolerance, most)
        value = objective(operator, y, penalty, weight, point.w)
    return Baseline(point.w, weight, value, residual <= tolerance, residual, steps, point)


def _start(operator: Operator, penalty: Penalty, back: Tensor) -> Point:
    """Zero, with a step in the unit of ``1/|A|^2``."""
    w = torch.zeros_like(back)
    high = column(operator.gram_bounds()[1], back)
    tau = 1 / torch.where(high > 0, high, 1.0)
    return Point(w, penalty.forward(w), tau)


def _checked_start(start: Baseline, back: Tensor, penalty: Penalty) -> Point:
    expected = tuple(penalty.forward(back).shape)
    if tuple(start.point.w.shape) != tuple(back.shape) or tuple(start.point.q.shape) != expected:
        raise ValueError(
            f"start has signals {tuple(start.point.w.shape)} for another problem, expected {tuple(back.shape)}: "
            "give an answer of the same baseline to the same items"
        )
    return start.point


def _checked(operator: Operator, y: Tensor) -> tuple[Operator, Tensor]:
    """As a least-squares loss checks them."""
    loss = LeastSquares(operator, y)
    if operator.signal_shape is None:
        raise ValueError(f"{operator!r} does not know the shape of its signals: give it signal_shape=...")
    return operator, loss.y


def _check_basis(basis: Operator, operator: Operator) -> None:
    if not isinstance(basis, Operator):
        raise TypeError(
            f"basis must be a genprior.operators.Operator from coefficients to signals, got {type(basis).__name__}"
        )
    if basis.measurement_shape != operator.signal_shape:
        raise ValueError(
            f"basis gives signals of shape {basis.measurement_shape}, but the operator takes {operator.signal_shape}: "
            f"make the basis for {operator.signal_shape}"
        )


def _per_item(name: str, value: PerItem, like: Tensor) -> Tensor:
    given = _validate.per_item(name, value, least=0.0)
    if isinstance(given, Tensor) and given.ndim == 1 and len(given) != len(like):
        raise ValueError(f"{name} has {len(given)} numbers for {len(like)} items: give one number, or one per item")
    return column(given, like).clone()


def _tolerance(tolerance: float | None, dtype: torch.dtype) -> float:
    if tolerance is None:
        return float(torch.finfo(dtype).eps ** _DIGITS)
    return _validate.number("tolerance", tolerance, above=0.0)
