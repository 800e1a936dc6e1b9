"""Denoising in l_inf, l1 and l2: the error at each iteration, whether the prox acts, whether the duals stay bounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from genprior import _batch
from genprior.lab.reproduce.contest import Contest, Field, Setting, network, race_part
from genprior.lab.reproduce.methods import ADAM, GD, Method, denoising_methods
from genprior.lab.reproduce.parts import Part
from genprior.lab.reproduce.sizes import Denoising
from genprior.lab.trace import relative_error
from genprior.losses import SquaredDistance
from genprior.problem import Problem
from genprior.solvers.admm import ADMMState
from genprior.stopping import View
from genprior.terms import L1, LInf, Zero

PREFIX = "linf-denoising"
OTHER_STEPS = "steps"
_SIZE = 0.2


@dataclass(frozen=True)
class Case:
    """One type of noise with its loss."""

    key: str
    title: str
    norm: str
    gamma: float
    damage: str
    whole: bool
    """With the paper's iteration counts; the others get a share."""


CASES = (
    Case("linf", "l_inf, image in the range (the optimum is 0)", "linf", 1e-5, "none", True),
    Case("linf-sign", "l_inf, sign noise of size 0.2 (the optimum is at most 0.2)", "linf", 1e-5, "sign", False),
    Case("linf-heavy", "l_inf, in the range, gamma 100 times as large", "linf", 1e-3, "none", False),
    Case("l1", "l1, a fifth of the pixels black or white", "l1", 1e-5, "salt", False),
    Case("l2", "l2, Gaussian noise of deviation 0.2", "l2", 1.0, "gauss", False),
)


def parts(setting: Setting) -> list[Part]:
    """Every case with every method."""
    size = setting.size.denoising
    found: list[Part] = []
    for case in CASES:
        field = Field(
            f"{PREFIX}.{case.key}",
            partial(contest, setting, case),
            "mnist",
            size.pictures,
            size.pictures,
            max(1, int(size.tuning_steps * _share(size, case))),
        )
        methods = denoising_methods(setting.size.settings, case.norm)
        found += field.parts(methods, _steps(size, case))
        if case.whole:
            found += _other_steps(setting, case, next(method for method in methods if method.key == GD))
    return found


def _other_steps(setting: Setting, case: Case, method: Method) -> list[Part]:
    """Gradient descent with steps across its grid, all iterations: in short tuning runs all steps stall alike."""
    count, size = len(method.choices), setting.size.denoising
    return [
        race_part(
            f"{PREFIX}.{case.key}.{OTHER_STEPS}.{number}",
            Method(GD, (method.choices[number],)),
            partial(contest, setting, case),
            size.pictures,
            size.descent_steps,
            "mnist",
            None,
        )
        for number in sorted({count // 4, count // 2, 3 * count // 4})
    ]


def _steps(size: Denoising, case: Case) -> Callable[[Method], int]:
    def steps(method: Method) -> int:
        whole = size.descent_steps if method.key in (GD, ADAM) else size.admm_steps
        return max(1, int(_share(size, case) * whole))

    return steps


def _share(size: Denoising, case: Case) -> float:
    return 1.0 if case.whole else size.other_share


def contest(setting: Setting, case: Case, count: int, practice: bool) -> Contest:
    """Noisy images of the generator."""
    net = network("mnist", setting.device)
    seed = 10 * setting.seed + (5 if practice else 0)
    with torch.no_grad():
        truth = net(net.sample_latent(count, seed=1000 + seed))
    y = _damaged(truth, case.damage, torch.Generator().manual_seed(2000 + seed))
    term = {"linf": LInf, "l1": L1}.get(case.norm)
    problem = Problem(net, loss=SquaredDistance(y, case.gamma), on_signal=Zero() if term is None else term().around(y))
    measures = {
        "linf": lambda x, items: _largest(x - y[items]),
        "linf_truth": lambda x, items: _largest(x - truth[items]),
        "error": relative_error(truth),
    }
    return Contest(problem, net.sample_latent(count, seed=3000 + seed), measures, partial(_duals, y))


def _damaged(truth: Tensor, damage: str, random: torch.Generator) -> Tensor:
    if damage == "none":
        return truth
    if damage == "sign":
        return truth + _SIZE * (torch.rand(truth.shape, generator=random, device="cpu") - 0.5).sign().to(truth)
    if damage == "gauss":
        return truth + _SIZE * torch.randn(truth.shape, generator=random, device="cpu").to(truth)
    level = torch.rand(truth.shape, generator=random, device="cpu").to(truth)
    return torch.where(level < _SIZE / 2, 0.0, torch.where(level > 1 - _SIZE / 2, 1.0, truth))


def _duals(y: Tensor, view: View) -> dict[str, Tensor]:
    """How far w is from y (zero: the prox only returned y), and the length of the dual; for ADMM only."""
    state = view.state
    if not isinstance(state, ADMMState):
        return {}
    return {"w_from_y": _largest(state.w - y[view.items]), "dual": _batch.norm(state.lam)}


def _largest(x: Tensor) -> Tensor:
    return _batch.flat(x).abs().amax(dim=1)
