"""Phase retrieval with the bundled digits: the default call beside tuned Adam and L-BFGS with 8 random restarts.

    python tools/measure_phase_retrieval.py default 1 2 3    # 50 samples of the generator for each seed, half a minute each
    python tools/measure_phase_retrieval.py real 0 50        # 50 real test digits from each number on
    python tools/measure_phase_retrieval.py baselines 1      # tuned on other samples; ten minutes

Magnitudes of m = 200 random projections, exact data. Solved is an item within 5% of the truth; a global sign is fixed by
the range of the generator. Printed are counts, passes and CPU seconds of this process, one line of JSON each.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor

import genprior as gp
from genprior.metrics import relative_error
from genprior.training.data.digits import mnist

ITEMS, M, SOLVED, RESTARTS = 50, 200, 0.05, 8
NO_CULLING = 10**9
"""Steps before restarts are culled: baselines keep all of theirs."""
TUNED_ON, TUNING_ITEMS, TUNING_STEPS = 77, 16, 400
CONTENDERS: list[list[gp.Choice]] = [
    [gp.Adam(step_size=step) for step in (0.01, 0.03, 0.1, 0.3)],
    [gp.LBFGS(memory=memory) for memory in (10, 40)],
]


class Phases:
    """The problem, for any signals."""

    def __init__(self) -> None:
        self.G = gp.load_generator("mnist")
        self.A = gp.operators.Gaussian(M, self.G.signal_shape, seed=0)

    def forward(self, x: Tensor) -> Tensor:
        """Magnitudes."""
        return self.A(x).abs()

    def samples(self, seed: int, count: int = ITEMS) -> Tensor:
        """Signals in the range."""
        with torch.no_grad():
            return self.G(self.G.sample_latent(count, seed=seed))

    def problem(self, x: Tensor) -> gp.Problem:
        """From exact magnitudes."""
        return gp.Problem(self.G, loss=gp.NonLinear(self.forward, self.forward(x)))

    def starts(self, count: int, seed: int) -> Tensor:
        """Random ones, the same for all baselines."""
        return self.G.sample_latent(count * RESTARTS, seed=seed).reshape(count, RESTARTS, *self.G.latent_shape)


def measured(name: str, x: Tensor, solve: Callable[[], gp.Result]) -> Tensor:
    """One line of figures, and the errors."""
    begun = time.process_time()
    result = solve()
    seconds = time.process_time() - begun
    error = relative_error(result.signal, x)
    facts = {
        "run": name,
        "solved": int((error < SOLVED).sum()),
        "of": len(x),
        "median_error": round(float(error.median()), 5),
        "worst": [round(value, 3) for value in error.topk(3).values.tolist()],
        "passes": result.forwards + result.backwards,
        "cpu_seconds": round(seconds, 1),
    }
    print(json.dumps(facts), flush=True)
    return error


def default(phases: Phases, seed: int) -> None:
    """``gp.solve(problem)`` on samples of the generator."""
    x = phases.samples(seed)
    problem = phases.problem(x)
    measured(f"default, seed {seed}", x, lambda: gp.solve(problem, progress=False))


def real(phases: Phases, first: int) -> None:
    """The same on real digits, beside least squares on the projections with their signs: how near the range comes."""
    x = torch.as_tensor(mnist("test").bytes[first : first + ITEMS]).float() / 255
    problem = phases.problem(x)
    signed = gp.Problem(phases.G, loss=gp.LeastSquares(phases.A, phases.A(x)))
    error = measured(f"real digits from {first}", x, lambda: gp.solve(problem, progress=False))
    beside = measured(f"the same with signs, from {first}", x, lambda: gp.solve(signed, progress=False))
    near = int((error < 1.25 * beside).sum())
    print(json.dumps({"within 25% of the error with signs": near, "of": len(x)}), flush=True)


def baselines(phases: Phases, seed: int) -> None:
    """Adam and L-BFGS, each with the option that solves most on other samples."""
    tuning, x = phases.samples(TUNED_ON, TUNING_ITEMS), phases.samples(seed)
    hard, problem = phases.problem(tuning), phases.problem(x)
    few, starts = phases.starts(TUNING_ITEMS, 900), phases.starts(ITEMS, 901 + seed)
    for contenders in CONTENDERS:
        tried = []
        for contender in contenders:
            stop = gp.MaxSteps(TUNING_STEPS)
            found = gp.solve(
                hard, contender, z0=few, restarts=RESTARTS, cull_after=NO_CULLING, stop=stop, progress=False
            )
            error = relative_error(found.signal, tuning)
            tried.append((-int((error < SOLVED).sum()), float(error.median()), contender))
        best = min(tried, key=lambda one: one[:2])[2]
        measured(
            f"{best!r}, {RESTARTS} restarts, seed {seed}",
            x,
            lambda best=best: gp.solve(
                problem, best, z0=starts, restarts=RESTARTS, cull_after=NO_CULLING, progress=False
            ),
        )


def main() -> None:
    """As the docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("default", "real", "baselines"))
    parser.add_argument("numbers", type=int, nargs="+", help="seeds, or numbers of first digits")
    given = parser.parse_args()
    torch.set_num_threads(1)
    phases = Phases()
    run = {"default": default, "real": real, "baselines": baselines}[given.what]
    for number in given.numbers:
        run(phases, number)


if __name__ == "__main__":
    main()
