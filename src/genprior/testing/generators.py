"""Laws of a generator."""

from __future__ import annotations

from collections.abc import Callable

import torch

from genprior.checks import check_generator
from genprior.generators import Generator
from genprior.testing.laws import F64, Laws, random, require_close, require_report, require_same_bits

Make = Callable[[], Generator]
ITEMS = 3


class GeneratorLaws(Laws[Generator]):
    """Shapes, finiteness, determinism, independence of items, the pullback, draws."""

    def test_basic_laws(self, make: Make) -> None:
        """``gp.checks.check_generator``: runs, finite, deterministic, items alone, gradient against differences, range."""
        for seed in range(2):
            require_report(check_generator(make(), seed=seed))

    def test_vjp_is_the_transpose_of_the_jacobian(self, make: Make) -> None:
        """``<DG^T v, d>`` and ``<v, DG d>``, where the Jacobian can be had."""
        G = make()
        z = G.sample_latent(ITEMS, seed=1)
        at = G.evaluate(z)
        v, d = random(*at.x.shape, seed=2).to(at.x), random(*z.shape, seed=3).to(z)
        try:
            image = G.jvp(z, d[None])[0]
        except ValueError:
            return  # a module with gradients alone
        ours, theirs = (at.vjp(v) * d).flatten(1).sum(1), (v * image).flatten(1).sum(1)
        scale = float((v.flatten(1).norm(dim=1) * image.flatten(1).norm(dim=1)).max())
        eps = torch.finfo(G.dtype).eps
        require_close("<DG^T v, d> = <v, DG d>", ours.to(F64), theirs.to(F64), 0.0, 1e3 * eps * scale)

    def test_calls_are_pure(self, make: Make) -> None:
        """Latents are left alone; evaluations, pullbacks and draws have the same bits each time."""
        G = make()
        z = G.sample_latent(ITEMS, seed=1)
        given, v = z.clone(), torch.ones(ITEMS, *G.signal_shape, dtype=G.dtype, device=G.device)
        G(z)
        require_same_bits("latents are left alone", {"z": given}, {"z": z})
        first, again = ({"G(z)": at.x, "DG^T v": at.vjp(v)} for at in (G.evaluate(z), G.evaluate(z)))
        require_same_bits("the same latent gives the same bits", first, again)
        draws = {"z": given}, {"z": G.sample_latent(ITEMS, seed=1)}
        require_same_bits("the same seed draws the same latents", *draws)
