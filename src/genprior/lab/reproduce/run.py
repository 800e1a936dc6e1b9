"""All experiments by name: their parts, runs and combined results."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import genprior
from genprior import _validate
from genprior.engines import Engine
from genprior.lab.reproduce import compressive_sensing, defence, denoising, plateau, tuning
from genprior.lab.reproduce.claims import Claim, Results
from genprior.lab.reproduce.code import code_of
from genprior.lab.reproduce.contest import Setting
from genprior.lab.reproduce.defender import ATTACK, digits
from genprior.lab.reproduce.judging_defence import judge_defence
from genprior.lab.reproduce.judging_plateau import judge_plateau
from genprior.lab.reproduce.judging_races import judge_denoising, judge_sensing, judge_tuning
from genprior.lab.reproduce.methods import denoising_methods, sensing_methods
from genprior.lab.reproduce.parts import Found, Part, Progress, Store, run_parts, unique
from genprior.lab.reproduce.sizes import SIZES
from genprior.lab.reproduce.spread import PartsWork, spread_parts
from genprior.lab.workers import threads_of
from genprior.models.bundled import bundled_path


@dataclass(frozen=True)
class Experiment:
    """One of the paper's experiments."""

    name: str
    title: str
    parts: Callable[[Setting], list[Part]]
    judge: Callable[[Setting, Results], list[Claim]]
    prepare: Callable[[Setting], object] = lambda setting: None
    """Fetches the required data before the first part of all."""


EXPERIMENTS = {
    one.name: one
    for one in (
        Experiment(plateau.PREFIX, "Theory in practice", plateau.parts, judge_plateau),
        Experiment(tuning.PREFIX, "Tuning of gradient descent", tuning.parts, judge_tuning),
        Experiment(compressive_sensing.PREFIX, "Compressive sensing", compressive_sensing.parts, judge_sensing),
        Experiment(denoising.PREFIX, "Denoising in the l_inf norm", denoising.parts, judge_denoising),
        Experiment(defence.PREFIX, "Adversarial defence", defence.parts, judge_defence, partial(digits, count=1)),
    )
}
_COMPUTING = frozenset(one.parts.__module__ for one in EXPERIMENTS.values())
"""The modules on which, with all that they import, the numbers of parts depend."""


@dataclass(frozen=True)
class Reproduction:
    """The results of a run."""

    setting: Setting
    experiments: tuple[str, ...]
    parts: dict[str, Found]
    claims: list[Claim]
    folder: Path
    threads: int | None = None
    """Of what computed; None: as many as this process has."""

    def document(self) -> dict[str, Any]:
        """Everything as plain values. Only ``times`` and ``environment`` may differ between two runs of the same settings."""
        return {
            "settings": settings_of(self.setting, self.threads),
            "experiments": list(self.experiments),
            "claims": [asdict(claim) for claim in self.claims],
            "parts": {name: found.numbers for name, found in self.parts.items()},
            "times": {
                "all": sum(found.times["part_seconds"] for found in self.parts.values()),
                **{name: found.times for name, found in self.parts.items()},
            },
            "environment": environment(self.threads) | self._workers(),
        }

    def _workers(self) -> dict[str, int]:
        """The most workers that computed at a time, if there were any: they share what the machine has."""
        most = max((found.times.get("workers", 0) for found in self.parts.values()), default=0)
        return {"workers": most} if most else {}


def reproduce(
    names: Sequence[str],
    folder: str | Path,
    *,
    size: str = "full",
    seed: int = 0,
    device: str = "cpu",
    faces: str | Path | None = None,
    show: Callable[[Progress], object] = lambda progress: None,
    engine: Engine | None = None,
) -> Reproduction:
    """Run experiments in a folder; finished parts are not repeated and join the results.

    With an engine, its workers compute the parts, and ``show`` gets an ``OnWorkers``. The numbers are those of any other
    engine, or of none, with the same number of threads, and each of these can finish what another has begun.
    """
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown or not names:
        raise ValueError(f"there is no experiment {', '.join(unknown)!r}: give some of {', '.join(EXPERIMENTS)}")
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(SIZES)}, got {size!r}")
    _validate.seed(seed)
    setting = Setting(SIZES[size], seed, device, None if faces is None else Path(faces))
    settings = settings_of(setting, threads_of(engine))
    store = Store(Path(folder), settings)
    parts = unique(part for name in names for part in EXPERIMENTS[name].parts(setting))
    for name in names:
        EXPERIMENTS[name].prepare(setting)
    if engine is None:
        results = run_parts(parts, store, show)
    else:
        makers = tuple(EXPERIMENTS[name].parts for name in names)
        results = spread_parts(parts, store, PartsWork(makers, setting, settings, settings_of), engine, show)
    whole = [name for name in EXPERIMENTS if name in names or _finished(EXPERIMENTS[name], setting, store, results)]
    claims = [claim for name in whole for claim in EXPERIMENTS[name].judge(setting, results)]
    return Reproduction(setting, tuple(whole), results, claims, Path(folder), settings["threads"])


def _finished(experiment: Experiment, setting: Setting, store: Store, results: dict[str, Found]) -> bool:
    """Whether all parts of an experiment that was not asked for are in the folder; if so, they join the results."""
    found = {part.name: store.read(part.name) for part in experiment.parts(setting)}
    kept = {name: one for name, one in found.items() if one is not None}
    if len(kept) < len(found):
        return False
    results.update(kept)
    return True


def settings_of(setting: Setting, threads: int | None = None) -> dict[str, Any]:
    """Settings that must agree for parts to be combined; ``threads`` are those of a worker, if not of this process."""
    return {
        "genprior": version("genprior"),
        "code": _code(),
        "size": setting.size.name,
        "seed": setting.seed,
        "device": setting.device,
        "torch": torch.__version__,
        "threads": torch.get_num_threads() if threads is None else threads,
        "faces": None if setting.faces is None else _faces(setting),
        "sizes": _fingerprint(repr(setting.size).encode()),
        "methods": _fingerprint(repr(_methods(setting)).encode()),
        "networks": {
            f"{name}-{role}": _fingerprint(bundled_path(name, role).read_bytes())
            for name, role in (("mnist", "generator"), ("celeba", "generator"), ("mnist", "classifier"))
        },
    }


@cache
def _code() -> str:
    """Digest of the computing code; code that only judges or shows may change."""
    return code_of(_COMPUTING, Path(genprior.__file__).parents[1])


def _methods(setting: Setting) -> list[object]:
    """Every solver at two lengths of a run, every case, and the attack."""
    count = setting.size.settings
    sensed = [("mnist", share) for share in setting.size.digits.fractions]
    sensed += [("celeba", share) for share in setting.size.faces.fractions]
    fields = [sensing_methods(count, *field) for field in sensed]
    fields += [denoising_methods(count, norm) for norm in ("linf", "l1", "l2")]
    offered = [method.solvers(steps) for methods in fields for method in methods for steps in (100, 1000)]
    return [offered, denoising.CASES, plateau.DUALS, ATTACK]


def _faces(setting: Setting) -> str:
    """A digest of the user's own images, whatever their path."""
    count = setting.size.faces.pictures
    pair = [compressive_sensing.real_images(setting, "celeba", count, practice) for practice in (False, True)]
    return _fingerprint(torch.cat(pair).numpy().tobytes())


def environment(threads: int | None = None) -> dict[str, Any]:
    """Versions and machine; ``threads`` are those of a worker, if not of this process."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "system": platform.system(),
        "machine": platform.machine(),
        "processors": torch.get_num_threads() if threads is None else threads,
    }


def _fingerprint(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
