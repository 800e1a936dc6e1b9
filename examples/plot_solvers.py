"""
The solvers side by side
========================

The same problem and the same start for every solver, with default steps. ``result.history`` has the columns of a run
for every item. An iteration of ADMM costs one forward and one backward pass, like one of gradient descent, so
passes are a fair unit for these.
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp
from genprior.metrics import relative_error

torch.set_num_threads(1)
G = gp.load_generator("mnist")
truth = G(G.sample_latent(6, seed=4)).detach()  # in the range: the error can go to zero
A = gp.operators.Gaussian(200, G.signal_shape, seed=0)
problem = gp.Problem(G, loss=gp.LeastSquares(A, A(truth)))
solvers = {
    "gradient descent": gp.GradientDescent(),
    "Adam": gp.Adam(),
    "L-BFGS": gp.LBFGS(),
    "linearized ADMM": gp.LinearizedADMM(),
    "exact ADMM": gp.ExactADMM(),
    "Auto": gp.Auto(),
}

# %%
results = {
    name: gp.solve(problem, solver, stop=gp.MaxPasses(200), seed=0, patience=10**6) for name, solver in solvers.items()
}
gp.plot.strips({"truth": truth, **{name: result.signal for name, result in results.items()}})

# %%
figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
for name, result in results.items():
    columns = [result.history.item(i) for i in range(len(truth))]
    length = min(len(c["objective"]) for c in columns)
    best = torch.stack([c["objective"][:length].cummin(0).values for c in columns]).median(dim=0).values
    passes = (columns[0]["forwards"] + columns[0]["backwards"])[:length]
    axis.semilogy(passes.numpy(), best.numpy(), label=name)
    print(f"{name:17s} median error {relative_error(result.signal, truth).median():.4f}")
axis.set(xlabel="forward + backward passes", ylabel="median of the best objective")
axis.grid(alpha=0.3, which="both")
axis.legend(fontsize=9)
plt.show()
