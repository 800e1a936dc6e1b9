"""Norms of one linear layer, proved: dense layers by their singular values, convolutions as in `convolution`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from genprior.theory.proved.convolution import Convolution, grids, norm_bound
from genprior.theory.proved.spectrum import SLACK, has_dependent_columns, smallest_by_values

_SMALL = 400
"""Largest width for which the matrix of an average is formed."""


@dataclass(frozen=True)
class Facts:
    """What is proved about a linear map A, up to round-off."""

    norm: float
    """Upper bound on ``|A|``."""
    rows: float
    """``max_i |row i|``, the norm from l2 to l_inf."""
    sums: float
    """``max_i sum_j |a_ij|``, the norm from l_inf to l_inf."""
    floor: float | None
    """Lower bound on ``min |A x| / |x|``; 0: shown not to be injective; None: not known."""
    method: str
    lost: bool = False
    """``floor`` was computed but is too small to distinguish from zero."""


def linear_facts(module: nn.Module, kind: str, x: Tensor, y: Tensor) -> Facts:
    """The facts of a linear layer, for input ``x`` and output ``y`` of one item."""
    with torch.no_grad():
        if isinstance(module, nn.Linear):
            return _dense(module.weight.double())
        if isinstance(module, _BatchNorm):
            return _scale(module)
        if kind == "shape":
            return Facts(1.0, 1.0, 1.0, 1.0, "a permutation")
        return _convolution(module, x, y) if kind == "affine" else _average(module, x, y)


def _dense(weight: Tensor) -> Facts:
    values = torch.linalg.svdvals(weight)
    floor = smallest_by_values(weight, values)
    sizes = values[0], weight.norm(dim=1).max(), weight.abs().sum(dim=1).max()
    norm, rows, sums = (float(size) * (1 + SLACK) for size in sizes)
    return Facts(norm, rows, sums, floor, "singular values", floor is None)


def _scale(module: _BatchNorm) -> Facts:
    assert module.running_var is not None
    gain = (module.running_var.double() + module.eps).rsqrt()
    gain = gain.abs() if module.weight is None else (gain * module.weight.double()).abs()
    top, least = float(gain.max()), float(gain.min())
    top, least = top * (1 + SLACK), least * (1 - SLACK)
    return Facts(top, top, top, least, "a diagonal")


def _convolution(module: nn.Module, x: Tensor, y: Tensor) -> Facts:
    assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.ConvTranspose1d | nn.ConvTranspose2d)
    turned = isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d)
    bound = norm_bound(grids(module, tuple(x.shape[1:]), tuple(y.shape[1:])), transposed=turned)
    weight, ones = module.weight.double(), torch.ones_like(x)
    rows = math.sqrt(float(_with_weight(module, weight.square(), ones, y).max()))
    sums = float(_with_weight(module, weight.abs(), ones, y).max())
    flat = y[0].numel() < x[0].numel() or (not bound.floor and _dependent(module))
    floor, lost = (0.0, False) if flat else (bound.floor, bound.lost)
    return Facts(bound.value, rows * (1 + SLACK), sums * (1 + SLACK), floor, bound.method, lost)


def _dependent(module: Convolution) -> bool:
    """Whether the kernels of the input channels are linearly dependent, for certain: then some input gives zero."""
    if module.groups != 1:
        return False
    turned = isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d)
    weight = module.weight.double() if turned else module.weight.double().transpose(0, 1)
    return weight.shape[0] > weight[0].numel() or has_dependent_columns(weight.flatten(1).T)


def _with_weight(module: nn.Module, weight: Tensor, x: Tensor, like: Tensor) -> Tensor:
    """The convolution of the layer with another kernel and without bias."""
    place = {"stride": module.stride, "padding": module.padding, "dilation": module.dilation, "groups": module.groups}
    names = {nn.Conv1d: "conv1d", nn.Conv2d: "conv2d"}
    turned = {nn.ConvTranspose1d: "conv_transpose1d", nn.ConvTranspose2d: "conv_transpose2d"}
    for kind, name in (names | turned).items():
        if isinstance(module, kind):
            extra = {"output_padding": module.output_padding} if kind in turned else {}
            image: Tensor = getattr(functional, name)(x, weight, None, **place, **extra)
            return image.reshape(like.shape)
    raise AssertionError(type(module))


def _average(module: nn.Module, x: Tensor, y: Tensor) -> Facts:
    """Weights that are never negative: ``|A| <= sqrt(|A|_1 |A|_inf)``, exact where the rows have equal sums."""
    with torch.enable_grad():
        ones = torch.ones_like(x).requires_grad_()
        image = module(ones)
        (columns,) = torch.autograd.grad(image.sum(), ones)
    sums, column = float(image.detach().max()) * (1 + SLACK), float(columns.max()) * (1 + SLACK)
    norm = math.sqrt(sums * column)
    copies = isinstance(module, nn.Upsample) and module.mode.startswith("nearest")
    floor, lost = None, False
    if y[0].numel() < x[0].numel():
        floor = 0.0
    elif copies or isinstance(module, nn.ZeroPad2d):
        floor = math.sqrt(float(columns.min())) * (1 - SLACK)
    elif x[0].numel() <= _SMALL:
        dense = _dense(_matrix(module, x))
        floor, lost = dense.floor, dense.lost
    return Facts(norm, min(norm, sums), sums, floor, "row and column sums", lost)


def _matrix(module: nn.Module, x: Tensor) -> Tensor:
    """Of a layer that is linear, without bias."""
    size = x[0].numel()
    image: Tensor = module(torch.eye(size, dtype=x.dtype, device=x.device).reshape(size, *x.shape[1:]))
    return image.reshape(size, -1).T
