"""Memory stays flat: many items in batches, many solves in a row."""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import torch

import genprior as gp
from genprior.models.examples import random_mlp

PEAK = """
import json, resource, sys
import torch
import genprior as gp
from genprior.models.examples import random_mlp

items = int(sys.argv[1])
generator = random_mlp(latent=20, hidden=64, signal_shape=(1, 28, 28))
operator = gp.operators.Gaussian(196, generator.signal_shape)
with torch.no_grad():
    y = operator(generator(generator.sample_latent(items, seed=1)))
result = gp.solve(
    gp.Problem(generator, gp.LeastSquares(operator, y)), gp.ExactADMM(), stop=gp.MaxSteps(15), batch_size=256, seed=2
)
assert result.signal.shape == (items, 1, 28, 28) and len(result.history) == items
assert bool(torch.isfinite(result.objective).all())
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
"""


def peak_kilobytes(items: int) -> int:
    done = subprocess.run([sys.executable, "-c", PEAK, str(items)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_ten_thousand_items_need_no_more_than_twice_the_memory_of_one_batch():
    one, many = peak_kilobytes(256), peak_kilobytes(10_000)
    assert many <= 2 * one, (one, many)


def test_solves_leave_nothing_behind():
    generator = random_mlp(4, 8, (16,))
    y = generator(generator.sample_latent(3, seed=1)).detach()
    problem = gp.Problem(generator, gp.SquaredDistance(y))

    def tensors_after_solving() -> int:
        for solver in (gp.ExactADMM(), gp.LBFGS()):
            gp.solve(problem, solver, stop=gp.MaxSteps(20), restarts=2)
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    tensors_after_solving()
    before = tensors_after_solving()
    assert tensors_after_solving() <= before
