"""The defence by projection: attacked, clean, and against attacks that know it; test error against time and passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from genprior import samples
from genprior.experiments.reproduce.contest import ITEM_SECONDS, Contest, Setting, chosen, network, tuning_part
from genprior.experiments.reproduce.methods import ADAM, AUTO, EXACT, EXACT_ADAM, GD, Method, denoising_methods
from genprior.experiments.reproduce.parts import Found, Part, Results
from genprior.networks.bundled import load_classifier
from genprior.result import Result
from genprior.solvers import Solver
from genprior.status import Status
from genprior.stopping import View
from genprior.tasks.attacks import (
    LatentAttack,
    ProjectedGradientAttack,
    accuracy,
    predictions,
    straight_through,
)
from genprior.tasks.defence import Norm, Projection
from genprior.training.data import mnist

PREFIX = "defence"
NORMS: dict[str, Norm] = {GD: "l2", ADAM: "l2", EXACT: "linf", EXACT_ADAM: "linf", AUTO: "linf"}
PAPERS = (GD, ADAM, EXACT)
KNOWN = (ADAM, EXACT, EXACT_ADAM)
"""Defences that are attacked by somebody who knows them."""
ATTACK = ProjectedGradientAttack(size=0.2, step=0.01, steps=30)
_BUNDLED = 300
_PRACTICE_FROM = 9000
_SNAPSHOTS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def methods(count: int) -> list[Method]:
    """l2 by descent, l_inf by ADMM and Auto."""
    found = {method.key: method for method in denoising_methods(count, "l2") if method.key in (GD, ADAM)}
    found |= {method.key: method for method in denoising_methods(count, "linf") if method.key not in (GD, ADAM)}
    return list(found.values())


def parts(setting: Setting) -> list[Part]:
    """The attack, the tuning, the runs in chunks, clean pictures, and the attacks that know."""
    size, field = setting.size.defence, methods(setting.size.settings)
    found = [Part(f"{PREFIX}.attack", partial(_attack, setting), 0.004 * size.pictures)]
    for method in field:
        if method.tuned:
            make = partial(_practice, setting, method.key)
            name = f"{PREFIX}.tune.{method.key}"
            found.append(tuning_part(name, method, make, size.tuning_pictures, size.tuning_steps, "mnist"))
    for method in field:
        for start, stop in chunks(setting, method.key):
            name = f"run.{method.key}.{start}"
            found.append(_part(setting, method, name, partial(_run, start=start, stop=stop), stop - start))
    found += [_part(setting, method, f"clean.{method.key}", _clean, size.ours_pictures) for method in field]
    for method in field:
        if method.key in KNOWN:
            tries = size.bpda_pictures * (size.bpda_steps + 2)
            found.append(_part(setting, method, f"bpda.{method.key}", _bpda, tries))
            found.append(_part(setting, method, f"latent.{method.key}", _latent, 3 * size.latent_pictures))
    return found


def chunks(setting: Setting, key: str) -> list[tuple[int, int]]:
    """The pictures of each part: all for the paper's methods, fewer for ours."""
    size = setting.size.defence
    count = size.pictures if key in PAPERS else size.ours_pictures
    return [(start, min(count, start + size.chunk)) for start in range(0, count, size.chunk)]


def steps_of(setting: Setting, key: str) -> int:
    """The paper's iterations: more for descent than for ADMM."""
    size = setting.size.defence
    return size.descent_steps if key in (GD, ADAM) else size.admm_steps


def digits(setting: Setting, count: int, practice: bool = False) -> tuple[Tensor, Tensor]:
    """MNIST's test digits; those for practice are others. The bundled ones where they are enough."""
    if setting.size.defence.pictures + setting.size.defence.tuning_pictures <= _BUNDLED:
        pictures, labels = samples.digits(_BUNDLED)
        part = slice(_BUNDLED - count, _BUNDLED) if practice else slice(0, count)
        return pictures[part].to(setting.device), labels[part].to(setting.device)
    start = _PRACTICE_FROM if practice else 0
    index = torch.arange(start, start + count)
    test = _test_digits()
    assert test.labels is not None
    return test.batch(index, setting.device), test.labels[index].to(setting.device)


