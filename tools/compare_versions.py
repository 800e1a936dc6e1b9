"""Compare two versions of genprior on the problems of ``genprior bench race``: passes to the targets, or seconds per step.

    git worktree add ../old 13ee651
    python tools/compare_versions.py ../old/src src
    python tools/compare_versions.py ../old/src src --keys ad --seeds 0 1 2 3 --solver ExactADMM
    python tools/compare_versions.py ../old/src src --time

Each run is a process of its own with one thread, one at a time, with one of the two folders first on its path. Both
versions get the same generator, data and starts: truth, starts and signals at the starts must be equal bit by bit, the
objective at some signals up to rounding. Targets and their measures are those of the race: the median relative error
(5% and 1%), or, where data are noisy, the median objective over the best that either version found for the item (1.2
and 1.02).

A pass is one call of the generator's module or one pullback of it, for the whole batch, as ``View.forwards`` and
``View.backwards`` count them. Whatever a generator remembers is dropped before each run (``Generator.forget``), so that
each run pays once for a preconditioner that did not come with the generator. Numbers of passes do not depend on the
machine's load; seconds do: run ``--time`` on an idle machine.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ERRORS = (0.05, 0.01)
"""Targets where the data are exact."""
EXCESSES = (1.2, 1.02)
"""Targets where they are noisy."""
NEVER = 10**9
ITEMS = {"mnist": 20, "celeba": 10}
"""Items of a batch, as in the race."""
STEPS = {"mnist": 800, "celeba": 300}
"""Far beyond what the targets need."""
TIMED = (("a", "Auto", 100), ("d", "Auto", 100), ("a", "ExactADMM", 100), ("g", "Auto", 10), ("g", "ExactADMM", 10))
"""Key, solver and iterations of a turn of what is timed."""
TURNS = 24
"""Turns of each version: a second or two each, so that both meet the same load, clock and temperature of the machine."""


@dataclass(frozen=True)
class Task:
    """One run of one version."""

    key: str
    seed: int
    solver: str
    steps: int = 0
    """0: as many as :data:`STEPS` says."""
    tolerance: float = 1e-6


# -- in the process of one version -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """A task with the version in ``source``, ready to run."""

    gp: Any
    entry: Any
    contest: Any
    task: Task

    def solve(self, steps: int, callbacks: Sequence[Any] = ()) -> Any:
        """One run."""
        options = {"z0": self.contest.starts, "tolerance": self.task.tolerance, "patience": NEVER, "progress": False}
        solver, stop = getattr(self.gp, self.task.solver)(), self.gp.MaxSteps(steps)
        return self.gp.solve(self.contest.problem, solver, stop=stop, callbacks=callbacks, **options)

    def cpu_seconds(self, steps: int) -> float:
        """Processor seconds of one iteration, free of what happens once."""

        def of(count: int) -> float:
            begun = time.process_time()
            self.solve(count)
            return time.process_time() - begun

        return (of(steps) - of(0)) / steps


def prepare(task: Task, source: Path) -> Prepared:
    """The task, in this process."""
    torch.set_num_threads(1)
    gp = import_module("genprior")
    assert source in Path(gp.__file__).parents, f"genprior came from {gp.__file__}, not from {source}"
    package = source / "genprior"
    problems = import_module(f"genprior.{'lab' if (package / 'lab').is_dir() else 'experiments'}.race.problems")
    (entry,) = (entry for entry in problems.ENTRIES if entry.key == task.key)
    generator = gp.load_generator(entry.generator)
    contest = problems.instance(entry, generator, ITEMS[entry.generator], task.seed)
    generator.forget()
    return Prepared(gp, entry, contest, task)


def work(task: Task, source: Path, target: Path) -> None:
    """Do the task with the version in ``source``, and save what was seen."""
    prepared = prepare(task, source)
    seen = {"noisy": torch.tensor(prepared.entry.noisy)} | fingerprint(prepared.contest)
    record = Recorder(prepared.contest.truth)
    result = prepared.solve(task.steps or STEPS[prepared.entry.generator], [record])
    torch.save(seen | record.seen(result), target)


def take_turns(task: Task, source: Path) -> None:
    """Time as many iterations as each line of the standard input says, until it ends."""
    prepared = prepare(task, source)
    prepared.cpu_seconds(3)  # the first passes of a process are slow
    print("ready", flush=True)
    for line in sys.stdin:
        print(prepared.cpu_seconds(int(line)), flush=True)


def fingerprint(contest: Any) -> dict[str, Tensor]:
    """What distinguishes one problem from another."""
    with torch.no_grad():
        images = contest.problem.generator(contest.starts)
        probes = [images, contest.truth, 0.5 * images]
        objectives = [contest.problem.loss(x) + contest.problem.on_signal(x) for x in probes]
    return {"truth": contest.truth, "starts": contest.starts, "images": images, "probes": torch.stack(objectives)}


class Recorder:
    """A callback: passes so far, and objective and relative error of the best iterate by objective."""

    def __init__(self, truth: Tensor) -> None:
        self._truth = truth
        self._best = torch.full((len(truth),), torch.inf)
        self._error = torch.full((len(truth),), torch.inf)
        self._rows: list[tuple[int, Tensor, Tensor]] = []

    def __call__(self, view: Any) -> None:
        """Note one step."""
        better = view.state.objective < self._best[view.items]
        items = view.items[better]
        self._best[items] = view.state.objective[better]
        self._error[items] = self._errors(view.state.x[better], self._truth[items])
        self._rows.append((view.forwards + view.backwards, self._best.clone(), self._error.clone()))

    def seen(self, result: Any) -> dict[str, Tensor]:
        """Everything, with the result at the end."""
        end = (result.forwards + result.backwards, result.objective, self._errors(result.signal, self._truth))
        passes, objectives, errors = zip(*self._rows, end, strict=True)
        return {"passes": torch.tensor(passes), "objectives": torch.stack(objectives), "errors": torch.stack(errors)}

    @staticmethod
    def _errors(signals: Tensor, truth: Tensor) -> Tensor:
        return (signals - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)


# -- in the process that compares --------------------------------------------------------------------------------------


def command(source: Path, task: Task, target: Path | None = None) -> dict[str, Any]:
    """What starts a process with that version: one that does the task, or one that takes turns at it."""
    words = [f"{name}={value}" for name, value in asdict(task).items()]
    return {
        "args": [sys.executable, __file__, "--worker", str(source), str(target or ""), *words],
        "env": os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
    }


def run(source: Path, task: Task) -> dict[str, Tensor]:
    """What a process of its own saw with the version in ``source``."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "seen.pt"
        subprocess.run(**command(source, task, target), check=True)
        seen: dict[str, Tensor] = torch.load(target, weights_only=True)
        return seen


