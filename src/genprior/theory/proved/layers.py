"""A network as the chain of its layers, with the value that the centre of the ball takes at every layer.

Supported are ``Sequential`` (also nested), the usual layers, and sums of chains: a user-defined module that computes a sum
of chains may declare them with a method ``branches()``, which is trusted after a comparison at two points. Everything else
is a layer of type unknown, also a subclass of a known layer that computes something else.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.padding import _ReflectionPadNd, _ReplicationPadNd

from genprior.generators import Generator
from genprior.models.adapt import FromRange
from genprior.models.generators import UpBlock
from genprior.theory.proved.activations import Activation, activation_of
from genprior.theory.proved.facts import Facts, linear_facts

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d)
_SHAPES = (nn.Flatten, nn.Unflatten, nn.Identity, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle, _DropoutNd)
_AVERAGES = (nn.Upsample, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.ZeroPad2d)
_PADS = (_ReflectionPadNd, _ReplicationPadNd)
_CALLED = ("forward", "__call__", "_conv_forward", "_output_padding")
"""Methods that decide what a layer computes."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Torch's hooks, which also affect it; those of the backward pass change the steps of a solver."""
_WEIGHTLESS_MODES = ("nearest", "nearest-exact", "linear", "bilinear", "trilinear")


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer at its place in the network."""

    name: str
    module: nn.Module
    kind: str
    """One of affine (dense, convolution), scale (BatchNorm in eval mode, values mapped to [0, 1]), shape, average, activation,
    sum, unknown."""
    centre: Tensor
    """Input at the centre of the ball, ``(1, *shape)``, float64."""
    image: Tensor
    """Output there."""
    branches: tuple[tuple[Layer, ...], ...] = ()

    @property
    def label(self) -> str:
        """Name and type, for messages."""
        return f"{self.name or 'the module'} ({type(self.module).__name__})"

    @property
    def widths(self) -> tuple[int, int]:
        """Input and output sizes."""
        return self.centre[0].numel(), self.image[0].numel()

    @property
    def activation(self) -> Activation:
        """Its properties, if it is an activation."""
        found = activation_of(self.module)
        assert found is not None
        return found

    @property
    def vouched(self) -> bool:
        """A sum declared by a user-defined module; that of a bundled block is known from its code."""
        return self.kind == "sum" and type(self.module) is not UpBlock

    @cached_property
    def facts(self) -> Facts:
        """Norms of a linear layer."""
        if isinstance(self.module, Rescaling):
            gain = 1 / abs(self.module.high - self.module.low)
            return Facts(gain, gain, gain, gain, "a diagonal")
        return linear_facts(self.module, self.kind, self.centre, self.image)

    @property
    def is_linear(self) -> bool:
        """Whether it is an affine map, for certain."""
        if self.kind == "sum":
            return all(layer.is_linear for branch in self.branches for layer in branch)
        return self.kind in ("affine", "scale", "shape", "average")


def layers_of(generator: Generator, centre: Tensor | None = None) -> tuple[Layer, ...]:
    """The chain of a generator's layers, evaluated in float64 on the CPU at the centre of the ball (zero by default)."""
    shape = generator.latent_shape
    zero = torch.zeros(1, *shape, dtype=torch.float64, device="cpu")
    at = zero if centre is None else centre.detach().cpu().double().reshape(1, *shape)
    with torch.no_grad():
        double = copy.deepcopy(generator.module).cpu().double()
        try:
            chain, value = tuple(_walk("", double, at)), _image(double, at)
        except RuntimeError:  # a tensor that is not a buffer, or a fixed dtype: it does not run in float64
            return (Layer("", generator.module, "unknown", at, _as_it_is(generator, at)),)
        if chain[-1].image.shape == value.shape and torch.allclose(chain[-1].image, value, rtol=1e-9, atol=1e-12):
            return chain
        return (Layer("", double, "unknown", at, value),)  # not the chain that it appears to be: nothing is proved


def _as_it_is(generator: Generator, at: Tensor) -> Tensor:
    """The output of the module itself, in its own dtype. Its shape is not compared: of a plain module none is known."""
    try:
        value: Tensor = generator.module(at.to(generator.device, generator.dtype))
    except RuntimeError as problem:
        raise ValueError(
            f"the module failed on latents of shape {tuple(at.shape)} ({problem}): check latent_shape, and the module itself"
        ) from problem
    return value.cpu().double()


def every_layer(chain: Iterable[Layer]) -> Iterator[Layer]:
    """All layers, those inside sums included."""
    for layer in chain:
        yield layer
        for branch in layer.branches:
            yield from every_layer(branch)


def linear_part(chain: Iterable[Layer], x: Tensor, *, sizes: bool = False) -> Tensor:
    """An affine chain without its biases, which would cost digits; ``sizes``: with every weight made positive.

    The second bounds the round-off of the first: entry by entry, it is a small multiple of eps times that.
    """
    for layer in chain:
        if layer.kind == "sum":
            x = torch.stack([linear_part(branch, x, sizes=sizes) for branch in layer.branches]).sum(dim=0)
        else:
            x = _without_bias(layer.module, sizes)(x)
    return x