@lru_cache(maxsize=1)
def _test_digits() -> Any:
    return mnist("test")


@lru_cache(maxsize=1)
def _classifier(device: str) -> nn.Module:
    return load_classifier("mnist", device=device).eval().requires_grad_(False)


@dataclass(frozen=True)
class _Defender:
    """One defence with its chosen setting."""

    setting: Setting
    key: str
    solver: Solver

    @property
    def classify(self) -> nn.Module:
        """The bundled classifier."""
        return _classifier(self.setting.device)

    def starts(self, count: int, first: int = 0) -> Tensor:
        """The same latents for everybody."""
        net = network("mnist", self.setting.device)
        return net.sample_latent(first + count, seed=4000 + self.setting.seed)[first:]

    def project(self, pictures: Tensor, z0: Tensor, callbacks: tuple[Callable[[View], object], ...] = ()) -> Result:
        """All iterations for all pictures."""
        net = network("mnist", self.setting.device)
        net.forget()
        steps = steps_of(self.setting, self.key)
        projection = Projection(net, NORMS[self.key], self.solver, steps, batch_size=len(pictures))
        result = projection(pictures, z0=z0, callbacks=callbacks)
        if Status.INTERRUPTED in result.status:
            raise KeyboardInterrupt  # a run cut short must not count as finished
        return result


Job = Callable[[_Defender, Results], Found]


def _part(setting: Setting, method: Method, name: str, job: Job, projections: int) -> Part:
    tuning = f"{PREFIX}.tune.{method.key}" if method.tuned else None

    def run(results: Results) -> Found:
        return job(_Defender(setting, method.key, chosen(method, results, tuning)), results)

    cost = ITEM_SECONDS["mnist"] * projections * steps_of(setting, method.key)
    needs = (f"{PREFIX}.attack", *([] if tuning is None else [tuning]))
    return Part(f"{PREFIX}.{name}", run, cost, needs)


def _attack(setting: Setting, results: Results) -> Found:
    pictures, labels = digits(setting, setting.size.defence.pictures)
    classify = _classifier(setting.device)
    attacked = ATTACK(classify, pictures, labels, seed=setting.seed)
    numbers = {
        "pictures": len(pictures),
        "clean_accuracy": accuracy(classify, pictures, labels),
        "attacked_accuracy": accuracy(classify, attacked, labels),
        "size": ATTACK.size,
        "step": ATTACK.step,
        "steps": ATTACK.steps,
    }
    return Found(numbers, {"attacked": attacked.cpu().numpy(), "labels": labels.cpu().numpy()})


def _practice(setting: Setting, key: str, count: int, practice: bool) -> Contest:
    """Other digits, attacked, for tuning by the objective: labels of the defence's success are not looked at."""
    net = network("mnist", setting.device)
    pictures, labels = digits(setting, count, practice)
    attacked = ATTACK(_classifier(setting.device), pictures, labels, seed=setting.seed + 1)
    problem = Projection(net, NORMS[key]).problem(attacked)
    return Contest(problem, net.sample_latent(count, seed=5000 + setting.seed), {})


