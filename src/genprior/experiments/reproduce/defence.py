"""The defence by projection: attacked, clean, and against attacks that know it; test error against time and passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from genprior.experiments.reproduce.contest import Contest, Setting, chosen, network, seconds, tuning_part
from genprior.experiments.reproduce.defender import ATTACK, NORMS, Defender, Snapshots, classifier, digits, steps_of
from genprior.experiments.reproduce.methods import ADAM, EXACT, GD, Method, denoising_methods
from genprior.experiments.reproduce.parts import Found, Part, Results
from genprior.tasks.attacks import LatentAttack, ProjectedGradientAttack, accuracy, predictions, straight_through
from genprior.tasks.defence import Projection

PREFIX = "defence"
PAPERS = (GD, ADAM, EXACT)
KNOWN = (EXACT,)
"""Defences that are attacked by somebody who knows them: one, with enough digits and steps to mean something."""
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
            found.append(_part(setting, method, name, partial(_run, start=start, stop=stop), 1, stop - start))
    found += [_part(setting, method, f"clean.{method.key}", _clean, 1, size.ours_pictures) for method in field]
    for method in field:
        if method.key in KNOWN:
            tries = size.bpda_steps + 3  # also without attack, and after it
            found.append(_part(setting, method, f"bpda.{method.key}", _bpda, tries, size.bpda_pictures))
            found.append(_part(setting, method, f"latent.{method.key}", _latent, 3, size.latent_pictures))
    return found


def chunks(setting: Setting, key: str) -> list[tuple[int, int]]:
    """The pictures of each part: all for the paper's methods, fewer for ours."""
    size = setting.size.defence
    count = size.pictures if key in PAPERS else size.ours_pictures
    return [(start, min(count, start + size.chunk)) for start in range(0, count, size.chunk)]


Job = Callable[[Defender, Results], Found]


def _part(setting: Setting, method: Method, name: str, job: Job, times: int, pictures: int) -> Part:
    """``job`` projects so many pictures so many times."""
    tuning = f"{PREFIX}.tune.{method.key}" if method.tuned else None

    def run(results: Results) -> Found:
        solver = chosen(method, results, tuning, steps_of(setting, method.key))
        return job(Defender(setting, method.key, solver), results)

    cost = times * seconds("mnist", steps_of(setting, method.key), pictures)
    needs = (f"{PREFIX}.attack", *([] if tuning is None else [tuning]))
    return Part(f"{PREFIX}.{name}", run, cost, needs)


def _attack(setting: Setting, results: Results) -> Found:
    pictures, labels = digits(setting, setting.size.defence.pictures)
    classify = classifier(setting.device)
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
    attacked = ATTACK(classifier(setting.device), pictures, labels, seed=setting.seed + 1)
    problem = Projection(net, NORMS[key]).problem(attacked)
    return Contest(problem, net.sample_latent(count, seed=5000 + setting.seed), {})


def _run(defender: Defender, results: Results, *, start: int, stop: int) -> Found:
    """Attacked pictures ``start`` to ``stop``."""
    stored = results[f"{PREFIX}.attack"].arrays
    attacked = torch.from_numpy(stored["attacked"][start:stop]).to(defender.setting.device)
    labels = torch.from_numpy(stored["labels"][start:stop]).to(defender.setting.device)
    total = steps_of(defender.setting, defender.key)
    marks = (0, *sorted({max(1, round(share * total)) for share in _SNAPSHOTS}))
    look = Snapshots(defender.classify, labels, marks)
    result = defender.project(attacked, defender.starts(stop - start, start), (look,))
    right = int((predictions(defender.classify, result.signal) == labels).sum())
    end = (total, result.forwards + result.backwards, result.seconds, right)
    seen = {row[0]: row for row in look.rows}
    rows = [*(seen.get(mark, (mark, *end[1:])) for mark in marks), end]  # nothing changes after all have converged
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


def _clean(defender: Defender, results: Results) -> Found:
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


def _bpda(defender: Defender, results: Results) -> Found:
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


def _latent(defender: Defender, results: Results) -> Found:
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
