"""
Restarts: how to leave bad minima
=================================

The problem is not convex in the latent: some starts end in a minimum where a wrong digit half explains the data.
The objective shows it without the truth. ``restarts=k`` runs ``k`` starts of every item side by side, drops
the worse half after 25 steps, half of the rest after 50, and so on.
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp
from genprior import samples
from genprior.metrics import relative_error

torch.set_num_threads(1)
G = gp.load_generator("mnist")
digits, _ = samples.digits(12)
A = gp.operators.Gaussian(60, G.signal_shape, seed=0)
problem = gp.Problem(G, loss=gp.LeastSquares(A, A(digits)))

# %%
rows, numbers = {"truth": digits}, {}
for restarts in (1, 2, 8):
    result = gp.solve(problem, stop=gp.MaxSteps(70), restarts=restarts, seed=1)
    rows[f"{restarts} start{'s' * (restarts > 1)}"] = result.signal
    solved = float((relative_error(result.signal, digits) < 0.25).float().mean())
    numbers[restarts] = solved
    winners = sorted(set(result.restart.tolist()))
    print(f"{restarts}: {solved:.0%} of the digits below 25% error; winning starts {winners}")
gp.plot.strips(rows)

# %%
# Objective against error, one point per digit, for the last run. Points far to the right are wrong digits; their
# objective is higher as a rule: **check the objective before you trust an image**.

figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
axis.loglog(relative_error(result.signal, digits).numpy(), result.objective.numpy(), "o")
axis.set(xlabel="relative error (needs the truth)", ylabel="objective (does not)")
axis.grid(alpha=0.3, which="both")
plt.show()
