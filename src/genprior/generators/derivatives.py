"""G at a batch of latents, and what follows from its derivative: one pullback, or both maps, or the whole Jacobian.

:class:`Evaluation` keeps the graph of one forward pass for one backward pass. The Jacobian is computed by forward mode, all
columns at once, in bounded memory.
"""

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

Pullback = Callable[[Tensor], Tensor]
"""``v -> DG(z)^T v``."""
_LARGEST = 2**23
"""Most values in one batch of tangents; larger batches are not faster."""
_ONE_AT_A_TIME = threading.RLock()
"""The levels of forward mode, and the choice of attention kernels, are global to the process: a thread that leaves forward
mode clears the tangents of the others, which then read zeros."""
_NOT_THE_MODULE = ("memory", "CUDA", "cuBLAS", "MPS")
"""Words in error messages of the device; on the CPU, only the message shows a lack of memory."""


class _Tape:
    """The graph of one forward pass, which can be used once."""

    def __init__(self, pullback: Pullback) -> None:
        self._pullback: Pullback | None = pullback

    def take(self) -> Pullback | None:
        pullback, self._pullback = self._pullback, None
        return pullback


def _traced(generator: Generator, z: Tensor) -> tuple[Tensor, Pullback]:
    """``G(z)`` and its pullback: one forward pass now, one backward pass then."""
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        x = generator(leaf)
    return x.detach(), lambda v: generator.backward(leaf, x, v)


class Evaluation:
    """``x = G(z)`` and the map ``v -> DG(z)^T v``: one forward pass now, one backward pass at the first vjp.

    The graph is freed by the first vjp. A second one gives the same bits after another forward pass, so that
    an evaluation may be treated as a value. With ``graph=False`` no graph is kept, which makes the
    forward pass cheaper, and the first vjp also runs another one. ``rows`` selects items without any pass: the graph of the
    whole batch stays in use, with zero cotangents for the items left out.
    """

    def __init__(
        self, generator: Generator, points: Tensor, chosen: Tensor | None = None, *, graph: bool = True
    ) -> None:
        self._generator = generator
        self._points = points.detach()
        self._chosen = chosen
        if graph:
            value, pullback = _traced(generator, self._points)
            self._tape: _Tape | None = _Tape(pullback)
        else:
            with torch.no_grad():
                value, self._tape = generator(self._points), None
        self.z = self._select(self._points)
        self.x = self._select(value)

    def vjp(self, v: Tensor) -> Tensor:
        """``DG(z)^T v``, item by item."""
        pullback = self._tape.take() if self._tape is not None else None
        if pullback is None:
            pullback = _traced(self._generator, self._points)[1]
        if self._chosen is not None:
            v = v.new_zeros(len(self._points), *v.shape[1:]).index_copy_(0, self._chosen, v)
        return self._select(pullback(v))

    def rows(self, index: Tensor) -> Evaluation:
        """The evaluation of the selected items, each at most once."""
        part = self._bare()
        part._points, part._tape = self._points, self._tape
        part._chosen = index if self._chosen is None else self._chosen[index]
        part.z, part.x = self.z[index], self.x[index]
        return part

    def moved(self, z: Tensor, x: Tensor) -> Evaluation:
        """The evaluation at another ``z``, with the signal ``x``, where the caller knows that DG is the same: no pass.

        So it is where z has changed in entries on which the signal depends linearly.
        """
        part = self._bare()
        part._points = z if self._chosen is None else self._points.index_copy(0, self._chosen, z)
        part._chosen, part._tape = self._chosen, self._tape
        part.z, part.x = z, x
        return part

    @classmethod
    def known(cls, generator: Generator, z: Tensor, x: Tensor) -> Evaluation:
        """The evaluation of a signal that is known; the first vjp runs a forward pass."""
        part = cls.__new__(cls)
        part._generator, part._points, part._chosen, part._tape = generator, z, None, None
        part.z, part.x = z, x
        return part

    def put(self, index: Tensor, other: Evaluation) -> Evaluation:
        """Replace the items at ``index`` by those of ``other``; the next vjp runs one forward pass."""
        part = self._bare()
        part.z = self.z.index_copy(0, index, other.z)
        part.x = self.x.index_copy(0, index, other.x)
        part._points, part._chosen, part._tape = part.z, None, None
        return part

    def where(self, mask: Tensor, other: Evaluation) -> Evaluation:
        """The items of ``other`` where ``mask`` holds, else these; the next vjp runs one forward pass."""
        part = self._bare()
        part.z = torch.where(_batch.spread(mask, self.z), other.z, self.z)
        part.x = torch.where(_batch.spread(mask, self.x), other.x, self.x)
        part._points, part._chosen, part._tape = part.z, None, None
        return part

    def tensors(self) -> dict[str, Tensor]:
        """What must be stored to rebuild this evaluation bit for bit."""
        chosen = self._chosen if self._chosen is not None else torch.arange(len(self._points), device=self.z.device)
        needs_forward = torch.tensor(self._tape is None, device=self.z.device)
        return {"points": self._points, "chosen": chosen, "value": self.x, "owes_forward": needs_forward}

    def restored(self, tensors: dict[str, Tensor]) -> Evaluation:
        """The evaluation that ``tensors`` describe (one forward pass)."""
        place = self._points
        points = tensors["points"].to(place, copy=True)  # memory aligned as it was: bits depend on it
        chosen = tensors["chosen"].to(place.device)
        whole = torch.equal(chosen, torch.arange(len(points), device=place.device))
        part = Evaluation(self._generator, points, None if whole else chosen)
        part.x = tensors["value"].to(place, copy=True)
        if bool(tensors["owes_forward"]):
            part._tape = None
        return part

    def _bare(self) -> Evaluation:
        part = Evaluation.__new__(Evaluation)
        part._generator = self._generator
        return part

    def _select(self, tensor: Tensor) -> Tensor:
        return tensor if self._chosen is None else tensor[self._chosen]


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


# -- Jacobians ---------------------------------------------------------------------------------------------------------


MODULE = "the generator's module"


class OnlyGradients(ValueError):
    """A function that has neither forward mode nor a second derivative, such as one with a custom autograd function."""

    def __init__(self, why: str, what: str = MODULE) -> None:
        self.why, self.what = why, what
        super().__init__(
            f"{what} has gradients but no Jacobian ({why}): give its autograd function a jvp; solvers that "
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


def pushed(module: Callable[[Tensor], Tensor], z: Tensor, tangents: Tensor) -> Tensor:
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


def _pushed_by_transposition(module: Callable[[Tensor], Tensor], z: Tensor, tangents: Tensor) -> Tensor:
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
