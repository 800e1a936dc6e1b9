"""Count what docs/theory.md quotes of Theorem 1: how often the printed bound breaks, how close runs come to the derived ones.

python tools/theorem_counts.py

The instances are those of tests/laws/test_theorem1.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.laws.test_theorem1 import holds, instance, printed_error_bound, run

from genprior.theory import Guarantee, Setting, corrected, sharpened

STEPS = 40


def printed() -> tuple[int, int, float]:
    """Instances that fit the paper's conditions, those that break its bound, and by how much at most."""
    fitting, ratios = 0, []
    for seed in range(60):
        for noise in (0.0, 0.1):
            case = instance(seed, eps=0.0, noise=noise, away=1.0, wide=False, ridge=(0.0, 0.0))
            rho = 0.2 * case.numbers["mu_L"]
            setting = Setting(**case.numbers, rho=rho, sigma=1e-7 * rho)
            bound, alpha, beta, fits = printed_error_bound(setting, STEPS)
            seen = run(case, corrected(setting), STEPS)
            ratio = (seen["signal"] ** 2 / alpha + seen["latent"] ** 2 / beta) / bound
            fitting += fits
            if fits and ratio.max() > 1:
                ratios.append(float(ratio.max()))
                assert ratio[0] > 1, "at the start already"
    return fitting, len(ratios), max(ratios)


def closest(statement: Callable[[Setting], Guarantee], eps: float) -> tuple[int, float]:
    """How many of 40 instances the statement applies to, and the largest ratio of a length to its bound."""
    applied, largest = 0, 0.0
    for seed in range(40):
        case = instance(seed, eps=eps, noise=0.05, away=0.2, wide=False, ridge=(0.0, 0.0))
        rho = (0.4 if statement is sharpened else 0.1) * case.numbers["mu_L"]
        guarantee = statement(Setting(**case.numbers, rho=rho, sigma=1e-3 * rho))
        if guarantee.applies:
            applied += 1
            largest = max(largest, *(float(ratio) for ratio in holds(case, guarantee, STEPS).values()))
    return applied, largest


if __name__ == "__main__":
    fitting, broken, factor = printed()
    print(f"printed bound: {broken} of {fitting} broken, by a factor of up to {factor:.3g}")
    for name, statement, eps in (
        ("sharpened, linear", sharpened, 0.0),
        ("sharpened, eps 0.01", sharpened, 0.01),
        ("corrected, linear", corrected, 0.0),
    ):
        applied, largest = closest(statement, eps)
        print(f"{name}: {applied} of 40 apply, largest ratio of a length to its bound {largest:.2f}")
