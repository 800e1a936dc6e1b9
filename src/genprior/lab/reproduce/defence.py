"""The defence by projection: attacked, clean, and against attacks that know it; test error against time and passes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from genprior.defence.attacks import (
    LatentAttack,
    ProjectedGradientAttack,
    accuracy,
    lead,
    predictions,
    straight_through,
)
from genprior.defence.projection import Projection
from genprior.lab.reproduce.contest import Contest, Setting, chosen, network, seconds, tuning_part
from genprior.lab.reproduce.defender import ATTACK, NORMS, Defender, Snapshots, classifier, digits, steps_of
from genprior.lab.reproduce.methods import ADAM, EXACT, EXACT_ADAM, EXACT_L2, GD, Method, denoising_methods
from genprior.lab.reproduce.parts import Found, Part, Results

PREFIX = "defence"
PAPERS = (GD, ADAM, EXACT)
KNOWN = (EXACT_ADAM,)
"""Defences tested by adaptive attacks: those of ``genprior defend``, with enough digits and steps for a meaningful result."""
CLEAN = (ADAM, EXACT, EXACT_ADAM)
"""Defences tested on clean images."""
LATENT_WEIGHTS = (0.1, 1.0, 10.0)
_LATENT_STARTS = 2
_SNAPSHOTS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def methods(count: int) -> list[Method]:
    """l2 by descent, l_inf by ADMM and Auto; l2 by ADMM as a control."""
    found = {method.key: method for method in denoising_methods(count, "l2") if method.key in (GD, ADAM)}
    found |= {method.key: method for method in denoising_methods(count, "linf") if method.key not in (GD, ADAM)}
    control = next(method for method in denoising_methods(count, "l2") if method.key == EXACT)
    return [*found.values(), replace(control, key=EXACT_L2)]


def parts(setting: Setting) -> list[Part]:
    """The attack, the tuning, the runs in batches, clean images, and adaptive attacks."""
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
    clean = [method for method in field if method.key in CLEAN]
    found += [_part(setting, method, f"clean.{method.key}", _clean, 1, size.ours_pictures) for method in clean]
    for method in field:
        if method.key in KNOWN:
            searches = 1 + 5 * _LATENT_STARTS * len(LATENT_WEIGHTS) // 3  # each with its projection
            found.append(_part(setting, method, f"latent.{method.key}", _latent, searches, size.latent_pictures))
            tries = (
                size.bpda_steps + size.bpda_steps // 3 + 4
            )  # the second start for the remaining ones; without attack
            bpda = _part(setting, method, f"bpda.{method.key}", _bpda, tries, size.bpda_pictures)
            found.append(replace(bpda, needs=(*bpda.needs, f"{PREFIX}.latent.{method.key}")))
    return found


def chunks(setting: Setting, key: str) -> list[tuple[int, int]]:
    """The images of each part: all for the paper's methods, fewer for ours."""
    size = setting.size.defence
    count = size.pictures if key in PAPERS else size.control_pictures if key == EXACT_L2 else size.ours_pictures
    return [(start, min(count, start + size.chunk)) for start in range(0, count, size.chunk)]


Job = Callable[[Defender, Results], Found]


def _part(setting: Setting, method: Method, name: str, job: Job, times: int, images: int) -> Part:
    """``job`` projects ``images`` images ``times`` times."""
    tuning = f"{PREFIX}.tune.{method.key}" if method.tuned else None

    def run(results: Results) -> Found:
        solver = chosen(method, results, tuning, steps_of(setting, method.key))
        return job(Defender(setting, method.key, solver), results)

    cost = times * seconds("mnist", steps_of(setting, method.key), images)
    needs = (f"{PREFIX}.attack", *([] if tuning is None else [tuning]))
    return Part(f"{PREFIX}.{name}", run, cost, needs)


def _attack(setting: Setting, results: Results) -> Found:
    images, labels = digits(setting, setting.size.defence.pictures)
    classify = classifier(setting.device)
    attacked = ATTACK(classify, images, labels, seed=setting.seed)
    numbers = {
        "pictures": len(images),
        "clean_accuracy": accuracy(classify, images, labels),
        "attacked_accuracy": accuracy(classify, attacked, labels),
        "size": ATTACK.size,
        "step": ATTACK.step,
        "steps": ATTACK.steps,
    }
    return Found(numbers, {"attacked": attacked.cpu().numpy(), "labels": labels.cpu().numpy()})


def _practice(setting: Setting, key: str, count: int, practice: bool) -> Contest:
    """Other digits, attacked, for tuning by the objective: without using its labels."""
    net = network("mnist", setting.device)
    images, labels = digits(setting, count, practice)
    attacked = ATTACK(classifier(setting.device), images, labels, seed=setting.seed + 1)
    problem = Projection(net, NORMS[key]).problem(attacked)
    return Contest(problem, net.sample_latent(count, seed=5000 + setting.seed), {})


