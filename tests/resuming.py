"""Runs that are stopped and taken up again: how they are stopped, and what must be the same afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor, nn

import genprior as gp
from tests.checks.parts import tiny_module

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(
        [str(Path(gp.__file__).parents[1]), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    ),
}
"""For child processes: they import the genprior that is tested here, and these tests."""


class Crash(RuntimeError):
    """What ends a run that nobody expected to end."""


def assert_same_run(left: gp.Result, right: gp.Result) -> None:
    """Every field of the result and every column of the history, bit by bit; only measured times may differ."""
    for name in (field.name for field in fields(gp.Result) if field.name not in ("seconds", "history")):
        one, other = getattr(left, name), getattr(right, name)
        if isinstance(one, Tensor):
            assert torch.equal(one.nan_to_num(nan=-1.0), other.nan_to_num(nan=-1.0)), name
        elif name == "minima":
            assert all(torch.equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True)), name
        else:
            assert one == other, name
    assert len(left.history) == len(right.history)
    for item in range(len(left.history)):
        ours, theirs = left.history.item(item), right.history.item(item)
        for name in left.history.columns:
            if name != "seconds":
                assert torch.equal(ours[name].nan_to_num(nan=-1.0), theirs[name].nan_to_num(nan=-1.0)), (item, name)


def stop_at(step: int, how: object, after_calls: int = 0) -> Callable[[gp.View], object]:
    """A callback that ends the run once, at ``step``, by ``how``: True or an exception."""
    seen: list[int] = []

    def callback(view: gp.View) -> object:
        if view.step == step:
            seen.append(step)
            if len(seen) == after_calls + 1:
                if isinstance(how, BaseException):
                    raise how
                return how
        return None

    return callback


# -- small problems of every type ----------------------------------------------------------------------------------

TERMS: dict[str, Callable[[], dict[str, gp.Term]]] = {
    "smooth": dict,
    "l1 on the signal": lambda: {"on_signal": 0.05 * gp.L1()},
    "box on the signal": lambda: {"on_signal": gp.Box(-0.8, 0.8)},
    "ball on z": lambda: {"on_latent": gp.Ball(1.0)},
    "ridge on z": lambda: {"on_latent": 0.1 * gp.SquaredL2()},
}


def problem_with(terms: str, dtype: torch.dtype, *, items: int = 3, mixing: bool = False) -> gp.Problem:
    """3 latent numbers, 6 noisy measurements; built anew, as in a new process. ``mixing``: no closed form of the w step."""
    generator = gp.Generator(tiny_module().to(dtype), (3,), (8,))
    gaussian = gp.operators.Gaussian(6, (8,), seed=1, dtype=dtype)
    operator = gaussian if mixing or terms == "smooth" else gp.operators.Mask((torch.arange(8) != 2).to(dtype))
    random = torch.Generator().manual_seed(7)
    with torch.no_grad():
        signal = generator(torch.randn(items, 3, generator=random).to(dtype))
    y = operator(signal + 0.1 * torch.randn(signal.shape, generator=random).to(dtype))
    return gp.Problem(generator, gp.LeastSquares(operator, y), **TERMS[terms]())


def many_latents(terms: str, latent: int) -> gp.Problem:
    """So many latents that Auto chooses another method."""
    random = torch.Generator().manual_seed(3)
    module = nn.Sequential(nn.Linear(latent, 6), nn.Tanh(), nn.Linear(6, 8)).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.7 if parameter.shape[-1] < latent else latent**-0.5, generator=random)
    y = torch.randn(2, 8, generator=random).double()
    return gp.Problem(gp.Generator(module, (latent,), (8,)), gp.SquaredDistance(y), **TERMS[terms]())
