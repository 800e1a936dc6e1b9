"""Operations of ONNX graphs in torch: those that the terrain model uses, and no others.

All are differentiable and treat every item of a batch on its own where the graph does. Attributes and inputs in other forms
are refused when a graph is opened, not when it runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from genprior.files.guard import Unreadable

Result = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class Operation:
    """An operation of ONNX."""

    run: Callable[..., Result]
    """Inputs by position, attributes by name."""
    fixed: Mapping[str, object] = field(default_factory=dict)
    """Attributes that a graph must state with these values."""


def prepared(name: str, attributes: Mapping[str, Any], inputs: int) -> Callable[..., Result]:
    """The operation of a node with its attributes; raises if it is not supported in this form."""
    if name not in OPERATIONS:
        raise Unreadable(f"the graph uses the operation {name}, supported are {', '.join(sorted(OPERATIONS))}")
    operation, free = OPERATIONS[name], dict(attributes)
    for attribute, expected in operation.fixed.items():
        if (found := free.pop(attribute, None)) != expected:
            raise Unreadable(f"the graph uses {name} with {attribute} = {found!r}, supported is only {expected!r}")
    try:
        inspect.signature(operation.run).bind(*[None] * inputs, **free)
    except TypeError as problem:
        raise Unreadable(
            f"the graph uses {name} with {inputs} inputs and {sorted(free)}, unsupported: {problem}"
        ) from None
    return partial(operation.run, **free)


def _convolution(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    strides: list[int],
    pads: list[int],
    dilations: list[int],
    group: int,
) -> Tensor:
    axes = len(strides)
    if axes != 2 or pads[:axes] != pads[axes:]:
        raise Unreadable(
            f"the graph uses Conv with pads {pads}, supported are images with equal pads on opposite sides"
        )
    return functional.conv2d(x, w, b, tuple(strides), tuple(pads[:axes]), tuple(dilations), group)


def _average(x: Tensor, *, kernel_shape: list[int], strides: list[int]) -> Tensor:
    return functional.avg_pool2d(x, tuple(kernel_shape), tuple(strides))


def _product(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return functional.linear(x, w, b)


def _normalised(x: Tensor, scale: Tensor, shift: Tensor, *, epsilon: float) -> Tensor:
    return functional.instance_norm(x, weight=scale, bias=shift, eps=epsilon)


def _enlarged(x: Tensor, region: Tensor | None, scales: Tensor) -> Tensor:
    items, channels, *factors = scales.tolist()
    if items != 1 or channels != 1 or any(factor != int(factor) or factor < 1 for factor in factors):
        raise Unreadable(f"the graph uses Resize by {scales.tolist()}, supported are whole factors in space")
    return functional.interpolate(x, scale_factor=factors, mode="nearest")


def _reshaped(x: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    """A zero stands for the length of the same axis before, unless it is allowed as a length."""
    wanted = shape.tolist()
    return x.reshape([x.shape[axis] if size == 0 and not allowzero else size for axis, size in enumerate(wanted)])


def _shape(x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    return torch.tensor(x.shape[start:end], dtype=torch.int64)


def _split(x: Tensor, *, axis: int, num_outputs: int) -> tuple[Tensor, ...]:
    return torch.chunk(x, num_outputs, dim=axis)


def _squeezed(x: Tensor, axes: Tensor | None = None) -> Tensor:
    return x.squeeze() if axes is None else x.squeeze(tuple(axes.tolist()))


def _unsqueezed(x: Tensor, axes: Tensor) -> Tensor:
    for axis in sorted(axis % (x.ndim + len(axes)) for axis in axes.tolist()):
        x = x.unsqueeze(axis)
    return x


def _joined(*parts: Tensor, axis: int) -> Tensor:
    return torch.cat(parts, dim=axis)


def _contracted(*parts: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, *parts)


def _softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.softmax(x, dim=axis)


def _clipped(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    return torch.clamp(x, low, high)


def _of_one(function: Callable[[Tensor], Tensor]) -> Operation:
    """A function of torch, whose own signature cannot be inspected."""

    def run(x: Tensor) -> Tensor:
        return function(x)

    return Operation(run)


def _of_two(function: Callable[[Tensor, Tensor], Tensor]) -> Operation:
    """The same for two inputs; torch broadcasts as ONNX does."""

    def run(x: Tensor, y: Tensor) -> Tensor:
        return function(x, y)

    return Operation(run)


_NEAREST = {
    "mode": "nearest",
    "nearest_mode": "floor",
    "coordinate_transformation_mode": "asymmetric",
    "antialias": 0,
    "exclude_outside": 0,
    "keep_aspect_ratio_policy": "stretch",
    "cubic_coeff_a": -0.75,
    "extrapolation_value": 0.0,
}
"""Every value is repeated; the last two are not used by it."""


OPERATIONS: Mapping[str, Operation] = {
    "Add": _of_two(torch.add),
    "AveragePool": Operation(
        _average, {"auto_pad": "NOTSET", "ceil_mode": 0, "count_include_pad": 1, "pads": [0, 0, 0, 0]}
    ),
    "Clip": Operation(_clipped),
    "Concat": Operation(_joined),
    "Conv": Operation(_convolution, {"auto_pad": "NOTSET"}),
    "Cos": _of_one(torch.cos),
    "Div": _of_two(torch.div),
    "Einsum": Operation(_contracted),
    "Gemm": Operation(_product, {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}),
    "InstanceNormalization": Operation(_normalised),
    "Log": _of_one(torch.log),
    "Mul": _of_two(torch.mul),
    "Pow": _of_two(torch.pow),
    "Reciprocal": _of_one(torch.reciprocal),
    "Reshape": Operation(_reshaped),
    "Resize": Operation(_enlarged, _NEAREST),
    "Shape": Operation(_shape),
    "Sigmoid": _of_one(torch.sigmoid),
    "Sin": _of_one(torch.sin),
    "Softmax": Operation(_softmax),
    "Split": Operation(_split),
    "Sqrt": _of_one(torch.sqrt),
    "Squeeze": Operation(_squeezed),
    "Sub": _of_two(torch.sub),
    "Unsqueeze": Operation(_unsqueezed),
}
"""By their names in ONNX, in the form of its operator set 18."""
