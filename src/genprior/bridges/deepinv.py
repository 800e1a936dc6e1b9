"""genprior as a reconstruction model of the package deepinv: ``x = GenPrior(generator)(y, physics)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from genprior.bridges.deepinv_operator import DeepinvForward, from_deepinv
from genprior.generators import Generator
from genprior.loop.solve import solve
from genprior.losses import LeastSquares, NoLoss, NonLinear
from genprior.problem import Problem
from genprior.result import Result
from genprior.solvers.base import Choice
from genprior.terms import Term

if TYPE_CHECKING:
    Reconstructor = nn.Module
else:
    try:
        from deepinv.models import Reconstructor
    except ImportError:  # everything below works on any object with A and A_adjoint
        Reconstructor = nn.Module

_OWN = frozenset({"problem", "solver", "z0", "progress"})


class GenPrior(Reconstructor):
    """A deepinv ``Reconstructor``: ``minimise 1/2 |A w - y|^2 + R(w) + H(z)`` subject to ``w = G(z)``, for any physics.

    Of a physics that is not linear the loss is ``1/2 |A(w) - y|^2``, a :class:`genprior.NonLinear`.

    Where deepinv is not installed, it is a plain ``torch.nn.Module`` that does the same. ``model.result`` is the
    :class:`genprior.Result` of the last call, with status and advice per image.

    Parameters
    ----------
    generator
        a :class:`genprior.Generator`; it stays where it is when the model is moved.
    solver
        any solver of genprior; :class:`genprior.Auto` by default.
    on_signal, on_latent
        terms R and H.
    verify
        whether to check linearity, adjoint and resolvent of the physics at every call; switch it off to reuse one physics.
    options
        everything else that :func:`genprior.solve` takes: ``stop``, ``restarts``, ``seed``, ``batch_size``, ``tolerance``, ...

    Examples
    --------
    >>> import genprior as gp
    >>> from genprior.bridges.deepinv import GenPrior
    >>> model = GenPrior(gp.load_generator("mnist"), stop=gp.MaxSteps(100))  # then: x = model(y, physics)
    """

    def __init__(
        self,
        generator: Generator,
        solver: Choice | None = None,
        *,
        on_signal: Term | None = None,
        on_latent: Term | None = None,
        verify: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        _check_options(options)
        self.generator, self.solver = generator, solver
        self.on_signal, self.on_latent = on_signal, on_latent
        self.verify, self.options = verify, options
        self.result: Result | None = None
        Problem(generator, NoLoss(), on_signal, on_latent)  # wrong options fail here, not at the first image

    def forward(self, y: Tensor, physics: Any, z0: Tensor | None = None) -> Tensor:
        """The images ``G(z)`` for measurements ``y``; ``z0`` are latents to start from."""
        G = self.generator
        made = from_deepinv(physics, G.signal_shape, items=len(y), verify=self.verify)
        loss = NonLinear(made, y) if isinstance(made, DeepinvForward) else LeastSquares(made.to(G.device, G.dtype), y)
        problem = Problem(G, loss, self.on_signal, self.on_latent)
        self.result = solve(problem, self.solver, z0=z0, progress=False, **self.options)
        return self.result.signal


def _check_options(options: dict[str, Any]) -> None:
    known = set(solve.__annotations__) - _OWN - {"return"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}: expected one of {', '.join(sorted(known))}")
