"""Properties of activations: C1, strictly increasing, range and Lipschitz constant of the derivative."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Slope = Callable[[Tensor], Tensor]

_LEAST_THRESHOLD = 20.0
"""Of softplus, torch's own default."""


@dataclass(frozen=True)
class Activation:
    """An activation on the line.

    ``slope`` is its derivative. ``slope_shape`` is its shape: "up" (rising), "down" (falling), "bell" (even, falling away
    from zero), "step" (two values, the larger one on the right), or "free" (none of these: only the global bounds hold).
    """

    name: str
    smooth: bool
    """Of class C1, with a Lipschitz slope."""
    increasing: bool
    """Slope above zero everywhere: strictly increasing, with an inverse that is Lipschitz on every interval."""
    steepest: float
    """sup |slope|."""
    curvature: float
    """Lipschitz constant of the slope; infinite where it jumps."""
    slope_shape: str
    slope: Slope | None = None

    def slopes(self, low: Tensor, high: Tensor) -> tuple[float, float]:
        """Smallest and largest slope over all the intervals ``[low, high]``, one per coordinate."""
        if self.slope is None or self.slope_shape == "free":
            return (-self.steepest, self.steepest)
        at_low, at_high = self.slope(low), self.slope(high)
        if self.slope_shape == "bell":
            nearest = torch.zeros_like(low).clamp(low, high)
            return float(torch.minimum(at_low, at_high).min()), float(self.slope(nearest).max())
        first, last = (at_high, at_low) if self.slope_shape == "down" else (at_low, at_high)
        return float(first.min()), float(last.max())


def _elu_slope(scale: float) -> Slope:
    return lambda x: torch.where(x < 0, torch.exp(x.clamp(max=0) / scale), 1.0)


def _step_slope(left: float) -> Slope:
    return lambda x: torch.ones_like(x).masked_fill(x < 0, left)  # in the dtype of x, not in torch's default


def _elu(module: nn.Module) -> Activation:
    alpha = float(module.alpha) if isinstance(module, nn.ELU) else 1.0
    if alpha == 1:
        return Activation("ELU", True, True, 1.0, 1.0, "up", _elu_slope(1.0))
    return Activation(f"ELU(alpha={alpha:g})", False, alpha > 0, max(1.0, abs(alpha)), math.inf, "free")


def _celu(module: nn.Module) -> Activation | None:
    alpha = float(module.alpha) if isinstance(module, nn.CELU) else 1.0
    if alpha <= 0:
        return None
    return Activation(f"CELU(alpha={alpha:g})", True, True, 1.0, 1 / alpha, "up", _elu_slope(alpha))


def _softplus(module: nn.Module) -> Activation | None:
    """Beyond ``beta x = threshold`` torch takes x itself: a jump of ``log(1 + exp(-threshold)) / beta``, 2e-9 / beta at 20.

    That is treated as round-off; with a lower threshold the module is not continuous, and nothing is proved.
    """
    beta, threshold = (float(module.beta), float(module.threshold)) if isinstance(module, nn.Softplus) else (1.0, 20.0)
    if beta <= 0 or threshold < _LEAST_THRESHOLD:
        return None
    return Activation("Softplus", True, True, 1.0, beta / 4, "up", lambda x: torch.sigmoid(beta * x))


def _leaky(module: nn.Module) -> Activation:
    left = float(module.negative_slope) if isinstance(module, nn.LeakyReLU) else 0.01
    kind = "step" if 0 <= left <= 1 else "free"
    return Activation(
        f"LeakyReLU({left:g})", left == 1, left > 0, max(1.0, abs(left)), math.inf, kind, _step_slope(left)
    )


def _prelu(module: nn.Module) -> Activation:
    weight = module.weight.detach() if isinstance(module, nn.PReLU) else torch.ones(1)
    return Activation("PReLU", False, bool((weight > 0).all()), max(1.0, float(weight.abs().max())), math.inf, "free")


def _sigmoid_slope(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * torch.sigmoid(-x)


def _tanh_slope(x: Tensor) -> Tensor:
    return 4 * torch.sigmoid(2 * x) * torch.sigmoid(-2 * x)  # 1 - tanh(x)^2 would lose all digits for large |x|


def _fixed(
    name: str, smooth: bool, increasing: bool, steepest: float, curvature: float, slope_shape: str, slope: Slope | None
) -> Callable[[nn.Module], Activation | None]:
    return lambda module: Activation(name, smooth, increasing, steepest, curvature, slope_shape, slope)


_TABLE: dict[type[nn.Module], Callable[[nn.Module], Activation | None]] = {
    nn.ELU: _elu,
    nn.CELU: _celu,
    nn.Softplus: _softplus,
    nn.LeakyReLU: _leaky,
    nn.PReLU: _prelu,
    nn.Sigmoid: _fixed("Sigmoid", True, True, 0.25, 1 / (6 * math.sqrt(3)), "bell", _sigmoid_slope),
    nn.Tanh: _fixed("Tanh", True, True, 1.0, 4 / (3 * math.sqrt(3)), "bell", _tanh_slope),
    nn.Softsign: _fixed("Softsign", True, True, 1.0, 2.0, "bell", lambda x: (1 + x.abs()) ** -2),
    nn.LogSigmoid: _fixed("LogSigmoid", True, True, 1.0, 0.25, "down", lambda x: torch.sigmoid(-x)),
    nn.ReLU: _fixed("ReLU", False, False, 1.0, math.inf, "step", _step_slope(0.0)),
    nn.ReLU6: _fixed("ReLU6", False, False, 1.0, math.inf, "free", None),
    nn.Hardtanh: _fixed("Hardtanh", False, False, 1.0, math.inf, "free", None),
    nn.Hardsigmoid: _fixed("Hardsigmoid", False, False, 1 / 6, math.inf, "free", None),
    nn.SELU: _fixed("SELU", False, True, 1.7580993408473766, math.inf, "free", None),
    nn.SiLU: _fixed("SiLU", True, False, 1.1, 0.5, "free", None),
    nn.GELU: _fixed("GELU", True, False, 1.13, 0.8, "free", None),
    nn.Mish: _fixed("Mish", True, False, 1.09, 0.65, "free", None),
    nn.Tanhshrink: _fixed("Tanhshrink", True, False, 1.0, 4 / (3 * math.sqrt(3)), "free", None),
}


_KINKED = (
    *(nn.RReLU, nn.Hardswish, nn.Softshrink, nn.Hardshrink, nn.Threshold),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)
"""Nothing else is known about these."""


def slope_jumps(module: nn.Module) -> bool:
    """Whether the slope of a module is known to jump somewhere."""
    known = activation_of(module)
    return type(module) in _KINKED if known is None else not known.smooth


def activation_of(module: nn.Module) -> Activation | None:
    """The properties of a module as an activation; None if it is not a known one."""
    make = _TABLE.get(type(module))
    return None if make is None else make(module)