def _run(defender: Defender, results: Results, *, start: int, stop: int) -> Found:
    """Attacked images ``start`` to ``stop``."""
    stored = results[f"{PREFIX}.attack"].arrays
    attacked = torch.from_numpy(stored["attacked"][start:stop]).to(defender.setting.device)
    labels = torch.from_numpy(stored["labels"][start:stop]).to(defender.setting.device)
    total = steps_of(defender.setting, defender.key)
    marks = (0, *sorted({max(1, round(share * total)) for share in _SNAPSHOTS}))
    look = Snapshots(defender.classify, labels, marks)
    result = defender.project(attacked, defender.starts(stop - start, start), (look,))
    each = predictions(defender.classify, result.signal) == labels
    right = int(each.sum())
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
    times = {"seconds": [row[2] for row in rows], "threads": torch.get_num_threads()}
    course = torch.stack([*(look.each.get(mark, each) for mark in marks), each])
    return Found(numbers, {"right": each.cpu().numpy(), "right_at": course.cpu().numpy()}, times)


def _clean(defender: Defender, results: Results) -> Found:
    """Clean images through the defence: the accuracy lost without an attack."""
    count = defender.setting.size.defence.ours_pictures
    images, labels = digits(defender.setting, count)
    size = defender.setting.size.defence.chunk
    right = 0
    for first in range(0, count, size):
        part = slice(first, min(count, first + size))
        result = defender.project(images[part], defender.starts(len(labels[part]), first))
        right += int((predictions(defender.classify, result.signal) == labels[part]).sum())
    return Found({"pictures": count, "right": right, "accuracy": right / count})


def _latent(defender: Defender, results: Results) -> Found:
    """Misread images of the generator near the ball: several weights and starts; those that fool the defence are kept."""
    size = defender.setting.size.defence
    images, labels = digits(defender.setting, size.latent_pictures)
    z0 = defender.starts(len(labels))
    clean = defender.project(images, z0)
    best, lowest = images, lead(defender.classify(clean.signal), labels)
    for z, weight in itertools.product(_latent_starts(defender, clean.z), LATENT_WEIGHTS):
        attack = LatentAttack(ATTACK.size, steps=size.latent_steps, weight=weight)
        attacked = attack(network("mnist", defender.setting.device), defender.classify, images, labels, z)
        ahead = lead(defender.classify(defender.project(attacked, z0).signal), labels)
        better = ahead < lowest
        best, lowest = torch.where(better[:, None, None, None], attacked, best), torch.minimum(ahead, lowest)
    numbers = {
        "pictures": len(labels),
        "attack_steps": size.latent_steps,
        "weights": LATENT_WEIGHTS,
        "starts": _LATENT_STARTS,
        "undefended_accuracy": accuracy(defender.classify, best, labels),
        "unattacked_accuracy": accuracy(defender.classify, clean.signal, labels),
        "defended_accuracy": int((lowest > 0).sum()) / len(labels),
    }
    return Found(numbers, {"right": (lowest > 0).cpu().numpy(), "attacked": best.cpu().numpy()})


def _latent_starts(defender: Defender, z: Tensor) -> list[Tensor]:
    """The latents of the clean projections, and a perturbed copy."""
    random = torch.Generator().manual_seed(6000 + defender.setting.seed)
    noise = torch.randn(z.shape, generator=random).to(z)
    return [z, *(z + 0.5 * number * noise for number in range(1, _LATENT_STARTS))]


def _bpda(defender: Defender, results: Results) -> Found:
    """The attacker knows the defence, its start and its steps, and approximates its derivative by the identity.

    From every image; then, for the images that are still read right, from what the latent attack found.
    """
    size = defender.setting.size.defence
    images, labels = digits(defender.setting, size.bpda_pictures)
    z0 = defender.starts(len(labels))
    attack = _knowing(size.bpda_steps)
    attacked = attack(straight_through(defender.classify, defender.purifier(z0)), images, labels)
    right = predictions(defender.classify, defender.purifier(z0)(attacked)) == labels
    second = right.clone()
    left = torch.nonzero(right[: size.latent_pictures]).flatten()
    if len(left):
        start = torch.from_numpy(results[f"{PREFIX}.latent.{defender.key}"].arrays["attacked"]).to(images)[left]
        purify = defender.purifier(z0[left])
        seen = straight_through(defender.classify, purify)
        again = _knowing(max(1, size.bpda_steps // 2))(seen, images[left], labels[left], start=start)
        second[left] = predictions(defender.classify, purify(again)) == labels[left]
    numbers = {
        "pictures": len(labels),
        "attack_steps": attack.steps,
        "attack_step": attack.step,
        "undefended_accuracy": accuracy(defender.classify, attacked, labels),
        "unattacked_accuracy": accuracy(defender.classify, defender.purifier(z0)(images), labels),
        "defended_accuracy": int(right.sum()) / len(labels),
        "defended_accuracy_both_starts": int(second.sum()) / len(labels),
    }
    return Found(numbers, {"right": second.cpu().numpy()})


def _knowing(steps: int) -> ProjectedGradientAttack:
    return ProjectedGradientAttack(ATTACK.size, 2.5 * ATTACK.size / steps, steps, random_start=False, keep="worst")
