"""G at a batch of latents, with the pullback of one cotangent through DG."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genprior import _batch

if TYPE_CHECKING:
    from genprior.generators.contract import Generator

Pullback = Callable[[Tensor], Tensor]
"""``v -> DG(z)^T v``."""


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