def _without_bias(module: nn.Module, sizes: bool) -> nn.Module:
    if isinstance(module, Rescaling):
        width = module.high - module.low
        return Rescaling(0.0, abs(width) if sizes else width)
    plain = copy.deepcopy(module)
    numbers = {name: getattr(plain, name, None) for name in ("bias", "running_mean", "weight")}
    for name, value in numbers.items():
        if isinstance(value, Tensor) and name != "weight":
            value.data.zero_()
        elif isinstance(value, Tensor) and sizes:
            value.data.abs_()
    return plain


def _walk(name: str, module: nn.Module, x: Tensor) -> Iterator[Layer]:
    if isinstance(module, nn.Sequential) and _computes_as_its_class(module):
        if len(module) == 0:
            yield _made(name, nn.Identity(), "shape", x)
        for key, part in zip(module._modules, module, strict=True):  # named_children() leaves out repetitions
            for layer in _walk(f"{name}.{key}".lstrip("."), part, x):
                yield layer
                x = layer.image
        return
    if type(module) is FromRange and _computes_as_its_class(module):
        *inner, last = _walk(name, module.module, x)
        yield from (*inner, last)
        yield _made("rescaling", Rescaling(module.low, module.high), "scale", last.image)
        return
    branches = _branches(name, module, x)
    kind = "sum" if branches else _kind(module, x)
    yield Layer(name, module, kind, x, _image(module, x), branches)


class Rescaling(nn.Module):
    """``(x - low) / (high - low)``."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x: Tensor) -> Tensor:
        """Mapped values."""
        return (x - self.low) / (self.high - self.low)


def _made(name: str, module: nn.Module, kind: str, x: Tensor) -> Layer:
    return Layer(name, module, kind, x, _image(module, x))


def _image(module: nn.Module, x: Tensor) -> Tensor:
    """The module's output, from a copy: one that works in place must not change what is kept as its input."""
    image: Tensor = module(x.clone())
    return image


def _branches(name: str, module: nn.Module, x: Tensor) -> tuple[tuple[Layer, ...], ...]:
    parts = _parts(module)
    if not parts:
        return ()
    random = torch.Generator(device="cpu").manual_seed(0)
    noise = torch.randn(x.shape, generator=random, dtype=torch.float64, device="cpu")
    for at in (x, x + noise):
        value, images = _image(module, at), _images(parts, at)
        if not images or any(getattr(image, "shape", None) != value.shape for image in images):
            return ()  # the module broadcasts them, or does something else with them: nothing is proved
        share = 1e-5 * float(value.abs().max())
        if not torch.allclose(sum(images, torch.zeros_like(value)), value, rtol=1e-5, atol=share):
            raise ValueError(
                f"branches() of {name or 'the module'} ({type(module).__name__}) do not add up to what it computes: "
                "return modules whose outputs, from the same input, sum to the module's output"
            )
    return tuple(tuple(_walk(f"{name} branch {k}".lstrip(), part, x)) for k, part in enumerate(parts, 1))


def _parts(module: nn.Module) -> tuple[nn.Module, ...]:
    """What a method ``branches()`` returns, if it returns modules: the name may stand for something else."""
    given = getattr(module, "branches", None)
    if not inspect.ismethod(given) or _is_changed(module):
        return ()
    try:
        parts = tuple(given())
    except Exception:  # it takes arguments, or returns no parts
        return ()
    return parts if all(isinstance(part, nn.Module) for part in parts) else ()


def _images(parts: tuple[nn.Module, ...], x: Tensor) -> list[Tensor]:
    """The outputs of all parts; nothing if one does not accept the input of the whole."""
    try:
        return [_image(part, x) for part in parts]
    except RuntimeError:
        return []


def _kind(module: nn.Module, x: Tensor) -> str:
    if not _computes_as_its_class(module):
        return "unknown"
    if isinstance(module, nn.Linear):
        return "affine" if x.ndim == 2 else "unknown"
    plain_pad = isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d) or (
        isinstance(module, nn.Conv1d | nn.Conv2d)
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    )
    kinds = {
        "affine": isinstance(module, _CONVOLUTIONS) and plain_pad,
        "scale": isinstance(module, _BatchNorm) and module.running_var is not None,
        "shape": isinstance(module, _SHAPES),
        "average": isinstance(module, _AVERAGES + _PADS) and _has_positive_weights(module),
        "activation": activation_of(module) is not None,
    }
    return next((kind for kind, fits in kinds.items() if fits), "unknown")


def _has_positive_weights(module: nn.Module) -> bool:
    """And without offset, as the bounds by row and column sums require."""
    divisor, offset = getattr(module, "divisor_override", None), getattr(module, "value", 0)
    mode = getattr(module, "mode", "nearest")
    return mode in _WEIGHTLESS_MODES and (divisor is None or divisor > 0) and offset == 0


def _computes_as_its_class(module: nn.Module) -> bool:
    """Whether it does what a class of torch (or of this package) does: an overridden forward may do anything."""
    if _is_changed(module):
        return False
    makers = (next((c for c in type(module).__mro__ if name in vars(c)), nn.Module) for name in _CALLED)
    return all(maker.__module__.startswith(("torch.nn.", "genprior.")) for maker in makers)


def _is_changed(module: nn.Module) -> bool:
    """By a hook, as the old weight_norm does, or by a method put on the instance."""
    return any(getattr(module, name) for name in HOOKS) or any(name in vars(module) for name in _CALLED)