@dataclass
class _Snapshots:
    """Predictions for the best iterate by objective, at some steps; the solver's clock stops meanwhile."""

    classify: nn.Module
    labels: Tensor
    steps: tuple[int, ...]
    best: Tensor = field(init=False)
    signals: Tensor | None = None
    rows: list[tuple[int, int, float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.best = torch.full(self.labels.shape, torch.inf, device=self.labels.device)

    def __call__(self, view: View) -> None:
        """Keep the best; look now and then."""
        objective, x = view.state.objective, view.state.x
        if self.signals is None:
            self.signals = x.clone()
        better = objective < self.best[view.items]
        items = view.items[better]
        self.best[items], self.signals[items] = objective[better], x[better]
        if view.step in self.steps:
            right = int((predictions(self.classify, self.signals) == self.labels).sum())
            self.rows.append((view.step, view.forwards + view.backwards, view.seconds, right))


def _run(defender: _Defender, results: Results, *, start: int, stop: int) -> Found:
    """Attacked pictures ``start`` to ``stop``."""
    stored = results[f"{PREFIX}.attack"].arrays
    attacked = torch.from_numpy(stored["attacked"][start:stop]).to(defender.setting.device)
    labels = torch.from_numpy(stored["labels"][start:stop]).to(defender.setting.device)
    total = steps_of(defender.setting, defender.key)
    marks = (0, *sorted({max(1, round(share * total)) for share in _SNAPSHOTS}))
    look = _Snapshots(defender.classify, labels, marks)
    result = defender.project(attacked, defender.starts(stop - start, start), (look,))
    right = int((predictions(defender.classify, result.signal) == labels).sum())
    rows = [*look.rows, (total, result.forwards + result.backwards, result.seconds, right)]
    numbers = {
        "solver": repr(defender.solver),
        "pictures": stop - start,
        "steps": [row[0] for row in rows],
        "passes": [row[1] for row in rows],
        "right": [row[3] for row in rows],
        "median_objective": float(result.objective.median()),
        "median_linf": float((result.signal - attacked).flatten(1).abs().amax(1).median()),
    }
    return Found(numbers, times={"seconds": [row[2] for row in rows], "threads": torch.get_num_threads()})


def _clean(defender: _Defender, results: Results) -> Found:
    """Clean pictures through the defence: what it costs where nobody attacks."""
    count = defender.setting.size.defence.ours_pictures
    pictures, labels = digits(defender.setting, count)
    size = defender.setting.size.defence.chunk
    right = 0
    for first in range(0, count, size):
        part = slice(first, min(count, first + size))
        result = defender.project(pictures[part], defender.starts(len(labels[part]), first))
        right += int((predictions(defender.classify, result.signal) == labels[part]).sum())
    return Found({"pictures": count, "right": right, "accuracy": right / count})


def _bpda(defender: _Defender, results: Results) -> Found:
    """The attacker knows the defence, its start and its steps, and takes its derivative for the identity."""
    size = defender.setting.size.defence
    pictures, labels = digits(defender.setting, size.bpda_pictures)
    z0 = defender.starts(len(labels))

    def purify(x: Tensor) -> Tensor:
        return defender.project(x, z0).signal

    seen = straight_through(defender.classify, purify)
    step = 2.5 * ATTACK.size / size.bpda_steps
    attack = ProjectedGradientAttack(ATTACK.size, step, size.bpda_steps, random_start=False, keep="worst")
    attacked = attack(seen, pictures, labels)
    return Found(
        {
            "pictures": len(labels),
            "attack_steps": size.bpda_steps,
            "attack_step": step,
            "undefended_accuracy": accuracy(defender.classify, attacked, labels),
            "unattacked_accuracy": accuracy(defender.classify, purify(pictures), labels),
            "defended_accuracy": accuracy(defender.classify, purify(attacked), labels),
        }
    )


def _latent(defender: _Defender, results: Results) -> Found:
    """The attacker looks for a misread picture of the generator in or near the ball, from the projection of the clean one."""
    size = defender.setting.size.defence
    pictures, labels = digits(defender.setting, size.latent_pictures)
    z0 = defender.starts(len(labels))
    clean = defender.project(pictures, z0)
    attack = LatentAttack(ATTACK.size, steps=size.latent_steps)
    attacked = attack(network("mnist", defender.setting.device), defender.classify, pictures, labels, clean.z)
    defended = defender.project(attacked, z0).signal
    return Found(
        {
            "pictures": len(labels),
            "attack_steps": size.latent_steps,
            "undefended_accuracy": accuracy(defender.classify, attacked, labels),
            "unattacked_accuracy": accuracy(defender.classify, clean.signal, labels),
            "defended_accuracy": accuracy(defender.classify, defended, labels),
        }
    )
