"""G at a batch of latents, together with what is needed to pull one vector back through DG."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genprior import _batch
from genprior.generators.chain import WayBack

if TYPE_CHECKING:
    from genprior.generators.contract import Generator


class _Tape:
    """What one forward pass left for the way back, to be used once by whoever comes first."""

    def __init__(self, back: WayBack) -> None:
        self._back: WayBack | None = back

    def take(self) -> WayBack | None:
        back, self._back = self._back, None
        return back


class Evaluation:
    """``x = G(z)`` and the map ``v -> DG(z)^T v``: one forward pass now, one backward pass at the first pull.

    The graph is freed by the first pull. A second pull gives the same bits at the price of another forward pass, so
    that whoever holds an evaluation may treat it as a value. With ``graph=False`` nothing is kept for a pull, which makes the
    forward pass cheaper, and the first pull too runs another one. ``rows`` selects items without any pass: the graph of the
    whole batch stays in use with zeros for the items that left.
    """

    def __init__(
        self, generator: Generator, points: Tensor, chosen: Tensor | None = None, *, graph: bool = True
    ) -> None:
        self._generator = generator
        self._points = points.detach()
        self._chosen = chosen
        if graph:
            value, back = generator.trace(self._points)
            self._tape: _Tape | None = _Tape(back)
        else:
            with torch.no_grad():
                value, self._tape = generator(self._points), None
        self.z = self._select(self._points)
        self.x = self._select(value)

    def vjp(self, v: Tensor) -> Tensor:
        """``DG(z)^T v``, item by item."""
        back = (self._tape.take() if self._tape is not None else None) or self._generator.trace(self._points)[1]
        if self._chosen is not None:
            v = v.new_zeros(len(self._points), *v.shape[1:]).index_copy_(0, self._chosen, v)
        return self._select(back(v))

    def rows(self, index: Tensor) -> Evaluation:
        """The evaluation of the selected items, each at most once."""
        part = self._bare()
        part._points, part._tape = self._points, self._tape
        part._chosen = index if self._chosen is None else self._chosen[index]
        part.z, part.x = self.z[index], self.x[index]
        return part

    def put(self, index: Tensor, other: Evaluation) -> Evaluation:
        """Replace the items at ``index`` by those of ``other``; the next pull runs one forward pass."""
        part = self._bare()
        part.z = self.z.index_copy(0, index, other.z)
        part.x = self.x.index_copy(0, index, other.x)
        part._points, part._chosen, part._tape = part.z, None, None
        return part

    def where(self, mask: Tensor, other: Evaluation) -> Evaluation:
        """The items of ``other`` where ``mask`` holds, else these; the next pull runs one forward pass."""
        part = self._bare()
        part.z = torch.where(_batch.spread(mask, self.z), other.z, self.z)
        part.x = torch.where(_batch.spread(mask, self.x), other.x, self.x)
        part._points, part._chosen, part._tape = part.z, None, None
        return part

    def tensors(self) -> dict[str, Tensor]:
        """What must be stored to rebuild this evaluation bit for bit."""
        chosen = self._chosen if self._chosen is not None else torch.arange(len(self._points), device=self.z.device)
        owes = torch.tensor(self._tape is None, device=self.z.device)
        return {"points": self._points, "chosen": chosen, "value": self.x, "owes_forward": owes}

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
