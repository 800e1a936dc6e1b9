"""
Super-resolution: faces from 16 x 16 blocks
===========================================

Each measured value is the mean of a block of 4 x 4 pixels: 768 numbers for an image of 12,288. The rows of this
``A`` are orthogonal, so that least squares needs no factorisation.

The faces are samples of the bundled generator: the truth lies in its range, and no real person is shown. Details
that appear here come from the generator. On a photograph of a person outside its range it would invent a plausible
face, **not that person's**: do not use such images to identify people.
"""

import matplotlib.pyplot as plt
import torch

import genprior as gp
from genprior.metrics import relative_error

torch.set_num_threads(1)
G = gp.load_generator("celeba")
truth = G(0.7 * G.sample_latent(6, seed=5)).detach()  # nearer to the prior mean: more typical faces

# %%
A = gp.operators.Downsample(4, G.signal_shape)
y = A(truth)
problem = gp.Problem(G, loss=gp.LeastSquares(A, y))
result = gp.solve(problem, stop=gp.MaxSteps(70), seed=0)

blocks = y.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)
for name, x in (("blocks", blocks), ("recovered", result.signal)):
    print(f"{name:10s} median error {relative_error(x, truth).median():.3f}")
gp.plot.strips({"truth\n(samples of G)": truth, "measured\n16 x 16": blocks, "recovered\n64 x 64": result.signal})

# %%
# The difference, amplified four times. Most faces are recovered to rounding; where one is not, its start ended in a poorer
# minimum, and its objective says so: ``restarts=4`` helps, for four times the work at first.

gp.plot.strips({"|difference| x 4": (4 * (result.signal - truth).abs()).clamp(max=1)})
plt.show()