class Timer:
    """A process with one version, which times iterations when asked."""

    def __init__(self, source: Path, task: Task) -> None:
        self._process = subprocess.Popen(
            **command(source, task), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._line()

    def seconds(self, steps: int) -> float:
        """Processor seconds of one iteration."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        return float(self._line())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "a worker ended early"
        return line


def must_be_same(old: dict[str, Tensor], new: dict[str, Tensor], task: Task) -> None:
    """The two versions solved the same problem from the same starts."""
    for name in ("truth", "starts", "images"):
        assert torch.equal(old[name], new[name]), f"problem {task.key}, seed {task.seed}: the versions differ in {name}"
    assert torch.allclose(old["probes"], new["probes"], rtol=1e-4), f"problem {task.key}, seed {task.seed}: other data"


def measures(old: dict[str, Tensor], new: dict[str, Tensor]) -> tuple[Tensor, Tensor, tuple[float, float]]:
    """``(T, B)`` of both versions, and the targets."""
    if not old["noisy"]:
        return old["errors"], new["errors"], ERRORS
    best = torch.minimum(old["objectives"][-1], new["objectives"][-1]).clamp_min(1e-30)
    return old["objectives"] / best, new["objectives"] / best, EXCESSES


def first(passes: Tensor, values: Tensor, target: float) -> float:
    """Passes after which a value ``(T,)`` first was at most the target; infinite: never."""
    place = (values <= target).nonzero()
    return float(passes[place[0, 0]]) if len(place) else math.inf


@dataclass
class Ratios:
    """Passes of the new version over those of the old one, gathered over problems and seeds."""

    runs: list[float]
    items: list[float]
    only_old: int = 0
    only_new: int = 0

    def note(self, old: float, new: float, *, item: bool) -> None:
        """One pair; where only one version arrived, it is counted by its name."""
        if math.isfinite(old) and math.isfinite(new):
            (self.items if item else self.runs).append(new / old)
        elif not item:
            self.only_old += math.isfinite(old)
            self.only_new += math.isfinite(new)

    def __str__(self) -> str:
        text = f"medians {mean_and_error(self.runs)}, single items {mean_and_error(self.items)}"
        return f"{text}; reached by the old version only {self.only_old}, by the new one only {self.only_new}"


def mean_and_error(ratios: list[float]) -> str:
    """The geometric mean, with its standard error."""
    if len(ratios) < 2:
        return f"{ratios[0]:.3f}" if ratios else "-"
    logs = [math.log(ratio) for ratio in ratios]
    mean = math.exp(statistics.fmean(logs))
    return f"{mean:.3f} +- {mean * statistics.stdev(logs) / math.sqrt(len(logs)):.3f} ({len(logs)})"


def compare_passes(old_source: Path, new_source: Path, keys: str, seeds: list[int], solver: str, steps: int) -> None:
    """Print the passes of both versions to both targets."""
    print("             loose target            tight target           solved at the end")
    print("problem seed   old    new  ratio      old    new  ratio      old    new   median measure at the end")
    ratios, solved = (Ratios([], []), Ratios([], [])), []
    for key in keys:
        for seed in seeds:
            task = Task(key, seed, solver, steps)
            old, new = run(old_source, task), run(new_source, task)
            must_be_same(old, new, task)
            before, after, targets = measures(old, new)
            cells = []
            for ratio, target in zip(ratios, targets, strict=True):
                pair = [first(s["passes"], m.median(dim=1).values, target) for s, m in ((old, before), (new, after))]
                ratio.note(*pair, item=False)
                shown = f"{pair[1] / pair[0]:.2f}" if all(map(math.isfinite, pair)) else "-"
                cells.append(f"{pair[0]:6.0f} {pair[1]:6.0f} {shown:>6}")
                for one, other in zip(before.T, after.T, strict=True):
                    ratio.note(first(old["passes"], one, target), first(new["passes"], other, target), item=True)
            shares = [float((m[-1] <= targets[0]).float().mean()) for m in (before, after)]
            solved.append(shares)
            ends = f"{float(before[-1].median()):9.3g} {float(after[-1].median()):9.3g}"
            print(f"{key:>7} {seed:4} {'   '.join(cells)}   {shares[0]:6.2f} {shares[1]:6.2f}   {ends}", flush=True)
    print("geometric means of the ratios, with standard errors and counts")
    for name, ratio in zip(("loose", "tight"), ratios, strict=True):
        print(f"{name}: {ratio}")
    print(
        "share solved, mean: old {:.3f}, new {:.3f}".format(*(statistics.fmean(s) for s in zip(*solved, strict=True)))
    )


def compare_seconds(old_source: Path, new_source: Path, timed: Sequence[tuple[str, str, int]]) -> None:
    """Print processor seconds per iteration, of processes that take turns of a second or two."""
    print("problem     solver   old ms   new ms   ratio of medians   median ratio of a turn, quartiles")
    for key, solver, steps in timed:
        task = Task(key, 0, solver, steps, tolerance=0.0)
        timers = [Timer(source, task) for source in (old_source, new_source)]
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(TURNS):
            for place in (0, 1) if number % 2 == 0 else (1, 0):
                times[place].append(timers[place].seconds(steps))
        for timer in timers:
            timer.close()
        old, new = (1000 * statistics.median(of) for of in times)
        ratios = [n / o for o, n in zip(*times, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{key:>7} {solver:>10} {old:8.3f} {new:8.3f} {new / old:10.3f}   {middle:16.3f}  {low:.3f} {high:.3f}",
            flush=True,
        )


def main() -> None:
    """Read the command line."""
    if sys.argv[1:2] == ["--worker"]:
        source, target, *words = sys.argv[2:]
        given = dict(word.split("=", 1) for word in words)
        numbers = {"seed": int(given["seed"]), "steps": int(given["steps"]), "tolerance": float(given["tolerance"])}
        task = Task(given["key"], solver=given["solver"], **numbers)
        if target:
            work(task, Path(source), Path(target))
        else:
            take_turns(task, Path(source))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="source folder of the old version")
    parser.add_argument("new", type=Path, help="source folder of the new version")
    parser.add_argument("--keys", default="abcdefgh", help="problems of the race")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--solver", default="Auto", help="name of a solver in genprior, with its default options")
    parser.add_argument("--steps", type=int, default=0, help="iterations; by default more than the targets need")
    parser.add_argument("--time", action="store_true", help="processor seconds per iteration, in place of passes")
    options = parser.parse_args()
    old, new = options.old.resolve(), options.new.resolve()
    if options.time:
        compare_seconds(old, new, [entry for entry in TIMED if entry[0] in options.keys])
    else:
        compare_passes(old, new, options.keys, options.seeds, options.solver, options.steps)


if __name__ == "__main__":
    main()
