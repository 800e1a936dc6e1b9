"""The baselines' settings, chosen on other images of the same problem by what the race counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from genprior.lab.race.budgets import Budget
from genprior.lab.race.contenders import OURS, Entrant, at_edge, grids, untuned
from genprior.lab.race.methods import Baseline, Method, Watch
from genprior.lab.race.outcome import Run, first_time, most_within
from genprior.lab.race.problems import ERRORS, EXCESSES, Instance
from genprior.solvers import Choice

_FINALISTS = 2
"""Settings of a baseline that enter the second, longer tuning run."""


def run_one(contest: Instance, name: str, method: Method, seconds: float) -> Run:
    """One solver on one problem. Cached estimates are dropped first; a bundled preconditioner stays."""
    contest.problem.generator.forget()
    trace = method.run(contest, Watch(contest, seconds))
    return Run.of(name, seconds, trace)


@dataclass
class Tuning:
    """Tries settings on practice images. Where the objective counts, the best one that anyone found is kept."""

    practice: Instance
    budget: Budget
    quick: bool
    best: Tensor

    @classmethod
    def begun(cls, practice: Instance, budget: Budget, *, quick: bool) -> Tuning:
        """With what Auto finds as the best objectives so far; the first passes of a process, which are slow, are over then."""
        run = run_one(practice, OURS[0], untuned()[OURS[0]].method, budget.second_look)
        return cls(practice, budget, quick, run.objectives[-1])

    def field(self, announce: Callable[[str], object]) -> dict[str, Entrant]:
        """Every baseline: the best setting of its grid, then the best number of starts."""
        found: dict[str, Entrant] = {}
        for name, choices in grids(quick=self.quick, thinning=self.budget.thinning).items():
            announce(f"{self.practice.entry.key}: tuning {name}, {len(choices)} settings")
            found[name] = self.tuned(name, choices)
        return found

    def tuned(self, name: str, choices: list[Choice]) -> Entrant:
        """All settings for a short time, the best of these for a longer one, the best of all with more starts."""
        finalists = self._lowest(name, choices)[:_FINALISTS]
        runs = [self._tried(name, Baseline(choice), self.budget.second_look) for choice in finalists]
        scores = [self._score(run) for run in runs]
        chosen, score = finalists[scores.index(min(scores))], min(scores)
        best = Baseline(chosen)
        for starts in self.budget.starts[1:]:
            other = Baseline(chosen, starts)  # one that is later than the best so far has lost
            attempt = self._score(self._tried(name, other, min(self.budget.second_look, score[0])))
            if attempt < score:
                best, score = other, attempt
        edge, most = at_edge(chosen, choices), best.starts == self.budget.starts[-1]
        return Entrant(best, "baseline", edge, best.starts, most)

    def _lowest(self, name: str, choices: list[Choice]) -> list[Choice]:
        """From the lowest median objective after the first look to the highest."""
        ends = [self._tried(name, Baseline(choice), self.budget.first_look).objectives[-1] for choice in choices]
        scores = [float(end.median()) for end in ends]
        return [choices[number] for number in sorted(range(len(choices)), key=scores.__getitem__)]

    def _tried(self, name: str, method: Method, seconds: float) -> Run:
        run = run_one(self.practice, name, method, seconds)
        self.best = torch.minimum(self.best, run.objectives[-1])
        return run

    def _score(self, run: Run) -> tuple[float, float, float]:
        """Less is better: the time to the loose target, then the share that is not within it, then how far 90% are from it."""
        entry = self.practice.entry
        measure = run.measure(entry, self.best)
        target = (EXCESSES if entry.noisy else ERRORS)[0]
        time = first_time(run.seconds, measure, target)
        unsolved = float((measure[-1] > target).float().mean())
        return math.inf if time is None else time, unsolved, float(most_within(measure)[-1])
