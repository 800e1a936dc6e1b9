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
"""Most signal numbers in one batch of tangents; larger ones gain nothing."""
_ONE_AT_A_TIME = threading.RLock()
"""torch keeps the levels of forward mode, and its choice of attention kernels, once for all threads of the process: one that
ends clears the tangents of the others, which then read zeros."""
_NOT_THE_MODULE = ("memory", "CUDA", "cuBLAS", "MPS")
"""In the text of errors that are the device's; on the CPU, a lack of memory is known by nothing else."""


class OnlyGradients(ValueError):
    """A module that has neither forward mode nor a second derivative, such as one with an autograd function of one's own."""

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
    """``DG(z)``, or ``image(DG(z))`` column by column, as ``(B, m, s)``; ``signal`` is how many numbers one signal has.

    Tangents go through the network together as one large batch, the values through which they are carried only once.
    Modules that forward mode or its batching cannot take are differentiated twice in reverse mode instead. ``between`` is
    called before each batch, and may end the work by an exception.
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
    """``DG(z)`` and its transpose as maps. Each use costs, and counts, one pass forward or one of each kind."""

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
            except torch.OutOfMemoryError:  # the other way is for modules, not for small devices
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
    """Let torch load what it loads at its first gradient, about half a second: loading is not computing."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.ones(1, requires_grad=True)
        torch.autograd.grad(2 * leaf, leaf, torch.ones(1))


@lru_cache(maxsize=1)
def prepare_forward_mode() -> None:
    """The same for forward mode, one or two seconds; torch also warns of its own old compiler, which no user can mend."""
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        layer, point = torch.nn.Linear(1, 1, device="cpu", dtype=torch.float32), torch.ones(1, 1)
        with torch.no_grad():
            torch.func.vmap(lambda v: torch.func.jvp(layer, (point,), (v,))[1])(torch.ones(1, 1, 1))
    gc.collect()  # all that was loaded is garbage collected once, which takes a while: now, rather than in a run


def _same(x: Tensor) -> Tensor:
    return x
