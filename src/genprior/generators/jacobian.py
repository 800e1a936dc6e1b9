"""The Jacobian of a generator: all columns at once by forward mode, in bounded memory, or as two maps without a matrix."""

from __future__ import annotations

import gc
import math
import threading
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from genprior import _batch

if TYPE_CHECKING:
    from genprior.generators.contract import Generator

_LARGEST = 2**23
"""Most values in one batch of tangents; larger batches are not faster."""
_ONE_AT_A_TIME = threading.RLock()
"""The levels of forward mode, and the choice of attention kernels, are global to the process: a thread that leaves forward
mode clears the tangents of the others, which then read zeros."""
_NOT_THE_MODULE = ("memory", "CUDA", "cuBLAS", "MPS")
"""Words in error messages of the device; on the CPU, only the message shows a lack of memory."""


class OnlyGradients(ValueError):
    """A module that has neither forward mode nor a second derivative, such as one with a custom autograd function."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(
            f"the generator's module has gradients but no Jacobian ({why}): give its autograd function a jvp; solvers that "
            "need gradients alone, such as gp.Auto(), gp.LBFGS() or gp.ExactADMM(), work without"
        )


def jacobian(
    module: nn.Module,
    z: Tensor,
    signal: int,
    image: Callable[[Tensor], Tensor] | None = None,
    between: Callable[[], object] | None = None,
) -> Tensor:
    """``DG(z)``, or ``image(DG(z))`` column by column, as ``(B, m, s)``; ``signal`` is the size of one signal.

    All tangents are pushed through the network as one batch, with a single evaluation of the values.
    Modules that forward mode or its batching does not support are differentiated twice in reverse mode instead. ``between`` is
    called before each batch, and may raise an exception to end the work.
    """
    size, shape = math.prod(z.shape[1:]), z.shape
    group = max(1, min(size, _LARGEST // max(1, signal * len(z))))
    units = torch.eye(size, device=z.device, dtype=z.dtype).reshape(size, 1, *shape[1:])
    blocks = []
    for part in _batch.pieces(units, group):
        if between is not None:
            between()
        tangents = pushed(module, z, part.expand(len(part), *shape))
        blocks.append(_batch.flat((image or _same)(tangents.flatten(0, 1))).reshape(len(part), len(z), -1))
    return torch.cat(blocks).permute(1, 2, 0).contiguous()


class Linearised:
    """``DG(z)`` and its transpose as maps. Each use costs, and counts, one pass."""

    def __init__(self, generator: Generator, z: Tensor) -> None:
        self._generator, self._z = generator, z.detach()
        with torch.enable_grad():
            self._leaf = self._z.requires_grad_()
            self._value = generator(self._leaf)
        self.x = self._value.detach()
        """``G(z)``."""

    def jvp(self, v: Tensor) -> Tensor:
        """``DG(z) v``."""
        return self._generator.jvp(self._z.detach(), v[None])[0]

    def vjp(self, u: Tensor) -> Tensor:
        """``DG(z)^T u``."""
        return self._generator.backward(self._leaf, self._value, u, keep=True)


def pushed(module: nn.Module, z: Tensor, tangents: Tensor) -> Tensor:
    """``DG(z) v`` for a stack of tangents ``(n, B, *latent_shape)``, as ``(n, B, *signal_shape)``."""

    def one(v: Tensor) -> Tensor:
        image: Tensor = torch.func.jvp(module, (z,), (v,))[1]
        return image

    with _ONE_AT_A_TIME:
        prepare_forward_mode()
        with sdpa_kernel(SDPBackend.MATH):  # the only kernel of attention that has second derivatives and forward mode
            try:
                with torch.no_grad():
                    stacked: Tensor = torch.func.vmap(one)(tangents)
            except torch.OutOfMemoryError:  # another method needs no less memory
                raise
            except (RuntimeError, NotImplementedError):
                return _pushed_by_transposition(module, z, tangents)
            return stacked


def _pushed_by_transposition(module: nn.Module, z: Tensor, tangents: Tensor) -> Tensor:
    """``DG v`` as the derivative of ``u -> <DG^T u, v>``, one tangent after the other."""
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        value = module(leaf)
        u = torch.zeros_like(value, requires_grad=True)
        try:
            (pulled,) = torch.autograd.grad(value, leaf, u, create_graph=True)
            columns = [torch.autograd.grad(pulled, u, v, retain_graph=True)[0] for v in tangents]
        except RuntimeError as problem:
            if any(word in str(problem) for word in _NOT_THE_MODULE):
                raise
            raise OnlyGradients(str(problem)) from problem
    return torch.stack(columns).detach()


@lru_cache(maxsize=1)
def prepare_gradients() -> None:
    """Let torch load its gradient code, about half a second, which is not part of a run."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones(1, requires_grad=True)
        torch.autograd.grad(2 * leaf, leaf, torch.ones(1))


@lru_cache(maxsize=1)
def prepare_forward_mode() -> None:
    """The same for forward mode, one or two seconds; torch then warns of its own deprecated compiler, which is suppressed."""
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        layer, point = torch.nn.Linear(1, 1, device="cpu", dtype=torch.float32), torch.ones(1, 1)
        with torch.no_grad():
            torch.func.vmap(lambda v: torch.func.jvp(layer, (point,), (v,))[1])(torch.ones(1, 1, 1))
    gc.collect()  # the first collection after loading is slow: now, not during a run


def _same(x: Tensor) -> Tensor:
    return x
