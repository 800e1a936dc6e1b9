"""
Phase retrieval: the signs of the measurements are lost
=======================================================

A detector sees intensities: of random projections ``A x`` only the magnitudes are measured. ``gp.NonLinear`` takes any
differentiable forward model. Its loss is not convex, and many starts end at a wrong pattern of signs; so every item begins
at the sample of the generator whose magnitudes are nearest to its own.
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp
from genprior import samples
from genprior.metrics import relative_error

torch.set_num_threads(1)
G = gp.load_generator("mnist")
digits, _ = samples.digits(12)
A = gp.operators.Gaussian(250, G.signal_shape, seed=0)


def forward(x):
    return A(x).abs()


y = forward(digits)

# %%
# A small ridge keeps the latents of real digits, which the generator cannot make exactly, from wandering off.

problem = gp.Problem(G, loss=gp.NonLinear(forward, y), on_latent=1e-3 * gp.SquaredL2())
stop = gp.MaxSteps(150)
random = gp.solve(problem, stop=stop, z0=G.sample_latent(len(y), seed=1), restarts=1)
nearest = gp.solve(problem, stop=stop, seed=0)

# %%
# For comparison: the same projections with their signs.

linear = gp.Problem(G, loss=gp.LeastSquares(A, A(digits)), on_latent=1e-3 * gp.SquaredL2())
signed = gp.solve(linear, stop=stop, seed=0)
found = {"one random\nstart": random, "nearest\nsamples": nearest, "with the signs": signed}
for name, each in found.items():
    error = relative_error(each.signal, digits)
    line = f"median error {error.median():.3f}, above 0.5: {int((error > 0.5).sum())} of {len(y)}"
    print(f"{name.replace(chr(10), ' '):28s} {line}")
gp.plot.strips({"truth": digits} | {name: each.signal for name, each in found.items()})
plt.show()
